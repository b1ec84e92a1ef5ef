//! The finalizer that `--workload-finalizer` puts on Workloads: a Workload that may have nodes stays until they are gone
//! and its last transition is recorded.
//!
//! Rule: it never stays longer than needed. With or without the flag it is removed where nothing is held, unless it may
//! be another Setu's. A Workload that is being deleted is released after [`PATIENCE`] in any case, because its nodes are
//! swept without it.

use super::context::Context;
use super::gang::Reconciled;
use super::others::Others;
use crate::api::Workload;
use crate::effects::handover::{Annotations, hold_workload, release_workload};
use crate::error::Error;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, ResourceExt};

/// How long a Workload that is being deleted waits for its nodes.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Adds the finalizer to a Workload that may get nodes, if the flag is set.
pub async fn take(context: &Context, workload: &mut Workload) -> Result<(), Error> {
    if context.options.workload_finalizer && may_get_nodes(workload) && !is_held(workload) {
        *workload = hold_workload(client_of(context, workload), workload).await?;
        context.of_gangs.registry.wrote(workload);
    }
    Ok(())
}

/// Releases a Workload that has been in deletion for too long, whatever it holds: a failing gang must not block its
/// namespace. Returns whether it did.
pub async fn let_go_late(context: &Context, workload: &Workload) -> Result<bool, Error> {
    let late = is_held(workload) && end(workload).is_some_and(|end| end <= context.now());
    if late {
        release_workload(client_of(context, workload), workload, Annotations::Keep).await?;
    }
    Ok(late)
}

/// Releases a Workload that holds nothing. For others, returns when they are released in any case.
pub async fn let_go(
    context: &Context,
    workload: &Workload,
    results: &[Reconciled],
    others: Others,
) -> Result<Option<Timestamp>, Error> {
    if !is_held(workload) {
        return Ok(None);
    }
    let has_nodes = results.iter().any(|result| result.holds);
    let wanted = context.options.workload_finalizer && may_get_nodes(workload);
    if wanted || has_nodes || others.may_hold {
        return Ok(end(workload));
    }
    release_workload(client_of(context, workload), workload, Annotations::Keep).await?;
    Ok(None)
}

/// When a Workload that is being deleted is released, whatever it holds.
fn end(workload: &Workload) -> Option<Timestamp> {
    workload.metadata.deletion_timestamp.as_ref()?.0.checked_add(PATIENCE).ok()
}

/// Whether the Workload has the finalizer.
pub fn is_held(workload: &Workload) -> bool {
    workload.finalizers().iter().any(|f| f == names::FINALIZER)
}

fn client_of<'c>(context: &'c Context, workload: &Workload) -> &'c Client {
    context.client_of(workload.metadata.uid.as_deref().unwrap_or_default())
}

fn may_get_nodes(workload: &Workload) -> bool {
    let over = workload.metadata.deletion_timestamp.is_some() || workload.is("Finished");
    workload.is("QuotaReserved") && !over && workload.request_name().is_none()
}
