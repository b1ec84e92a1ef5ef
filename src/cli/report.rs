//! Builds the report of each gang from objects. Pure, so that all output can be tested without a cluster.
//!
//! Rule: the state of claims and Nodes is read from the objects. What only the controller knows (the plan, its
//! gates, short capacity) is taken from the messages it left on the Workload.

use super::cluster::ClusterObjects;
use super::known::HourlyCost;
use super::queued;
use super::render::span;
use super::standing::Standing;
use crate::api::workload::{CheckState, Verdict};
use crate::api::{Node, NodeClaim, Pod, Workload, condition};
use crate::controllers::board::Holder;
use crate::gang::explain::WHEN_THAT_CHANGES;
use crate::gang::journal::{JournalError, Step};
use crate::gang::notice::NEXT;
use crate::gang::request::own_check;
use crate::gang::terms::vouched;
use crate::gang::verdict::is_kept_out;
use crate::gang::{
    AdmittedPods, ClaimView, Explanation, GangIdentity, Journal, Outlook, Refusal, Reservation, Snapshot,
    StateName, UnboundPods,
};
use crate::names;
use crate::words::counted;
use jiff::{SignedDuration, Timestamp};
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
    /// While it has no quota: the Workloads that hold quota of its ClusterQueue, those with the most pods first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_held_by: Vec<Holder>,
    /// The AdmissionCheck.
    pub check: String,
    /// The check's verdict, once Kueue has listed the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// How far Kueue has got with the Workload.
    pub standing: Standing,
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
    #[serde(skip_serializing_if = "String::is_empty")]
    pub told: String,
    /// The gang's state and the reason for it; absent until Setu has started on the gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<Explanation>,
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
    /// Its last transitions, newest last.
    pub history: Vec<Step>,
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
    /// The gang's state, or the Workload's standing until Setu has started on it.
    pub fn state(&self) -> String {
        match &self.gang {
            Some(gang) => gang.state.to_string(),
            None => format!("{:?}", self.standing),
        }
    }

    /// How long it has waited since its quota was reserved, if it does not run yet.
    pub fn waiting(&self, now: Timestamp) -> Option<SignedDuration> {
        (self.standing == Standing::Reserved).then(|| self.reserved.map(|t| now.duration_since(t)))?
    }
}

/// Every gang of these objects, by namespace, Workload and check.
pub fn gangs(objects: &ClusterObjects) -> Vec<GangReport> {
    let mut all: Vec<GangReport> =
        objects.workloads.iter().flat_map(|workload| gangs_of(objects, workload)).collect();
    all.sort_by(|a, b| (&a.namespace, &a.workload, &a.check).cmp(&(&b.namespace, &b.workload, &b.check)));
    all
}

/// The gangs of one Workload: one for each check of Setu's that it lists or has a journal of.
pub fn gangs_of(objects: &ClusterObjects, workload: &Workload) -> Vec<GangReport> {
    // Setu answers a request, although the check is Kueue's.
    let of_request = workload.request_name().and_then(|_| own_check(workload)).map(|check| &check.name);
    let is_answered = |check: &&str| match of_request {
        Some(own) => own == check,
        None => is_ours(objects, check),
    };
    let listed = workload.checks().iter().map(|c| c.name.as_str()).filter(is_answered);
    let journalled = workload.annotations().keys().filter_map(|key| key.strip_prefix(names::JOURNAL_PREFIX));
    let mut checks: Vec<&str> = listed.chain(journalled).collect();
    if checks.is_empty() && Standing::of(workload) == Standing::Queued {
        checks.extend(queued::checks_to_come(objects, workload).filter(|c| is_ours(objects, c)));
    }
    checks.sort_unstable();
    checks.dedup();
    checks.into_iter().map(|check| report(objects, workload, check)).collect()
}

/// Whether a check is known to be Setu's; false if checks may not be read.
fn is_ours(objects: &ClusterObjects, check: &str) -> bool {
    objects
        .checks
        .iter()
        .flatten()
        .any(|known| known.name_any() == check && known.spec.controller_name == objects.controller_name)
}

