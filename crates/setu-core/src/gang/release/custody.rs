//! What happens to nodes that a gang no longer needs, and to orphaned nodes.
//!
//! Rule: never take a node on which pods of an admitted Workload may run. Every other node is given up when its Workload is
//! gone or its hold ends.

use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload, condition};
use crate::gang::identity::GangIdentity;
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{Ending, Reservation};
use crate::gang::statechart::state::{State, StateName, Then};
use crate::names;
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};

/// How long an AdmissionCheck must be missing before the nodes of gangs that wait for it are deleted: a reinstall may
/// delete and recreate it.
const CHECK_MISSING: SignedDuration = SignedDuration::from_mins(10);
/// How long a finished gang may take to give up its nodes as its policy says.
const RELEASE_GRACE: SignedDuration = SignedDuration::from_mins(5);

/// Why a node is orphaned: the labels of `setu_orphans_swept_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrphanReason {
    /// Its Workload does not exist.
    WorkloadGone,
    /// Its hold ended before its gang was admitted.
    HoldExpired,
    /// Its gang was not admitted, and its AdmissionCheck was deleted.
    CheckGone,
    /// No slice of its elastic Job has quota or pods.
    SlicesOver,
    /// Its gang finished, and nothing handles the gang any more.
    GangOver,
    /// No gang took it over while it was kept warm.
    WarmOver,
    /// It is a Node without a NodeClaim and with a silent kubelet.
    OrphanNode,
}

impl OrphanReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::WorkloadGone,
        Self::HoldExpired,
        Self::CheckGone,
        Self::SlicesOver,
        Self::GangOver,
        Self::WarmOver,
        Self::OrphanNode,
    ];

    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkloadGone => "workload_gone",
            Self::HoldExpired => "hold_expired",
            Self::CheckGone => "check_gone",
            Self::SlicesOver => "slices_over",
            Self::GangOver => "gang_over",
            Self::WarmOver => "warm_over",
            Self::OrphanNode => "stray_node",
        }
    }
}

/// What may still want a node, read from the API server.
#[derive(Clone, Copy, Debug)]
pub struct OwnerStatus<'a> {
    /// The Workload with the UID that it was created for.
    pub workload: Option<&'a Workload>,
    /// Whether another slice of the same elastic Job has quota or pods.
    pub slice_lives: bool,
    /// Since when its AdmissionCheck is known to be missing; `None` while it exists.
    pub check_missing: Option<Timestamp>,
}

/// Why one of our NodeClaims is orphaned; `None` while something wants it.
pub fn orphan_reason(claim: &NodeClaim, owner: OwnerStatus<'_>, now: Timestamp) -> Option<OrphanReason> {
    if claim.is_warm() {
        return claim.hold_ends().is_none_or(|end| end <= now).then_some(OrphanReason::WarmOver);
    }
    let Some(workload) = owner.workload else {
        return (!owner.slice_lives).then_some(OrphanReason::WorkloadGone);
    };
    if workload.is_replaced() && workload.is("Admitted") {
        return (!owner.slice_lives).then_some(OrphanReason::SlicesOver);
    }
    if workload.is("Admitted") {
        // If its check is no longer ours or its journal is unreadable, nothing else frees its nodes.
        let finished =
            condition::since(workload.conditions(), "Finished").filter(|_| workload.is("Finished"));
        let is_over = finished.is_some_and(|at| at + RELEASE_GRACE <= now);
        return is_over.then_some(OrphanReason::GangOver);
    }
    if owner.check_missing.is_some_and(|since| since + CHECK_MISSING <= now) {
        // Without the check nothing handles the gang, and Kueue admits nothing.
        return Some(OrphanReason::CheckGone);
    }
    // A claim without a hold is kept as long as its Workload exists.
    claim.hold_ends().is_some_and(|end| end <= now).then_some(OrphanReason::HoldExpired)
}

/// What a node is held for: the label `state` of `setu_held_nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldFor {
    /// The rest of its gang.
    RestOfGang,
    /// A gang that is ready and not admitted.
    ReadyGang,
    /// A gang that is admitted.
    AdmittedGang,
    /// Nothing: it is being given up.
    Leaving,
    /// The next gang of its LocalQueue.
    NextGang,
    /// Nothing: its NodeClaim is gone.
    OrphanNode,
    /// Nobody knows: this replica has not read its gang yet.
    Unknown,
}

impl HeldFor {
    /// What a claim is held for. `gang` is the state of its gang. `is_admitted` is called only where it matters: there may
    /// be thousands of claims.
    pub fn of(
        is_deleting: bool,
        is_warm: bool,
        gang: Option<StateName>,
        is_admitted: impl FnOnce() -> bool,
    ) -> Self {
        match gang {
            _ if is_deleting => Self::Leaving,
            _ if is_warm => Self::NextGang,
            Some(StateName::Approved) if is_admitted() => Self::AdmittedGang,
            Some(StateName::Approved) => Self::ReadyGang,
            Some(StateName::Provisioning | StateName::WaitingReady) => Self::RestOfGang,
            Some(_) => Self::Leaving,
            None => Self::Unknown,
        }
    }

    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RestOfGang => "gathering",
            Self::ReadyGang => "idle",
            Self::AdmittedGang => "used",
            Self::Leaving => "leaving",
            Self::NextGang => "warm",
            Self::OrphanNode => "stray",
            Self::Unknown => "unknown",
        }
    }
}

