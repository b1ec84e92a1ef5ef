//! Writes the finalizer that `--workload-finalizer` puts on Workloads, as `gang/workload/finalizer` says.

use super::context::Context;
use super::gang::Reconciled;
use crate::api::Workload;
use crate::effects::workload_marks::{add_finalizer, unmark_workload};
use crate::error::Error;
use crate::gang::release::uninstall::WorkloadMarks;
use crate::gang::workload::finalizer::{has_finalizer, is_missing, is_needed, is_overdue, release_at};
use crate::gang::workload::other_installations::OtherInstallations;
use jiff::Timestamp;

/// Adds the finalizer to a Workload that may get nodes, if the flag is set.
pub async fn take(context: &Context, workload: &mut Workload) -> Result<(), Error> {
    if is_missing(workload, context.options.workload_finalizer) {
        *workload = add_finalizer(context.client_for(workload), workload).await?;
        context.gang_state.registry.wrote(workload);
    }
    Ok(())
}

/// Releases a Workload that has been in deletion for too long. Returns whether it did.
pub async fn let_go_late(context: &Context, workload: &Workload) -> Result<bool, Error> {
    let late = is_overdue(workload, context.now());
    if late {
        unmark_workload(context.client_for(workload), workload, &WorkloadMarks::FINALIZER).await?;
    }
    Ok(late)
}

/// Releases a Workload that holds nothing. For others, returns when they are released in any case.
pub async fn let_go(
    context: &Context,
    workload: &Workload,
    results: &[Reconciled],
    others: OtherInstallations,
) -> Result<Option<Timestamp>, Error> {
    if !has_finalizer(workload) {
        return Ok(None);
    }
    let has_nodes = results.iter().any(|result| result.holds);
    if is_needed(workload, context.options.workload_finalizer, has_nodes, others) {
        return Ok(release_at(workload));
    }
    unmark_workload(context.client_for(workload), workload, &WorkloadMarks::FINALIZER).await?;
    Ok(None)
}
