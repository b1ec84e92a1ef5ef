//! Builds the report of each gang from objects. Pure, so that all output can be tested without a cluster.
//!
//! Rule: the state of claims and Nodes is read from the objects. What only the controller knows (the plan, its
//! gates, short capacity) is taken from the messages it left on the Workload.

use super::cluster::{ClusterObjects, Scope};
use super::gang_objects::{GangObjects, GangView};
use super::known::HourlyCost;
use super::queued::{self, QueueHolders, QuotaHolders};
use super::render::span;
use super::requests::why_unowned;
use super::workload_phase::WorkloadPhase;
use crate::api::workload::{CheckState, Verdict};
use crate::api::{FrontEnd, Workload, condition};
use crate::controllers::board::Holder;
use crate::gang::report::notice::NEXT;
use crate::gang::statechart::journal::{JournalError, TraceStart};
use crate::gang::statechart::transition::Transition;
use crate::gang::workload::request::own_check;
use crate::gang::{Journal, StateName, UnboundPods};
use crate::names;
use crate::words::counted;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

/// A gang whose check is not answered yet counts as new for this long after its reservation.
const JUST_NOW: SignedDuration = SignedDuration::from_secs(5);

/// One gang: a Workload under one of Setu's checks.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GangReport {
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub workload: String,
    /// `Kind/name` of the Workload's owner.
    pub owner: String,
    /// The LocalQueue.
    pub queue: String,
    /// Its ClusterQueue; empty if it has no quota and LocalQueues may not be read.
    pub cluster_queue: String,
    /// While it has no quota: those Workloads with the most pods that hold quota of its ClusterQueue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_held_by: Vec<Holder>,
    /// How many more Workloads hold quota of its ClusterQueue; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_quota_holders: Option<usize>,
    /// The AdmissionCheck.
    pub check: String,
    /// The check's verdict, once Kueue has listed the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// How far Kueue has got with the Workload.
    #[serde(rename = "standing")]
    pub workload_phase: WorkloadPhase,
    /// When the Workload was created.
    pub created: Timestamp,
    /// When its quota was reserved, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Timestamp>,
    /// One line: why it does not run, or that it runs.
    pub why: String,
    /// Whether `why` quotes Kueue.
    #[serde(skip)]
    pub why_quotes_kueue: bool,
    /// Kueue's own message, while it holds the Workload back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kueue_says: Option<String>,
    /// Checks of other controllers that are not Ready.
    pub other_checks: Vec<OtherCheck>,
    /// The last message that the controller set on the check.
    #[serde(rename = "told", skip_serializing_if = "String::is_empty")]
    pub check_message: String,
    /// The gang's state and the reason for it; absent until Setu has started on the gang. Counts that are not known are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangView>,
    /// The hourly cost of its nodes, if all prices are known.
    #[serde(flatten)]
    pub cost: Option<HourlyCost>,
    /// A text naming what has no known price, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_price: Option<String>,
    /// The controller's Event about its plan (nodes, cost, NodePools passed over), while the Event exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<String>,
    /// Trace id of this admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Where this admission's trace begins.
    #[serde(skip)]
    pub trace: TraceStart,
    /// Its last transitions, newest last.
    pub history: Vec<Transition>,
}

/// A check of another controller.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct OtherCheck {
    /// Its name.
    pub name: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its message.
    pub message: String,
}

impl GangReport {
    /// The gang's state, or the Workload's phase until Setu has started on it.
    pub fn state(&self) -> String {
        match &self.gang {
            Some(gang) => gang.state.to_string(),
            None => format!("{:?}", self.workload_phase),
        }
    }

    /// The transitions of this admission.
    pub fn this_admission(&self) -> &[Transition] {
        self.trace.of_this_admission(&self.history)
    }

    /// How long it has waited since its quota was reserved, if it does not run yet.
    pub fn waiting(&self, now: Timestamp) -> Option<SignedDuration> {
        (self.workload_phase == WorkloadPhase::Reserved)
            .then(|| self.reserved.map(|t| now.duration_since(t)))?
    }
}

