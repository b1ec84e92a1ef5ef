//! When time alone may bring a gang's next event, so that it is looked at then though nothing else moves.

use super::claims::{Health, Loss};
use super::journal::Journal;
use super::losses::{self, live};
use super::observe::{hold_ends, is_waiting};
use super::reboot::{admit_ends, reboots, restarted_by};
use super::snapshot::Snapshot;
use super::state::State;
use super::{option_retry, ungated_pods};
use crate::plan::Outcome;
use jiff::Timestamp;

/// When time alone may bring the next event.
pub fn wake_at(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let claims = live(journal, snapshot).filter_map(|c| match &c.health {
        Health::Coming { until, .. } => *until,
        Health::Ready { .. } | Health::Failed(_) => None,
    });
    let losses = snapshot.losses.values().filter_map(|l| match l {
        Loss::Unclear(until) => Some(*until),
        Loss::Failed(_) | Loss::Outlived(_) => None,
    });
    match &journal.state {
        State::Validating => {
            if let (Some(Outcome::Refuse(_)), Some(refusal)) = (snapshot.plan, snapshot.refusal) {
                return Some(refusal.again_at);
            }
            let Some(Outcome::Wait(obstacle)) = snapshot.plan else { return journal.memory.deadline };
            let deadline = journal.memory.deadline.filter(|_| !obstacle.reason.may_last());
            let round = option_retry::next(journal, snapshot).filter(|t| *t > snapshot.now);
            deadline.into_iter().chain(obstacle.until).chain(round).min()
        }
        State::BackingOff { until } => Some(*until),
        State::Provisioning | State::WaitingReady => {
            let hold = hold_ends(journal, snapshot);
            let ends = journal.memory.deadline.into_iter().chain(hold).chain(claims);
            if reboots(journal, snapshot) || ungated_pods::is_late(journal, snapshot) {
                let next = ungated_pods::next_try(journal, snapshot)
                    .into_iter()
                    .chain(restarted_by(journal, snapshot));
                return ends.chain(next).filter(|t| *t > snapshot.now).chain(losses).min();
            }
            ends.chain(losses).min()
        }
        State::Approved => {
            let admit = admit_ends(journal, snapshot);
            let hold = hold_ends(journal, snapshot);
            let mends = losses::mends_at(journal, snapshot);
            let claims = claims.filter(|_| is_waiting(snapshot));
            admit
                .into_iter()
                .chain(hold)
                .chain(mends)
                .chain(claims)
                .chain(restarted_by(journal, snapshot))
                .filter(|t| *t > snapshot.now)
                .chain(losses)
                .min()
        }
        State::Yielded => snapshot.refusal.map(|refusal| refusal.until),
        State::RollingBack { .. } | State::Rejected | State::Released => None,
    }
}
