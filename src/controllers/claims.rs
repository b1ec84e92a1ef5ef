//! Checks that every NodeClaim of ours is still wanted. This guarantees that no claim outlives its Workload or its hold,
//! whichever events were missed and whichever replicas are gone.
//!
//! Rule: the owner of a claim is read from the API server, compared by UID, and found missing twice before the claim is
//! deleted. Wanted claims are left to their gang.

use super::claim_records::workload_of;
use super::context::Context;
use super::plans;
use super::queue::Action;
use super::summary::{ClaimSummary, WorkloadSummary};
use crate::api::{AdmissionCheck, NodeClaim, Workload};
use crate::cluster::backoff::doubled;
use crate::cluster::decoded::Decoded;
use crate::cluster::lock;
use crate::effects::{call, claims, handover, warm};
use crate::error::Error;
use crate::gang::identity::gang_label;
use crate::gang::release::custody::{Disposition, disposition_without_request};
use crate::gang::release::orphan::{
    OrphanDecision, OrphanReason, OwnerFacts, OwnerRead, WorkloadRead, decide_orphan,
};
use crate::gang::workload::elastic_job::is_in_use;
use crate::gang::workload::request::owner_of;
use crate::names;
use crate::plan::warm::KeptFor;
use crate::telemetry::metrics::{self, WarmResult};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two sweeps: how often a claim is reconciled without a change.
pub(super) const SWEEP_PERIOD: Duration = Duration::from_mins(5);
/// The flow in which sweeps wait for permits to write.
pub const SWEEP_FLOW: &str = "sweep";
/// Time between the two reads of a claim without a Workload.
const SECOND_READ: Duration = Duration::from_secs(1);

/// How soon a failed reconcile of a claim is repeated; each further failure doubles it.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// The longest time between failed reconciles of a claim.
const LAST_RETRY: Duration = Duration::from_mins(5);

/// With fewer claims than this, none of [`SeenUids`] is forgotten.
const MIN_KEPT: usize = 10_000;

/// UIDs of claims that were noted once, and when. Kept apart from the registry, because only this loop reads and writes them.
#[derive(Debug, Default)]
pub struct SeenUids(Mutex<SeenSince>);

#[derive(Debug, Default)]
struct SeenSince {
    at: BTreeMap<String, Timestamp>,
    /// How many there were when old ones were last forgotten.
    left: usize,
}

impl SeenUids {
    /// Notes a claim; returns whether it was noted before.
    fn note(&self, uid: &str, now: Timestamp) -> bool {
        let mut noted = lock(&self.0);
        if noted.at.len() >= MIN_KEPT.max(2 * noted.left) {
            noted.at.retain(|_, at| {
                Duration::try_from(now.duration_since(*at)).is_ok_and(|age| age < SWEEP_PERIOD)
            });
            noted.left = noted.at.len();
        }
        noted.at.insert(uid.to_owned(), now).is_some()
    }

    fn clear(&self, uid: &str) {
        lock(&self.0).at.remove(uid);
    }
}

/// Missing AdmissionChecks that claims name, and when each was first missed. Kept apart from the registry for the same reason.
#[derive(Debug, Default)]
pub struct MissingChecks(Mutex<BTreeMap<String, Timestamp>>);

impl MissingChecks {
    /// Records whether the check of this name is missing. Returns since when it is; `None` if it exists.
    fn note(&self, check: &str, context: &Context) -> Option<Timestamp> {
        let mut missing = lock(&self.0);
        if context.stores.checks.get(&ObjectRef::new(check)).is_some() {
            missing.remove(check);
            return None;
        }
        Some(*missing.entry(check.to_owned()).or_insert_with(|| context.now()))
    }

    /// Forgets those that exist again.
    fn forget_existing(&self, context: &Context) {
        lock(&self.0).retain(|check, _| context.stores.checks.get(&ObjectRef::new(check)).is_none());
    }
}

/// How often the reconcile of a claim has failed in a row, by the claim's name. Kept apart from the registry for the same reason.
#[derive(Debug, Default)]
pub struct Failures(Mutex<BTreeMap<String, u32>>);

impl Failures {
    /// Notes a failure. Returns how soon the reconcile is repeated.
    pub fn note(&self, claim: &str) -> Duration {
        let mut failures = lock(&self.0);
        let count = failures.entry(claim.to_owned()).or_default();
        *count = count.saturating_add(1);
        doubled(FIRST_RETRY, LAST_RETRY, *count)
    }

    /// Notes that a reconcile succeeded.
    pub fn clear(&self, claim: &str) {
        lock(&self.0).remove(claim);
    }
}

/// The state of this loop.
pub struct Sweeper {
    /// The context that the controllers share.
    pub context: Arc<Context>,
    /// Claims found unwanted once.
    pub suspects: SeenUids,
    /// Missing checks that claims name.
    pub missing_checks: MissingChecks,
    /// Kept claims whose end was counted.
    pub ended: SeenUids,
    /// Claims whose reconcile fails.
    pub failures: Failures,
}

