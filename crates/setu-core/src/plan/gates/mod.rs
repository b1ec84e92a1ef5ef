//! Decides whether a plan may be bought now: each gate allows it, warns, makes it wait or refuses it, with figures.
//!
//! Rule: pure. A gate that makes a plan wait names what has to change; a watch on that wakes the gang. A gate that refuses names
//! what the policy or the Workload would have to be.

pub mod budget;
pub mod capacity;
mod cohorts;
pub mod guards;
pub mod local_queue;
pub mod placement;
pub mod quota;
pub mod readiness;
pub mod reservations;
mod unknown;

use super::cost::Cost;
use super::{Cluster, Obstacle, ObstacleReason, Plan, Request};
use crate::api::parameters;
use jiff::Timestamp;
use serde::Serialize;
use std::fmt;

/// The gates.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Where gangs may run.
    Placement,
    /// Readiness of the NodePools and their NodeClasses.
    Readiness,
    /// Opening times and free room of the tier's capacity reservations.
    Reservations,
    /// How large a gang may be.
    Size,
    /// What a gang may cost.
    Budget,
    /// Limits for the whole controller and for one LocalQueue.
    Guards,
    /// Limits of the NodePools.
    Capacity,
    /// Quota of the ClusterQueue. A diagnostic.
    Quota,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Placement => "placement",
            Self::Readiness => "readiness",
            Self::Reservations => "reservations",
            Self::Size => "size",
            Self::Budget => "budget",
            Self::Guards => "guards",
            Self::Capacity => "capacity",
            Self::Quota => "quota",
        })
    }
}

/// What a gate answers.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
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

impl fmt::Display for Answer {
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

/// One gate's answer about one subject.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The gate.
    pub gate: Gate,
    /// The NodePool, tier or ClusterQueue that the report is about. Empty if it is about the whole gang.
    pub subject: String,
    /// The answer.
    pub answer: Answer,
    /// The figures, in a sentence.
    pub message: String,
    #[serde(skip)]
    reason: ObstacleReason,
    #[serde(skip)]
    until: Option<Timestamp>,
    /// Whether the policy waits until an unknown amount is known.
    #[serde(skip)]
    is_awaited: bool,
    /// Whether the message says that the prices belong to a default region.
    #[serde(skip)]
    pub tells_of_place: bool,
}

impl Report {
    fn of(gate: Gate, subject: impl Into<String>) -> Self {
        Self {
            gate,
            subject: subject.into(),
            answer: Answer::Allow,
            message: String::new(),
            reason: ObstacleReason::NotAllowed,
            until: None,
            is_awaited: false,
            tells_of_place: false,
        }
    }

    fn allow(self, message: impl Into<String>) -> Self {
        self.answer(Answer::Allow, message)
    }

    fn answer(mut self, answer: Answer, message: impl Into<String>) -> Self {
        self.answer = answer;
        self.message = message.into();
        self
    }

    /// Turns an allow into a warning if the cost uses the prices of a region that is not configured.
    fn by_prices_of(self, cost: &Cost) -> Self {
        match cost.unplaced() {
            Some(why) if self.answer == Answer::Allow => {
                let message = format!("{}, {why}", self.message);
                Self { tells_of_place: true, ..self }.answer(Answer::Warn, message)
            }
            _ => self,
        }
    }

    fn because(mut self, reason: ObstacleReason) -> Self {
        self.reason = reason;
        self
    }

    fn until(mut self, until: Option<Timestamp>) -> Self {
        self.until = until;
        self
    }

    /// Downgrades a closed report to a warning unless the policy enforces the gate.
    fn with_force_of(mut self, gate: parameters::Gate) -> Self {
        if gate != parameters::Gate::Enforce && self.is_closed() {
            self.answer = Answer::Warn;
        }
        self
    }

    /// Whether the report keeps the plan from being bought.
    pub fn is_closed(&self) -> bool {
        matches!(self.answer, Answer::Wait | Answer::Refuse)
            || (self.answer == Answer::Unknown && self.is_awaited)
    }

    fn obstacle(&self) -> Obstacle {
        let until = self.until;
        Obstacle {
            until,
            gate: Some((self.gate, self.subject.clone())),
            ..Obstacle::new(self.reason, &self.message)
        }
    }
}

/// The answers of all gates that the policy has not switched off.
pub fn ask(cluster: &Cluster<'_>, request: &Request<'_>, plan: &Plan) -> Vec<Report> {
    let policy = request.policy;
    let mut reports = placement::ask(cluster, request);
    reports.extend(readiness::ask(cluster, policy, plan));
    reports.extend(reservations::ask(cluster, request, plan));
    reports.push(budget::size(policy, plan));
    reports.extend(budget::ask(policy, plan));
    reports.extend(guards::ask(cluster, plan));
    reports.extend(local_queue::ask(cluster, request, plan));
    if policy.capacity_gate != parameters::Gate::Off {
        reports.extend(capacity::ask(cluster, request, plan));
    }
    if policy.quota_gate != parameters::Gate::Off {
        reports.extend(quota::ask(cluster, request).into_iter().map(|r| r.with_force_of(policy.quota_gate)));
    }
    reports
}

/// Returns a plan that was accepted before, if Karpenter can still create nodes from its NodePools.
pub fn stands(cluster: &Cluster<'_>, request: &Request<'_>, plan: Plan) -> Result<Plan, Obstacle> {
    let reports = readiness::ask(cluster, request.policy, &plan);
    reports.iter().find(|r| r.is_closed()).map_or(Ok(plan), |closed| Err(closed.obstacle()))
}

/// Returns the plan with the gates' reports if every gate lets it pass. Warnings become notes.
pub fn pass(cluster: &Cluster<'_>, request: &Request<'_>, mut plan: Plan) -> Result<Plan, Obstacle> {
    let reports = ask(cluster, request, &plan);
    // Report refusals before gates that may open later.
    let refused = reports.iter().find(|r| r.answer == Answer::Refuse);
    if let Some(closed) = refused.or_else(|| reports.iter().find(|r| r.is_closed())) {
        return Err(closed.obstacle());
    }
    plan.notes.extend(reports.iter().filter(|r| r.answer == Answer::Warn).map(|r| r.message.clone()));
    plan.reports = reports.into();
    Ok(plan)
}
