//! Whether a plan may be bought now: each gate allows it, warns, lets it wait or refuses it, with figures.
//!
//! Rule: pure. A gate that lets a plan wait says what has to change, and whoever watches that wakes it;
//! one that refuses says what policy or Workload would have to be.

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
    /// Time and room of the tier's capacity reservations.
    Reservations,
    /// How large a gang may be.
    Size,
    /// What a gang may cost.
    Budget,
    /// What the whole controller, and one LocalQueue, may do.
    Guards,
    /// Limits of the NodePools.
    Capacity,
    /// Quota of the ClusterQueue, a diagnostic.
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
    /// Nothing is in the way.
    Allow,
    /// There is nothing to compare with yet.
    Unknown,
    /// Something is, and the policy does not mind.
    Warn,
    /// Not until something changes.
    Wait,
    /// Not as policy and Workload are.
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

/// One gate's answer about one thing.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The gate.
    pub gate: Gate,
    /// The NodePool, tier or ClusterQueue it is about; empty where it is about the gang as a whole.
    pub subject: String,
    /// The answer.
    pub answer: Answer,
    /// The figures, in a sentence.
    pub message: String,
    #[serde(skip)]
    reason: ObstacleReason,
    #[serde(skip)]
    until: Option<Timestamp>,
    /// Whether it is waited for what is not known.
    #[serde(skip)]
    is_awaited: bool,
    /// Whether it says that prices are those of a region that nobody has named.
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

    /// A warning where it allows what was reckoned by the prices of a region that nobody has named.
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

    /// With no more force than the policy gives the gate.
    fn with_force_of(mut self, gate: parameters::Gate) -> Self {
        if gate != parameters::Gate::Enforce && self.is_closed() {
            self.answer = Answer::Warn;
        }
        self
    }

    /// Whether it keeps the plan from being bought.
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

/// What every gate that the policy has not switched off answers.
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

/// The plan, which was accepted before, if nodes can still be made of its NodePools.
pub fn stands(cluster: &Cluster<'_>, request: &Request<'_>, plan: Plan) -> Result<Plan, Obstacle> {
    let reports = readiness::ask(cluster, request.policy, &plan);
    reports.iter().find(|r| r.is_closed()).map_or(Ok(plan), |closed| Err(closed.obstacle()))
}

/// The plan with the gates' reports, if every gate lets it pass. What one only warns of becomes a note.
pub fn pass(cluster: &Cluster<'_>, request: &Request<'_>, mut plan: Plan) -> Result<Plan, Obstacle> {
    let reports = ask(cluster, request, &plan);
    // What can never pass is told before what may pass later.
    let refused = reports.iter().find(|r| r.answer == Answer::Refuse);
    if let Some(closed) = refused.or_else(|| reports.iter().find(|r| r.is_closed())) {
        return Err(closed.obstacle());
    }
    plan.notes.extend(reports.iter().filter(|r| r.answer == Answer::Warn).map(|r| r.message.clone()));
    plan.reports = reports.into();
    Ok(plan)
}
