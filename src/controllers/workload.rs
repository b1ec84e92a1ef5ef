//! The main loop: one reconcile of a Workload drives each of its gangs as far as it can go, and then reports the results
//! of all gangs to Kueue in one write.

use super::context::Context;
use super::finalizer;
use super::gang::{Gang, LeftAlone, Reconciled};
use super::own_write::CacheLag;
use super::queue::{Action, QueueKey};
use super::standalone;
use super::summary::BY_WORKLOAD;
use crate::api::workload::{CheckState, Verdict};
use crate::api::{FrontEnd, Workload};
use crate::cluster::backoff::doubled;
use crate::effects::events::Moment;
use crate::effects::{journal, request, requeued, verdict};
use crate::error::{Class, Error};
use crate::gang::identity::gang_id;
use crate::gang::report::notice::Notice;
use crate::gang::workload::other_installations::{OtherInstallations, is_kueues};
use crate::gang::workload::queueing::Queueing;
use crate::gang::workload::request::own_check;
use crate::telemetry::metrics;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a Workload is reconciled whose checks have no gang yet.
const SAFETY_NET: Duration = Duration::from_mins(1);
/// For this long after a reservation no progress is reported: many gangs may begin at once, and then the API server has
/// their NodeClaims to write.
const SETTLING: SignedDuration = SignedDuration::from_secs(2);
/// How long to wait for a lagging cache.
const CATCH_UP: Duration = Duration::from_millis(500);
/// The pause after a reconcile, per NodeClaim. Each NodeClaim and its Node change a dozen times until they are ready, and
/// each reconcile goes through all of them.
const PAUSE: Duration = Duration::from_micros(250);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How soon a reconcile is repeated after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);
/// How soon a failed reconcile is repeated; each further failure doubles it.
const FIRST_RETRY: Duration = Duration::from_millis(400);
/// The longest time between failed reconciles.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// The flow of a Workload: its LocalQueue.
pub fn flow(key: &QueueKey, context: &Context) -> String {
    let known = context.stores.workloads.entry(&key.object());
    known.map_or_else(|| key.flow(), |workload| workload.local_queue.clone())
}

/// Reconciles one Workload.
pub async fn reconcile(workload: Arc<Workload>, context: Arc<Context>) -> Result<Action, Error> {
    let (key, began) = (QueueKey::of(&*workload), Instant::now());
    if !context.acts_for(workload.metadata.uid.as_deref().unwrap_or_default()) {
        // The next leader of its shard reconciles it.
        context.gang_state.waiting.served(&key, began);
        return Ok(Action::await_change());
    }
    let Some(workload) = current(workload, &context).await? else {
        // The watch will deliver our own write, and this Workload with it.
        return Ok(Action::requeue(CATCH_UP));
    };
    if finalizer::let_go_late(&context, &workload).await? {
        // If another finalizer holds it too, the watch delivers it again.
        return Ok(Action::await_change());
    }
    // An error must not keep the gangs from their nodes.
    let due = standalone::reconcile(&context, &workload).await;
    let (checks, mut workload) = (our_checks(&workload, &context), (*workload).clone());
    let others = OtherInstallations::of(&workload, |check| is_others(&context, check), context.now());
    let uid = workload.uid().unwrap_or_default();
    context.forget_without_check(&workload, &checks);
    if checks.is_empty() {
        let due = due?;
        write_queueing(&context, &mut workload, &[], others).await?;
        finalizer::let_go(&context, &workload, &[], others).await?;
        context.gang_state.waiting.served(&key, began);
        context.gang_state.registry.succeeded(&uid);
        return Ok(due.map_or_else(Action::await_change, |_| requeue_after(&context, &[], due)));
    }
    context.gang_state.registry.add(&uid, checks.iter().map(|check| gang_id(&uid, check)));
    finalizer::take(&context, &mut workload).await?;
    let Gangs { results, left_alone, failed } = reconcile_gangs(&context, &mut workload, &checks).await;
    let written =
        write_entries(&context, &mut workload, &results, context.gang_state.waiting.since(&key)).await;
    let later = failed.map_or(written, Err)?;
    if !left_alone {
        write_queueing(&context, &mut workload, &results, others).await?;
    }
    let let_go =
        if left_alone { None } else { finalizer::let_go(&context, &workload, &results, others).await? };
    let due = later.into_iter().chain(let_go).chain(due?).min();
    context.gang_state.waiting.served(&key, began);
    context.gang_state.registry.succeeded(&uid);
    Ok(requeue_after(&context, &results, due).pausing(pause_of(&workload, &context)))
}

/// The gangs of a Workload after their reconciles.
#[derive(Default)]
struct Gangs {
    results: Vec<Reconciled>,
    /// Whether one was left alone.
    left_alone: bool,
    /// The first failure of one, which does not hold up the others.
    failed: Option<Error>,
}