/// Every gang of these objects, by namespace, Workload and check. All namespaces were read.
pub fn gangs(objects: &ClusterObjects) -> Vec<GangReport> {
    gangs_in(objects, &Scope::Everywhere)
}

/// Every gang of these objects, if only this scope was read. Other holders of quota may be outside of it.
pub fn gangs_in(objects: &ClusterObjects, scope: &Scope) -> Vec<GangReport> {
    let holders = QuotaHolders::of(objects, *scope != Scope::Everywhere);
    let mut all: Vec<GangReport> =
        objects.workloads.iter().flat_map(|workload| gangs_among(objects, workload, &holders)).collect();
    all.sort_by(|a, b| (&a.namespace, &a.workload, &a.check).cmp(&(&b.namespace, &b.workload, &b.check)));
    all
}

/// The gangs of one Workload: one for each check of Setu's that it lists or has a journal of.
pub fn gangs_of(objects: &ClusterObjects, workload: &Workload) -> Vec<GangReport> {
    gangs_among(objects, workload, &QuotaHolders::around(objects, workload))
}

fn gangs_among(objects: &ClusterObjects, workload: &Workload, holders: &QuotaHolders<'_>) -> Vec<GangReport> {
    let of_request = own_check(workload).map(|check| &check.name);
    let is_answered = |check: &&str| match workload.front_end() {
        FrontEnd::Workload | FrontEnd::StandaloneRequest => is_ours(objects, check),
        FrontEnd::ProvisioningRequest => of_request.is_some_and(|own| own == check),
    };
    let listed = workload.checks().iter().map(|c| c.name.as_str()).filter(is_answered);
    let journalled = workload.annotations().keys().filter_map(|key| key.strip_prefix(names::JOURNAL_PREFIX));
    let mut checks: Vec<&str> = listed.chain(journalled).collect();
    if checks.is_empty() && WorkloadPhase::of(workload) == WorkloadPhase::Queued {
        checks.extend(queued::checks_to_come(objects, workload).filter(|c| is_ours(objects, c)));
    }
    checks.sort_unstable();
    checks.dedup();
    checks.into_iter().map(|check| report_among(objects, workload, check, holders)).collect()
}

/// Whether a check is known to be Setu's; false if checks may not be read.
fn is_ours(objects: &ClusterObjects, check: &str) -> bool {
    objects.check(check).is_some_and(|known| known.spec.controller_name == objects.controller_name)
}

/// The report of a Workload under one check. The check is empty for a Workload that has none yet.
pub fn report(objects: &ClusterObjects, workload: &Workload, check: &str) -> GangReport {
    report_among(objects, workload, check, &QuotaHolders::around(objects, workload))
}

fn report_among(
    objects: &ClusterObjects,
    workload: &Workload,
    check: &str,
    holders: &QuotaHolders<'_>,
) -> GangReport {
    let of_gang = GangObjects::of(objects, workload, check);
    let entry = workload.check(check);
    let journal = of_gang.journal().and_then(Result::ok);
    let workload_phase = WorkloadPhase::of(workload);
    let cluster_queue = queued::cluster_queue(objects, workload);
    let holders = holders.of_queued(workload_phase, cluster_queue);
    let prices = objects.prices_of(check);
    let cost = prices.cost(of_gang.claims.iter().map(|claim| &**claim));
    let others = workload.checks().iter().filter(|c| c.name != check && is_foreign(objects, c));
    let mut report = GangReport {
        namespace: workload.namespace().unwrap_or_default(),
        workload: workload.name_any(),
        owner: workload.owner(),
        queue: workload.spec.queue_name.clone(),
        cluster_queue: cluster_queue.to_owned(),
        quota_held_by: holders.named(),
        other_quota_holders: holders.others(),
        check: check.to_owned(),
        verdict: entry.map(|c| c.state),
        workload_phase,
        created: of_gang.created(),
        reserved: workload.reserved_since().filter(|_| workload.has_quota()),
        why: String::new(),
        why_quotes_kueue: false,
        kueue_says: workload_phase.in_kueues_words(workload),
        other_checks: others.map(other).collect(),
        check_message: entry.map(|c| c.message.clone()).unwrap_or_default(),
        gang: journal.map(|journal| of_gang.view(journal)),
        cost: prices.hourly(&cost),
        no_price: cost.unpaid(),
        planned: journal.and_then(|journal| planned(objects, workload, journal)),
        trace_id: journal.and_then(|j| j.trace_id()).map(str::to_owned),
        trace: journal.map(|j| j.trace.clone()).unwrap_or_default(),
        history: journal.map_or_else(Vec::new, |j| j.history.clone()),
    };
    set_why(&mut report, &of_gang, &holders);
    report
}

