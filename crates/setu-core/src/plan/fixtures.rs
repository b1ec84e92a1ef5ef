//! A small world for the tests of this folder: one queue, one flavor, one NodePool, one Workload.
//!
//! Rule: everything fits by default, so that a test states only what it is about.

use super::demand::{self, PodSetDemand};
use super::limit_ranges::LimitRanges;
use super::market::Market;
use super::offering::Offering;
use super::pool_claims::PoolClaims;
use super::shape::Shape;
use super::volumes::Storage;
use super::{OptionSelection, Outcome, PendingNodes, PlanObjects, PlanRequest, PlanSnapshot};
use crate::api::{
    AdmissionCheck, ClusterQueue, Cohort, DaemonSet, LocalQueue, NodeClaim, NodePool, ResourceFlavor,
    Workload,
};
use crate::names;
use crate::policy::Policy;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

/// Reads an object from JSON.
pub fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A line of Karpenter's metrics for an offering: `available` or `price_estimate` of an instance type, capacity type and zone.
pub fn offer(metric: &str, [instance_type, kind, zone]: [&str; 3], value: impl Display) -> String {
    format!(
        "karpenter_cloudprovider_instance_type_offering_{metric}{{instance_type=\"{instance_type}\",\
         capacity_type=\"{kind}\",zone=\"{zone}\"}} {value}\n"
    )
}

/// Parses a page of such lines, read at the Unix epoch.
pub fn market(page: &str) -> Market {
    Market::read(page, Timestamp::UNIX_EPOCH).unwrap()
}

/// Merges `change` into `base`, key by key. `null` removes a key.
pub fn patched(base: Value, change: &Value) -> Value {
    match (base, change) {
        (Value::Object(mut base), Value::Object(change)) => {
            for (key, value) in change {
                let old = base.remove(key).unwrap_or_else(|| json!({}));
                if !value.is_null() {
                    base.insert(key.clone(), patched(old, value));
                }
            }
            Value::Object(base)
        }
        (_, change) => change.clone(),
    }
}

/// A ready NodePool.
pub fn pool(name: &str, change: &Value) -> Arc<NodePool> {
    let base = json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "generation": 1,
            "annotations": {(names::NODEPOOL_HASH): "123", (names::NODEPOOL_HASH_VERSION): "v3"},
        },
        "spec": {"template": {
            "metadata": {"labels": {"team": "ml"}, "annotations": {"note": "x"}},
            "spec": {
                "requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            },
        }},
        "status": {"conditions": [condition("Ready", "True")]},
    });
    Arc::new(object(patched(base, change)))
}

/// A condition.
pub fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Because", "message": "so it is",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    })
}

/// Everything that the planner reads, owned.
pub struct Fixture {
    pub queue: Option<ClusterQueue>,
    pub all_checks: Vec<Arc<AdmissionCheck>>,
    pub objects: PlanObjects,
    pub claims: Vec<Arc<NodeClaim>>,
    pub pending: Vec<PendingNodes>,
    pub workload: Workload,
    pub checks: Vec<String>,
    pub policy: Policy,
    pub cohorts: Vec<Arc<Cohort>>,
    pub local_queues: Vec<Arc<LocalQueue>>,
    pub namespace: BTreeMap<String, String>,
    pub selection: OptionSelection<'static>,
    pub shapes: Vec<Shape>,
    pub exhausted: BTreeSet<Offering>,
    pub market: Option<Market>,
    pub storage: Storage,
    pub now: Timestamp,
    pub limit_ranges: LimitRanges,
}

impl Fixture {
    /// Two pods of one GPU each on flavor `gpu`, NodePool `gpu`, check `prov`.
    pub fn new() -> Self {
        Self {
            queue: Some(queue(&json!([{"name": "prov"}]))),
            all_checks: Vec::new(),
            objects: PlanObjects {
                flavors: vec![flavor("gpu", &json!({}))],
                node_pools: vec![pool("gpu", &json!({}))],
                ..PlanObjects::default()
            },
            claims: Vec::new(),
            pending: Vec::new(),
            workload: object(workload()),
            checks: vec!["prov".to_owned()],
            policy: Policy::default(),
            cohorts: Vec::new(),
            local_queues: vec![local_queue("lq", "q")],
            namespace: BTreeMap::new(),
            selection: OptionSelection::From(0),
            shapes: Vec::new(),
            exhausted: BTreeSet::new(),
            market: None,
            storage: Storage::default(),
            now: Timestamp::UNIX_EPOCH,
            limit_ranges: LimitRanges::default(),
        }
    }

