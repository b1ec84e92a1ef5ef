//! How nodes that a gang no longer needs are given up.
//!
//! Rule: never take a node on which pods of an admitted Workload may run. Every other node is given up when its Workload is
//! gone or its hold ends.

use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::GangIdentity;
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{Ending, Reservation};
use crate::gang::statechart::state::{State, StateName, Then};
use crate::listed::listed;
use crate::names;
use crate::policy::Policy;

listed! {
    /// The purpose that a node is held for: the label `state` of `setu_held_nodes`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HeldFor {
        /// The rest of its gang.
        Gathering,
        /// A gang that is ready and not admitted.
        Idle,
        /// A gang that is admitted.
        Used,
        /// Nothing: it is being given up.
        Leaving,
        /// The next gang of its LocalQueue.
        Warm,
        /// Nothing: its NodeClaim is gone.
        Stray,
        /// Nobody knows: this replica has not read its gang yet.
        Unknown,
    }
}

impl HeldFor {
    /// The purpose that a claim is held for. `gang` is the state of its gang. `is_admitted` is called only where it matters: there
    /// may be thousands of claims.
    pub fn of(
        is_deleting: bool,
        is_warm: bool,
        gang: Option<StateName>,
        is_admitted: impl FnOnce() -> bool,
    ) -> Self {
        match gang {
            _ if is_deleting => Self::Leaving,
            _ if is_warm => Self::Warm,
            Some(StateName::Approved) if is_admitted() => Self::Used,
            Some(StateName::Approved) => Self::Idle,
            Some(StateName::Provisioning | StateName::WaitingReady) => Self::Gathering,
            Some(_) => Self::Leaving,
            None => Self::Unknown,
        }
    }

    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Idle => "idle",
            Self::Used => "used",
            Self::Leaving => "leaving",
            Self::Warm => "warm",
            Self::Stray => "stray",
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
    let used = owner.is_admitted() && owner.is_finished() && claim.is_initialized();
    Disposition::of(release, used)
}

/// Claims that a gang lets go, by what becomes of them.
#[derive(Clone, Debug, Default)]
pub struct Dispositions {
    /// Those that are handed back to Karpenter.
    pub hand_back: Vec<NodeClaim>,
    /// Those that are kept for the next gang.
    pub keep_warm: Vec<NodeClaim>,
    /// Those that are deleted.
    pub delete: Vec<NodeClaim>,
}

impl Dispositions {
    /// Sorts claims of a gang, which it no longer wants, by how they are given up. Only claims that were made for the gang's
    /// Workload are let go.
    pub fn of<'c>(
        journal: &Journal,
        snapshot: &Snapshot<'_>,
        identity: &GangIdentity,
        claims: impl Iterator<Item = &'c NodeClaim>,
    ) -> Self {
        let mut all = Self::default();
        for claim in claims.filter(|claim| is_of_workload(identity, claim)) {
            let view = snapshot.claims.iter().find(|view| Some(&view.uid) == claim.metadata.uid.as_ref());
            let list = match disposition(journal, snapshot.reservation, view, snapshot.policy) {
                _ if claim.is_handing_back() => &mut all.hand_back,
                Disposition::HandBack => &mut all.hand_back,
                Disposition::KeepWarm => &mut all.keep_warm,
                Disposition::Delete => &mut all.delete,
            };
            list.push(claim.clone());
        }
        all
    }

    /// Those that are not deleted.
    pub fn staying(&self) -> impl Iterator<Item = &NodeClaim> {
        self.hand_back.iter().chain(&self.keep_warm)
    }
}

/// Whether a claim was made for this gang's Workload.
pub(in crate::gang) fn is_of_workload(identity: &GangIdentity, claim: &NodeClaim) -> bool {
    claim.label(names::MANAGED_BY) == names::SETU && claim.label(names::WORKLOAD_UID) == identity.uid
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, claim, workload};
    use super::*;
    use crate::gang::statechart::event::Event;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::gang::{Health, Nodes, Rules, decide};
    use serde_json::json;

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
            let all = Dispositions::of(&journal, &snapshot, &identity, claims.iter());
            let named = |claims: &[NodeClaim]| -> Vec<String> {
                claims.iter().filter_map(|claim| claim.metadata.name.clone()).collect()
            };
            assert_eq!(named(&all.hand_back), back);
            assert_eq!(named(&all.keep_warm), kept);
            assert_eq!(named(&all.delete), gone);
            assert_eq!(all.staying().count(), 2 - gone.len());
        }
    }
}
