//! The status of each slot of a gang's current attempt, computed once per snapshot.
//!
//! Rule: only [`SlotStatus`] says what is missing, coming, ready, failed or lost. The absence of a claim counts only in a
//! quorum read. A slot gets another claim only under a generation that is already in the journal, so that no name is used
//! twice.

use super::claims::ClaimView;
use super::health::Health;
use super::loss::{Loss, shows_loss};
use super::waits::WaitsFor;
use super::{Freshness, Snapshot};
use crate::api::workload::Verdict;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{AdmissionPhase, Reservation};
use crate::gang::statechart::state::{Nodes, State};
use crate::planted::planted;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The status of one slot.
#[derive(Clone, Copy, Debug)]
pub enum SlotStatus<'a> {
    /// No claim of the attempt's latest generation is known: one is to be created.
    Empty,
    /// Its claim is coming up.
    Coming(&'a ClaimView, &'a WaitsFor),
    /// Its node can run its pods.
    Ready(&'a ClaimView),
    /// Its claim exists and has failed permanently.
    Failed(&'a ClaimView, &'a Failure),
    /// Its claim is being deleted; with the cause, if known.
    Deleting(Option<&'a Loss>),
    /// Its claim is not seen any more.
    Lost(&'a Loss),
}

impl<'a> SlotStatus<'a> {
    /// The claim that fills the slot and is kept.
    pub fn claim(self) -> Option<&'a ClaimView> {
        match self {
            Self::Coming(claim, _) | Self::Ready(claim) | Self::Failed(claim, _) => Some(claim),
            Self::Empty | Self::Deleting(_) | Self::Lost(_) => None,
        }
    }

    /// The loss of the claim that the slot had.
    pub fn loss(self) -> Option<&'a Loss> {
        match self {
            Self::Deleting(loss) => loss,
            Self::Lost(loss) => Some(loss),
            Self::Empty | Self::Coming(..) | Self::Ready(_) | Self::Failed(..) => None,
        }
    }
}

/// A gang's current attempt, slot by slot, in one snapshot.
#[derive(Debug)]
pub struct Attempt<'a> {
    /// The gang's journal.
    pub journal: &'a Journal,
    /// The snapshot.
    pub snapshot: &'a Snapshot<'a>,
    slots: Vec<SlotStatus<'a>>,
    /// The latest generation of each slot's claims that are not being deleted.
    latest: BTreeMap<u32, u32>,
    pods_may_run: bool,
}

impl<'a> Attempt<'a> {
    /// Computes the status of each slot.
    pub fn of(journal: &'a Journal, snapshot: &'a Snapshot<'a>) -> Self {
        let mut current: BTreeMap<u32, Vec<&ClaimView>> = BTreeMap::new();
        let mut latest: BTreeMap<u32, u32> = BTreeMap::new();
        let memory = &journal.memory;
        for claim in snapshot.claims.iter().filter(|c| c.attempt == memory.attempt && c.slot < memory.slots) {
            current.entry(claim.slot).or_default().push(claim);
            if !claim.deleting {
                let known = latest.entry(claim.slot).or_default();
                *known = claim.generation.max(*known);
            }
        }
        let mut attempt = Self { journal, snapshot, slots: Vec::new(), latest, pods_may_run: false };
        let may_run = |c: &&ClaimView| !c.deleting && !attempt.is_replaced(c) && c.may_have_pods();
        let is_coming = matches!(journal.state, State::Provisioning | State::WaitingReady);
        attempt.pods_may_run =
            is_coming && attempt.phase_with_pods().is_some() && current.values().flatten().any(may_run);
        let status = |slot| attempt.status(slot, current.get(&slot).map_or(&[], Vec::as_slice));
        attempt.slots = (0..memory.slots).map(status).collect();
        attempt
    }

