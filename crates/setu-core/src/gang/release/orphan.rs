//! Whether a NodeClaim is orphaned: nothing wants it any more.
//!
//! Rule: the caches may show that a claim is wanted. Only reads past them show that it is not.

use crate::api::{NodeClaim, Workload, condition};
use crate::gang::identity::{GangIdentity, gang_of};
use crate::gang::workload::journal_load::stored_journal;
use crate::gang::workload::request::owner_of;
use crate::listed::listed;
use crate::names;
use crate::planted::planted;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// How long an AdmissionCheck must be missing before the nodes of gangs that wait for it are deleted: a reinstall may
/// delete and recreate it.
const CHECK_MISSING: SignedDuration = SignedDuration::from_mins(10);
/// How long a finished gang may take to give up its nodes as its policy says.
const RELEASE_GRACE: SignedDuration = SignedDuration::from_mins(5);

listed! {
    /// Why a node is orphaned: the labels of `setu_orphans_swept_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum OrphanReason {
        /// Its Workload does not exist.
        WorkloadGone,
        /// Its hold ended before its gang was admitted.
        HoldExpired,
        /// Its AdmissionCheck was deleted, and its gang was not admitted, or only under another check.
        CheckGone,
        /// No slice of its elastic Job has quota or pods.
        SlicesOver,
        /// Its gang finished, and nothing handles the gang any more.
        GangOver,
        /// No gang took it over while it was kept warm.
        WarmOver,
        /// It is a Node without a NodeClaim and with a silent kubelet.
        StrayNode,
    }
}

impl OrphanReason {
    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkloadGone => "workload_gone",
            Self::HoldExpired => "hold_expired",
            Self::CheckGone => "check_gone",
            Self::SlicesOver => "slices_over",
            Self::GangOver => "gang_over",
            Self::WarmOver => "warm_over",
            Self::StrayNode => "stray_node",
        }
    }
}

/// Status of a NodeClaim's possible owners, read from the API server.
#[derive(Clone, Copy, Debug)]
struct OwnerStatus<'a> {
    /// The Workload with the UID that it was created for.
    workload: Option<&'a Workload>,
    /// Whether another slice of the same elastic Job has quota or pods.
    slice_lives: bool,
    /// Since when its AdmissionCheck is known to be missing; `None` while it exists.
    check_missing: Option<Timestamp>,
}

/// Why one of our NodeClaims is orphaned; `None` while something wants it.
fn orphan_reason(claim: &NodeClaim, owner: OwnerStatus<'_>, now: Timestamp) -> Option<OrphanReason> {
    if claim.is_warm() {
        return claim.hold_ends().is_none_or(|end| end <= now).then_some(OrphanReason::WarmOver);
    }
    let Some(workload) = owner.workload else {
        return (!owner.slice_lives).then_some(OrphanReason::WorkloadGone);
    };
    if workload.is_replaced() && workload.is_admitted() {
        return (!owner.slice_lives).then_some(OrphanReason::SlicesOver);
    }
    let check_gone = owner.check_missing.is_some_and(|since| now.duration_since(since) >= CHECK_MISSING);
    if workload.is_admitted() {
        // If its check is no longer ours or its journal is unreadable, nothing else frees its nodes.
        let finished = condition::since(workload.conditions(), "Finished").filter(|_| workload.is_finished());
        let is_over = finished.is_some_and(|at| now.duration_since(at) >= RELEASE_GRACE);
        let is_left = || check_gone && runs_elsewhere(claim, workload, now);
        return is_over
            .then_some(OrphanReason::GangOver)
            .or_else(|| is_left().then_some(OrphanReason::CheckGone));
    }
    if check_gone {
        // Without the check nothing handles the gang, and Kueue admits nothing.
        return Some(OrphanReason::CheckGone);
    }
    // A claim without a hold is kept as long as its Workload exists.
    claim.hold_ends().is_some_and(|end| end <= now).then_some(OrphanReason::HoldExpired)
}

/// Whether an admitted Workload does not have the claim's check any more, and its journal shows that no pod could run on the
/// nodes of that attempt.
fn runs_elsewhere(claim: &NodeClaim, workload: &Workload, now: Timestamp) -> bool {
    let identity = GangIdentity::of(workload, claim.annotation(names::CHECK));
    let Some(Ok(journal)) = stored_journal(workload, &identity, now) else { return false };
    let never_approved = |attempt| journal.was_never_approved(attempt);
    workload.check(&identity.check).is_none() && claim.label(names::ATTEMPT).parse().is_ok_and(never_approved)
}

