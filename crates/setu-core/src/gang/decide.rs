//! One step of the statechart: `(journal, event) → (journal', effects)`.
//!
//! Rule: deterministic and total. The same journal, event and rules give the same result at every
//! replica, and no event can make it fail.

use super::chart::GangChart;
use super::event::{AdmissionPhase, Effect, Event};
use super::failure::{Failure, FailureClass};
use super::journal::{Journal, Memory};
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, ShapeMatch};
use super::state::{Nodes, State, Then};
use crate::api::Workload;
use crate::api::parameters::{Compat, OnExhausted, OnNodeLost, Pinning};
use crate::policy::{Pace, Policy};
use jiff::{SignedDuration, Timestamp};
use statig::Outcome;
use statig::blocking::StateExt as _;

/// The inputs of a step besides the journal and the event.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time of this step.
    pub now: Timestamp,
    /// A number in `0.0..1.0` that spreads the waits of different gangs.
    pub jitter: f64,
    /// Time limit of one attempt, and of the validation before it.
    pub gang_deadline: SignedDuration,
    /// Retries while the quota is held.
    pub in_check: Pace,
    /// Retries after the quota was given back.
    pub yielding: Pace,
    /// The longest wait that either of them can give.
    pub longest_wait: SignedDuration,
    /// What happens once both are used up.
    pub on_exhausted: OnExhausted,
    /// What happens when a node is lost before the gang runs.
    pub on_node_lost: OnNodeLost,
    /// Whether the nodes of one gang may come from several tiers.
    pub mixed_tiers: bool,
    /// The controller whose retry behaviour is kept.
    pub compat: Compat,
    /// Whether the Workload may be evicted to give its quota back.
    pub eviction: Eviction,
}

/// Whether a Workload may be evicted to give its quota back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Yes: none of its pods run, or those that run are recreated.
    #[default]
    Harmless,
    /// No: that would also stop the pods of the slice it replaces.
    StopsOthers,
}

impl Rules {
    /// The rules of a policy at a given time.
    pub fn new(policy: &Policy, now: Timestamp, jitter: f64) -> Self {
        Self {
            now,
            // The first Setu waited without jitter.
            jitter: if policy.compat == Compat::Setu { 0.0 } else { jitter },
            gang_deadline: policy.deadlines.gang.signed(),
            in_check: policy.in_check,
            yielding: policy.yielding,
            longest_wait: policy.longest_wait(),
            on_exhausted: policy.on_exhausted,
            on_node_lost: policy.on_node_lost,
            mixed_tiers: policy.mixed_tiers,
            compat: policy.compat,
            eviction: Eviction::default(),
        }
    }

    /// The same for this Workload.
    #[must_use]
    pub fn of(self, workload: &Workload) -> Self {
        let replaces = workload.replaces().is_some();
        Self { eviction: if replaces { Eviction::StopsOthers } else { Eviction::Harmless }, ..self }
    }
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The journal afterwards; equal to the one before if nothing changed.
    pub journal: Journal,
    /// What to do once the journal is durable.
    pub effects: Vec<Effect>,
}

/// Takes one step.
pub fn decide(journal: &Journal, event: &Event, rules: &Rules) -> Decision {
    let mut state = journal.state.clone();
    let mut context =
        StepContext { memory: journal.memory.clone(), effects: Vec::new(), now: rules.now, rules: *rules };
    let outcome = state.handle(&mut GangChart, event, &mut context);
    let mut next = journal.clone();
    if let Outcome::Transition(mut target) = outcome {
        let (exits, enters) = state.transition_path(&mut target);
        state.exit(&mut GangChart, &mut context, exits);
        target.enter(&mut GangChart, &mut context, enters);
        next.memory = context.memory;
        next.record(target, event.reason(), rules.now);
    } else {
        next.memory = context.memory;
        next.state = state;
    }
    let goes_on = journal.state.is_over() && !next.state.is_over();
    if goes_on || next.memory.admission != journal.memory.admission {
        next.retrace(journal, rules.now);
    }
    Decision { journal: next, effects: context.effects }
}

/// The data that the chart's handlers work on.
pub struct StepContext {
    pub(super) memory: Memory,
    pub(super) effects: Vec<Effect>,
    pub(super) now: Timestamp,
    rules: Rules,
}

impl StepContext {
    /// Starts a new attempt under a number that was never used.
    pub(super) fn begin_attempt(&mut self, slots: u32, plan: &str, pinning: Pinning, option: OptionPosition) {
        self.memory.attempt = self.memory.attempt.saturating_add(1);
        self.memory.waits = 0;
        self.memory.shape_match = ShapeMatch::Same;
        self.memory.generation = 0;
        self.memory.slots = slots;
        self.memory.plan = Some(plan.to_owned());
        self.memory.pinning = pinning;
        self.memory.option = option;
    }

