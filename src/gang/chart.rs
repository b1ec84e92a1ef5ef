//! The statechart. Each method is a state or a superstate; its arms are the edges.
//!
//! Called by `decide` alone. The rule: a handler looks at the event and at [`Turn`], never further,
//! and every edge out of it is drawn in `statecharts/`, which is generated from this file.

#![allow(
    clippy::needless_pass_by_ref_mut,
    clippy::trivially_copy_pass_by_ref,
    clippy::unused_self,
    clippy::ref_option,
    missing_docs,
    reason = "the signatures are what the state machine macro generates and expects"
)]

use super::decide::Turn;
use super::event::{Effect, Event, Standing};
use super::state::{State, Then};
use jiff::Timestamp;
use statig::prelude::*;

/// The machine itself keeps nothing: all data is in the state and in the turn's memory.
pub struct GangChart;

#[state_machine(initial = "State::Validating", state(custom, name = "State"), superstate(derive(Debug)))]
impl GangChart {
    #[state(superstate = "unprovisioned")]
    fn validating(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::Planned { slots, plan, pinning, way } => {
                context.begin_attempt(*slots, plan, *pinning, *way);
                Transition(State::Provisioning)
            }
            Event::NothingNeeded | Event::AlreadyRunning => {
                context.memory.slots = 0;
                Transition(State::Approved)
            }
            Event::Found { attempt, generation, slots, standing } => {
                context.adopt(*attempt, *generation, *slots);
                match standing {
                    Standing::Reserved => Transition(State::Provisioning),
                    Standing::Admitted | Standing::Running | Standing::AdmittedPods => {
                        Transition(State::Approved)
                    }
                }
            }
            Event::Impossible(message) => {
                context.fail_for_good(message);
                Transition(State::Rejected)
            }
            Event::Failed(failure) if context.memory.way.choice > 0 => {
                // The tiers are through; the next round starts with the first.
                let then = context.after(failure);
                Transition(then.state(context))
            }
            Event::Failed(failure) => {
                context.memory.last_failure = Some(failure.clone());
                Transition(context.give_up().state(context))
            }
            _ => Super,
        }
    }

    #[state(superstate = "unprovisioned")]
    fn backing_off(until: &mut Timestamp, context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::WaitOver if *until <= context.now || context.is_too_far(*until) => {
                context.restart_clock();
                Transition(State::Validating)
            }
            _ => Super,
        }
    }

    /// Quota is held, nothing exists.
    #[superstate(superstate = "any")]
    fn unprovisioned(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::Leaving(_) | Event::Gone(_) => Transition(State::Released),
            Event::Reserved { epoch, standing } => Transition(context.begin_epoch(epoch, *standing)),
            _ => Super,
        }
    }

    #[state(superstate = "attempting")]
    fn provisioning(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::ClaimsMissing(slots) => {
                context.effects.push(Effect::CreateClaims(slots.clone()));
                Handled
            }
            Event::ClaimsExist => Transition(State::WaitingReady),
            Event::Planned { way, .. } => {
                context.goes_on(*way);
                Handled
            }
            Event::Lost { failure, .. } if context.falls_in_part(failure) => Transition(State::Provisioning),
            Event::Lost { failure, standing: Standing::AdmittedPods } => {
                Transition(context.make_up_for(failure))
            }
            _ => Super,
        }
    }

    #[state(superstate = "attempting")]
    fn waiting_ready(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::NodesReady => Transition(State::Approved),
            Event::Outlived(failure) if context.makes_up_in_part(failure) => Transition(State::Provisioning),
            Event::Lost { failure, .. } if context.falls_in_part(failure) => Transition(State::Provisioning),
            Event::Lost { failure, standing: Standing::AdmittedPods } => {
                Transition(context.make_up_for(failure))
            }
            Event::Lost { failure, .. } => context.lose(failure).map_or(Handled, Transition),
            _ => Super,
        }
    }

    /// Claims of the attempt exist or are being made, and the gang does not run yet.
    #[superstate(superstate = "any")]
    fn attempting(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::Failed(failure) => {
                let then = context.after(failure);
                Transition(State::RollingBack { then })
            }
            Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
                Transition(State::RollingBack { then: Then::Released })
            }
            _ => Super,
        }
    }

    /// Kueue was told Ready, so pods may run here: only a reservation that is gone ends it.
    #[state(superstate = "any")]
    fn approved(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::Gone(_) => {
                context.memory.yields = 0;
                Transition(context.let_go())
            }
            Event::Failed(failure) => {
                let then = context.after(failure);
                Transition(State::RollingBack { then })
            }
            Event::Found { attempt, generation, slots, .. } => {
                context.adopt(*attempt, *generation, *slots);
                Handled
            }
            Event::Lost { .. } if context.memory.slots == 0 => Handled,
            Event::Lost { failure, standing: Standing::Reserved } => {
                context.lose(failure).map_or(Handled, Transition)
            }
            Event::Lost { failure, .. } => context.mend(failure).map_or(Handled, Transition),
            Event::ClaimsMissing(slots) if context.memory.mending => {
                context.effects.push(Effect::CreateClaims(slots.clone()));
                Handled
            }
            Event::ClaimsExist => {
                context.memory.mending = false;
                Handled
            }
            Event::NodesReady => {
                // Whole again: the next loss is another one.
                context.memory.tries = 0;
                Handled
            }
            Event::Reserved { epoch, standing } => {
                let admitted = *standing != Standing::Reserved;
                let before = &context.memory.epoch;
                let goes_on = before.same_shape(epoch) || before.same_reservation(epoch);
                match context.memory.slots {
                    // Pods may run: whatever Kueue admits now, their nodes go only when they have stopped.
                    slots if admitted && (slots > 0 || goes_on) => {
                        context.runs_under(epoch);
                        Handled
                    }
                    0 => Transition(context.begin_epoch(epoch, *standing)),
                    _ if context.fits(epoch) => {
                        context.memory.epoch = epoch.clone();
                        context.restart_clock();
                        (context.memory.mending, context.memory.tries) = (false, 0);
                        Transition(State::WaitingReady)
                    }
                    _ => Transition(State::RollingBack { then: Then::Released }),
                }
            }
            _ => Super,
        }
    }

    #[state(superstate = "any")]
    fn rolling_back(then: &mut Then, context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::ClaimsGone => Transition(then.state(context)),
            Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
                *then = Then::Released;
                Handled
            }
            _ => Super,
        }
    }

    #[state(superstate = "over")]
    fn yielded() -> Outcome<State> {
        Super
    }

    #[state(superstate = "over")]
    fn rejected() -> Outcome<State> {
        Super
    }

    #[state(superstate = "over")]
    fn released() -> Outcome<State> {
        Super
    }

    /// The gang holds nothing; only another admission brings it back.
    #[superstate(superstate = "any")]
    fn over(context: &mut Turn, event: &Event) -> Outcome<State> {
        match event {
            Event::Reserved { epoch, standing } => Transition(context.begin_epoch(epoch, *standing)),
            _ => Super,
        }
    }

    /// Whatever the state: what nobody wants is deleted, the rest is ignored.
    #[superstate]
    fn any(context: &mut Turn, event: &Event) -> Outcome<State> {
        if let Event::Strays(names) = event {
            context.effects.push(Effect::DeleteClaims(names.clone()));
        }
        Handled
    }
}
