//! The statechart. Each function is a state or a superstate; its arms are the edges.
//!
//! Called by `decide` alone. The rule: a handler looks at the event and at [`Turn`], never further,
//! and every edge out of it is drawn in `statecharts/`, which is generated from this file.
//! What statig's macro would write is written out: the macro orders it anew at each build, and no build would
//! give the same binary as the one before.

use super::decide::Turn;
use super::event::{Effect, Event, Standing};
use super::state::{Nodes, State, Then};
use jiff::Timestamp;
use statig::Outcome::{self, Handled, Super, Transition};
use statig::blocking::{self, IntoStateMachine};

/// The machine itself keeps nothing: all data is in the state and in the turn's memory.
pub struct GangChart;

/// What several states have in common.
#[derive(Clone, Copy, Debug)]
pub enum Superstate {
    /// Quota is held, nothing exists.
    Unprovisioned,
    /// Claims of the attempt exist or are being made, and the gang does not run yet.
    Attempting,
    /// The gang holds nothing.
    Over,
    /// Every state.
    Any,
}

impl IntoStateMachine for GangChart {
    type Event<'e> = Event;
    type Context<'c> = Turn;
    type State = State;
    type Superstate<'s> = Superstate;

    fn initial() -> State {
        State::Validating
    }
}

impl blocking::State<GangChart> for State {
    fn call_handler(&mut self, _: &mut GangChart, event: &Event, turn: &mut Turn) -> Outcome<Self> {
        match self {
            Self::Validating => validating(turn, event),
            Self::Provisioning => provisioning(turn, event),
            Self::WaitingReady => waiting_ready(turn, event),
            Self::Approved { nodes } => approved(nodes, turn, event),
            Self::RollingBack { then } => rolling_back(then, turn, event),
            Self::BackingOff { until } => backing_off(*until, turn, event),
            Self::Yielded | Self::Rejected | Self::Released => Super,
        }
    }

    fn superstate(&mut self) -> Option<Superstate> {
        Some(match self {
            Self::Validating | Self::BackingOff { .. } => Superstate::Unprovisioned,
            Self::Provisioning | Self::WaitingReady => Superstate::Attempting,
            Self::Approved { .. } | Self::RollingBack { .. } => Superstate::Any,
            Self::Yielded | Self::Rejected | Self::Released => Superstate::Over,
        })
    }
}

impl blocking::Superstate<GangChart> for Superstate {
    fn call_handler(&mut self, _: &mut GangChart, event: &Event, turn: &mut Turn) -> Outcome<State> {
        match self {
            Self::Unprovisioned => unprovisioned(turn, event),
            Self::Attempting => attempting(turn, event),
            Self::Over => over(turn, event),
            Self::Any => any(turn, event),
        }
    }

    fn superstate(&mut self) -> Option<Self> {
        match self {
            Self::Unprovisioned | Self::Attempting | Self::Over => Some(Self::Any),
            Self::Any => None,
        }
    }
}

fn validating(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::Planned { slots, plan, pinning, way } => {
            turn.begin_attempt(*slots, plan, *pinning, *way);
            Transition(State::Provisioning)
        }
        Event::NothingNeeded | Event::AlreadyRunning => {
            turn.memory.slots = 0;
            Transition(State::Approved { nodes: Nodes::Unneeded })
        }
        Event::Found { attempt, generation, slots, standing } => {
            turn.adopt(*attempt, *generation, *slots);
            match standing {
                Standing::Reserved => Transition(State::Provisioning),
                Standing::Admitted | Standing::Running | Standing::AdmittedPods => {
                    Transition(State::Approved { nodes: Nodes::of(*slots) })
                }
            }
        }
        Event::Impossible(failure) => {
            turn.fail_for_good(failure);
            Transition(State::Rejected)
        }
        Event::Refused(failure) => {
            turn.fail_for_good(failure);
            Transition(turn.refuse(failure))
        }
        Event::Failed(failure) if turn.memory.way.choice > 0 => {
            // The tiers are through; the next round starts with the first.
            let then = turn.after(failure);
            Transition(then.state(turn))
        }
        Event::Failed(failure) => {
            turn.memory.last_failure = Some(failure.clone());
            Transition(turn.give_up().state(turn))
        }
        _ => Super,
    }
}

fn backing_off(until: Timestamp, turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::WaitOver if until <= turn.now || turn.is_too_far(until) => {
            turn.restart_clock();
            Transition(State::Validating)
        }
        Event::CapacityBack => {
            turn.restart_clock();
            Transition(State::Validating)
        }
        _ => Super,
    }
}

