//! The kinds in sequences: a valid object of each, with valid and invalid changes. Only fields that both
//! servers store unchanged.

use serde_json::{Value, json};

/// A kind under comparison.
#[derive(Debug)]
pub struct Kind {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub root: &'static str,
    pub name: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    /// Whether a CustomResourceDefinition defines it.
    pub custom: bool,
    /// Whether it has a status subresource.
    pub status: bool,
}

const fn kind(root: &'static str, name: &'static str, plural: &'static str) -> Kind {
    Kind { root, name, plural, namespaced: true, custom: false, status: false }
}

/// Every kind under comparison.
pub static ALL: [Kind; 7] = [
    Kind { custom: true, status: true, ..kind("/apis/kueue.x-k8s.io/v1beta2", "Workload", "workloads") },
    Kind {
        custom: true,
        status: true,
        namespaced: false,
        ..kind("/apis/karpenter.sh/v1", "NodeClaim", "nodeclaims")
    },
    Kind {
        custom: true,
        status: true,
        namespaced: false,
        ..kind("/apis/karpenter.sh/v1", "NodePool", "nodepools")
    },
    Kind {
        custom: true,
        status: true,
        namespaced: false,
        ..kind("/apis/kueue.x-k8s.io/v1beta2", "AdmissionCheck", "admissionchecks")
    },
    Kind { custom: true, status: true, ..kind("/apis/kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues") },
    kind("/api/v1", "ConfigMap", "configmaps"),
    kind("/apis/coordination.k8s.io/v1", "Lease", "leases"),
];

/// The plural name of the kind in a request's path.
pub fn plural_of(path: &str) -> &'static str {
    of_path(path).map_or("", |kind| kind.plural)
}

/// The kind in a request's path.
pub fn of_path(path: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| {
        path.strip_prefix(kind.root).is_some_and(|rest| rest.split('/').any(|part| part == kind.plural))
    })
}

impl Kind {
    /// The path of the collection.
    pub fn collection(&self) -> String {
        let namespace = if self.namespaced { "/namespaces/{here}" } else { "" };
        format!("{}{namespace}/{}", self.root, self.plural)
    }

    /// A name as used in a path or an object.
    pub fn named(&self, name: &str) -> String {
        if self.namespaced { name.to_owned() } else { format!("{{here}}-{name}") }
    }

    /// A valid object without metadata.
    pub fn base(&self) -> Value {
        let version = self.root.trim_start_matches("/apis/").trim_start_matches("/api/");
        let mut object = json!({"apiVersion": version, "kind": self.name});
        json_patch::merge(&mut object, &self.content());
        object
    }

    fn content(&self) -> Value {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
        match self.name {
            "Workload" => json!({"spec": {
                "queueName": "q", "active": true,
                "podSets": [{"name": "main", "count": 2, "template": template}],
            }}),
            "NodeClaim" => json!({"spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
                "taints": [{"key": "gang", "value": "x", "effect": "NoSchedule"}],
                "expireAfter": "Never",
            }}),
            "NodePool" => json!({"spec": {"template": {"spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
            }}}}),
            "AdmissionCheck" => json!({"spec": {"controllerName": "setu.kueue.x-k8s.io/admission"}}),
            "LocalQueue" => json!({"spec": {"clusterQueue": "cq"}}),
            "ConfigMap" => json!({"data": {"a": "1"}}),
            "Lease" => json!({"spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}}),
            "Event" => json!({
                "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "test/controller",
                "reportingInstance": "one", "action": "Try", "reason": "Tried", "type": "Normal", "note": "tried",
                "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "{here}"},
            }),
            other => panic!("no content for {other}"),
        }
    }

    /// Merge patches of the main resource, valid and invalid.
    pub fn changes(&self) -> Vec<Value> {
        match self.name {
            "Workload" => vec![
                json!({"spec": {"active": false}}),
                json!({"spec": {"queueName": "other"}}),
                json!({"spec": {"priority": 7}}),
                json!({"spec": {"queueName": null}}),
                json!({"spec": {"active": null}}),
                json!({"status": {"accumulatedPastExecutionTimeSeconds": 3}}),
            ],
            "NodeClaim" => vec![
                json!({"spec": {"expireAfter": "1h"}}),
                json!({"spec": {"taints": null}}),
                json!({"spec": {"requirements": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}}),
                json!({"status": {"providerID": "kwok://1"}}),
            ],
            "NodePool" => vec![
                json!({"spec": {"weight": 5}}),
                json!({"spec": {"limits": {"cpu": "10"}}}),
                json!({"spec": {"limits": null}}),
                json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}}),
                json!({"spec": {"disruption": {"consolidateAfter": "30s"}}}),
            ],
            "AdmissionCheck" => vec![
                json!({"spec": {"parameters": {"apiGroup": "setu.kueue.x-k8s.io", "kind": "ProvisioningParameters", "name": "p"}}}),
                json!({"spec": {"parameters": null}}),
            ],
            "LocalQueue" => {
                vec![json!({"spec": {"stopPolicy": "Hold"}}), json!({"spec": {"stopPolicy": "None"}})]
            }
            "ConfigMap" => vec![
                json!({"data": {"a": "2"}}),
                json!({"data": {"b": "x"}}),
                json!({"data": {"a": null}}),
                json!({"data": null}),
            ],
            "Lease" => vec![
                json!({"spec": {"holderIdentity": "two"}}),
                json!({"spec": {"renewTime": "2026-01-02T03:04:05.000006Z"}}),
                json!({"spec": {"leaseTransitions": 2}}),
                json!({"spec": {"holderIdentity": null}}),
            ],
            "Event" => vec![
                json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000006Z"}}),
                json!({"metadata": {"labels": {"seen": "yes"}}}),
            ],
            _ => Vec::new(),
        }
    }

    /// Merge patches of the status, valid and invalid.
    pub fn statuses(&self) -> Vec<Value> {
        let condition = |kind: &str, status: &str| {
            json!({
                "type": kind, "status": status, "reason": "Because", "message": "so it is",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            })
        };
        let check = |state: &str| json!({"name": "check", "state": state, "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let conditions = |status: &str| json!({"conditions": [condition("Ready", status)]});
        match self.name {
            "Workload" => vec![
                conditions("True"),
                json!({"conditions": [condition("QuotaReserved", "True"), condition("Admitted", "False")]}),
                json!({"admissionChecks": [check("Pending")]}),
                json!({"admissionChecks": [check("Ready")]}),
                json!({"admissionChecks": null}),
                json!({"admissionChecks": (0..9).map(|n| {
                    let mut entry = check("Pending");
                    entry["name"] = json!(format!("check-{n}"));
                    entry
                }).collect::<Vec<_>>()}),
                json!({"requeueState": {"count": 1}}),
            ],
            "NodeClaim" => vec![
                conditions("True"),
                conditions("False"),
                json!({"providerID": "kwok://1", "nodeName": "n1"}),
                json!({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}),
            ],
            "NodePool" => vec![conditions("True"), json!({"resources": {"cpu": "4"}})],
            "AdmissionCheck" => vec![
                json!({"conditions": [condition("Active", "True")]}),
                json!({"conditions": [condition("Active", "False")]}),
            ],
            "LocalQueue" => {
                vec![json!({"pendingWorkloads": 1}), json!({"conditions": [condition("Active", "True")]})]
            }
            _ => Vec::new(),
        }
    }
}
