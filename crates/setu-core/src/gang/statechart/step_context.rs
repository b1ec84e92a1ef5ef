//! The data that the chart's handlers read and change: the gang's memory, the effects and the rules.

use super::event::Effect;
use super::failure::{Failure, FailureClass};
use super::journal::{Journal, Memory};
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, AdmissionPhase, AssignmentMatch};
use super::rules::{Eviction, Rules, is_too_far, later};
use super::state::{Nodes, State, Then};
use crate::api::parameters::{Compat, OnExhausted, OnNodeLost, Pinning};
use crate::plan::pod_set_labels::PodSetLabels;
use crate::policy::RetryStrategy;
use jiff::Timestamp;

/// The data that the chart's handlers work on.
pub struct StepContext {
    pub(super) memory: Memory,
    pub(super) effects: Vec<Effect>,
    pub(super) now: Timestamp,
    rules: Rules,
}

impl StepContext {
    /// The start of a step.
    pub(super) fn new(journal: &Journal, rules: &Rules) -> Self {
        Self { memory: journal.memory.clone(), effects: Vec::new(), now: rules.now, rules: *rules }
    }

    /// Starts a new attempt under a number that was never used.
    pub(super) fn begin_attempt(
        &mut self,
        slots: u32,
        plan: &str,
        (pinning, pod_sets): (Pinning, &PodSetLabels),
        option: OptionPosition,
    ) {
        self.memory.attempt = self.memory.attempt.saturating_add(1);
        self.memory.waits = 0;
        self.memory.assignment_match = AssignmentMatch::Same;
        self.memory.generation = 0;
        self.memory.slots = slots;
        self.memory.plan = Some(plan.to_owned());
        self.memory.pinning = pinning;
        self.memory.pod_sets = pod_sets.clone();
        self.memory.option = option;
    }

    /// Takes over an attempt whose claims exist but whose journal is lost.
    pub(super) fn adopt(&mut self, attempt: u32, generation: u32, slots: u32, pod_sets: &PodSetLabels) {
        self.memory.attempt = attempt;
        self.memory.assignment_match = AssignmentMatch::Same;
        self.memory.generation = generation;
        self.memory.slots = slots;
        self.memory.plan = None;
        self.memory.pinning = Pinning::Auto;
        self.memory.pod_sets = pod_sets.clone();
    }

    /// Restarts the deadline.
    pub(super) fn restart_deadline(&mut self) {
        self.memory.deadline = later(self.now, self.rules.attempt_timeout);
    }

    /// Records why the gang cannot run.
    pub(super) fn record_failure(&mut self, failure: &Failure) {
        self.memory.last_failure = Some(failure.clone());
    }

    /// The state in which a new admission starts.
    pub(super) fn begin_admission(&mut self, admission: &AdmissionId, phase: AdmissionPhase) -> State {
        self.memory.admission = admission.clone();
        self.memory.assignment_match = AssignmentMatch::Same;
        self.memory.tries = 0;
        self.memory.option = OptionPosition::default();
        self.memory.slots = 0;
        self.memory.plan = None;
        if phase == AdmissionPhase::Running {
            return State::Approved { nodes: Nodes::Unneeded };
        }
        if phase == AdmissionPhase::Admitted {
            // Admitted on a Ready of an earlier admission: nothing was provisioned for this one.
            return self.finish_rollback(Then::Yielded);
        }
        match self.memory.not_before {
            Some(until) if until > self.now && !self.is_too_far(until) => State::BackingOff { until },
            _ => State::Validating,
        }
    }

    /// Continues under this admission with the existing nodes, because pods may run on them.
    pub(super) fn continue_under(&mut self, admission: &AdmissionId) {
        let before = std::mem::replace(&mut self.memory.admission, admission.clone());
        if !before.same_assignment(admission) {
            let assignment_match = if before.same_reservation(admission) {
                AssignmentMatch::Changed
            } else {
                AssignmentMatch::Stale
            };
            self.memory.assignment_match = self.memory.assignment_match.max(assignment_match);
        }
    }

    /// Whether the existing nodes match this admission.
    pub(super) fn matches_nodes(&self, admission: &AdmissionId) -> bool {
        self.memory.assignment_match.is_same() && self.memory.admission.same_assignment(admission)
    }

    /// Whether a time is later than any wait allows: only a wrong clock can have written it.
    pub(super) fn is_too_far(&self, until: Timestamp) -> bool {
        is_too_far(until, self.now, self.rules.wait_bound)
    }

    /// Records a failed attempt and returns where its rollback leads.
    pub(super) fn fail_attempt(&mut self, failure: &Failure) -> Then {
        self.record_failure(failure);
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
        if failure.reason.blames_nodes() && self.memory.tries <= self.rules.in_check.limit {
            Then::BackingOff
        } else {
            self.give_up()
        }
    }