    /// Takes over an attempt whose claims exist but whose journal is lost.
    pub(super) fn adopt(&mut self, attempt: u32, generation: u32, slots: u32) {
        self.memory.attempt = attempt;
        self.memory.shape_match = ShapeMatch::Same;
        self.memory.generation = generation;
        self.memory.slots = slots;
        self.memory.plan = None;
        self.memory.pinning = Pinning::Auto;
    }

    /// Restarts the deadline.
    pub(super) fn restart_clock(&mut self) {
        self.memory.deadline = later(self.now, self.rules.gang_deadline);
    }

    /// Records why the gang cannot run.
    pub(super) fn fail_for_good(&mut self, failure: &Failure) {
        self.memory.last_failure = Some(failure.clone());
    }

    /// The state in which a new admission starts.
    pub(super) fn begin_admission(&mut self, admission: &AdmissionId, phase: AdmissionPhase) -> State {
        self.memory.admission = admission.clone();
        self.memory.shape_match = ShapeMatch::Same;
        self.memory.tries = 0;
        self.memory.option = OptionPosition::default();
        self.memory.slots = 0;
        self.memory.plan = None;
        if phase == AdmissionPhase::Running {
            return State::Approved { nodes: Nodes::Unneeded };
        }
        if phase == AdmissionPhase::Admitted {
            // Admitted on a Ready of an earlier admission: nothing was provisioned for this one.
            return Then::Yielded.state(self);
        }
        match self.memory.not_before {
            Some(until) if until > self.now && !self.is_too_far(until) => State::BackingOff { until },
            _ => State::Validating,
        }
    }

    /// Continues under this admission with the existing nodes, because pods may run on them.
    pub(super) fn runs_under(&mut self, admission: &AdmissionId) {
        let before = std::mem::replace(&mut self.memory.admission, admission.clone());
        if !before.same_shape(admission) {
            let shape_match =
                if before.same_reservation(admission) { ShapeMatch::Changed } else { ShapeMatch::Stale };
            self.memory.shape_match = self.memory.shape_match.max(shape_match);
        }
    }

    /// Whether the existing nodes match this admission.
    pub(super) fn fits(&self, admission: &AdmissionId) -> bool {
        self.memory.shape_match.is_same() && self.memory.admission.same_shape(admission)
    }

    /// Whether a time is later than any wait allows: only a wrong clock can have written it.
    pub(super) fn is_too_far(&self, until: Timestamp) -> bool {
        is_too_far(until, self.now, self.rules.longest_wait)
    }

    /// Records a failed attempt and returns where its rollback leads.
    pub(super) fn after(&mut self, failure: &Failure) -> Then {
        self.memory.last_failure = Some(failure.clone());
        let next = self.memory.option.index.saturating_add(1);
        if failure.reason.is_shortage() && next < self.memory.option.count {
            // The next tier is not another try: the quota is still held, and no wait is needed.
            self.memory.option.index = next;
            return Then::BackingOff;
        }
        self.memory.option.index = 0;
        self.memory.tries = self.memory.tries.saturating_add(1);
        let may_evict = self.rules.eviction == Eviction::Harmless;
        if self.rules.compat == Compat::Setu && failure.reason == FailureClass::GangTimeout && may_evict {
            return Then::Rejected;
        }
        let may_try_here = failure.reason != FailureClass::NotAdmitted;
        if may_try_here && self.memory.tries <= self.rules.in_check.limit {
            Then::BackingOff
        } else {
            self.give_up()
        }
    }

    /// The next state of a gang that lost a node before it was admitted; `None` if it stays.
    pub(super) fn lose(&mut self, failure: &Failure) -> Option<State> {
        if self.falls_in_part(failure) {
            return Some(State::Provisioning);
        }
        let then = match self.rules.on_node_lost {
            OnNodeLost::Ignore => return None,
            OnNodeLost::Replace => {
                if self.replaces(failure) {
                    self.restart_clock();
                    return Some(State::Provisioning);
                }
                self.after(failure)
            }
            // Both evict the Workload, which would stop the slice that it replaces.
            OnNodeLost::Yield | OnNodeLost::Reject if self.rules.eviction == Eviction::StopsOthers => {
                self.after(failure)
            }
            OnNodeLost::Yield => Then::Yielded,
            OnNodeLost::Reject => Then::Rejected,
        };
        self.memory.last_failure = Some(failure.clone());
        Some(State::RollingBack { then })
    }

    /// Moves the slots that ran out of capacity to an option that may have some, if tiers may be mixed. The other slots stay
    /// as they are. Returns whether it did.
    pub(super) fn falls_in_part(&mut self, failure: &Failure) -> bool {
        self.goes_on_in_part(self.memory.option.past(failure.reason), failure)
    }

