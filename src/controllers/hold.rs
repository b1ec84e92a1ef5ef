//! The finalizer on Workloads, which only `--workload-finalizer` puts there: a Workload that may have nodes
//! stays until they are gone and its last transition is recorded.
//!
//! Rule: it never outlasts what it is for. Whoever finds it where nothing is held takes it off, with the
//! flag or without; and a Workload that is being deleted is let go after [`PATIENCE`] whatever is left,
//! because the nodes are swept without it.

use super::context::Context;
use super::gang::Looked;
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
        context.own_writes.note(workload);
    }
    Ok(())
}

/// Lets a Workload go that has nothing any more. Returns when one is let go that has.
pub async fn let_go(
    context: &Context,
    workload: &Workload,
    looks: &[Looked],
) -> Result<Option<Timestamp>, Error> {
    if !is_held(workload) {
        return Ok(None);
    }
    let deleted = workload.metadata.deletion_timestamp.as_ref().map(|t| t.0);
    let end = deleted.and_then(|t| t.checked_add(PATIENCE).ok());
    let has_nodes = looks.iter().any(|look| look.holds);
    let wanted = context.options.workload_finalizer && may_get_nodes(workload);
    let out_of_patience = end.is_some_and(|end| end <= context.now());
    if (wanted || has_nodes) && !out_of_patience {
        return Ok(end);
    }
    release_workload(client_of(context, workload), workload, Annotations::Keep).await?;
    Ok(None)
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
    workload.is("QuotaReserved") && !over
}
