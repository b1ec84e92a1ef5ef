//! The data of `setu top`: what gangs hold and waste, by NodePool, and which gangs wait longest.
//!
//! Rule: users may delete a node that counts as wasted. So it counts as wasted only if no gang can need it.

use super::cluster::ClusterObjects;
use super::known::{PricedBy, PricesOfCheck};
use super::report::GangReport;
use super::workload_phase::WorkloadPhase;
use crate::api::amount::Sums;
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::gang_label;
use crate::gang::report::explain::{SlotPhase, SlotView};
use crate::gang::workload::elastic_job::is_in_use;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The nodes that are held, and the gangs that wait.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// By NodePool; absent if NodeClaims may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<BTreeMap<String, Held>>,
    /// Gangs that wait with quota reserved, longest first.
    pub slowest: Vec<GangReport>,
    /// Number of gangs that wait for quota.
    pub queued: usize,
    /// Gangs that wait for quota, oldest first.
    pub longest_queued: Vec<GangReport>,
}

/// Nodes that Setu made, by their current use.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// All of them.
    pub nodes: usize,
    /// Ready, with an admitted gang, or made for a replaced slice of an elastic Job that runs.
    pub running: usize,
    /// Not ready yet.
    pub coming: usize,
    /// Ready, and their gang does not run yet.
    pub idle: usize,
    /// Kept for the next gang of the same LocalQueue.
    pub warm: usize,
    /// Of no use to any gang: being deleted, or left over.
    pub wasted: usize,
    /// Those that may be in use: the journal of their gang, their ProvisioningRequest or their Node cannot be read.
    pub unknown: usize,
    /// Total hourly cost of the nodes with a known price, by currency.
    pub cost_per_hour: Sums,
    /// Where the prices come from.
    pub priced_by: BTreeSet<PricedBy>,
    /// Number of nodes with an unknown price.
    pub unpriced: usize,
    /// Total unused time in seconds: of idle and warm nodes since they became so; of wasted nodes since their deletion
    /// began, or since their creation if they are left over.
    pub unused_seconds: i64,
}

/// Summarizes objects. `most` limits the lists of gangs.
pub fn summary(objects: &ClusterObjects, gangs: Vec<GangReport>, most: usize) -> Summary {
    let pools = objects.claims.as_ref().map(|claims| by_pool(objects, claims, &gangs));
    let (mut queued, gangs): (Vec<GangReport>, Vec<GangReport>) =
        gangs.into_iter().partition(|gang| gang.workload_phase == WorkloadPhase::Queued);
    queued.sort_by_key(|gang| gang.created);
    let mut slowest: Vec<(SignedDuration, GangReport)> =
        gangs.into_iter().filter_map(|g| g.waiting(objects.now).map(|waits| (waits, g))).collect();
    slowest.sort_by_key(|(waits, _)| std::cmp::Reverse(*waits));
    Summary {
        pools,
        slowest: slowest.into_iter().take(most).map(|(_, gang)| gang).collect(),
        queued: queued.len(),
        longest_queued: queued.into_iter().take(most).collect(),
    }
}

/// Counts and prices these claims by NodePool.
fn by_pool(objects: &ClusterObjects, claims: &[NodeClaim], gangs: &[GangReport]) -> BTreeMap<String, Held> {
    let users = Users::of(objects, gangs);
    let mut pools: BTreeMap<String, Held> = BTreeMap::new();
    let mut prices: BTreeMap<&str, PricesOfCheck> = BTreeMap::new();
    for claim in claims {
        let check = claim.annotation(names::CHECK);
        let prices = prices.entry(check).or_insert_with(|| objects.prices_of(check));
        let held = pools.entry(claim.label(names::NODEPOOL).to_owned()).or_default();
        count(held, claim, users.node_use(claim), objects.now);
        price(held, claim, prices);
    }
    pools
}

/// How a node is used.
#[derive(Clone, Copy)]
enum NodeUse {
    Running,
    Coming,
    /// Since it became ready, if that is known.
    Idle(Option<Timestamp>),
    Warm,
    Wasted,
    Unknown,
}

/// The users of the nodes, as the objects show them.
struct Users<'o> {
    /// The slots of gangs, by NodeClaim.
    slots: BTreeMap<&'o str, (&'o GangReport, &'o SlotView)>,
    /// By UID.
    workloads: BTreeMap<&'o str, &'o Workload>,
    /// The label of the nodes of each elastic Job of which a slice runs.
    running_jobs: BTreeSet<String>,
    are_requests_read: bool,
}

impl<'o> Users<'o> {
    fn of(objects: &'o ClusterObjects, gangs: &'o [GangReport]) -> Self {
        let slots = gangs.iter().flat_map(|report| {
            let nodes = report.gang.iter().flat_map(|gang| &gang.nodes);
            nodes.map(move |slot| (slot.claim.as_str(), (report, slot)))
        });
        let with_uid = |workload: &'o Workload| Some((workload.metadata.uid.as_deref()?, workload));
        let elastic =
            objects.workloads.iter().filter(|workload| workload.is_elastic() && is_in_use(workload));
        let running_jobs = elastic.flat_map(|workload| {
            workload.checks_of_gangs().into_iter().map(move |check| gang_label(workload, check))
        });
        Self {
            slots: slots.collect(),
            workloads: objects.workloads.iter().filter_map(with_uid).collect(),
            running_jobs: running_jobs.collect(),
            are_requests_read: objects.requests.is_some(),
        }
    }

