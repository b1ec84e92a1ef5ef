//! The answer of a gate, with figures, and the obstacle that a closed gate is.

use crate::api::parameters::GateMode;
use crate::plan::cost::Cost;
use crate::plan::obstacle::{Gate, Obstacle, ObstacleReason};
use jiff::Timestamp;
use serde::Serialize;
use std::fmt;

/// The answer of a gate.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum GateAnswer {
    /// Nothing stands in the way.
    Allow,
    /// There is nothing to compare with yet.
    Unknown,
    /// Something stands in the way, and the policy lets it pass.
    Warn,
    /// Not until something changes.
    Wait,
    /// Not with the current policy and Workload.
    Refuse,
}

impl fmt::Display for GateAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allow => "allow",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Wait => "wait",
            Self::Refuse => "refuse",
        })
    }
}

/// The result of a gate for a gang: the label `result` of the metric of gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateResult {
    /// There is room.
    Passed,
    /// There is no room, and the policy only warns.
    Warned,
    /// There is no room now.
    Waiting,
    /// There will never be room.
    Refused,
    /// There was nothing to compare with.
    Unknown,
}

impl GateResult {
    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Warned => "warned",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// One gate's answer about one subject.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GateReport {
    /// The gate.
    pub gate: Gate,
    /// The NodePool, tier or ClusterQueue that the report is about. Empty if it is about the whole gang.
    pub subject: String,
    /// The answer.
    pub answer: GateAnswer,
    /// The figures, in a sentence.
    pub message: String,
    #[serde(skip)]
    reason: ObstacleReason,
    #[serde(skip)]
    until: Option<Timestamp>,
    /// Whether the policy waits until an unknown amount is known.
    #[serde(skip)]
    pub(super) is_awaited: bool,
    /// Whether the message says that the prices belong to a default region.
    #[serde(skip)]
    pub tells_of_place: bool,
}

impl GateReport {
    /// A report that allows. `reason` counts if it becomes closed.
    pub(super) fn of(gate: Gate, subject: impl Into<String>, reason: ObstacleReason) -> Self {
        Self {
            gate,
            subject: subject.into(),
            answer: GateAnswer::Allow,
            message: String::new(),
            reason,
            until: None,
            is_awaited: false,
            tells_of_place: false,
        }
    }

    pub(super) fn allow(self, message: impl Into<String>) -> Self {
        self.answer(GateAnswer::Allow, message)
    }

    pub(super) fn answer(mut self, answer: GateAnswer, message: impl Into<String>) -> Self {
        self.answer = answer;
        self.message = message.into();
        self
    }

    /// Turns an allow into a warning if the cost uses the prices of a region that is not configured.
    pub(super) fn by_prices_of(self, cost: &Cost) -> Self {
        match cost.unplaced() {
            Some(why) if self.answer == GateAnswer::Allow => {
                let message = format!("{}, {why}", self.message);
                Self { tells_of_place: true, ..self }.answer(GateAnswer::Warn, message)
            }
            _ => self,
        }
    }

    pub(super) fn because(mut self, reason: ObstacleReason) -> Self {
        self.reason = reason;
        self
    }

    pub(super) fn until(mut self, until: Option<Timestamp>) -> Self {
        self.until = until;
        self
    }

    /// Downgrades a closed report to a warning unless the policy enforces the gate.
    pub(super) fn limited_by(mut self, gate: GateMode) -> Self {
        if gate != GateMode::Enforce && self.is_closed() {
            self.answer = GateAnswer::Warn;
        }
        self
    }

    /// Whether the report keeps the plan from being bought.
    pub fn is_closed(&self) -> bool {
        matches!(self.answer, GateAnswer::Wait | GateAnswer::Refuse)
            || (self.answer == GateAnswer::Unknown && self.is_awaited)
    }

    pub(super) fn obstacle(&self) -> Obstacle {
        let until = self.until;
        Obstacle {
            until,
            gate: Some((self.gate, self.subject.clone())),
            ..Obstacle::new(self.reason, &self.message)
        }
    }
}