/// The report of a Workload under one check. The check is empty for a Workload that has none yet.
pub fn report(objects: &ClusterObjects, workload: &Workload, check: &str) -> GangReport {
    let entry = workload.check(check);
    let journal = journal(objects, workload, check);
    let gang = match &journal {
        Some(Ok(journal)) => Some(explained(objects, workload, check, journal)),
        _ => None,
    };
    let journal_fault = match &journal {
        Some(Err(fault @ JournalError::Newer(_))) => Some(fault.to_string()),
        Some(Err(fault)) => Some(format!("its journal cannot be read: {fault}")),
        _ => None,
    };
    let journal = journal.and_then(Result::ok);
    let standing = Standing::of(workload);
    let reserved = workload.is("QuotaReserved");
    let cluster_queue = queued::cluster_queue(objects, workload);
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let prices = objects.prices_of(check);
    let of_gang = |claim: &&NodeClaim| claim.label(names::WORKLOAD_UID) == uid;
    let cost = prices.cost(objects.claims.iter().flatten().filter(of_gang));
    let mut report = GangReport {
        namespace: workload.namespace().unwrap_or_default(),
        workload: workload.name_any(),
        owner: workload.owner(),
        queue: workload.spec.queue_name.clone(),
        cluster_queue: cluster_queue.to_owned(),
        quota_held_by: if standing == Standing::Queued {
            queued::holders(objects, cluster_queue)
        } else {
            Vec::new()
        },
        check: check.to_owned(),
        verdict: entry.map(|c| c.state),
        standing,
        created: workload.metadata.creation_timestamp.as_ref().map_or(objects.now, |t| t.0),
        reserved: condition::since(workload.conditions(), "QuotaReserved").filter(|_| reserved),
        why: String::new(),
        why_quotes_kueue: false,
        kueue_says: standing.in_kueues_words(workload),
        other_checks: workload
            .checks()
            .iter()
            .filter(|c| c.name != check && is_foreign(objects, c))
            .map(other)
            .collect(),
        told: entry.map(|c| c.message.clone()).unwrap_or_default(),
        gang,
        cost: prices.hourly(&cost),
        no_price: cost.unpaid(),
        planned: journal.as_ref().and_then(|journal| planned(objects, workload, journal)),
        trace_id: journal.as_ref().and_then(|j| j.trace_id()).map(str::to_owned),
        history: journal.map_or_else(Vec::new, |j| j.history),
    };
    report.why_quotes_kueue = journal_fault.is_none() && quotes_kueue(&report);
    report.why = journal_fault.unwrap_or_else(|| why(objects, &report));
    report
}

/// The text of the Event about the last accepted plan, without its announcement of the next step.
fn planned(objects: &ClusterObjects, workload: &Workload, journal: &Journal) -> Option<String> {
    let accepted = |step: &&Step| (step.from, step.to) == (StateName::Validating, StateName::Provisioning);
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

fn journal(
    objects: &ClusterObjects,
    workload: &Workload,
    check: &str,
) -> Option<Result<Journal, JournalError>> {
    let text = workload.annotations().get(&names::journal_key(check))?;
    let created = workload.metadata.creation_timestamp.as_ref().map_or(objects.now, |t| t.0);
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    Some(Journal::decode(text, uid, created, objects.now))
}

fn explained(objects: &ClusterObjects, workload: &Workload, check: &str, journal: &Journal) -> Explanation {
    let identity = GangIdentity {
        namespace: workload.namespace().unwrap_or_default(),
        workload: workload.name_any(),
        uid: workload.uid().unwrap_or_default(),
        check: check.to_owned(),
    };
    let policy = objects.policy(check);
    let own = |c: &&NodeClaim| identity.made(c);
    let claims: Vec<NodeClaim> = objects.claims.iter().flatten().filter(own).cloned().collect();
    let tier = journal.memory.option.tier;
    let policy = match vouched(journal, &claims) {
        Some(terms) => terms.over(policy, tier),
        None => policy,
    };
    let mut views: Vec<ClaimView> = claims
        .iter()
        .map(|claim| ClaimView::of(claim, node_of(objects, claim), &policy, objects.now, None))
        .collect();
    views.sort_by_key(|view| view.slot);
    let reservation = Reservation::of(workload, check);
    let verdict = workload.check(check).map(|entry| entry.state).unwrap_or_default();
    let unbound = unbound_pods(objects, workload, check).filter(|_| journal.memory.slots > 0);
    let snapshot = Snapshot {
        reported: verdict,
        claims: &views,
        refusal: is_kept_out(journal, &reservation, verdict)
            .then_some(Refusal { until: objects.now, again_at: objects.now }),
        outlook: Outlook { unbound: unbound.as_ref(), ..Outlook::default() },
        ..Snapshot::of(objects.now, &reservation, &policy)
    };
    let mut explanation = Explanation::of(journal, &snapshot, &claims);
    if objects.claims.is_none() {
        explanation.nodes.clear();
    }
    let known = |at: &Timestamp| *at < objects.now + SignedDuration::from_hours(50 * 365 * 24);
    explanation.nodes.iter_mut().for_each(|node| node.until = node.until.filter(known));
    explanation.otherwise = explanation.otherwise.filter(|o| known(&o.at));
    let needs_plan = match explanation.state {
        StateName::Validating => true,
        StateName::Approved => explanation.slots == 0,
        StateName::Yielded => snapshot.refusal.is_some(),
        _ => objects.claims.is_none(),
    };
    let word = word_of_controller(workload, check, journal);
    if explanation.state == StateName::Validating {
        // Whether the wait for a plan ends depends on the obstacle, which the controller's own message states.
        explanation.otherwise = None;
        if word.is_some() {
            WHEN_THAT_CHANGES.clone_into(&mut explanation.next);
        }
    }
    if needs_plan && let Some(word) = word {
        word.clone_into(&mut explanation.sentence);
    }
    explanation
}

/// Unbound pods of an admitted gang, if pods were read.
fn unbound_pods(objects: &ClusterObjects, workload: &Workload, check: &str) -> Option<UnboundPods> {
    let namespace = workload.namespace();
    let pods = objects.pods.as_ref()?.iter().filter(|pod| pod.metadata.namespace == namespace);
    let pods: Vec<Pod> = pods.cloned().collect();
    AdmittedPods::of(workload, check)?.find(&pods, objects.now)
}

/// The controller's last message: that of the check, or the text of the state annotation.
fn word_of_controller<'w>(workload: &'w Workload, check: &str, journal: &Journal) -> Option<&'w str> {
    let entry = workload.check(check).map(|c| c.message.as_str());
    let state = format!("{}: ", journal.state.name());
    let note = || workload.annotations().get(&names::state_key(check))?.strip_prefix(&state);
    entry.filter(|m| !m.is_empty()).or_else(note)
}

