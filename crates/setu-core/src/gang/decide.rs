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

/// What a step may depend on besides journal and event.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time of this step.
    pub now: Timestamp,
    /// A number in `0.0..1.0` that spreads the waits of different gangs.
    pub jitter: f64,
    /// Bound of one attempt, and of one wait before it.
    pub gang_deadline: SignedDuration,
    /// Tries with the quota held.
    pub in_check: Pace,
    /// Tries with the quota given back.
    pub yielding: Pace,
    /// Longest time that can come of either.
    pub longest_wait: SignedDuration,
    /// What happens once both are used up.
    pub on_exhausted: OnExhausted,
    /// What happens when a node is lost before the gang runs.
    pub on_node_lost: OnNodeLost,
    /// Whether the nodes of one gang may come from several tiers.
    pub mixed_tiers: bool,
    /// The controller whose way of retrying is kept.
    pub compat: Compat,
    /// Whether the Workload may be evicted to give its quota back.
    pub eviction: Eviction,
}

/// Whether a Workload may be evicted to give its quota back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// It may: nothing of it runs, or what runs is made anew.
    #[default]
    Harmless,
    /// It never may: pods of the slice it replaces would be stopped with it.
    StopsOthers,
}

impl Rules {
    /// The rules that a policy gives at a time.
    pub fn new(policy: &Policy, now: Timestamp, jitter: f64) -> Self {
        Self {
            now,
            // The first Setu waited exactly as long as it said.
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

/// What one step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The journal afterwards; equal to the one before if nothing changed.
    pub journal: Journal,
    /// What is to be done, once the journal is durable.
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

/// What a handler of the chart works on.
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

    /// Sets the deadline of what begins now.
    pub(super) fn restart_clock(&mut self) {
        self.memory.deadline = later(self.now, self.rules.gang_deadline);
    }

    /// Notes why the gang can never run.
    pub(super) fn fail_for_good(&mut self, failure: &Failure) {
        self.memory.last_failure = Some(failure.clone());
    }

    /// Where a new admission starts.
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

    /// Goes on under this admission with the nodes that exist, on which pods may run.
    pub(super) fn runs_under(&mut self, admission: &AdmissionId) {
        let before = std::mem::replace(&mut self.memory.admission, admission.clone());
        if !before.same_shape(admission) {
            let shape_match =
                if before.same_reservation(admission) { ShapeMatch::Changed } else { ShapeMatch::Stale };
            self.memory.shape_match = self.memory.shape_match.max(shape_match);
        }
    }

    /// Whether the nodes that exist are what this admission needs.
    pub(super) fn fits(&self, admission: &AdmissionId) -> bool {
        self.memory.shape_match.is_same() && self.memory.admission.same_shape(admission)
    }

    /// Whether a time lies further ahead than any wait: no clock that is right has written it.
    pub(super) fn is_too_far(&self, until: Timestamp) -> bool {
        is_too_far(until, self.now, self.rules.longest_wait)
    }

    /// Notes a failed attempt and says where its rollback leads.
    pub(super) fn after(&mut self, failure: &Failure) -> Then {
        self.memory.last_failure = Some(failure.clone());
        let next = self.memory.option.index.saturating_add(1);
        if failure.reason.is_shortage() && next < self.memory.option.count {
            // Another tier is no further try: the quota is held, and nothing has to be waited for.
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

    /// Where a gang goes that lost a node before it was admitted; `None` if it stays.
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
            // Either would evict, and that would stop the slice that this one replaces.
            OnNodeLost::Yield | OnNodeLost::Reject if self.rules.eviction == Eviction::StopsOthers => {
                self.after(failure)
            }
            OnNodeLost::Yield => Then::Yielded,
            OnNodeLost::Reject => Then::Rejected,
        };
        self.memory.last_failure = Some(failure.clone());
        Some(State::RollingBack { then })
    }

    /// Leaves the slots that ran out of capacity to the next tier that has some, where tiers may be mixed;
    /// all others stay as they are.
    pub(super) fn falls_in_part(&mut self, failure: &Failure) -> bool {
        self.goes_on_in_part(self.memory.option.past(failure.reason), failure)
    }

    /// Makes up by the way of now for a slot whose claim came by an earlier one.
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
        // Nodes of several ways are nodes of no one plan.
        self.memory.plan = None;
        self.memory.last_failure = Some(failure.clone());
        true
    }

    /// Goes on by another way; each that is farther down the tiers has the time of an attempt.
    pub(super) fn goes_on(&mut self, option: OptionPosition) {
        if option.index > self.memory.option.index {
            self.restart_clock();
        }
        self.memory.option = option;
    }

    /// Where a gang goes that lost a node after it was admitted, so that its pods may run on the others;
    /// `None` if nothing is done about it.
    pub(super) fn replace_lost(&mut self, failure: &Failure) -> Option<State> {
        let replaces = self.rules.on_node_lost == OnNodeLost::Replace && self.replaces(failure);
        replaces.then_some(State::Approved { nodes: Nodes::Replacing })
    }

    /// Where a gang goes that gets its nodes late and lost one: its pods may run on the others. So only the lost
    /// one is made again, as often as it takes.
    pub(super) fn make_up_for(&mut self, failure: &Failure) -> State {
        self.begin_replacement(failure);
        self.restart_clock();
        State::Provisioning
    }

    /// Begins a replacement under a number that was never used, if there is a try left for it.
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

    /// Where a gang goes that has used up its tries under this admission.
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

    /// Where a gang goes that is refused. It does not wait before it is looked into again: the wait would hold the
    /// quota of the next reservation. What may come rejects nothing for good, and the wait for it is no retry.
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
    /// The state a rollback ends in, with its waits set.
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

/// Whether a time lies further ahead than the policy's longest wait.
pub(super) fn is_too_far(until: Timestamp, now: Timestamp, longest: jiff::SignedDuration) -> bool {
    later(now, longest).is_some_and(|bound| until > bound)
}

fn later(now: Timestamp, by: jiff::SignedDuration) -> Option<Timestamp> {
    now.checked_add(by).ok()
}