impl Sweeper {
    /// Queues every claim that is not known to be in use, once a period until `stop`. Claims in use may be thousands, and
    /// nothing is kept about them in between.
    pub async fn sweep(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(SWEEP_PERIOD)).await.is_some() {
            let context = &self.context;
            self.missing_checks.forget_existing(context);
            for claim in context.stores.claims.those(|claim| !is_used(context, claim)) {
                context.wake.claim(claim);
            }
        }
    }
}

/// Reconciles one claim.
pub async fn reconcile(object: ObjectRef<NodeClaim>, sweeper: Arc<Sweeper>) -> Result<Action, Error> {
    let context = &sweeper.context;
    let Some(known) = context.stores.claims.entry(&object) else {
        return Ok(Action::await_change());
    };
    if !context.acts_for(&known.workload_uid) {
        return Ok(Action::await_change());
    }
    if is_used(context, &known) {
        sweeper.suspects.clear(&known.uid);
        return Ok(Action::await_change());
    }
    let Some(claim) = known.object().filter(|claim| is_ours(claim)) else {
        return Ok(Action::await_change());
    };
    let now = context.now();
    if claim.is_deleting() {
        // Karpenter updates the claim once more before it is gone, no matter who deletes it.
        if claim.is_warm() && !sweeper.ended.note(&known.uid, now) {
            metrics::kept_warm(&claim, WarmResult::Unused, now);
        }
        return Ok(Action::await_change());
    }
    if orphaned_now(&sweeper, &claim, now).await?.is_none() {
        sweeper.suspects.clear(&known.uid);
        return Ok(requeue_after(&claim, now));
    }
    if !sweeper.suspects.note(&known.uid, now) {
        return Ok(Action::requeue(SECOND_READ));
    }
    end(&sweeper, &claim, now).await?;
    sweeper.suspects.clear(&known.uid);
    Ok(Action::await_change())
}

/// Ends a claim that was found orphaned, if it still is.
async fn end(sweeper: &Sweeper, claim: &NodeClaim, now: Timestamp) -> Result<(), Error> {
    let context = &sweeper.context;
    let (name, uid) = (claim.name_any(), claim.uid().unwrap_or_default());
    // It may have been handed back since it was last read, or its gang has deleted it.
    let current = claims::current(&context.client, &name).await?;
    let stays = |c: &NodeClaim| !c.is_deleting() && is_ours(c);
    let Some(current) = current.filter(|c| c.metadata.uid == claim.metadata.uid && stays(c)) else {
        return Ok(());
    };
    let Some(Orphan { reason, owner }) = orphaned_now(sweeper, &current, now).await? else { return Ok(()) };
    if keep_or_hand_back(context, &current, owner.as_ref(), now).await? {
        return Ok(());
    }
    tracing::info!(
        nodeclaim = name,
        workload = claim.annotation(names::WORKLOAD),
        reason = reason.name(),
        "deleting an orphaned NodeClaim"
    );
    claims::delete_as_read(context.client_of(claim.label(names::WORKLOAD_UID)), &current).await?;
    context.claim_records.deleted(&name, &uid);
    metrics::swept(reason);
    Ok(())
}

/// Hands back or keeps an orphaned claim. `owner` owns the claim's request, if only the request is gone. Returns false
/// if the claim is to be deleted, or if Setu may not change it.
async fn keep_or_hand_back(
    context: &Context,
    claim: &NodeClaim,
    owner: Option<&Workload>,
    now: Timestamp,
) -> Result<bool, Error> {
    let client = context.client_of(claim.label(names::WORKLOAD_UID));
    let claims = vec![claim.clone()];
    let left = if claim.is_handing_back() {
        // Other pods may be on its Node.
        handover::hand_back_all(client, claims).await
    } else {
        let Some(owner) = owner else { return Ok(false) };
        let check = claim.annotation(names::CHECK);
        let policy = plans::policy(context, owner, check).policy;
        match disposition_without_request(claim, owner, policy.release) {
            Disposition::Delete => return Ok(false),
            Disposition::HandBack => handover::hand_back_all(client, claims).await,
            Disposition::KeepWarm => {
                warm::keep_all(client, claims, &KeptFor::of(owner, check, &policy, now)).await
            }
        }
    };
    left.failed.map_or(Ok(left.forbidden.is_empty()), Err)
}

/// Whether the caches show that pods may run on its node. That holds for most claims, and then nothing is read. The claims of a
/// Workload that left a check are judged one by one.
fn is_used(context: &Context, claim: &ClaimSummary) -> bool {
    let workload = claim.workload.as_ref().and_then(|object| context.stores.workloads.entry(object));
    let runs = |w: &WorkloadSummary| {
        w.uid == claim.workload_uid && w.is_admitted && !w.is_finished && !w.left_a_check
    };
    !claim.is_deleting() && !claim.is_warm && workload.is_some_and(|known| runs(&known))
}

fn is_ours(claim: &NodeClaim) -> bool {
    claim.label(names::MANAGED_BY) == names::SETU
}

