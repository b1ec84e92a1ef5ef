//! Handles bounds on amounts that are unknown for some nodes: the gate waits or warns instead of counting such nodes as small.
//!
//! Called by the gates that compare amounts of resources, on a report that would otherwise allow.

use super::{GateAnswer, GateReport};
use crate::api::parameters::Unknown;
use crate::api::pod::ResourceList;
use crate::plan::resources::is_device;
use crate::plan::{ObstacleReason, PendingNodes};
use crate::words::{counted, few};

/// Bounded amounts that are unknown for some of the nodes.
pub struct UnknownAmounts<'b> {
    amounts: Vec<&'b str>,
    /// Nodes whose type is unknown.
    or_more: u32,
    /// All nodes.
    nodes: u32,
}

impl<'b> UnknownAmounts<'b> {
    /// The keys of `bounds` that are unknown for what a plan takes. Nodes of unknown type matter only for keys that `asked`
    /// accepts: the gang may ignore bounds on resources that it does not take.
    pub fn of(taken: &[PendingNodes], bounds: &'b ResourceList, asked: impl Fn(&str) -> bool) -> Self {
        let is_open =
            |r: &PendingNodes, key: &String| r.or_more > 0 && !r.counted.contains(key) && asked(key);
        let unknown = |key: &&String| {
            taken.iter().any(|r| r.unknown.iter().any(|amount| amount.covers(key)) || is_open(r, key))
        };
        let sum = |of: fn(&PendingNodes) -> u32| taken.iter().map(of).fold(0, u32::saturating_add);
        Self {
            amounts: bounds.keys().filter(unknown).map(String::as_str).collect(),
            or_more: sum(|r| r.or_more),
            nodes: sum(|r| r.nodes),
        }
    }

    /// Adjusts a report that would allow; unchanged if all amounts are known. Nodes of kwok are simulated, so at most a devices
    /// bound warns.
    pub fn qualify(&self, report: GateReport, is_kwok: bool, unknown: Unknown) -> GateReport {
        if report.answer != GateAnswer::Allow || self.amounts.is_empty() {
            return report;
        }
        if is_kwok { self.unless_larger(report) } else { self.not_known(report, unknown) }
    }

    /// The report when the amounts cannot be compared with the bound.
    fn not_known(&self, mut report: GateReport, unknown: Unknown) -> GateReport {
        let amounts = few(self.amounts.iter().copied());
        report.is_awaited = unknown == Unknown::Wait;
        let or_warn = if report.is_awaited { ", or set gates.unknown: Warn" } else { "" };
        let message = if self.or_more > 0 {
            format!(
                "{} may be of unknown instance types, so {amounts} cannot be compared; name instance types in NodePool or \
                 tier and state their amounts under packing.shapes{or_warn}",
                counted(self.or_more, "node"),
            )
        } else {
            format!(
                "the amount of {amounts} on {} is unknown and cannot be compared; state it for their instance types under \
                 packing.shapes{or_warn}",
                counted(self.nodes, "node"),
            )
        };
        let answer = if report.is_awaited { GateAnswer::Unknown } else { GateAnswer::Warn };
        report.because(ObstacleReason::AmountUnknown).answer(answer, message)
    }

    /// Notes that the size of some nodes was unknown. Warns if a bound on devices may be exceeded because of that.
    fn unless_larger(&self, mut report: GateReport) -> GateReport {
        if self.or_more > 0 {
            if self.amounts.iter().any(|key| is_device(key)) {
                report = report.because(ObstacleReason::AmountUnknown);
                report.answer = GateAnswer::Warn;
            }
            let nodes = counted(self.or_more, "node");
            report.message = format!(
                "{}; for {nodes} of unknown instance type Setu counts only what the NodeClaims request; name instance types \
                 in NodePool or tier, and state what they have under packing.shapes",
                report.message
            );
        }
        report
    }
}
