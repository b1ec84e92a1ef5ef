//! The statechart. Each function is a state or a superstate; its arms are the edges.
//!
//! `decide` runs it, and `diagram` draws it. Rule: a handler reads the event and [`StepContext`], nothing else. The diagrams in
//! `statecharts/` show every edge and are generated from this file. The code that statig's macro would generate is written by
//! hand: the macro's output order changes with every build, so builds would not be reproducible.

use super::event::{Effect, Event};
use super::reservation::{AdmissionId, AdmissionPhase};
use super::state::{Nodes, State, Then};
use super::step_context::StepContext;
use jiff::Timestamp;
use statig::Outcome::{self, Handled, Super, Transition};
use statig::blocking::{self, IntoStateMachine};

/// The machine itself has no data: everything is in the state and in [`StepContext`].
pub struct GangChart;

/// Behaviour that several states share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Superstate {
    /// The quota is held and nothing exists.
    Unprovisioned,
    /// An attempt is being made, is complete or is being rolled back. On exit its terms are dropped.
    InFlight,
    /// Claims exist or are being created, and the gang does not run yet. On entry the deadline restarts.
    Attempting,
    /// The gang holds nothing.
    Over,
    /// Every state.
    Any,
}

impl IntoStateMachine for GangChart {
    type Event<'e> = Event;
    type Context<'c> = StepContext;
    type State = State;
    type Superstate<'s> = Superstate;

    fn initial() -> State {
        State::Validating
    }
}

impl blocking::State<GangChart> for State {
    fn call_handler(&mut self, _: &mut GangChart, event: &Event, context: &mut StepContext) -> Outcome<Self> {
        match self {
            Self::Validating => validating(context, event),
            Self::Provisioning => provisioning(context, event),
            Self::WaitingReady => waiting_ready(context, event),
            Self::Approved { nodes } => approved(nodes, context, event),
            Self::RollingBack { then } => rolling_back(then, context, event),
            Self::BackingOff { until } => backing_off(*until, context, event),
            Self::Yielded | Self::Rejected | Self::Released => Super,
        }
    }

    fn call_entry_action(&mut self, _: &mut GangChart, context: &mut StepContext) {
        if matches!(self, Self::Validating) {
            context.restart_deadline();
        }
    }

    fn superstate(&mut self) -> Option<Superstate> {
        Some(match self {
            Self::Validating | Self::BackingOff { .. } => Superstate::Unprovisioned,
            Self::Provisioning | Self::WaitingReady => Superstate::Attempting,
            Self::Approved { .. } | Self::RollingBack { .. } => Superstate::InFlight,
            Self::Yielded | Self::Rejected | Self::Released => Superstate::Over,
        })
    }
}

impl blocking::Superstate<GangChart> for Superstate {
    fn call_handler(
        &mut self,
        _: &mut GangChart,
        event: &Event,
        context: &mut StepContext,
    ) -> Outcome<State> {
        match self {
            Self::Unprovisioned => unprovisioned(context, event),
            Self::InFlight => Super,
            Self::Attempting => attempting(context, event),
            Self::Over => over(context, event),
            Self::Any => any(context, event),
        }
    }

    fn superstate(&mut self) -> Option<Self> {
        match self {
            Self::Attempting => Some(Self::InFlight),
            Self::Unprovisioned | Self::InFlight | Self::Over => Some(Self::Any),
            Self::Any => None,
        }
    }

    fn call_entry_action(&mut self, _: &mut GangChart, context: &mut StepContext) {
        if matches!(self, Self::Attempting) {
            context.restart_deadline();
        }
    }

    fn call_exit_action(&mut self, _: &mut GangChart, context: &mut StepContext) {
        if matches!(self, Self::InFlight) {
            context.memory.terms = None;
        }
    }
}

fn validating(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::Planned { slots, plan, pinning, pod_sets, option } => {
            context.begin_attempt(*slots, plan, (*pinning, pod_sets), *option);
            Transition(State::Provisioning)
        }
        Event::NothingNeeded | Event::AlreadyRunning => {
            context.memory.slots = 0;
            Transition(State::Approved { nodes: Nodes::Unneeded })
        }
        Event::Found { attempt, generation, slots, pod_sets, phase } => {
            context.adopt(*attempt, *generation, *slots, pod_sets);
            match phase {
                AdmissionPhase::Reserved => Transition(State::Provisioning),
                AdmissionPhase::Admitted | AdmissionPhase::Running | AdmissionPhase::AdmittedPods => {
                    Transition(State::Approved { nodes: Nodes::of(*slots) })
                }
            }
        }
        Event::Impossible(failure) => {
            context.record_failure(failure);
            Transition(State::Rejected)
        }
        Event::Refused(failure) => {
            context.record_failure(failure);
            Transition(context.refuse(failure))
        }
        Event::Failed(failure) if context.memory.option.index > 0 => {
            // All tiers were tried; the next round starts with the first.
            let then = context.fail_attempt(failure);
            Transition(context.finish_rollback(then))
        }
        Event::Failed(failure) => {
            context.record_failure(failure);
            let then = context.give_up();
            Transition(context.finish_rollback(then))
        }
        _ => Super,
    }
}

fn backing_off(until: Timestamp, context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::WaitOver if until <= context.now || context.is_too_far(until) => Transition(State::Validating),
        Event::CapacityBack => Transition(State::Validating),
        _ => Super,
    }
}