/// Reconciles the gangs of a Workload under these checks.
async fn reconcile_gangs(context: &Context, workload: &mut Workload, checks: &[String]) -> Gangs {
    let mut gangs = Gangs::default();
    for check in checks {
        match Gang::open(context, workload, check, checks) {
            Ok(Some(gang)) => match gang.reconcile(workload).await {
                Ok(result) => gangs.results.push(result),
                Err(error) => {
                    gangs.results.extend(tell_refusal(context, workload, check, &error));
                    gangs.failed = gangs.failed.or(Some(error));
                }
            },
            Ok(None) => {}
            Err(LeftAlone) => gangs.left_alone = true,
        }
    }
    gangs
}

/// Tells the owner of a Workload that a gang's journal is refused, if this error says so. Returns what the gang's check is to say
/// then.
fn tell_refusal(context: &Context, workload: &Workload, check: &str, error: &Error) -> Option<Reconciled> {
    let notice = Notice::of_refused_journal(&journal::refusal(error)?);
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    if context.gang_state.registry.note_notice(uid, &format!("{check}: {}", notice.text)) {
        context.events.publish(workload, Moment { check, seq: 0, at: context.now() }, &notice);
    }
    let old =
        workload.check(check).filter(|old| old.state == Verdict::Pending && old.message != notice.text)?;
    Some(Reconciled::refused(CheckState { message: notice.text, ..old.clone() }))
}

/// The Workload with our last write: from the cache, or read by name if the watch is overdue. `None` while the watch may
/// still deliver it, or once the Workload is gone.
async fn current(cached: Arc<Workload>, context: &Context) -> Result<Option<Arc<Workload>>, Error> {
    match context.gang_state.registry.advance_cache_lag(&cached) {
        CacheLag::Current => return Ok(Some(cached)),
        CacheLag::Behind => return Ok(None),
        CacheLag::Overdue => {}
    }
    tracing::debug!(workload = cached.full_name(), "the cache lags behind, reading the Workload");
    let read = context.read_workload(&ObjectRef::from_obj(&*cached)).await?;
    let found = read.and_then(|found| found.0.ok()).filter(|found| found.metadata.uid == cached.metadata.uid);
    if let Some(found) = &found {
        context.gang_state.registry.was_read(found);
    }
    Ok(found.map(Arc::new))
}

/// Checks of ours that the Workload carries or has a journal for, sorted.
fn our_checks(workload: &Workload, context: &Context) -> Vec<String> {
    if !workload.front_end().has_own_checks() {
        // A request that is not served any more may still have nodes.
        return own_check(workload).map_or_else(
            || workload.checks_of_gangs().into_iter().map(str::to_owned).collect(),
            |check| vec![check.name.clone()],
        );
    }
    workload.checks_of_gangs().into_iter().filter(|c| context.is_ours(c)).map(str::to_owned).collect()
}

/// Whether another installation of Setu may answer the check of this name.
fn is_others(context: &Context, check: &str) -> bool {
    let found = context.stores.checks.get(&ObjectRef::new(check));
    found.is_some_and(|check| !context.answers(&check) && !is_kueues(&check))
}

/// Takes a Workload out of Kueue's queue, or puts it back, as its gangs' reconciles require. Runs after its checks are
/// written, so that their old state does not get it refused at once.
async fn write_queueing(
    context: &Context,
    workload: &mut Workload,
    results: &[Reconciled],
    others: OtherInstallations,
) -> Result<(), Error> {
    let of_gangs = results.iter().map(|result| result.queueing);
    if let Some(queueing) = Queueing::change(workload, of_gangs, others) {
        let client = context.client_for(workload);
        *workload = requeued::apply(client, workload, queueing, context.now()).await?;
        context.gang_state.registry.wrote(workload);
    }
    Ok(())
}

/// Writes all changed entries in one request. Returns when a delayed message is due. `waits` is when the Workload
/// began to wait for this reconcile.
async fn write_entries(
    context: &Context,
    workload: &mut Workload,
    results: &[Reconciled],
    waits: Instant,
) -> Result<Option<Timestamp>, Error> {
    let changed: Vec<&CheckState> = results.iter().filter_map(|l| l.entry.as_ref()).collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let now = context.now();
    let reserved = workload.reserved_since().unwrap_or(now);
    if let Some(due) = progress_due(context, workload, results, (reserved, now)) {
        return Ok(Some(due));
    }
    let was_ready = |check: &str| workload.check(check).is_some_and(|old| old.state == Verdict::Ready);
    let is_ready = |entry: &CheckState| entry.state == Verdict::Ready && !was_ready(&entry.name);
    // No nodes, so none were idle.
    let nodes_waited = results.iter().any(|l| l.has_nodes && l.entry.as_ref().is_some_and(is_ready));
    *workload = apply(context, workload, results, &changed).await?;
    context.gang_state.registry.wrote(workload);
    for entry in &changed {
        report(workload, entry, now.duration_since(reserved));
    }
    if nodes_waited {
        metrics::verdict_delay(waits.elapsed());
    }
    Ok(None)
}

