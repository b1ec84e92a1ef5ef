//! The table columns of every kind, as on a real cluster: those of Kueue's and Karpenter's CRDs, and
//! those that Kubernetes prints for its own kinds.
//!
//! Rule: a cell is a function of the object and the current time, and never fails. A missing value is an empty
//! cell for a custom kind, and Kubernetes' own placeholder for a built-in one.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{self, condition, count, either, or, text};
use super::kinds::ServedKind;
use super::pods;

/// One column.
pub(super) struct Column {
    name: &'static str,
    kind: &'static str,
    /// Whether only `kubectl get -o wide` shows it.
    wide: bool,
    cell: Cell,
}

enum Cell {
    /// The value at a JSON pointer, as text or, in a numeric column, as a number.
    At(&'static str),
    /// The status of a condition.
    Condition(&'static str),
    /// The time since the timestamp at a JSON pointer; empty if there is none.
    Since(&'static str),
    Computed(fn(&Value, Timestamp) -> Value),
}

const fn column(name: &'static str, kind: &'static str, cell: Cell) -> Column {
    Column { name, kind, wide: false, cell }
}

const fn wide(name: &'static str, kind: &'static str, cell: Cell) -> Column {
    Column { name, kind, wide: true, cell }
}

const NAME: Column = column("Name", "string", Cell::At("/metadata/name"));
/// Age columns of built-in and of custom kinds.
const AGE: Column = column("Age", "string", Cell::Computed(cells::age));
const DATE: Column = column("Age", "date", Cell::Since("/metadata/creationTimestamp"));
const CREATED: Column = column("Created At", "date", Cell::At("/metadata/creationTimestamp"));

const NAME_AND_DATE: &[Column] = &[NAME, DATE];

const WORKLOADS: &[Column] = &[
    NAME,
    column("Queue", "string", Cell::At("/spec/queueName")),
    column("Reserved in", "string", Cell::At("/status/admission/clusterQueue")),
    column("Admitted", "string", Cell::Condition("Admitted")),
    column("Finished", "string", Cell::Condition("Finished")),
    DATE,
];

const LOCAL_QUEUES: &[Column] = &[
    NAME,
    column("ClusterQueue", "string", Cell::At("/spec/clusterQueue")),
    column("Pending Workloads", "integer", Cell::At("/status/pendingWorkloads")),
    column("Admitted Workloads", "integer", Cell::At("/status/admittedWorkloads")),
];

const CLUSTER_QUEUES: &[Column] = &[
    NAME,
    column("Cohort", "string", Cell::At("/spec/cohortName")),
    wide("Strategy", "string", Cell::At("/spec/queueingStrategy")),
    column("Pending Workloads", "integer", Cell::At("/status/pendingWorkloads")),
    wide("Admitted Workloads", "integer", Cell::At("/status/admittedWorkloads")),
];

const WORKLOAD_PRIORITY_CLASSES: &[Column] = &[NAME, column("Value", "integer", Cell::At("/value"))];

const NODE_CLAIMS: &[Column] = &[
    NAME,
    column("Type", "string", Cell::At("/metadata/labels/node.kubernetes.io~1instance-type")),
    column("Capacity", "string", Cell::At("/metadata/labels/karpenter.sh~1capacity-type")),
    column("Zone", "string", Cell::At("/metadata/labels/topology.kubernetes.io~1zone")),
    column("Node", "string", Cell::At("/status/nodeName")),
    column("Ready", "string", Cell::Condition("Ready")),
    DATE,
    wide("ImageID", "string", Cell::At("/status/imageID")),
    wide("ID", "string", Cell::At("/status/providerID")),
    wide("NodePool", "string", Cell::At("/metadata/labels/karpenter.sh~1nodepool")),
    wide("NodeClass", "string", Cell::At("/spec/nodeClassRef/name")),
    wide("Drifted", "string", Cell::Condition("Drifted")),
];

const NODE_POOLS: &[Column] = &[
    NAME,
    column("NodeClass", "string", Cell::At("/spec/template/spec/nodeClassRef/name")),
    column("Nodes", "string", Cell::At("/status/nodes")),
    column("Ready", "string", Cell::Condition("Ready")),
    DATE,
    wide("Weight", "integer", Cell::At("/spec/weight")),
    wide("CPU", "string", Cell::At("/status/resources/cpu")),
    wide("Memory", "string", Cell::At("/status/resources/memory")),
];

const PROVISIONING_PARAMETERS: &[Column] = &[
    NAME,
    column("NodePool", "string", Cell::At("/spec/nodePoolName")),
    column("Strategy", "string", Cell::At("/spec/strategy/type")),
    DATE,
];

const NAMESPACES: &[Column] =
    &[NAME, column("Status", "string", Cell::Computed(|o, _| json!(text(o, "/status/phase")))), AGE];

const NODES: &[Column] = &[
    NAME,
    column("Status", "string", Cell::Computed(cells::node_status)),
    column("Roles", "string", Cell::Computed(cells::node_roles)),
    AGE,
    column("Version", "string", Cell::Computed(|o, _| json!(text(o, "/status/nodeInfo/kubeletVersion")))),
    wide("Internal-IP", "string", Cell::Computed(|o, _| cells::node_address(o, "InternalIP"))),
    wide("External-IP", "string", Cell::Computed(|o, _| cells::node_address(o, "ExternalIP"))),
    wide("OS-Image", "string", Cell::Computed(|o, _| or(text(o, "/status/nodeInfo/osImage"), "<unknown>"))),
    wide("Kernel-Version", "string", Cell::Computed(cells::kernel)),
    wide(
        "Container-Runtime",
        "string",
        Cell::Computed(|o, _| or(text(o, "/status/nodeInfo/containerRuntimeVersion"), "<unknown>")),
    ),
];

const PODS: &[Column] = &[
    NAME,
    column("Ready", "string", Cell::Computed(|o, _| pods::ready(o))),
    column("Status", "string", Cell::Computed(|o, _| pods::status(o))),
    column("Restarts", "string", Cell::Computed(pods::restarts)),
    AGE,
    wide("IP", "string", Cell::Computed(|o, _| or(text(o, "/status/podIPs/0/ip"), "<none>"))),
    wide("Node", "string", Cell::Computed(|o, _| or(text(o, "/spec/nodeName"), "<none>"))),
    wide(
        "Nominated Node",
        "string",
        Cell::Computed(|o, _| or(text(o, "/status/nominatedNodeName"), "<none>")),
    ),
    wide("Readiness Gates", "string", Cell::Computed(|o, _| pods::gates(o))),
];

const CONFIG_MAPS: &[Column] = &[NAME, column("Data", "string", Cell::Computed(cells::data_count)), AGE];

const EVENTS: &[Column] = &[
    column("Last Seen", "string", Cell::Computed(cells::last_seen)),
    column("Type", "string", Cell::Computed(|o, _| json!(text(o, "/type")))),
    column("Reason", "string", Cell::Computed(|o, _| json!(text(o, "/reason")))),
    column("Object", "string", Cell::Computed(|o, _| cells::event_target(o))),
    wide(
        "Subobject",
        "string",
        Cell::Computed(|o, _| json!(either(o, "/involvedObject/fieldPath", "/regarding/fieldPath"))),
    ),
    wide("Source", "string", Cell::Computed(|o, _| cells::event_source(o))),
    column("Message", "string", Cell::Computed(|o, _| json!(either(o, "/message", "/note").trim()))),
    wide("First Seen", "string", Cell::Computed(cells::first_seen)),
    wide("Count", "string", Cell::Computed(|o, _| cells::event_count(o))),
    wide("Name", "string", Cell::At("/metadata/name")),
];

const JOBS: &[Column] = &[
    NAME,
    column("Status", "string", Cell::Computed(|o, _| cells::job_status(o))),
    column("Completions", "string", Cell::Computed(|o, _| cells::job_completions(o))),
    column("Duration", "string", Cell::Computed(cells::job_duration)),
    AGE,
    wide("Containers", "string", Cell::Computed(|o, _| cells::containers(o, "name"))),
    wide("Images", "string", Cell::Computed(|o, _| cells::containers(o, "image"))),
    wide("Selector", "string", Cell::Computed(|o, _| cells::selector(o))),
];

const DAEMON_SETS: &[Column] = &[
    NAME,
    column("Desired", "integer", Cell::Computed(|o, _| count(o, "/status/desiredNumberScheduled"))),
    column("Current", "integer", Cell::Computed(|o, _| count(o, "/status/currentNumberScheduled"))),
    column("Ready", "integer", Cell::Computed(|o, _| count(o, "/status/numberReady"))),
    column("Up-to-date", "integer", Cell::Computed(|o, _| count(o, "/status/updatedNumberScheduled"))),
    column("Available", "integer", Cell::Computed(|o, _| count(o, "/status/numberAvailable"))),
    column(
        "Node Selector",
        "string",
        Cell::Computed(|o, _| cells::pairs(o.pointer("/spec/template/spec/nodeSelector"))),
    ),
    AGE,
    wide("Containers", "string", Cell::Computed(|o, _| cells::containers(o, "name"))),
    wide("Images", "string", Cell::Computed(|o, _| cells::containers(o, "image"))),
    wide("Selector", "string", Cell::Computed(|o, _| cells::selector(o))),
];

const LEASES: &[Column] =
    &[NAME, column("Holder", "string", Cell::Computed(|o, _| json!(text(o, "/spec/holderIdentity")))), AGE];

const RUNTIME_CLASSES: &[Column] =
    &[NAME, column("Handler", "string", Cell::Computed(|o, _| json!(text(o, "/handler")))), AGE];

const PRIORITY_CLASSES: &[Column] = &[
    NAME,
    column("Value", "integer", Cell::Computed(|o, _| count(o, "/value"))),
    column(
        "Global-Default",
        "boolean",
        Cell::Computed(|o, _| json!(o.get("globalDefault") == Some(&json!(true)))),
    ),
    AGE,
    wide("PreemptionPolicy", "string", Cell::Computed(|o, _| json!(text(o, "/preemptionPolicy")))),
];

/// The columns of a kind.
pub(super) fn of(kind: &ServedKind) -> &'static [Column] {
    match kind.plural {
        "workloads" => WORKLOADS,
        "localqueues" => LOCAL_QUEUES,
        "clusterqueues" => CLUSTER_QUEUES,
        "workloadpriorityclasses" => WORKLOAD_PRIORITY_CLASSES,
        "nodeclaims" => NODE_CLAIMS,
        "nodepools" => NODE_POOLS,
        "provisioningparameters" => PROVISIONING_PARAMETERS,
        "namespaces" => NAMESPACES,
        "nodes" => NODES,
        "pods" => PODS,
        "configmaps" => CONFIG_MAPS,
        "serviceaccounts" => &[NAME, AGE],
        "events" => EVENTS,
        "jobs" => JOBS,
        "daemonsets" => DAEMON_SETS,
        "leases" => LEASES,
        "runtimeclasses" => RUNTIME_CLASSES,
        "priorityclasses" => PRIORITY_CLASSES,
        _ if kind.custom => NAME_AND_DATE,
        _ => &[NAME, CREATED],
    }
}

/// The conditions of a row. Only ended pods have one.
pub(super) fn conditions(kind: &ServedKind, object: &Value) -> Option<Value> {
    let (reason, message) = match (kind.plural, text(object, "/status/phase")) {
        ("pods", "Succeeded") => ("Succeeded", "The pod has completed successfully."),
        ("pods", "Failed") => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

impl Column {
    /// The column definition of a table.
    pub(super) fn definition(&self) -> Value {
        let format = if self.name == "Name" { "name" } else { "" };
        json!({
            "name": self.name, "type": self.kind, "format": format, "description": "",
            "priority": i32::from(self.wide),
        })
    }

    /// The cell for an object.
    pub(super) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::At(pointer) => match object.pointer(pointer) {
                Some(Value::Number(number)) if self.kind == "string" => json!(number.to_string()),
                Some(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => value.clone(),
                _ => Value::Null,
            },
            Cell::Condition(kind) => condition(object, kind).map_or(Value::Null, |status| json!(status)),
            Cell::Since(pointer) if text(object, pointer).is_empty() => Value::Null,
            Cell::Since(pointer) => json!(cells::since(object, pointer, now)),
            Cell::Computed(cell) => cell(object, now),
        }
    }
}