/// Sets why the gang does not run, or that it runs.
fn set_why(report: &mut GangReport, gang: &GangObjects<'_>, holders: &QueueHolders<'_>) {
    let (objects, workload) = (gang.objects, gang.workload);
    let journal_fault = journal_fault(gang);
    report.why_quotes_kueue = journal_fault.is_none() && quotes_kueue(report);
    report.why = journal_fault.unwrap_or_else(|| match report.workload_phase {
        WorkloadPhase::Unowned | WorkloadPhase::Ended => why_unowned(workload),
        _ => why(objects, report, holders),
    });
    if objects.is_deleted_request(workload) {
        report.why += "; its ProvisioningRequest was deleted, and the nodes go when its Workload ends";
    }
}

/// Why the gang's journal cannot be used, if that is so.
fn journal_fault(gang: &GangObjects<'_>) -> Option<String> {
    match gang.journal()?.err()? {
        fault @ JournalError::Newer(_) => Some(fault.to_string()),
        fault => Some(format!("its journal cannot be read: {fault}")),
    }
}

/// The text of the Event about the last accepted plan, without its announcement of the next step.
fn planned(objects: &ClusterObjects, workload: &Workload, journal: &Journal) -> Option<String> {
    let accepted =
        |step: &&Transition| (step.from, step.to) == (StateName::Validating, StateName::Provisioning);
    let step = journal.history.iter().rfind(accepted)?;
    let event = objects.plans.iter().find(|event| {
        let at = event.event_time.as_ref().map(|time| time.0.as_millisecond());
        event.involved_object.uid == workload.metadata.uid && at == Some(step.at.as_millisecond())
    })?;
    // The next step is usually over by now.
    let text = event.message.as_deref()?;
    Some(text.split(NEXT).next().unwrap_or(text).to_owned())
}

fn is_foreign(objects: &ClusterObjects, check: &CheckState) -> bool {
    check.state != Verdict::Ready && objects.checks.is_some() && !is_ours(objects, &check.name)
}

fn other(check: &CheckState) -> OtherCheck {
    OtherCheck { name: check.name.clone(), verdict: check.state, message: check.message.clone() }
}

/// The gang, unless it is Released: one that holds nodes or is about to.
fn holding(report: &GangReport) -> Option<&GangView> {
    report.gang.as_ref().filter(|gang| gang.state != StateName::Released)
}

/// Whether only Kueue's own message explains why a gang does not run.
fn quotes_kueue(report: &GangReport) -> bool {
    let is_blocked = matches!(
        report.workload_phase,
        WorkloadPhase::Finished | WorkloadPhase::Deactivated | WorkloadPhase::Queued | WorkloadPhase::Evicted
    );
    is_blocked && holding(report).is_none()
}