/// When these entries are due, if they only report progress and may not be written yet.
fn progress_due(
    context: &Context,
    workload: &Workload,
    results: &[Reconciled],
    (reserved, now): (Timestamp, Timestamp),
) -> Option<Timestamp> {
    let only_progress = results.iter().filter(|l| l.entry.is_some()).all(|l| l.progress);
    let age = now.duration_since(reserved);
    if only_progress && age.is_positive() && age < SETTLING {
        return Some(reserved + SETTLING);
    }
    let due =
        || context.gang_state.progress.take_turn(workload.metadata.uid.as_deref().unwrap_or_default(), now);
    only_progress.then(due)?
}

/// Writes the entries of all our checks, with these changes, and returns the Workload as written.
async fn apply(
    context: &Context,
    workload: &Workload,
    results: &[Reconciled],
    changed: &[&CheckState],
) -> Result<Workload, Error> {
    let client = context.client_for(workload);
    match workload.front_end() {
        FrontEnd::Workload | FrontEnd::StandaloneRequest => {
            let ours = workload.checks().iter().filter(|c| context.is_ours(&c.name));
            let latest = |old: &CheckState| {
                changed.iter().find(|new| new.name == old.name).copied().unwrap_or(old).clone()
            };
            let entries: Vec<CheckState> = ours.map(latest).collect();
            verdict::apply(client, workload, &entries).await
        }
        FrontEnd::ProvisioningRequest => {
            let (Some(result), Some(entry)) = (results.first(), changed.first()) else {
                return Ok(workload.clone());
            };
            let reason = (&result.in_request.details, result.in_request.failure.as_ref());
            request::apply(client, workload, entry, reason, context.now()).await
        }
    }
}

/// Logs and counts a verdict that was written this long after the reservation.
fn report(workload: &Workload, entry: &CheckState, after: SignedDuration) {
    tracing::info!(
        workload = workload.full_name(),
        check = entry.name, verdict = ?entry.state, check_message = entry.message, "updated the admission check"
    );
    let result = match entry.state {
        Verdict::Ready => "approved",
        Verdict::Rejected => "rejected",
        // Kueue has already evicted it for that.
        Verdict::Retry if workload.is_evicted() => return,
        Verdict::Retry => "yielded",
        Verdict::Pending => return,
    };
    metrics::verdict(result, Duration::try_from(after).unwrap_or_default());
}

fn requeue_after(context: &Context, results: &[Reconciled], later: Option<Timestamp>) -> Action {
    let now = context.now();
    let due = results.iter().filter_map(|l| l.wake).chain(later).min();
    let net = results.iter().map(|l| l.net).min().unwrap_or(SAFETY_NET);
    let wait = match due {
        None => net,
        // It was due in this reconcile already, and nothing changed: something else must happen first.
        Some(at) if at <= now => CATCH_UP,
        Some(at) => Duration::try_from(at.duration_since(now)).unwrap_or_default(),
    };
    Action::requeue(wait.clamp(Duration::from_millis(20), net))
}

/// The pause of a Workload after a reconcile.
fn pause_of(workload: &Workload, context: &Context) -> Duration {
    pause(context.stores.claims.count_of(BY_WORKLOAD, workload.metadata.uid.as_deref().unwrap_or_default()))
}

/// The pause of a Workload with this many NodeClaims.
fn pause(claims: usize) -> Duration {
    PAUSE.saturating_mul(u32::try_from(claims).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}

/// When a failed reconcile is repeated.
pub fn on_error(workload: &Workload, error: &Error, context: &Context) -> Action {
    let (object, uid) = (workload.full_name(), workload.uid().unwrap_or_default());
    let pause = pause_of(workload, context);
    if error.class() == Class::Again {
        if matches!(error, Error::Conflict { object: of, .. } if *of == object) {
            context.gang_state.registry.note_conflict(workload);
        }
        tracing::debug!(workload = object, error = %error.in_full(), "lost a write race, reconciling again");
        return Action::requeue(AFTER_CONFLICT).pausing(pause);
    }
    if error.is_gone(&object) {
        // The watch is about to show it, or has just shown it.
        tracing::debug!(workload = object, error = %error.in_full(), "the Workload is gone");
        return Action::requeue(LAST_RETRY);
    }
    let count = context.gang_state.registry.failed(&uid);
    let wait = doubled(FIRST_RETRY, LAST_RETRY, count);
    if context.is_quiet_about(error) {
        tracing::debug!(workload = object, error = %error.in_full(), retry_in = ?wait, "failed to reconcile");
    } else {
        tracing::warn!(workload = object, error = %error.in_full(), retry_in = ?wait, "failed to reconcile");
    }
    Action::requeue(wait).pausing(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workloads_pause_grows_with_its_nodeclaims_up_to_a_limit() {
        let pauses = [0, 1, 64, 400, 401, usize::MAX].map(|claims| pause(claims).as_micros());
        assert_eq!(pauses, [0, 250, 16_000, 100_000, 100_000, 100_000]);
    }
}