/// Facts about possible owners of a NodeClaim: from the caches, and from live reads so far.
#[derive(Debug, Default)]
pub struct OwnerFacts {
    /// The Workload that the claim names, as the cache shows it.
    pub cached: Option<Arc<Workload>>,
    /// Since when the cache does not show the claim's AdmissionCheck; `None` while it does.
    pub check_missing: Option<Timestamp>,
    /// The answer to [`OwnerRead::Workload`].
    pub workload: Option<WorkloadRead>,
    /// The answer to [`OwnerRead::RequestOwner`].
    pub request_owner: Option<Option<Workload>>,
    /// The answer to [`OwnerRead::Slices`].
    pub slice_lives: Option<bool>,
    /// The answer to [`OwnerRead::Check`].
    pub check_exists: Option<bool>,
}

/// The API server's answer about the Workload that a claim names.
#[derive(Debug)]
pub enum WorkloadRead {
    /// It exists.
    Found(Box<Workload>),
    /// It exists, but its content cannot be read.
    Unreadable,
    /// It does not exist.
    Absent,
    /// Requests are switched off here, so it may not be read. Another installation may serve them.
    Forbidden,
}

/// A read past the caches that is needed before a claim is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRead {
    /// The Workload that the claim names.
    Workload,
    /// The Workload that owns the claim's ProvisioningRequest.
    RequestOwner,
    /// Whether a slice of the claim's elastic Job has quota or pods.
    Slices,
    /// Whether the claim's AdmissionCheck exists.
    Check,
}

/// Whether a claim is orphaned.
#[derive(Debug, PartialEq)]
pub enum OrphanDecision<'f> {
    /// Something wants it.
    Wanted,
    /// Nothing wants it.
    Orphaned {
        /// Why.
        reason: OrphanReason,
        /// The Workload that owns its ProvisioningRequest, if only the request is gone.
        owner: Option<&'f Workload>,
    },
    /// That depends on a read that was not made yet.
    Needs(OwnerRead),
}

/// Decides whether one of our NodeClaims is orphaned, or what has to be read first. A claim that names no Workload has no
/// owner.
pub fn decide_orphan<'f>(claim: &NodeClaim, facts: &'f OwnerFacts, now: Timestamp) -> OrphanDecision<'f> {
    let is_meant = |w: &&Workload| w.metadata.uid.as_deref() == Some(claim.label(names::WORKLOAD_UID));
    let status = |workload, slice_lives: Option<bool>| OwnerStatus {
        workload,
        slice_lives: slice_lives.unwrap_or_default(),
        check_missing: facts.check_missing,
    };
    let cached = facts.cached.as_deref().filter(is_meant);
    let Some(reason) = orphan_reason(claim, status(cached, None), now) else { return OrphanDecision::Wanted };
    let names_workload = !claim.is_warm() && claim.annotation(names::WORKLOAD).contains('/');
    if !names_workload || planted!(SweepBeforeStores) {
        return OrphanDecision::Orphaned { reason, owner: None };
    }
    let (found, may_be_requested) = match &facts.workload {
        None => return OrphanDecision::Needs(OwnerRead::Workload),
        Some(WorkloadRead::Unreadable) => return OrphanDecision::Wanted,
        Some(WorkloadRead::Found(found)) => (Some(&**found).filter(is_meant), false),
        Some(WorkloadRead::Absent) => (None, false),
        Some(WorkloadRead::Forbidden) => (None, true),
    };
    let is_of_request = owner_of(claim).is_some() && found.is_none();
    if is_of_request && facts.request_owner.is_none() {
        return OrphanDecision::Needs(OwnerRead::RequestOwner);
    }
    let owner = facts.request_owner.as_ref().and_then(Option::as_ref).filter(|_| is_of_request);
    let is_held = claim.hold_ends().is_some_and(|end| end > now);
    let may_wait =
        |owner: &Workload| may_be_requested && is_held && owner.has_quota() && !owner.is_finished();
    // It keeps its nodes even if the request was deleted.
    if owner.is_some_and(|owner| owner.runs() || may_wait(owner)) {
        return OrphanDecision::Wanted;
    }
    match (orphan_reason(claim, status(found, facts.slice_lives), now), facts) {
        (None, _) | (Some(OrphanReason::CheckGone), OwnerFacts { check_exists: Some(true), .. }) => {
            OrphanDecision::Wanted
        }
        (Some(OrphanReason::CheckGone), OwnerFacts { check_exists: None, .. }) => {
            OrphanDecision::Needs(OwnerRead::Check)
        }
        (
            Some(OrphanReason::WorkloadGone | OrphanReason::SlicesOver),
            OwnerFacts { slice_lives: None, .. },
        ) if is_of_elastic_job(claim) => OrphanDecision::Needs(OwnerRead::Slices),
        (Some(reason), _) => OrphanDecision::Orphaned { reason, owner },
    }
}

