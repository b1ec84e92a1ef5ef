//! Which lists and maps of an object are merged by entry, and which are replaced as a whole.
//!
//! The facts are those of the schemas of Kubernetes, Kueue and Karpenter. A path consists of field names only,
//! without list entries.

#![allow(clippy::match_same_arms, clippy::unnested_or_patterns, reason = "paths read better one by one")]

use super::kinds::ServedKind;

/// How the entries of a list are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Not at all: the list is one value.
    Atomic,
    /// By their values.
    Set,
    /// By these fields.
    Keyed(&'static [&'static str]),
}

const NAME: ListType = ListType::Keyed(&["name"]);

/// The shape of the list at a path.
pub fn list(kind: &ServedKind, path: &[&str]) -> ListType {
    match path {
        ["metadata", "finalizers"] => ListType::Set,
        ["metadata", "ownerReferences"] => ListType::Keyed(&["uid"]),
        // A Job's conditions are atomic, unlike all others.
        ["status", "conditions"] if kind.kind != "Job" => ListType::Keyed(&["type"]),
        ["status", "addresses"] if kind.kind == "Node" => ListType::Keyed(&["type"]),
        ["status", "podIPs" | "hostIPs"] => ListType::Keyed(&["ip"]),
        ["webhooks"] => NAME,
        ["spec", "disruption", "budgets", "reasons"] | [.., "admissionChecks", "onFlavors"] => ListType::Set,
        ["spec", "resourceGroups", "flavors"]
        | ["spec" | "status", .., "flavors" | "flavorsReservation" | "flavorsUsage", "resources"]
        | ["status", "flavorsReservation" | "flavorsUsage"]
        | ["spec", "admissionChecksStrategy", "admissionChecks"]
        | ["spec", "podSets"]
        | ["spec" | "status", "preemptionGates"]
        | ["status", "admissionChecks" | "reclaimablePods" | "resourceRequests" | "unhealthyNodes"]
        | ["status", "admission", "podSetAssignments"] => NAME,
        ["status", "schedulingStats", "evictions"] => ListType::Keyed(&["reason", "underlyingCause"]),
        _ => of_pod(kind, path),
    }
}

/// The lists of a pod or pod template.
fn of_pod(kind: &ServedKind, path: &[&str]) -> ListType {
    let spec = match path {
        ["spec", rest @ ..] if kind.kind == "Pod" => rest,
        ["spec", "template", "spec", rest @ ..] | ["spec", "podSets", "template", "spec", rest @ ..] => rest,
        _ => return ListType::Atomic,
    };
    match spec {
        ["containers" | "initContainers" | "ephemeralContainers", "ports"] => {
            ListType::Keyed(&["containerPort", "protocol"])
        }
        ["containers" | "initContainers" | "ephemeralContainers", "volumeMounts"] => {
            ListType::Keyed(&["mountPath"])
        }
        ["containers" | "initContainers" | "ephemeralContainers", "volumeDevices"] => {
            ListType::Keyed(&["devicePath"])
        }
        ["containers" | "initContainers" | "ephemeralContainers"]
        | ["containers" | "initContainers" | "ephemeralContainers", "env"]
        | ["volumes" | "imagePullSecrets" | "schedulingGates" | "resourceClaims"]
        | [.., "resources", "claims"] => NAME,
        ["hostAliases"] => ListType::Keyed(&["ip"]),
        ["topologySpreadConstraints"] => ListType::Keyed(&["topologyKey", "whenUnsatisfiable"]),
        _ => ListType::Atomic,
    }
}

/// Whether the map at a path is atomic.
pub fn is_atomic(kind: &ServedKind, path: &[&str]) -> bool {
    match path {
        [.., "labelSelector" | "namespaceSelector" | "nodeSelector"]
        | [.., "fieldRef" | "resourceFieldRef" | "configMapKeyRef" | "secretKeyRef" | "fileKeyRef"]
        | ["regarding" | "related"]
        | ["metadata", "ownerReferences"]
        | [.., "requiredDuringSchedulingIgnoredDuringExecution"] => true,
        ["spec", "selector"] => !kind.custom,
        ["spec", "nodeLabels"] => kind.kind == "ResourceFlavor",
        ["spec", "template", "metadata", "labels"] => kind.kind == "NodePool",
        _ => false,
    }
}

/// Whether a built-in kind always has a value at this path, so that no write can add it.
pub fn is_always_there(kind: &ServedKind, path: &[&str]) -> bool {
    if kind.custom {
        return false;
    }
    match (kind.kind, path) {
        (_, [] | ["metadata" | "status"]) | ("Pod", ["spec", "containers"]) => true,
        ("ConfigMap" | "Event" | "RuntimeClass" | "PriorityClass" | "StorageClass", _) => false,
        (_, ["spec"]) => true,
        ("Job" | "DaemonSet", ["spec", "template", rest @ ..]) => {
            matches!(rest, [] | ["metadata" | "spec"] | ["spec", "containers"])
        }
        ("Node", ["status", "nodeInfo" | "daemonEndpoints", ..]) => true,
        _ => false,
    }
}