/// How a gang gives up a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It is deleted.
    Delete,
    /// It belongs to Karpenter from now on: others may use it, or it is consolidated.
    HandBack,
    /// It is kept for the next gang of the same LocalQueue.
    KeepWarm,
}

impl Disposition {
    /// How the policy gives up a node. It applies only to nodes that a finished gang has `used`.
    fn of(release: Release, used: bool) -> Self {
        match release {
            Release::HandBack if used => Self::HandBack,
            Release::Warm if used => Self::KeepWarm,
            _ => Self::Delete,
        }
    }
}

/// How a gang gives up this claim, which it no longer wants.
///
/// Only nodes that a gang finished on are handed back or kept. Nodes of a failed or unused attempt are deleted.
pub fn disposition(
    journal: &Journal,
    reservation: &Reservation,
    claim: Option<&ClaimView>,
    policy: &Policy,
) -> Disposition {
    let finished = *reservation == Reservation::Gone(Ending::Finished);
    let over = matches!(journal.state, State::RollingBack { then: Then::Released });
    let used = over && finished && journal.revokes() && claim.is_some_and(ClaimView::is_ready);
    let current = claim.is_some_and(|c| c.attempt == journal.memory.attempt);
    Disposition::of(policy.release, used && current)
}

/// How a claim is given up if its ProvisioningRequest is gone and the request's owner does not run. Kueue deletes the request, and
/// the journal with it, as soon as its owner finishes.
pub fn disposition_without_request(claim: &NodeClaim, owner: &Workload, release: Release) -> Disposition {
    let used = owner.is("Admitted") && owner.is("Finished") && claim.is("Initialized");
    Disposition::of(release, used)
}

/// Claims that a gang lets go, by what becomes of them.
#[derive(Clone, Debug, Default)]
pub struct Released {
    /// Those that are handed back to Karpenter.
    pub back: Vec<NodeClaim>,
    /// Those that are kept for the next gang.
    pub kept: Vec<NodeClaim>,
    /// Those that are deleted.
    pub gone: Vec<NodeClaim>,
}

impl Released {
    /// What becomes of these claims of a gang, which it no longer wants. Only claims that were made for the gang's Workload are
    /// let go.
    pub fn of<'c>(
        journal: &Journal,
        snapshot: &Snapshot<'_>,
        identity: &GangIdentity,
        claims: impl Iterator<Item = &'c NodeClaim>,
    ) -> Self {
        let mut released = Self::default();
        for claim in claims.filter(|claim| is_of_workload(identity, claim)) {
            let view = snapshot.claims.iter().find(|view| Some(&view.uid) == claim.metadata.uid.as_ref());
            let list = match disposition(journal, snapshot.reservation, view, snapshot.policy) {
                _ if claim.is_handing_back() => &mut released.back,
                Disposition::HandBack => &mut released.back,
                Disposition::KeepWarm => &mut released.kept,
                Disposition::Delete => &mut released.gone,
            };
            list.push(claim.clone());
        }
        released
    }

    /// Those that are not deleted.
    pub fn staying(&self) -> impl Iterator<Item = &NodeClaim> {
        self.back.iter().chain(&self.kept)
    }
}