    /// How the node of this claim is used.
    fn node_use(&self, claim: &NodeClaim) -> NodeUse {
        let workload = self.workloads.get(claim.label(names::WORKLOAD_UID)).copied();
        // The pods of later slices run on the nodes of those that they replaced.
        let is_shared = workload.is_none_or(Workload::is_replaced)
            && self.running_jobs.contains(claim.label(names::GANG));
        let may_be_requested = !self.are_requests_read && !claim.annotation(names::OWNER).is_empty();
        match self.slots.get(claim.name_any().as_str()) {
            // Of the gang's current attempt, in a state that wants nodes.
            Some((report, slot)) if wanted(report, slot) => use_by_gang(report, slot, is_shared),
            _ if claim.is_deleting() => NodeUse::Wasted,
            _ if claim.is_warm() => NodeUse::Warm,
            None if is_shared && claim.is_initialized() => NodeUse::Running,
            None if is_shared => NodeUse::Coming,
            // Its gang has no journal that can be read.
            None if workload.is_some() || may_be_requested => NodeUse::Unknown,
            _ => NodeUse::Wasted,
        }
    }
}

/// How a node that its gang wants is used. `is_shared` is whether other slices of its elastic Job run on it.
fn use_by_gang(report: &GangReport, slot: &SlotView, is_shared: bool) -> NodeUse {
    let may_be_ready = report.gang.as_ref().is_some_and(|gang| gang.may_be_ready(slot));
    match slot.phase {
        SlotPhase::Ready if is_shared || report.workload_phase == WorkloadPhase::Admitted => NodeUse::Running,
        SlotPhase::Ready => NodeUse::Idle(slot.initialized),
        _ if may_be_ready => NodeUse::Unknown,
        _ => NodeUse::Coming,
    }
}

fn count(held: &mut Held, claim: &NodeClaim, used: NodeUse, now: Timestamp) {
    let since = |at: Option<Timestamp>| at.map_or(0, |at| now.duration_since(at).as_secs().max(0));
    held.nodes += 1;
    match used {
        NodeUse::Running => held.running += 1,
        NodeUse::Coming => held.coming += 1,
        NodeUse::Idle(ready) => {
            held.idle += 1;
            held.unused_seconds += since(ready);
        }
        NodeUse::Warm => {
            held.warm += 1;
            held.unused_seconds += since(claim.annotation(names::WARM_SINCE).parse().ok());
        }
        NodeUse::Wasted => {
            held.wasted += 1;
            let [going, created] =
                [&claim.metadata.deletion_timestamp, &claim.metadata.creation_timestamp].map(Option::as_ref);
            held.unused_seconds += since(going.or(created).map(|time| time.0));
        }
        NodeUse::Unknown => held.unknown += 1,
    }
}

fn price(held: &mut Held, claim: &NodeClaim, prices: &PricesOfCheck) {
    match prices.hourly(&prices.cost([claim])) {
        Some(cost) => {
            held.cost_per_hour.add(cost.money());
            held.priced_by.insert(cost.priced_by);
        }
        None => held.unpriced += 1,
    }
}

fn wanted(report: &GangReport, slot: &SlotView) -> bool {
    let alive = !matches!(slot.phase, SlotPhase::Going | SlotPhase::Failed);
    let wants = |gang: &crate::gang::Explanation| slot.attempt == gang.attempt && gang.state.wants_claims();
    alive && report.gang.as_deref().is_some_and(wants)
}

