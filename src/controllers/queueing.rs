//! Keeps Workloads of refused gangs out of Kueue's queue.

use super::context::Context;
use super::gang::Reconciled;
use super::others::Others;
use crate::api::Workload;
use crate::effects::requeued::{self, Queueing};
use crate::error::Error;

/// Takes a Workload out of Kueue's queue, or puts it back, as its gangs' reconciles require. Runs after its checks are
/// written, so that their old state does not get it refused at once.
pub(super) async fn settle(
    context: &Context,
    workload: &mut Workload,
    results: &[Reconciled],
    others: Others,
) -> Result<(), Error> {
    if workload.request_name().is_some() {
        // Kueue queues the Workload that owns it.
        return Ok(());
    }
    let is_kept_out = results.iter().any(|result| result.queueing == Queueing::KeptOut);
    let wanted = if is_kept_out { Queueing::KeptOut } else { Queueing::Allowed };
    // Another Setu that keeps it out also puts it back.
    let may_write = is_kept_out || !others.may_refuse;
    if may_write && wanted != Queueing::of(workload) {
        let client = context.client_of(workload.metadata.uid.as_deref().unwrap_or_default());
        *workload = requeued::apply(client, workload, wanted, context.now()).await?;
        context.of_gangs.registry.wrote(workload);
    }
    Ok(())
}