/// Whether a claim was made for this gang's Workload.
pub(in crate::gang) fn is_of_workload(identity: &GangIdentity, claim: &NodeClaim) -> bool {
    claim.label(names::MANAGED_BY) == names::SETU && claim.label(names::WORKLOAD_UID) == identity.uid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node_claim::HOLD_GRACE;
    use crate::gang::statechart::event::Event;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::gang::{Health, Nodes, Rules, decide};
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn claim(held_until: Option<Timestamp>) -> NodeClaim {
        let annotations: Value =
            held_until.map_or_else(|| json!({}), |end| json!({(names::HOLD_UNTIL): end.to_string()}));
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "annotations": annotations},
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
        }))
        .unwrap()
    }

    fn workload(conditions: &[(&str, &str, &str)]) -> Workload {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status, reason)| {
                json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(0).to_string()})
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "uid": "u"},
            "spec": {}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

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

    fn view(attempt: u32, health: Health) -> ClaimView {
        ClaimView::new("c", attempt, 0, health)
    }

    /// A gang with attempt 1 in `state`, after its reservation ended.
    fn ended(state: State, ending: Ending) -> Journal {
        let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), at(0), None);
        journal.state = state;
        (journal.memory.attempt, journal.memory.slots) = (1, 1);
        decide(&journal, &Event::Gone(ending), &Rules::new(&Policy::default(), at(1), 0.0)).journal
    }

    #[test]
    fn only_ready_nodes_of_a_finished_gang_are_kept_or_handed_back() {
        let policy = Policy { release: Release::HandBack, ..Policy::default() };
        let ready = || view(1, Health::Ready { since: at(0) });
        let coming = view(1, Health::Coming { waits_for: crate::gang::WaitsFor::Node, until: None });
        let part = |state: State, ending, claim: &ClaimView, policy: &Policy| {
            disposition(&ended(state, ending), &Reservation::Gone(ending), Some(claim), policy)
        };
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Finished, &ready(), &policy),
            Disposition::HandBack
        );
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Finished, &ready(), &Policy::default()),
            Disposition::Delete
        );
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Finished, &coming, &policy),
            Disposition::Delete
        );
        assert_eq!(part(State::WaitingReady, Ending::Finished, &ready(), &policy), Disposition::Delete);
        let held = view(2, Health::Ready { since: at(0) });
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Finished, &held, &policy),
            Disposition::Delete
        );
        for ending in Ending::ALL.into_iter().filter(|e| *e != Ending::Finished) {
            assert_eq!(
                part(State::Approved { nodes: Nodes::Held }, ending, &ready(), &policy),
                Disposition::Delete,
                "{ending:?}"
            );
        }
        let warm = Policy { release: Release::Warm, ..Policy::default() };
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Finished, &ready(), &warm),
            Disposition::KeepWarm
        );
        assert_eq!(
            part(State::Approved { nodes: Nodes::Held }, Ending::Deactivated, &ready(), &warm),
            Disposition::Delete
        );
        let gone = ended(State::Approved { nodes: Nodes::Held }, Ending::Finished);
        assert_eq!(
            disposition(&gone, &Reservation::Gone(Ending::Finished), None, &policy),
            Disposition::Delete
        );
    }

    #[test]
    fn initialized_nodes_of_a_request_that_went_when_its_owner_finished_are_kept_or_handed_back() {
        let mut initialized = claim(None);
        let condition = json!({"type": "Initialized", "status": "True", "reason": "", "message": "", "lastTransitionTime": at(0).to_string()});
        initialized.status = Some(serde_json::from_value(json!({"conditions": [condition]})).unwrap());
        let finished = workload(&[("Admitted", "True", "Admitted"), ("Finished", "True", "Succeeded")]);
        let unused = workload(&[("Finished", "True", "Succeeded")]);
        let evicted = workload(&[("Admitted", "True", "Admitted"), ("Evicted", "True", "Preempted")]);
        for (release, expected) in [
            (Release::Delete, Disposition::Delete),
            (Release::HandBack, Disposition::HandBack),
            (Release::Warm, Disposition::KeepWarm),
        ] {
            assert_eq!(disposition_without_request(&initialized, &finished, release), expected);
            assert_eq!(disposition_without_request(&claim(None), &finished, release), Disposition::Delete);
            for other in [&unused, &evicted] {
                assert_eq!(disposition_without_request(&initialized, other, release), Disposition::Delete);
            }
        }
    }

    #[test]
    fn only_claims_of_the_gangs_workload_are_let_go() {
        let made = |name: &str, managed_by: &str, uid: &str| {
            let mut made = claim(None);
            (made.metadata.name, made.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
            let labels = [(names::MANAGED_BY, managed_by), (names::WORKLOAD_UID, uid)];
            made.metadata.labels = Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
            made
        };
        let claims = [
            made("ready", names::SETU, "u"),
            made("coming", names::SETU, "u"),
            made("of-another", names::SETU, "other"),
            made("of-a-user", "someone", "u"),
        ];
        let identity =
            GangIdentity { namespace: "ns".into(), workload: "w".into(), uid: "u".into(), check: "c".into() };
        let views = [ClaimView::new("ready", 1, 0, Health::Ready { since: at(0) })];
        let reservation = Reservation::Gone(Ending::Finished);
        let journal = ended(State::Approved { nodes: Nodes::Held }, Ending::Finished);
        for (release, back, kept, gone) in [
            (Release::Delete, vec![], vec![], vec!["ready", "coming"]),
            (Release::HandBack, vec!["ready"], vec![], vec!["coming"]),
            (Release::Warm, vec![], vec!["ready"], vec!["coming"]),
        ] {
            let policy = Policy { release, ..Policy::default() };
            let snapshot = Snapshot { claims: &views, ..Snapshot::of(at(1), &reservation, &policy) };
            let released = Released::of(&journal, &snapshot, &identity, claims.iter());
            let named = |claims: &[NodeClaim]| -> Vec<String> {
                claims.iter().filter_map(|claim| claim.metadata.name.clone()).collect()
            };
            assert_eq!(named(&released.back), back);
            assert_eq!(named(&released.kept), kept);
            assert_eq!(named(&released.gone), gone);
            assert_eq!(released.staying().count(), 2 - gone.len());
        }
    }
}