    /// The next state of a gang that lost a node before it was admitted; `None` if it stays.
    pub(super) fn handle_loss(&mut self, failure: &Failure) -> Option<State> {
        if let Some(option) = self.option_for_lost(failure) {
            return Some(self.move_lost_slots(option, failure));
        }
        let then = match self.rules.on_node_lost {
            OnNodeLost::Ignore => return None,
            OnNodeLost::Replace => {
                if self.try_replacement(failure) {
                    self.restart_deadline();
                    return Some(State::Provisioning);
                }
                self.fail_attempt(failure)
            }
            // Both evict the Workload, which would stop the slice that it replaces.
            OnNodeLost::Yield | OnNodeLost::Reject if self.rules.eviction == Eviction::StopsOthers => {
                self.fail_attempt(failure)
            }
            OnNodeLost::Yield => Then::Yielded,
            OnNodeLost::Reject => Then::Rejected,
        };
        self.record_failure(failure);
        Some(State::RollingBack { then })
    }

    /// The option that may have capacity for slots that were lost like this, if tiers may be mixed.
    pub(super) fn option_for_lost(&self, failure: &Failure) -> Option<u32> {
        self.memory.option.next_for_lost(failure.reason).filter(|_| self.rules.mixed_tiers)
    }

    /// The option that replaces a lost claim of an earlier one, if tiers may be mixed.
    pub(super) fn option_for_superseded(&self, failure: &Failure) -> Option<u32> {
        self.memory.option.current_for_lost(failure.reason).filter(|_| self.rules.mixed_tiers)
    }

    /// The next state of a gang whose lost slots move to this option. The other slots stay as they are.
    pub(super) fn move_lost_slots(&mut self, option: u32, failure: &Failure) -> State {
        if option > self.memory.option.index {
            self.restart_deadline();
        }
        self.memory.option.index = option;
        self.memory.generation = self.memory.generation.saturating_add(1);
        // Nodes of several options have no single plan.
        self.memory.plan = None;
        self.record_failure(failure);
        State::Provisioning
    }

    /// Continues with another option. A later option gets the full time of an attempt.
    pub(super) fn advance_option(&mut self, option: OptionPosition) {
        if option.index > self.memory.option.index {
            self.restart_deadline();
        }
        self.memory.option = option;
    }

    /// The next state of a gang that lost a node after it was admitted, when its pods may run on the others; `None` if
    /// nothing is done. `step::replacement` decides when the next try is due.
    pub(super) fn replace_lost(&mut self, failure: &Failure) -> Option<State> {
        if self.rules.on_node_lost != OnNodeLost::Replace {
            return None;
        }
        self.begin_replacement(failure);
        Some(State::Approved { nodes: Nodes::Replacing })
    }

    /// The next state of an admitted gang that lost a node while others still come up. Pods may run on the others, so only
    /// the lost node is created again, without a limit.
    pub(super) fn recreate_lost(&mut self, failure: &Failure) -> State {
        self.begin_replacement(failure);
        self.restart_deadline();
        State::Provisioning
    }

    /// Begins a replacement with a new generation, if a try is left.
    fn try_replacement(&mut self, failure: &Failure) -> bool {
        if self.memory.tries >= self.rules.in_check.limit {
            return false;
        }
        self.begin_replacement(failure);
        true
    }

    fn begin_replacement(&mut self, failure: &Failure) {
        self.memory.tries = self.memory.tries.saturating_add(1);
        self.memory.generation = self.memory.generation.saturating_add(1);
        self.record_failure(failure);
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

    /// The next state of a refused gang. It sets no wait, which would hold the next reservation's quota. A missing
    /// object that may still appear never causes a rejection or counts as a retry.
    pub(super) fn refuse(&mut self, failure: &Failure) -> State {
        let state = if failure.may_appear() && self.rules.eviction == Eviction::Harmless {
            self.memory.waits = self.memory.waits.saturating_add(1);
            State::Yielded
        } else {
            let then = self.give_up();
            self.finish_rollback(then)
        };
        if state == State::Yielded {
            self.memory.not_before = None;
        }
        state
    }

    /// The state that a rollback ends in, with its wait set.
    pub(super) fn finish_rollback(&mut self, then: Then) -> State {
        match then {
            Then::BackingOff if self.memory.option.index > 0 => State::BackingOff { until: self.now },
            Then::BackingOff => {
                State::BackingOff { until: self.wait(self.rules.in_check, self.memory.tries) }
            }
            Then::Yielded => {
                self.memory.yields = self.memory.yields.saturating_add(1);
                self.memory.not_before = Some(self.wait(self.rules.yielding, self.memory.yields));
                State::Yielded
            }
            Then::Rejected => State::Rejected,
            Then::Released => State::Released,
        }
    }

    fn wait(&self, strategy: RetryStrategy, nth: u32) -> Timestamp {
        let base = strategy.wait(nth).signed();
        let spread = base.mul_f64(self.rules.jitter / 2.0);
        later(self.now, base.saturating_add(spread)).unwrap_or(self.now)
    }
}
