//! The finalizer on Workloads, which only `--workload-finalizer` puts there: a Workload that may have nodes
//! stays until they are gone and its last transition is recorded.
//!
//! Rule: it never outlasts what it is for. Whoever finds it where nothing is held takes it off, with the
//! flag or without, but for what may be another Setu's; and a Workload that is being deleted is let go after [`PATIENCE`]
//! whatever is left, because the nodes are swept without it.

use super::context::Context;
use super::gang::Reconciled;
use super::others::Others;
use crate::api::Workload;
use crate::effects::handover::{Annotations, hold_workload, release_workload};
use crate::error::Error;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, ResourceExt};

/// How long a Workload that is being deleted is kept for its nodes.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Takes hold of a Workload that may get nodes, where that is asked for.
pub async fn take(context: &Context, workload: &mut Workload) -> Result<(), Error> {
    if context.options.workload_finalizer && may_get_nodes(workload) && !is_held(workload) {
        *workload = hold_workload(client_of(context, workload), workload).await?;
        context.of_gangs.own_writes.note(workload);
    }
    Ok(())
}

/// Lets a Workload go that has been deleted for too long, whatever it has: nothing that fails at its gangs may
/// keep its namespace. Returns whether it did.
pub async fn let_go_late(context: &Context, workload: &Workload) -> Result<bool, Error> {
    let late = is_held(workload) && end(workload).is_some_and(|end| end <= context.now());
    if late {
        release_workload(client_of(context, workload), workload, Annotations::Keep).await?;
    }
    Ok(late)
}

/// Lets a Workload go that has nothing any more. Returns when one is let go that has.
pub async fn let_go(
    context: &Context,
    workload: &Workload,
    looks: &[Reconciled],
    others: Others,
) -> Result<Option<Timestamp>, Error> {
    if !is_held(workload) {
        return Ok(None);
    }
    let has_nodes = looks.iter().any(|look| look.holds);
    let wanted = context.options.workload_finalizer && may_get_nodes(workload);
    if wanted || has_nodes || others.may_hold {
        return Ok(end(workload));
    }
    release_workload(client_of(context, workload), workload, Annotations::Keep).await?;
    Ok(None)
}

/// When one that is being deleted is let go whatever it has.
fn end(workload: &Workload) -> Option<Timestamp> {
    workload.metadata.deletion_timestamp.as_ref()?.0.checked_add(PATIENCE).ok()
}

/// Whether the finalizer is on it.
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