    /// Replaces a lost claim of an earlier option with one of the current option, if tiers may be mixed.
    pub(super) fn makes_up_in_part(&mut self, failure: &Failure) -> bool {
        self.goes_on_in_part(self.memory.option.still(failure.reason), failure)
    }

    fn goes_on_in_part(&mut self, next: Option<u32>, failure: &Failure) -> bool {
        let Some(next) = next.filter(|_| self.rules.mixed_tiers) else { return false };
        if next > self.memory.option.index {
            self.restart_clock();
        }
        self.memory.option.index = next;
        self.memory.generation = self.memory.generation.saturating_add(1);
        // Nodes of several options have no single plan.
        self.memory.plan = None;
        self.memory.last_failure = Some(failure.clone());
        true
    }

    /// Continues with another option. A later option gets the full time of an attempt.
    pub(super) fn goes_on(&mut self, option: OptionPosition) {
        if option.index > self.memory.option.index {
            self.restart_clock();
        }
        self.memory.option = option;
    }

    /// The next state of a gang that lost a node after it was admitted, when its pods may run on the others; `None` if
    /// nothing is done.
    pub(super) fn replace_lost(&mut self, failure: &Failure) -> Option<State> {
        let replaces = self.rules.on_node_lost == OnNodeLost::Replace && self.replaces(failure);
        replaces.then_some(State::Approved { nodes: Nodes::Replacing })
    }

    /// The next state of an admitted gang that lost a node while others still come up. Pods may run on the others, so only
    /// the lost node is created again, without a limit.
    pub(super) fn make_up_for(&mut self, failure: &Failure) -> State {
        self.begin_replacement(failure);
        self.restart_clock();
        State::Provisioning
    }

    /// Begins a replacement with a new generation, if a try is left.
    fn replaces(&mut self, failure: &Failure) -> bool {
        if self.memory.tries >= self.rules.in_check.limit {
            return false;
        }
        self.begin_replacement(failure);
        true
    }

    fn begin_replacement(&mut self, failure: &Failure) {
        self.memory.tries = self.memory.tries.saturating_add(1);
        self.memory.generation = self.memory.generation.saturating_add(1);
        self.memory.last_failure = Some(failure.clone());
    }

    /// The next state of a gang after its last try under this admission.
    pub(super) fn give_up(&mut self) -> Then {
        if self.rules.eviction == Eviction::StopsOthers {
            return Then::BackingOff;
        }
        let exhausted = self.memory.yields >= self.rules.yielding.limit;
        match self.rules.on_exhausted {
            OnExhausted::Reject if exhausted => Then::Rejected,
            OnExhausted::Reject | OnExhausted::Yield => Then::Yielded,
        }
    }

    /// The next state of a refused gang. It sets no wait, because that would hold the quota of the next reservation. A missing
    /// object that may appear never leads to a rejection, and waiting for it is not a retry.
    pub(super) fn refuse(&mut self, failure: &Failure) -> State {
        let state = if failure.may_appear() && self.rules.eviction == Eviction::Harmless {
            self.memory.waits = self.memory.waits.saturating_add(1);
            State::Yielded
        } else {
            self.give_up().state(self)
        };
        if state == State::Yielded {
            self.memory.not_before = None;
        }
        state
    }

    fn wait(&self, pace: Pace, nth: u32) -> Timestamp {
        let base = pace.wait(nth).signed();
        let spread = base.mul_f64(self.rules.jitter / 2.0);
        later(self.now, base.saturating_add(spread)).unwrap_or(self.now)
    }
}

impl Then {
    /// The state that a rollback ends in, with its wait set.
    pub(super) fn state(self, context: &mut StepContext) -> State {
        match self {
            Self::BackingOff if context.memory.option.index > 0 => State::BackingOff { until: context.now },
            Self::BackingOff => {
                State::BackingOff { until: context.wait(context.rules.in_check, context.memory.tries) }
            }
            Self::Yielded => {
                context.memory.yields = context.memory.yields.saturating_add(1);
                context.memory.not_before = Some(context.wait(context.rules.yielding, context.memory.yields));
                State::Yielded
            }
            Self::Rejected => State::Rejected,
            Self::Released => State::Released,
        }
    }
}

/// Whether a time is further ahead than the policy's longest wait.
pub(super) fn is_too_far(until: Timestamp, now: Timestamp, longest: jiff::SignedDuration) -> bool {
    later(now, longest).is_some_and(|bound| until > bound)
}

fn later(now: Timestamp, by: jiff::SignedDuration) -> Option<Timestamp> {
    now.checked_add(by).ok()
}