    /// With these NodePools.
    pub fn pools(mut self, pools: Vec<Arc<NodePool>>) -> Self {
        self.objects.node_pools = pools;
        self
    }

    /// With the Workload changed.
    pub fn workload(mut self, change: &Value) -> Self {
        self.workload = object(patched(workload(), change));
        self
    }

    /// With the spec of the pods changed.
    pub fn pods(self, spec: &Value) -> Self {
        let mut set = workload().pointer("/spec/podSets/0").unwrap().clone();
        set = patched(set, &json!({"template": {"spec": spec}}));
        self.workload(&json!({"spec": {"podSets": [set]}}))
    }

    /// Borrowed for ever, because a test is over soon.
    fn pool_claims(&self) -> &'static PoolClaims {
        let gang_of = |claim: &NodeClaim| claim.label(names::WORKLOAD_UID).to_owned();
        Box::leak(Box::new(PoolClaims::of(self.claims.iter().cloned(), gang_of)))
    }

    pub fn cluster(&self) -> PlanSnapshot<'_> {
        PlanSnapshot {
            checks: &self.all_checks,
            pool_claims: self.pool_claims(),
            pending: &self.pending,
            shapes: &self.shapes,
            exhausted: Some(&self.exhausted),
            market: self.market.as_ref(),
            storage: Some(&self.storage),
            cohorts: &self.cohorts,
            local_queues: Some(&self.local_queues),
            namespace_labels: Some(&self.namespace),
            now: self.now,
            limit_ranges: &self.limit_ranges,
            ..PlanSnapshot::with(self.queue.as_ref(), &self.objects)
        }
    }

    pub fn request(&self) -> PlanRequest<'_> {
        PlanRequest {
            workload: &self.workload,
            check: "prov",
            our_checks: &self.checks,
            answered_checks: &self.checks,
            gang_label: "g1",
            policy: &self.policy,
            selection: self.selection,
        }
    }

    pub fn demand(&self) -> Result<Vec<PodSetDemand<'_>>, Outcome> {
        demand::demand(&self.cluster(), &self.request())
    }

    pub fn plan(&self) -> Outcome {
        super::plan(&self.cluster(), &self.request())
    }

    /// The plan. Panics if the outcome is not a plan.
    pub fn provisioned(&self) -> super::Plan {
        match self.plan() {
            Outcome::Provision(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    /// The obstacle that blocks the gang. Panics if there is none.
    pub fn obstacle(&self) -> (super::ObstacleReason, String) {
        match self.plan() {
            Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) => (obstacle.reason, obstacle.message),
            other => panic!("{other:?}"),
        }
    }
}

/// A ClusterQueue with these checks.
pub fn queue(checks: &Value) -> ClusterQueue {
    object(json!({
        "metadata": {"name": "q"},
        "spec": {
            "admissionChecksStrategy": {"admissionChecks": checks},
            "resourceGroups": [{"flavors": [{"name": "gpu", "resources": [
                {"name": "cpu", "nominalQuota": "100"}, {"name": "nvidia.com/gpu", "nominalQuota": "100"},
            ]}]}],
        },
    }))
}

/// A LocalQueue that leads to a ClusterQueue.
pub fn local_queue(name: &str, leads_to: &str) -> Arc<LocalQueue> {
    Arc::new(object(
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterQueue": leads_to}}),
    ))
}

/// A flavor with these node labels.
pub fn flavor(name: &str, node_labels: &Value) -> Arc<ResourceFlavor> {
    Arc::new(object(json!({"metadata": {"name": name}, "spec": {"nodeLabels": node_labels}})))
}

/// A DaemonSet whose pods request 100m CPU and have this spec.
pub fn daemon_set(name: &str, spec: &Value) -> Arc<DaemonSet> {
    let base = json!({"containers": [{"resources": {"requests": {"cpu": "100m"}}}]});
    Arc::new(object(json!({
        "metadata": {"name": name, "namespace": "sys"},
        "spec": {"template": {"spec": patched(base, spec)}},
    })))
}

/// A pod set of pods with one GPU.
pub fn pod_set(name: &str, count: i32) -> Value {
    json!({"name": name, "count": count, "template": {"spec": {"containers": [
        {"resources": {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}}},
    ]}}})
}

fn workload() -> Value {
    json!({
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"queueName": "lq", "podSets": [pod_set("main", 2)]},
        "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [
            {"name": "main", "flavors": {"cpu": "gpu", "nvidia.com/gpu": "gpu"}},
        ]}},
    })
}