    fn status(&self, slot: u32, claims: &[&'a ClaimView]) -> SlotStatus<'a> {
        let latest = self.journal.memory.generation;
        let stays = |c: &&&ClaimView| !c.deleting && !self.is_superseded(c);
        if let Some(claim) = claims.iter().filter(stays).max_by_key(|c| c.generation) {
            return match &claim.health {
                Health::Coming { waits_for, .. } => SlotStatus::Coming(claim, waits_for),
                Health::Ready { .. } => SlotStatus::Ready(claim),
                Health::Failed(failure) => SlotStatus::Failed(claim, failure),
            };
        }
        match self.snapshot.losses.get(&slot) {
            Some(loss) if claims.iter().any(|c| shows_loss(self.journal, c)) => {
                SlotStatus::Deleting(Some(loss))
            }
            Some(loss) => SlotStatus::Lost(loss),
            None if claims.iter().any(|c| c.generation >= latest) => SlotStatus::Deleting(None),
            None => SlotStatus::Empty,
        }
    }

    /// Whether the journal already says that a claim of the attempt is not wanted any more.
    pub(in crate::gang) fn is_superseded(&self, claim: &ClaimView) -> bool {
        self.is_replaced(claim) || self.is_given_up(claim)
    }

    /// Whether a later claim has replaced it. A slow create may still succeed afterwards.
    fn is_replaced(&self, claim: &ClaimView) -> bool {
        claim.generation < self.journal.memory.generation
            && self.latest.get(&claim.slot).is_some_and(|latest| *latest > claim.generation)
    }

    /// Whether a failed claim without pods is given up while other nodes may have pods. It is deleted once the journal has a
    /// later generation.
    fn is_given_up(&self, claim: &ClaimView) -> bool {
        // An old cache may show a node that runs as one that never came.
        let is_replacing = self.journal.state == State::Approved { nodes: Nodes::Replacing }
            && self.snapshot.freshness == Freshness::Quorum
            && claim.generation > 0;
        (self.pods_may_run || is_replacing)
            && claim.generation < self.journal.memory.generation
            && claim.is_doomed()
    }

    /// The admission phase, if our Ready let the pods start.
    pub(in crate::gang) fn phase_with_pods(&self) -> Option<AdmissionPhase> {
        match self.snapshot.reservation {
            Reservation::Held { phase, .. } if phase.lets_pods_start() => Some(*phase),
            _ => None,
        }
    }

    /// Whether pods may run on some nodes while others still come up. Then no failure ends the attempt: the pods might never be
    /// recreated, or they started on a Ready that was withdrawn too late.
    pub fn pods_may_run(&self) -> bool {
        self.pods_may_run
    }

    /// Every slot with its status.
    pub fn slots(&self) -> impl Iterator<Item = (u32, SlotStatus<'a>)> {
        (0..).zip(self.slots.iter().copied())
    }

    /// Claims of the attempt that are kept.
    pub(in crate::gang) fn claims(&self) -> impl Iterator<Item = &'a ClaimView> {
        self.slots.iter().filter_map(|slot| slot.claim())
    }

    /// Whether every slot has a claim that is kept.
    pub(in crate::gang) fn is_filled(&self) -> bool {
        self.slots.iter().all(|slot| slot.claim().is_some())
    }

    /// Whether the node of every slot can run its pods.
    pub(in crate::gang) fn is_ready(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, SlotStatus::Ready(_)))
    }

    /// Slots for which a claim is to be created.
    pub(in crate::gang) fn missing(&self) -> Vec<u32> {
        self.slots().filter(|(_, slot)| matches!(slot, SlotStatus::Empty)).map(|(slot, _)| slot).collect()
    }

    /// Whether a slot had a claim that is gone or being deleted.
    pub(in crate::gang) fn has_losses(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, SlotStatus::Deleting(_) | SlotStatus::Lost(_)))
    }

    /// The failure of the first slot that lost its claim. A claim that is not seen counts only in a quorum read.
    pub(in crate::gang) fn first_loss(&self) -> Option<&'a Failure> {
        let is_sure = self.snapshot.freshness == Freshness::Quorum;
        self.slots.iter().find_map(|slot| match slot {
            SlotStatus::Deleting(loss) => loss.as_ref()?.failure(),
            SlotStatus::Lost(loss) if is_sure => loss.failure(),
            _ => None,
        })
    }

    /// The failure that ends the attempt. A failed claim outranks a lost node: a replacement repairs only the loss.
    pub(in crate::gang) fn first_failure(&self) -> Option<&'a Failure> {
        let failed = |slot: &SlotStatus<'a>| match slot {
            SlotStatus::Failed(_, failure) => Some(*failure),
            _ => None,
        };
        // While some nodes may have pods, failed claims end nothing.
        let failed = || if self.pods_may_run { None } else { self.slots.iter().find_map(failed) };
        match self.first_loss() {
            Some(failure) if !failure.reason.is_node_loss() => Some(failure),
            lost => failed().or(lost),
        }
    }

    /// How many claims of the attempt exist and are kept.
    pub fn existing(&self) -> u32 {
        count(self.claims())
    }

    /// How many nodes of the attempt can run their pods.
    pub fn ready(&self) -> u32 {
        count(self.slots.iter().filter(|slot| matches!(slot, SlotStatus::Ready(_))))
    }

    /// The first slot that is not ready, and what it waits for.
    pub(in crate::gang) fn first_unready(&self) -> Option<(u32, String)> {
        self.slots().find_map(|(index, slot)| match slot {
            SlotStatus::Coming(_, waits_for) => Some((index, waits_for.to_string())),
            SlotStatus::Failed(_, failure) => Some((index, failure.message.clone())),
            _ => None,
        })
    }

    /// The latest time at which a node of the attempt became ready.
    pub(in crate::gang) fn last_ready(&self) -> Option<Timestamp> {
        let since = self.claims().filter_map(|c| match &c.health {
            Health::Ready { since } => Some(*since),
            _ => None,
        });
        since.max()
    }

    /// When the first hold on a node of the attempt ends.
    pub(in crate::gang) fn hold_ends(&self) -> Option<Timestamp> {
        self.claims().filter_map(|c| c.held_until).min()
    }

    /// Whether the hold on a node of the attempt has ended.
    pub(in crate::gang) fn hold_is_over(&self) -> bool {
        self.hold_ends().is_some_and(|end| end <= self.snapshot.now)
    }

    /// Whether the gang's deadline has passed and nothing extends it.
    pub fn has_expired(&self) -> bool {
        !self.pods_may_run && self.deadline().is_some_and(|deadline| deadline <= self.snapshot.now)
    }

    /// Whether the check is Ready, so that Kueue may admit at any time.
    pub(in crate::gang) fn may_be_admitted(&self) -> bool {
        self.snapshot.reported == Verdict::Ready
            && self.awaits_admission()
            && !planted!(ReadyStandsWhileDeleting)
    }

    /// Whether quota is reserved and Kueue has not admitted yet.
    pub(in crate::gang) fn awaits_admission(&self) -> bool {
        matches!(self.snapshot.reservation, Reservation::Held { phase: AdmissionPhase::Reserved, .. })
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::failure::FailureClass;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::policy::Policy;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn journal(state: State, generation: u32) -> Journal {
        let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), NOW, None);
        journal.state = state;
        (journal.memory.attempt, journal.memory.slots, journal.memory.generation) = (1, 3, generation);
        journal
    }

    fn ready(slot: u32) -> ClaimView {
        ClaimView::new("c", 1, slot, Health::Ready { since: NOW })
    }

    fn statuses(journal: &Journal, phase: AdmissionPhase, claims: &[ClaimView], lost: &[u32]) -> String {
        let gone = Loss::Failed(Failure::new(FailureClass::Interrupted, "gone"));
        let losses = lost.iter().map(|slot| (*slot, gone.clone())).collect();
        let reservation = Reservation::Held { admission: AdmissionId("1-0-a".into()), phase };
        let policy = Policy::default();
        let snapshot = Snapshot { claims, losses: &losses, ..Snapshot::of(NOW, &reservation, &policy) };
        let attempt = Attempt::of(journal, &snapshot);
        let letter = |(_, slot)| match slot {
            SlotStatus::Empty => 'e',
            SlotStatus::Coming(..) => 'c',
            SlotStatus::Ready(_) => 'r',
            SlotStatus::Failed(..) => 'f',
            SlotStatus::Deleting(_) => 'd',
            SlotStatus::Lost(_) => 'l',
        };
        attempt.slots().map(letter).collect()
    }

    #[test]
    fn a_slot_is_empty_until_it_has_had_a_claim_of_the_latest_generation() {
        use AdmissionPhase::Reserved;
        let deleting = ClaimView { deleting: true, ..ready(1) };
        let first = journal(State::Provisioning, 0);
        assert_eq!(statuses(&first, Reserved, &[ready(0), deleting.clone()], &[]), "rde");
        assert_eq!(statuses(&first, Reserved, &[ready(0), deleting.clone()], &[1, 2]), "rdl");
        let second = journal(State::Provisioning, 1);
        assert_eq!(statuses(&second, Reserved, &[ready(0), deleting.clone()], &[]), "ree", "it is replaced");
        let stranger = ClaimView { attempt: 2, ..ready(2) };
        assert_eq!(statuses(&first, Reserved, &[stranger, ready(7)], &[]), "eee");
    }

    #[test]
    fn only_a_later_claim_supersedes_a_claim() {
        let second = journal(State::WaitingReady, 1);
        let coming = Health::Coming { waits_for: WaitsFor::BufferTime, until: None };
        let later = ClaimView { generation: 1, health: coming, ..ready(0) };
        let seen = |claims: &[ClaimView]| statuses(&second, AdmissionPhase::Reserved, claims, &[]);
        assert_eq!(seen(&[ready(0), later.clone()]), "cee");
        let later = ClaimView { deleting: true, ..later };
        assert_eq!(seen(&[ready(0), later]), "ree");
    }

    #[test]
    fn a_failed_claim_without_pods_is_superseded_only_while_pods_may_run() {
        let failed = Health::Failed(Failure::new(FailureClass::LaunchFailed, "no"));
        let claims = [ready(0), ClaimView { health: failed, ..ready(1) }];
        let seen =
            |generation, phase| statuses(&journal(State::WaitingReady, generation), phase, &claims, &[]);
        assert_eq!(seen(0, AdmissionPhase::Admitted), "rfe");
        assert_eq!(seen(1, AdmissionPhase::Admitted), "ree");
        assert_eq!(seen(1, AdmissionPhase::Reserved), "rfe", "no pod runs");
    }
}
