//! When time alone may bring a gang's next event, so that it is looked at then though nothing else moves.

use super::claims::{Health, Loss};
use super::facts::Facts;
use super::journal::Journal;
use super::losses::{self, live};
use super::observe::{hold_ends, is_waiting};
use super::reboot::{admit_ends, reboots, restarted_by};
use super::state::State;
use super::{late, rounds};
use crate::plan::Outcome;
use jiff::Timestamp;

/// When time alone may bring the next event.
pub fn wake_at(journal: &Journal, facts: &Facts<'_>) -> Option<Timestamp> {
    let claims = live(journal, facts).filter_map(|c| match &c.health {
        Health::Coming { until, .. } => *until,
        Health::Ready { .. } | Health::Failed(_) => None,
    });
    let losses = facts.losses.values().filter_map(|l| match l {
        Loss::Unclear(until) => Some(*until),
        Loss::Failed(_) | Loss::Outlived(_) => None,
    });
    match &journal.state {
        State::Validating => {
            if let (Some(Outcome::Refuse(_)), Some(refusal)) = (facts.plan, facts.refusal) {
                return Some(refusal.again_at);
            }
            let Some(Outcome::Wait(obstacle)) = facts.plan else { return journal.memory.deadline };
            let deadline = journal.memory.deadline.filter(|_| !obstacle.reason.may_last());
            let round = rounds::next(journal, facts).filter(|t| *t > facts.now);
            deadline.into_iter().chain(obstacle.until).chain(round).min()
        }
        State::BackingOff { until } => Some(*until),
        State::Provisioning | State::WaitingReady => {
            let hold = hold_ends(journal, facts);
            let ends = journal.memory.deadline.into_iter().chain(hold).chain(claims);
            if reboots(journal, facts) || late::is_late(journal, facts) {
                let next = late::next_try(journal, facts).into_iter().chain(restarted_by(journal, facts));
                return ends.chain(next).filter(|t| *t > facts.now).chain(losses).min();
            }
            ends.chain(losses).min()
        }
        State::Approved => {
            let admit = admit_ends(journal, facts);
            let hold = hold_ends(journal, facts);
            let mends = losses::mends_at(journal, facts);
            let claims = claims.filter(|_| is_waiting(facts));
            admit
                .into_iter()
                .chain(hold)
                .chain(mends)
                .chain(claims)
                .chain(restarted_by(journal, facts))
                .filter(|t| *t > facts.now)
                .chain(losses)
                .min()
        }
        State::Yielded => facts.refusal.map(|refusal| refusal.until),
        State::RollingBack { .. } | State::Rejected | State::Released => None,
    }
}