/// Whether the gang's label shows that the claim was made for a slice of an elastic Job.
fn is_of_elastic_job(claim: &NodeClaim) -> bool {
    claim.label(names::GANG) != gang_of(claim)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, claim, workload};
    use super::*;
    use crate::api::node_claim::HOLD_GRACE;
    use crate::gang::statechart::event::{ProgressReason, Reason};
    use crate::gang::{AdmissionId, Journal, Nodes, State};
    use serde_json::json;

    fn of(workload: Option<&Workload>, slice_lives: bool, held_until: Option<i64>) -> Option<OrphanReason> {
        orphan_reason(
            &claim(held_until.map(at)),
            OwnerStatus { workload, slice_lives, check_missing: None },
            at(100) + HOLD_GRACE,
        )
    }

    #[test]
    fn the_end_of_a_hold_orphans_only_nodes_that_were_never_admitted() {
        let reserved = workload(&[("QuotaReserved", "True", "QuotaReserved")]);
        let queued = workload(&[("Admitted", "False", "Evicted"), ("Evicted", "True", "Preempted")]);
        for waiting in [&reserved, &queued] {
            assert_eq!(of(Some(waiting), false, Some(100)), Some(OrphanReason::HoldExpired));
            assert_eq!(of(Some(waiting), false, Some(101)), None, "it is held still");
            assert_eq!(of(Some(waiting), false, None), None, "it names no end");
        }
        let runs = workload(&[("QuotaReserved", "True", "QuotaReserved"), ("Admitted", "True", "Admitted")]);
        let evicted = workload(&[("Admitted", "True", "Admitted"), ("Evicted", "True", "Preempted")]);
        let finished = workload(&[("Admitted", "True", "Admitted"), ("Finished", "True", "Succeeded")]);
        for admitted in [&runs, &evicted, &finished] {
            assert_eq!(of(Some(admitted), false, Some(0)), None, "pods may run on it, or its gang ends it");
        }
        // Nothing handles a gang whose check is no longer ours.
        let later = |workload| {
            orphan_reason(
                &claim(None),
                OwnerStatus { workload: Some(workload), slice_lives: false, check_missing: None },
                at(0) + RELEASE_GRACE,
            )
        };
        assert_eq!([later(&runs), later(&evicted)], [None, None]);
        assert_eq!(later(&finished), Some(OrphanReason::GangOver));
        assert_eq!(of(None, false, Some(101)), Some(OrphanReason::WorkloadGone));
    }

    #[test]
    fn nodes_of_a_gang_that_waits_are_orphaned_ten_minutes_after_its_check_is_gone() {
        let reserved = workload(&[("QuotaReserved", "True", "QuotaReserved")]);
        let runs = workload(&[("QuotaReserved", "True", "QuotaReserved"), ("Admitted", "True", "Admitted")]);
        let of = |workload, seconds| {
            let owner =
                OwnerStatus { workload: Some(workload), slice_lives: false, check_missing: Some(at(0)) };
            orphan_reason(&claim(Some(at(9_000))), owner, at(seconds))
        };
        assert_eq!([of(&reserved, 599), of(&reserved, 600)], [None, Some(OrphanReason::CheckGone)]);
        assert_eq!(of(&runs, 6_000), None, "pods run on it");
    }

    #[test]
    fn nodes_of_a_gang_that_was_never_approved_are_orphaned_if_another_check_let_the_pods_run() {
        let mut claim = named(&[(names::CHECK, "c")]);
        claim.metadata.labels.get_or_insert_default().insert(names::ATTEMPT.to_owned(), "1".to_owned());
        let runs = |journal: &str, listed: &str| {
            let mut runs = workload(&[("QuotaReserved", "True", ""), ("Admitted", "True", "")]);
            runs.metadata.annotations = Some([(names::journal_key("c"), journal.to_owned())].into());
            let checks = json!([{"name": listed, "state": "Ready"}]);
            runs.status.as_mut().unwrap().admission_checks = serde_json::from_value(checks).unwrap();
            runs
        };
        let reason = |workload: &Workload, seconds: i64| {
            let owner =
                OwnerStatus { workload: Some(workload), slice_lives: false, check_missing: Some(at(0)) };
            orphan_reason(&claim, owner, at(seconds))
        };
        let ready = Reason::Progress(ProgressReason::AllReady);
        let again = Reason::Progress(ProgressReason::Reserved);
        let begun = |reason| {
            let mut journal = Journal::new("u", AdmissionId::default(), at(0), None);
            journal.memory.attempt = 1;
            journal.record(State::Provisioning, Reason::Progress(reason), at(1));
            journal.record(State::WaitingReady, Reason::Progress(ProgressReason::AllCreated), at(2));
            journal
        };
        let waits = begun(ProgressReason::PlanAccepted);
        let text = waits.encode();
        assert_eq!(reason(&runs(&text, "other"), 599), None, "a reinstall may create the check again");
        assert_eq!(reason(&runs(&text, "other"), 600), Some(OrphanReason::CheckGone));
        assert_eq!(reason(&runs(&text, "c"), 6_000), None, "its gang may have been approved since");
        // Pods may run on its node.
        let mut approved = waits.clone();
        approved.record(State::Approved { nodes: Nodes::Held }, ready, at(3));
        let mut approved_before = approved.clone();
        approved_before.record(State::WaitingReady, again, at(4));
        let (found, mut earlier) = (begun(ProgressReason::ClaimsFound), waits);
        earlier.memory.attempt = 2;
        earlier.history.clear();
        for journal in [approved, approved_before, found, earlier] {
            assert_eq!(reason(&runs(&journal.encode(), "other"), 6_000), None, "{journal:?}");
        }
        assert_eq!(reason(&runs("{", "other"), 6_000), None);
    }

    #[test]
    fn a_warm_claim_is_orphaned_when_its_hold_ends() {
        let mut kept = claim(Some(at(100)));
        kept.metadata.labels = Some([(names::WARM.to_owned(), "key".to_owned())].into());
        let none = OwnerStatus { workload: None, slice_lives: false, check_missing: None };
        assert_eq!(orphan_reason(&kept, none, at(99)), None);
        assert_eq!(orphan_reason(&kept, none, at(100)), Some(OrphanReason::WarmOver));
        kept.metadata.annotations = None;
        assert_eq!(orphan_reason(&kept, none, at(0)), Some(OrphanReason::WarmOver), "it names no end");
    }

    #[test]
    fn nodes_of_a_replaced_slice_stay_while_another_slice_lives() {
        let replaced =
            workload(&[("Admitted", "True", "Admitted"), ("Finished", "True", "WorkloadSliceReplaced")]);
        assert_eq!(of(Some(&replaced), true, Some(0)), None);
        assert_eq!(of(None, true, Some(0)), None, "the slice they were made for may be deleted before");
        assert_eq!(of(Some(&replaced), false, None), Some(OrphanReason::SlicesOver));
        assert_eq!(of(None, false, None), Some(OrphanReason::WorkloadGone));
        let never = workload(&[("Finished", "True", "WorkloadSliceReplaced")]);
        assert_eq!(of(Some(&never), false, Some(0)), Some(OrphanReason::HoldExpired));
    }

    /// A claim for the Workload with UID `u`, which is held until second 100.
    fn named(annotations: &[(&str, &str)]) -> NodeClaim {
        let mut named = claim(Some(at(100)));
        let all = named.metadata.annotations.get_or_insert_default();
        all.insert(names::WORKLOAD.to_owned(), "ns/w".to_owned());
        all.extend(annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let labels = named.metadata.labels.get_or_insert_default();
        labels.insert(names::WORKLOAD_UID.to_owned(), "u".to_owned());
        let gang = gang_of(&named);
        named.metadata.labels.get_or_insert_default().insert(names::GANG.to_owned(), gang);
        named
    }

    fn orphaned(reason: OrphanReason) -> OrphanDecision<'static> {
        OrphanDecision::Orphaned { reason, owner: None }
    }

    fn read(workload: WorkloadRead) -> OwnerFacts {
        OwnerFacts { workload: Some(workload), ..OwnerFacts::default() }
    }

    #[test]
    fn a_claim_is_orphaned_only_after_its_workload_was_read_past_the_cache() {
        let claim = named(&[]);
        let decide = |facts: &OwnerFacts| format!("{:?}", decide_orphan(&claim, facts, at(0)));
        let runs = || workload(&[("QuotaReserved", "True", ""), ("Admitted", "True", "")]);
        let cached = OwnerFacts { cached: Some(Arc::new(runs())), ..OwnerFacts::default() };
        assert_eq!(decide(&cached), format!("{:?}", OrphanDecision::Wanted), "nothing has to be read");
        let mut another = runs();
        another.metadata.uid = Some("another".to_owned());
        let replaced = OwnerFacts { cached: Some(Arc::new(another.clone())), ..OwnerFacts::default() };
        for unknown in [OwnerFacts::default(), replaced] {
            assert_eq!(decide(&unknown), format!("{:?}", OrphanDecision::Needs(OwnerRead::Workload)));
        }
        for wanted in [WorkloadRead::Found(Box::new(runs())), WorkloadRead::Unreadable] {
            assert_eq!(decide(&read(wanted)), format!("{:?}", OrphanDecision::Wanted));
        }
        for gone in [WorkloadRead::Absent, WorkloadRead::Found(Box::new(another))] {
            assert_eq!(decide(&read(gone)), format!("{:?}", orphaned(OrphanReason::WorkloadGone)));
        }
        let mut unnamed = named(&[]);
        unnamed.metadata.annotations = None;
        let facts = OwnerFacts::default();
        let decided = decide_orphan(&unnamed, &facts, at(0));
        assert_eq!(decided, orphaned(OrphanReason::WorkloadGone), "it has no owner");
    }

    #[test]
    fn a_claim_of_a_deleted_request_stays_while_the_owner_of_the_request_runs() {
        let claim = named(&[(names::OWNER, "ns/job/o")]);
        let owned = |workload: WorkloadRead, owner: Option<Workload>| OwnerFacts {
            request_owner: Some(owner),
            ..read(workload)
        };
        let absent = read(WorkloadRead::Absent);
        assert_eq!(decide_orphan(&claim, &absent, at(0)), OrphanDecision::Needs(OwnerRead::RequestOwner));
        let reserved = || workload(&[("QuotaReserved", "True", "")]);
        let runs = workload(&[("QuotaReserved", "True", ""), ("Admitted", "True", "")]);
        let finished = workload(&[("Admitted", "True", ""), ("Finished", "True", "Succeeded")]);
        let used = owned(WorkloadRead::Absent, Some(runs));
        assert_eq!(decide_orphan(&claim, &used, at(0)), OrphanDecision::Wanted);
        let over = owned(WorkloadRead::Absent, Some(finished.clone()));
        let expected =
            OrphanDecision::Orphaned { reason: OrphanReason::WorkloadGone, owner: Some(&finished) };
        assert_eq!(decide_orphan(&claim, &over, at(0)), expected);
        // Another installation may serve the request while its owner has quota, until the hold ends.
        let waits = owned(WorkloadRead::Forbidden, Some(reserved()));
        assert_eq!(decide_orphan(&claim, &waits, at(99)), OrphanDecision::Wanted);
        let decided = decide_orphan(&claim, &waits, at(100) + HOLD_GRACE);
        assert!(matches!(decided, OrphanDecision::Orphaned { .. }), "{decided:?}");
        let known = owned(WorkloadRead::Absent, Some(reserved()));
        let decided = decide_orphan(&claim, &known, at(99));
        assert!(matches!(decided, OrphanDecision::Orphaned { .. }), "the request is known to be gone");
    }

    #[test]
    fn slices_and_checks_are_read_before_a_claim_is_orphaned_for_lack_of_them() {
        let mut of_slice = named(&[]);
        let labels = of_slice.metadata.labels.get_or_insert_default();
        labels.insert(names::GANG.to_owned(), "of-the-first-slice".to_owned());
        let facts = |slice_lives| OwnerFacts { slice_lives, ..read(WorkloadRead::Absent) };
        let decide = |slice_lives| match decide_orphan(&of_slice, &facts(slice_lives), at(0)) {
            OrphanDecision::Orphaned { reason, .. } => format!("{reason:?}"),
            other => format!("{other:?}"),
        };
        assert_eq!([None, Some(true), Some(false)].map(decide), ["Needs(Slices)", "Wanted", "WorkloadGone"]);

        let claim = named(&[]);
        let facts = |check_exists| OwnerFacts {
            check_missing: Some(at(0) - CHECK_MISSING),
            check_exists,
            ..read(WorkloadRead::Found(Box::new(workload(&[("QuotaReserved", "True", "")]))))
        };
        let decide = |check_exists| match decide_orphan(&claim, &facts(check_exists), at(0)) {
            OrphanDecision::Orphaned { reason, .. } => format!("{reason:?}"),
            other => format!("{other:?}"),
        };
        assert_eq!([None, Some(true), Some(false)].map(decide), ["Needs(Check)", "Wanted", "CheckGone"]);
    }
}