fn unprovisioned(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::Leaving(_) | Event::Gone(_) => Transition(State::Released),
        Event::Reserved { admission, phase } => Transition(context.begin_admission(admission, *phase)),
        _ => Super,
    }
}

fn provisioning(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::ClaimsMissing(slots) => {
            context.effects.push(Effect::CreateClaims(slots.clone()));
            Handled
        }
        Event::ClaimsExist => Transition(State::WaitingReady),
        Event::Planned { option, .. } => {
            context.advance_option(*option);
            Handled
        }
        Event::Lost { failure, phase } => match (context.option_for_lost(failure), phase) {
            (Some(option), _) => Transition(context.move_lost_slots(option, failure)),
            (None, AdmissionPhase::Admitted | AdmissionPhase::AdmittedPods) => {
                Transition(context.recreate_lost(failure))
            }
            (None, AdmissionPhase::Reserved | AdmissionPhase::Running) => Super,
        },
        _ => Super,
    }
}

fn waiting_ready(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::NodesReady => Transition(State::Approved { nodes: Nodes::Held }),
        Event::Superseded(failure) => context
            .option_for_superseded(failure)
            .map_or(Super, |option| Transition(context.move_lost_slots(option, failure))),
        Event::Lost { failure, phase } => match (context.option_for_lost(failure), phase) {
            (Some(option), _) => Transition(context.move_lost_slots(option, failure)),
            (None, AdmissionPhase::Admitted | AdmissionPhase::AdmittedPods) => {
                Transition(context.recreate_lost(failure))
            }
            (None, AdmissionPhase::Reserved | AdmissionPhase::Running) => {
                context.handle_loss(failure).map_or(Handled, Transition)
            }
        },
        _ => Super,
    }
}

fn attempting(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::Failed(failure) => {
            let then = context.fail_attempt(failure);
            Transition(State::RollingBack { then })
        }
        Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
            Transition(State::RollingBack { then: Then::Released })
        }
        _ => Super,
    }
}

/// The check is Ready, so pods may run: the state ends when the reservation is gone, not while it is leaving.
fn approved(nodes: &mut Nodes, context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::Gone(_) => {
            context.memory.yields = 0;
            Transition(match nodes {
                Nodes::Unneeded => State::Released,
                Nodes::Held | Nodes::Replacing => State::RollingBack { then: Then::Released },
            })
        }
        Event::Failed(failure) => {
            let then = context.fail_attempt(failure);
            Transition(State::RollingBack { then })
        }
        Event::Found { attempt, generation, slots, pod_sets, .. } => {
            context.adopt(*attempt, *generation, *slots, pod_sets);
            *nodes = Nodes::of(*slots);
            Handled
        }
        Event::Lost { .. } if *nodes == Nodes::Unneeded => Handled,
        Event::Lost { failure, phase: AdmissionPhase::Reserved } => {
            context.handle_loss(failure).map_or(Handled, Transition)
        }
        Event::Lost { failure, .. } => context.replace_lost(failure).map_or(Handled, Transition),
        Event::ClaimsMissing(slots) if *nodes == Nodes::Replacing => {
            context.effects.push(Effect::CreateClaims(slots.clone()));
            Handled
        }
        Event::ClaimsExist => {
            *nodes = Nodes::of(context.memory.slots);
            Handled
        }
        Event::NodesReady => {
            // Complete again: the next loss is a new one.
            context.memory.tries = 0;
            Handled
        }
        Event::Reserved { admission, phase } => reserved_again(*nodes, context, admission, *phase),
        _ => Super,
    }
}

/// Another admission of a gang that may run.
fn reserved_again(
    nodes: Nodes,
    context: &mut StepContext,
    admission: &AdmissionId,
    phase: AdmissionPhase,
) -> Outcome<State> {
    let before = &context.memory.admission;
    let goes_on = before.same_assignment(admission) || before.same_reservation(admission);
    match nodes {
        // Pods may run: their nodes stay until the pods have stopped, whatever Kueue admits now.
        _ if phase != AdmissionPhase::Reserved && (nodes != Nodes::Unneeded || goes_on) => {
            context.continue_under(admission);
            Handled
        }
        Nodes::Unneeded => Transition(context.begin_admission(admission, phase)),
        Nodes::Held | Nodes::Replacing if context.matches_nodes(admission) => {
            context.memory.admission = admission.clone();
            context.memory.tries = 0;
            Transition(State::WaitingReady)
        }
        Nodes::Held | Nodes::Replacing => Transition(State::RollingBack { then: Then::Released }),
    }
}

fn rolling_back(then: &mut Then, context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::ClaimsGone => Transition(context.finish_rollback(*then)),
        Event::Leaving(_) | Event::Gone(_) | Event::Reserved { .. } => {
            *then = Then::Released;
            Handled
        }
        _ => Super,
    }
}

/// Only another admission restarts it.
fn over(context: &mut StepContext, event: &Event) -> Outcome<State> {
    match event {
        Event::Reserved { admission, phase } => Transition(context.begin_admission(admission, *phase)),
        _ => Super,
    }
}

/// In every state: deletes unwanted claims and ignores other events.
fn any(context: &mut StepContext, event: &Event) -> Outcome<State> {
    if let Event::Unwanted(names) = event {
        context.effects.push(Effect::DeleteClaims(names.clone()));
    }
    Handled
}