/// The nodes of all NodePools.
pub fn total(pools: &BTreeMap<String, Held>) -> Held {
    let mut sum = Held::default();
    for held in pools.values() {
        sum.nodes += held.nodes;
        sum.running += held.running;
        sum.coming += held.coming;
        sum.idle += held.idle;
        sum.warm += held.warm;
        sum.wasted += held.wasted;
        sum.unknown += held.unknown;
        held.cost_per_hour.iter().for_each(|money| sum.cost_per_hour.add(money));
        sum.unpriced += held.unpriced;
        sum.unused_seconds += held.unused_seconds;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Node;
    use crate::cli::render::summary::top;
    use crate::cli::report;
    use crate::gang::{AdmissionId, Journal, Nodes, State};
    use serde_json::{Value, json};

    const RUNS: [(&str, &str); 2] = [("QuotaReserved", "r"), ("Admitted", "r")];

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn condition(kind: &str, reason: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    /// A slice of an elastic Job, with these conditions and reasons, and with this journal.
    fn slice(uid: &str, conditions: &[(&str, &str)], journal: Option<&str>) -> Workload {
        let conditions: Vec<Value> =
            conditions.iter().map(|(kind, reason)| condition(kind, reason)).collect();
        let mut annotations = json!({(names::ELASTIC_JOB): "true"});
        if let Some(journal) = journal {
            annotations[names::journal_key("c")] = json!(journal);
        }
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "namespace": "ns", "name": uid, "uid": uid, "annotations": annotations,
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}],
            },
            "spec": {},
            "status": {"conditions": conditions, "admissionChecks": [{"name": "c"}]},
        }))
        .unwrap()
    }

    /// The journal of a slice that was approved on one node.
    fn approved(uid: &str) -> String {
        let mut journal = Journal::new(uid, AdmissionId("1-0-a".into()), now(), None);
        journal.state = State::Approved { nodes: Nodes::Held };
        (journal.memory.attempt, journal.memory.slots) = (1, 1);
        journal.encode()
    }

    /// The initialized claim of a slice.
    fn claim(uid: &str) -> NodeClaim {
        let reached = ["Launched", "Registered", "Initialized"].map(|kind| condition(kind, "r"));
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "claim", "uid": "claim", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    (names::WORKLOAD_UID): uid, (names::ATTEMPT): "1", (names::NODEPOOL): "gpu",
                    (names::GANG): gang_label(&slice(uid, &[], None), "c"),
                },
                "annotations": {(names::CHECK): "c", (names::SLOT): "0"},
            },
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            "status": {"nodeName": "node", "conditions": reached},
        }))
        .unwrap()
    }

    fn objects(workloads: Vec<Workload>, claim: NodeClaim) -> ClusterObjects {
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let (claims, nodes, requests) = (Some(vec![claim]), Some(vec![node]), Some(Vec::new()));
        ClusterObjects { now: now(), workloads, claims, nodes, requests, ..ClusterObjects::default() }
    }

    fn summed(objects: &ClusterObjects) -> Summary {
        summary(objects, report::gangs(objects), 1)
    }

    /// How many nodes are running, coming, idle, wasted and unknown.
    fn held(objects: &ClusterObjects) -> [usize; 5] {
        let held = total(&summed(objects).pools.unwrap());
        [held.running, held.coming, held.idle, held.wasted, held.unknown]
    }

    #[test]
    fn nodes_of_a_replaced_slice_run_while_another_slice_of_the_job_runs() {
        let replaced =
            slice("a", &[&RUNS[..], &[("Finished", "WorkloadSliceReplaced")]].concat(), Some(&approved("a")));
        let later = slice("b", &RUNS, None);
        let of = |workloads| held(&objects(workloads, claim("a")));
        assert_eq!(of(vec![replaced.clone(), later.clone()]), [1, 0, 0, 0, 0]);
        assert_eq!(of(vec![later.clone()]), [1, 0, 0, 0, 0], "the Workload of the replaced slice is deleted");
        assert_eq!(of(vec![replaced]), [0, 0, 1, 0, 0]);
        assert_eq!(of(Vec::new()), [0, 0, 0, 1, 0]);
        // A slice that is not replaced waits for the rest of its own nodes.
        let waits = slice("a", &RUNS[..1], Some(&approved("a")));
        assert_eq!(of(vec![waits, later.clone()]), [0, 0, 1, 0, 0]);
        let mut going = claim("a");
        going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
        assert_eq!(held(&objects(vec![later], going)), [0, 0, 0, 1, 0]);
    }

    #[test]
    fn nodes_of_which_nobody_knows_the_use_are_not_wasted() {
        for journal in [Some("{\"version\": 99}"), Some("nonsense"), None] {
            assert_eq!(held(&objects(vec![slice("a", &RUNS, journal)], claim("a"))), [0, 0, 0, 0, 1]);
        }
        let mut requested = claim("a");
        let owner = (names::OWNER.to_owned(), "ns/w/uid".to_owned());
        requested.metadata.annotations.get_or_insert_default().extend([owner]);
        let mut read = objects(Vec::new(), requested);
        assert_eq!(held(&read), [0, 0, 0, 1, 0], "its request is gone");
        read.requests = None;
        assert_eq!(held(&read), [0, 0, 0, 0, 1], "nobody may read its request");
        let text = top(&summed(&read), now(), None);
        assert!(text.contains("WASTED   UNKNOWN") && text.contains("UNKNOWN nodes may be in use"), "{text}");
        let mut runs = objects(vec![slice("a", &RUNS, Some(&approved("a")))], claim("a"));
        assert_eq!(held(&runs), [1, 0, 0, 0, 0]);
        assert!(!top(&summed(&runs), now(), None).contains("UNKNOWN"));
        runs.nodes = None;
        assert_eq!(held(&runs), [0, 0, 0, 0, 1], "whether it is ready is not known");
    }

    #[test]
    fn without_node_claims_no_number_of_nodes_is_shown() {
        let unread = summed(&ClusterObjects::default());
        assert!(top(&unread, now(), None).starts_with("NodeClaims may not be read.\n"));
        assert_eq!(serde_json::to_value(&unread).unwrap().get("pools"), None);
        let read = ClusterObjects { claims: Some(Vec::new()), ..ClusterObjects::default() };
        assert!(top(&summed(&read), now(), None).starts_with("No node is held.\n"));
    }
}