fn node_of<'s>(objects: &'s ClusterObjects, claim: &NodeClaim) -> Option<&'s Node> {
    let name = claim.node_name()?;
    objects.nodes.iter().flatten().find(|node| node.metadata.name.as_deref() == Some(name))
}

/// The gang, unless it is Released: one that holds nodes or is about to.
fn holding(report: &GangReport) -> Option<&Explanation> {
    report.gang.as_ref().filter(|gang| gang.state != StateName::Released)
}

/// Whether only Kueue's own message explains why a gang does not run.
fn quotes_kueue(report: &GangReport) -> bool {
    let is_blocked = matches!(
        report.standing,
        Standing::Finished | Standing::Deactivated | Standing::Queued | Standing::Evicted
    );
    is_blocked && holding(report).is_none()
}

fn why(objects: &ClusterObjects, report: &GangReport) -> String {
    let note = |what: &str| match &report.kueue_says {
        Some(words) => format!("{what}: {words}"),
        None => what.to_owned(),
    };
    let holds = holding(report);
    match (report.standing, holds) {
        (Standing::Finished, None) => note("finished"),
        (Standing::Deactivated, None) => note("deactivated, spec.active is false"),
        (Standing::Queued, None) => {
            let held = queued::in_words(&report.cluster_queue, &report.quota_held_by);
            let parts = [Some(note("quota is not reserved")), held];
            parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
        }
        (Standing::Admitted, Some(gang)) if gang.state == StateName::Approved => match gang.slots {
            0 => format!("admitted; {}", gang.sentence),
            nodes => {
                let held = format!("admitted; {} held for it", counted(nodes, "node"));
                let now = objects.now;
                let unbound = |u: &UnboundPods| u.text(&span(now.duration_since(u.since)));
                gang.unbound_pods.as_ref().map_or(held.clone(), |u| format!("{held}; {}", unbound(u)))
            }
        },
        (Standing::Reserved, Some(gang)) if gang.state == StateName::Approved => {
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
        (Standing::Evicted, None) => note("evicted"),
        (Standing::Reserved | Standing::Admitted, None) => unanswered(objects, report),
    }
}

/// Quota is reserved, but Setu has not started. After a few seconds, the controller or the check is at fault.
fn unanswered(objects: &ClusterObjects, report: &GangReport) -> String {
    let check = report.check.as_str();
    let known = objects.checks.iter().flatten().find(|c| c.name_any() == check);
    let active = known.and_then(|c| condition::find(c.conditions(), "Active"));
    match active {
        Some(active) if active.status != "True" => {
            format!("AdmissionCheck {check} is not active: {} {}", active.reason, active.message)
        }
        _ if report.waiting(objects.now).is_some_and(|waits| waits < JUST_NOW) => {
            format!("quota was reserved just now; check {check} is about to be answered")
        }
        _ => format!("check {check} has no answer yet; is `setu run` running with this --controller-name?"),
    }
}