fn unprovisioned(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::Leaving(_) | Event::Gone(_) => Transition(State::Released),
        Event::Reserved { epoch, standing } => Transition(turn.begin_epoch(epoch, *standing)),
        _ => Super,
    }
}

fn provisioning(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::ClaimsMissing(slots) => {
            turn.effects.push(Effect::CreateClaims(slots.clone()));
            Handled
        }
        Event::ClaimsExist => Transition(State::WaitingReady),
        Event::Planned { way, .. } => {
            turn.goes_on(*way);
            Handled
        }
        Event::Lost { failure, .. } if turn.falls_in_part(failure) => Transition(State::Provisioning),
        Event::Lost { failure, standing: Standing::Admitted | Standing::AdmittedPods } => {
            Transition(turn.make_up_for(failure))
        }
        _ => Super,
    }
}

fn waiting_ready(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::NodesReady => Transition(State::Approved { nodes: Nodes::Held }),
        Event::Superseded(failure) if turn.makes_up_in_part(failure) => Transition(State::Provisioning),
        Event::Lost { failure, .. } if turn.falls_in_part(failure) => Transition(State::Provisioning),
        Event::Lost { failure, standing: Standing::Admitted | Standing::AdmittedPods } => {
            Transition(turn.make_up_for(failure))
        }
        Event::Lost { failure, .. } => turn.lose(failure).map_or(Handled, Transition),
        _ => Super,
    }
}

fn attempting(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::Failed(failure) => {
            let then = turn.after(failure);
            Transition(State::RollingBack { then })
        }
        Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
            Transition(State::RollingBack { then: Then::Released })
        }
        _ => Super,
    }
}

/// Kueue was told Ready, so pods may run here: only a reservation that is gone ends it.
fn approved(nodes: &mut Nodes, turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::Gone(_) => {
            turn.memory.yields = 0;
            Transition(match nodes {
                Nodes::Unneeded => State::Released,
                Nodes::Held | Nodes::Replacing => State::RollingBack { then: Then::Released },
            })
        }
        Event::Failed(failure) => {
            let then = turn.after(failure);
            Transition(State::RollingBack { then })
        }
        Event::Found { attempt, generation, slots, .. } => {
            turn.adopt(*attempt, *generation, *slots);
            *nodes = Nodes::of(*slots);
            Handled
        }
        Event::Lost { .. } if *nodes == Nodes::Unneeded => Handled,
        Event::Lost { failure, standing: Standing::Reserved } => {
            turn.lose(failure).map_or(Handled, Transition)
        }
        Event::Lost { failure, .. } => turn.replace_lost(failure).map_or(Handled, Transition),
        Event::ClaimsMissing(slots) if *nodes == Nodes::Replacing => {
            turn.effects.push(Effect::CreateClaims(slots.clone()));
            Handled
        }
        Event::ClaimsExist => {
            *nodes = Nodes::of(turn.memory.slots);
            Handled
        }
        Event::NodesReady => {
            // Whole again: the next loss is another one.
            turn.memory.tries = 0;
            Handled
        }
        Event::Reserved { epoch, standing } => {
            let admitted = *standing != Standing::Reserved;
            let before = &turn.memory.epoch;
            let goes_on = before.same_shape(epoch) || before.same_reservation(epoch);
            match nodes {
                // Pods may run: whatever Kueue admits now, their nodes go only when they have stopped.
                _ if admitted && (*nodes != Nodes::Unneeded || goes_on) => {
                    turn.runs_under(epoch);
                    Handled
                }
                Nodes::Unneeded => Transition(turn.begin_epoch(epoch, *standing)),
                _ if turn.fits(epoch) => {
                    turn.memory.epoch = epoch.clone();
                    turn.restart_clock();
                    turn.memory.tries = 0;
                    Transition(State::WaitingReady)
                }
                _ => Transition(State::RollingBack { then: Then::Released }),
            }
        }
        _ => Super,
    }
}

fn rolling_back(then: &mut Then, turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::ClaimsGone => Transition(then.state(turn)),
        Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
            *then = Then::Released;
            Handled
        }
        _ => Super,
    }
}

/// Only another admission brings it back.
fn over(turn: &mut Turn, event: &Event) -> Outcome<State> {
    match event {
        Event::Reserved { epoch, standing } => Transition(turn.begin_epoch(epoch, *standing)),
        _ => Super,
    }
}

/// Whatever the state: what nobody wants is deleted, the rest is ignored.
fn any(turn: &mut Turn, event: &Event) -> Outcome<State> {
    if let Event::Unwanted(names) = event {
        turn.effects.push(Effect::DeleteClaims(names.clone()));
    }
    Handled
}
