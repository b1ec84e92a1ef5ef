//! How the parts of an object are told apart: which lists are maps or sets in truth, which maps are one
//! value. It decides what server-side apply merges, and what a manager can own.
//!
//! The rule: by the name of the field, as the CRDs and the OpenAPI of Kubernetes declare it; whatever is
//! not named here is granular if it is a map, and one value if it is a list.

use serde_json::Value;

use super::kinds::Kind;

/// How the items of a list relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// The list is one value.
    Atomic,
    /// Items are values, each there once.
    Set,
    /// Items are objects, told apart by these fields.
    Map(&'static [&'static str]),
}

/// The relation of the items of a list that stands under this field.
pub(super) fn list(kind: &Kind, field: &str) -> List {
    match field {
        "conditions" if kind.kind == "Job" => List::Atomic,
        "conditions" | "addresses" => List::Map(&["type"]),
        "containers" | "initContainers" | "ephemeralContainers" | "env" | "volumes" | "imagePullSecrets"
        | "schedulingGates" | "resourceClaims" | "claims" | "podSets" | "podSetAssignments"
        | "admissionChecks" | "reclaimablePods" | "resourceRequests" | "unhealthyNodes" | "preemptionGates"
        | "flavors" | "resources" | "flavorsUsage" | "flavorsReservation" => List::Map(&["name"]),
        "ownerReferences" => List::Map(&["uid"]),
        "ports" => List::Map(&["containerPort", "protocol"]),
        "volumeMounts" => List::Map(&["mountPath"]),
        "podIPs" | "hostAliases" => List::Map(&["ip"]),
        "topologySpreadConstraints" => List::Map(&["topologyKey", "whenUnsatisfiable"]),
        "evictions" => List::Map(&["reason", "underlyingCause"]),
        "finalizers" | "onFlavors" | "podCIDRs" => List::Set,
        _ => List::Atomic,
    }
}

/// Whether the map under this field is one value.
pub(super) fn is_atomic(kind: &Kind, path: &[&str]) -> bool {
    match path {
        ["spec", "template", "metadata", "labels"] => kind.kind == "NodePool",
        [
            ..,
            "nodeSelector" | "namespaceSelector" | "labelSelector" | "selector" | "nodeLabels" | "regarding"
            | "related" | "involvedObject" | "configMapKeyRef" | "secretKeyRef" | "fieldRef"
            | "resourceFieldRef" | "configMapRef" | "secretRef" | "ownerReferences",
        ] => true,
        _ => false,
    }
}

/// What names an item of a list that is none of one value: its keys or itself, as managed fields write it.
pub(super) fn item_name(relation: List, item: &Value) -> String {
    match relation {
        List::Map(keys) => {
            let parts: Vec<String> = keys
                .iter()
                .filter_map(|key| {
                    let value = match item.get(key) {
                        Some(value) => value.clone(),
                        // The one default of a key that matters.
                        None if *key == "protocol" => Value::from("TCP"),
                        None => return None,
                    };
                    Some(format!("{}:{value}", Value::from(*key)))
                })
                .collect();
            format!("k:{{{}}}", parts.join(","))
        }
        List::Set | List::Atomic => format!("v:{item}"),
    }
}