fn why(objects: &ClusterObjects, report: &GangReport, holders: &QueueHolders<'_>) -> String {
    let note = |what: &str| match &report.kueue_says {
        Some(words) => format!("{what}: {words}"),
        None => what.to_owned(),
    };
    let holds = holding(report);
    match (report.workload_phase, holds) {
        (WorkloadPhase::Unowned | WorkloadPhase::Ended, None) => String::new(),
        (WorkloadPhase::Finished, None) => note("finished"),
        (WorkloadPhase::Deactivated, None) => note("deactivated, spec.active is false"),
        (WorkloadPhase::Queued, None) => {
            let needs_more = report.kueue_says.as_deref().is_some_and(queued::needs_more_quota);
            let held = holders.in_words(&report.cluster_queue).filter(|_| !needs_more);
            let remedy = needs_more.then(|| queued::NEEDS_MORE_QUOTA.to_owned());
            let parts = [Some(note("quota is not reserved")), remedy, held, unserved(objects, &report.check)];
            parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
        }
        (WorkloadPhase::Admitted, Some(gang)) if gang.state == StateName::Approved && gang.wants_nodes() => {
            let held = format!("admitted; {} held for it", counted(gang.slots, "node"));
            let unbound = |u: &UnboundPods| u.text(&span(objects.now.duration_since(u.since)));
            gang.unbound_pods.as_ref().map_or(held.clone(), |u| format!("{held}; {}", unbound(u)))
        }
        (WorkloadPhase::Admitted, Some(gang)) if gang.state == StateName::Approved => {
            format!("admitted; {}", gang.sentence)
        }
        (WorkloadPhase::Reserved, Some(gang)) if gang.state == StateName::Approved => {
            let open = report.other_checks.iter().map(|c| format!("{} ({:?})", c.name, c.verdict));
            let open: Vec<String> = open.collect();
            let sentence = &gang.sentence;
            if open.is_empty() {
                sentence.clone()
            } else {
                format!("{sentence}; waits for check {}", open.join(", "))
            }
        }
        (_, Some(gang)) => gang.sentence.clone(),
        (WorkloadPhase::Evicted, None) => note("evicted"),
        (WorkloadPhase::Reserved | WorkloadPhase::Admitted, None) => unanswered(objects, report),
    }
}

/// Why a check is not active, or that no controller has seen it; `None` if it is active, or not known.
fn unserved(objects: &ClusterObjects, check: &str) -> Option<String> {
    condition::find(objects.check(check)?.conditions(), "Active").map_or_else(
        || {
            let remedy = "is `setu run` running with this --controller-name?";
            Some(format!("no controller has seen AdmissionCheck {check}; {remedy}"))
        },
        |active| inactive(check, active),
    )
}

fn inactive(check: &str, active: &Condition) -> Option<String> {
    let is_inactive = active.status != "True";
    is_inactive.then(|| format!("AdmissionCheck {check} is not active: {} {}", active.reason, active.message))
}

/// Quota is reserved, but Setu has not started. After a few seconds, the controller or the check is at fault.
fn unanswered(objects: &ClusterObjects, report: &GangReport) -> String {
    let check = report.check.as_str();
    let active = objects.check(check).and_then(|known| condition::find(known.conditions(), "Active"));
    match active.and_then(|active| inactive(check, active)) {
        Some(why) => why,
        _ if objects.is_by_request(check) && report.check_message.is_empty() => format!(
            "quota is reserved, and Kueue has not made the ProvisioningRequest for check {check} yet; Setu serves it if its class is {}",
            names::REQUEST_CLASS
        ),
        _ if report.waiting(objects.now).is_some_and(|waits| waits < JUST_NOW) => {
            format!("quota was reserved just now; check {check} is about to be answered")
        }
        _ => format!("check {check} has no answer yet; is `setu run` running with this --controller-name?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeClaim;
    use serde_json::json;

    #[test]
    fn each_gang_of_a_workload_costs_what_its_own_nodes_cost() {
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ns", "name": "w", "uid": "u"}, "spec": {},
            "status": {"admissionChecks": [{"name": "a"}, {"name": "b"}]},
        }))
        .unwrap();
        let claim = |check: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {
                    "name": "claim", "labels": {(names::WORKLOAD_UID): "u"}, "annotations": {(names::CHECK): check},
                },
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            }))
            .unwrap()
        };
        let claims = Some(vec![claim("a"), claim("b"), claim("b")]);
        let objects = ClusterObjects { claims, ..ClusterObjects::default() };
        let unpaid = |check: &str| report(&objects, &workload, check).no_price.unwrap();
        assert!(unpaid("a").ends_with("1 node)"), "{}", unpaid("a"));
        assert!(unpaid("b").ends_with("2 nodes)"), "{}", unpaid("b"));
    }
}