/// When the claim is due again: at the end of its hold, if that comes before the next sweep.
fn requeue_after(claim: &NodeClaim, now: Timestamp) -> Action {
    let due = claim.hold_ends().and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    due.filter(|due| *due < SWEEP_PERIOD)
        .map_or(Action::await_change(), |due| Action::requeue(due.max(SECOND_READ)))
}

/// A claim that is no longer wanted.
struct Orphan {
    reason: OrphanReason,
    /// The Workload that owns its ProvisioningRequest, if only the request is gone.
    owner: Option<Workload>,
}

/// Why a claim is no longer wanted; `None` while something wants it. Reads what that depends on.
async fn orphaned_now(sweeper: &Sweeper, claim: &NodeClaim, now: Timestamp) -> Result<Option<Orphan>, Error> {
    let context = &*sweeper.context;
    let mut facts = OwnerFacts {
        cached: workload_of(claim).and_then(|object| context.stores.workloads.get(&object)),
        check_missing: sweeper.missing_checks.note(claim.annotation(names::CHECK), context),
        ..OwnerFacts::default()
    };
    loop {
        match decide_orphan(claim, &facts, now) {
            OrphanDecision::Wanted => return Ok(None),
            OrphanDecision::Orphaned { reason, owner } => {
                return Ok(Some(Orphan { reason, owner: owner.cloned() }));
            }
            OrphanDecision::Needs(OwnerRead::Workload) => {
                facts.workload = Some(read_workload(context, claim).await?);
            }
            OrphanDecision::Needs(OwnerRead::RequestOwner) => {
                facts.request_owner = Some(request_owner(context, claim).await?);
            }
            OrphanDecision::Needs(OwnerRead::Slices) => {
                facts.slice_lives = Some(slice_lives(context, claim).await?);
            }
            OrphanDecision::Needs(OwnerRead::Check) => {
                facts.check_exists = Some(check_exists(context, claim).await?);
            }
        }
    }
}

/// The Workload that the claim names.
async fn read_workload(context: &Context, claim: &NodeClaim) -> Result<WorkloadRead, Error> {
    let Some(object) = workload_of(claim) else { return Ok(WorkloadRead::Absent) };
    match context.read_workload(&object).await {
        Err(error) if error.is_forbidden() && owner_of(claim).is_some() => Ok(WorkloadRead::Forbidden),
        found => found.map(as_read),
    }
}

/// The result of reading a Workload.
pub(super) fn as_read(found: Option<Decoded<Workload>>) -> WorkloadRead {
    match found {
        None => WorkloadRead::Absent,
        Some(Decoded(Ok(found))) => WorkloadRead::Found(Box::new(found)),
        Some(Decoded(Err(_))) => WorkloadRead::Unreadable,
    }
}

/// The Workload that owns the ProvisioningRequest of the claim, if the claim was made for a request.
async fn request_owner(context: &Context, claim: &NodeClaim) -> Result<Option<Workload>, Error> {
    let Some((namespace, name, uid)) = owner_of(claim) else { return Ok(None) };
    context.read_owner(namespace, name, uid).await
}

/// Whether the check that a claim was made for exists, read past the cache.
async fn check_exists(context: &Context, claim: &NodeClaim) -> Result<bool, Error> {
    let (check, api) = (claim.annotation(names::CHECK), Api::<AdmissionCheck>::all(context.client.clone()));
    Ok(call("reading AdmissionCheck", check, api.get_metadata_opt(check)).await?.is_some())
}

/// Whether the same elastic Job runs or is about to: a slice of it has quota, or its pods are not stopped yet. Many claims are orphaned
/// at once, so claims of one namespace share a read.
async fn slice_lives(context: &Context, claim: &NodeClaim) -> Result<bool, Error> {
    let object = workload_of(claim);
    let namespace = object.as_ref().and_then(|object| object.namespace.as_deref()).unwrap_or_default();
    let read = async {
        let api: Api<Decoded<Workload>> = Api::namespaced(context.client.clone(), namespace);
        let params = ListParams::default();
        let all = call("listing the Workloads of namespace", namespace, api.list(&params)).await?;
        Ok(all.items.into_iter().filter_map(|found| found.0.ok()).collect())
    };
    let all = context.slices.read(namespace.to_owned(), read).await?;
    let (label, check) = (claim.label(names::GANG), claim.annotation(names::CHECK));
    Ok(all.iter().any(|workload| is_in_use(workload) && gang_label(workload, check) == label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_orphans_is_remembered_until_the_second_read() {
        let (suspects, at) = (SeenUids::default(), |second| Timestamp::from_second(second).unwrap());
        let all: Vec<String> = (0..3 * MIN_KEPT).map(|number| number.to_string()).collect();
        assert!(all.iter().all(|uid| !suspects.note(uid, at(0))));
        assert!(all.iter().all(|uid| suspects.note(uid, at(100))));
        let others = (0..3 * MIN_KEPT).map(|number| format!("other-{number}"));
        others.for_each(|uid| assert!(!suspects.note(&uid, at(1_000))));
        assert!(lock(&suspects.0).at.len() < 4 * MIN_KEPT, "old ones are forgotten");
    }
}
