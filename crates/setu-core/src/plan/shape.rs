//! The shape of an instance type: what a node of it offers to pods, as a Node, a NodeClaim or the catalogue shows it.
//!
//! Rule: among several Nodes, the least amount of a resource counts, but the highest number of a device: a node that lacks some is
//! unhealthy, not smaller. So a single Node that lacks devices is not trusted.

mod unknown;

pub use unknown::{Accelerators, UnknownAmount};

use super::resources;
use super::source::Source;
use crate::api::pod::ResourceList;
use crate::api::requirements::{Requirements, is_well_known};
use crate::api::{Node, NodeClaim};
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use std::collections::BTreeMap;

/// Pods per node if the shape does not say: the kubelet's default.
const PODS: u32 = 110;
/// The resource name of a node's disk.
pub const DISK: &str = "ephemeral-storage";
/// Resources that every node has, even if the shape does not list them.
pub const OF_EVERY_NODE: [&str; 4] = ["cpu", "memory", DISK, "pods"];
/// Stand-in for an unknown disk size, which the NodeClass sets and which is not read. Any pod fits; how many fit is unknown.
const ANY_DISK: &str = "1Ei";
/// Divisor of the memory that is left free if only the provider's estimate is known.
const ESTIMATE_MARGIN: u32 = 20;

/// Resources and labels of the nodes of an instance type.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// The instance type.
    pub instance_type: String,
    /// Resources that pods may use, including the DaemonSets' part.
    pub allocatable: ResourceList,
    /// Resources before the system and the kubelet take their part. Empty if unknown.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: ResourceList,
    /// Labels that come with the machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// NodePool of the nodes that showed it, because each NodePool may share devices differently. Empty if it is stated for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
    /// How many Nodes showed it.
    #[serde(skip)]
    pub nodes: u32,
    /// How far its accelerators are known.
    #[serde(skip)]
    pub accelerators: Accelerators,
    /// The source of this knowledge.
    pub source: Source,
}

impl Shape {
    /// The shape that a Node shows; `None` unless it is ready and initialized.
    pub fn of_node(node: &Node, seen: Timestamp) -> Option<Self> {
        let labels = node.metadata.labels.as_ref()?;
        let source = Source::Node { name: node.metadata.name.clone()?, seen };
        let shown = node.is_ready() && labels.get(names::INITIALIZED).is_some_and(|v| v == "true");
        // An unhealthy device is not allocatable, but the next node of the type has it.
        let allocatable = resources::max(&node.status.allocatable, &node.status.devices);
        let seen = || Self::seen(labels, &allocatable, source).map(|shape| Self { nodes: 1, ..shape });
        shown.then(seen).flatten()
    }

    /// The shape that the provider expects for a NodeClaim; `None` until the claim's status says.
    pub fn of_claim(claim: &NodeClaim) -> Option<Self> {
        let labels = claim.metadata.labels.as_ref()?;
        let created = claim.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
        let source = Source::NodeClaim { name: claim.metadata.name.clone()?, seen: created };
        let status = claim.status.as_ref()?;
        let shape = Self::seen(labels, &status.allocatable, source);
        shape.map(|shape| Self { capacity: status.capacity.clone(), ..shape })
    }

    /// The expected shape, less a margin for what the provider cannot know.
    #[must_use]
    pub fn with_margin(&self) -> Self {
        let mut allocatable = self.allocatable.clone();
        let memory = resources::amount(&allocatable, "memory");
        if allocatable.contains_key("memory") {
            allocatable.insert("memory".to_owned(), memory.minus(memory.part(ESTIMATE_MARGIN)).into());
        }
        Self { allocatable, ..self.clone() }
    }

    /// The amounts by which a node counts towards its NodePool's limits, as Karpenter counts.
    pub fn counts_with(&self) -> ResourceList {
        resources::max(&self.allocatable, &self.capacity)
    }

    /// Resources whose amount is unknown, so that limits on them cannot be checked. If neither policy nor a Node states the
    /// devices, those that are not `listed` in the provider's catalogue are unknown.
    pub fn unknown_amounts(&self, listed: Option<&'static [String]>) -> impl Iterator<Item = UnknownAmount> {
        let known = || self.allocatable.keys().chain(self.capacity.keys());
        let missing = OF_EVERY_NODE.into_iter().filter(move |key| !known().any(|of| of == key));
        let hides =
            self.accelerators != Accelerators::Stated && !known().any(|key| resources::is_accelerator(key));
        let is_stated = self.source == Source::Policy || self.is_shown();
        let others = listed.filter(|_| !is_stated).map(UnknownAmount::OtherDevices);
        missing.map(UnknownAmount::Resource).chain(hides.then_some(UnknownAmount::Accelerators)).chain(others)
    }

    fn seen(labels: &BTreeMap<String, String>, allocatable: &ResourceList, source: Source) -> Option<Self> {
        let instance_type = labels.get(names::INSTANCE_TYPE).filter(|t| !t.is_empty())?.clone();
        if allocatable.is_empty() {
            return None;
        }
        let node_pool = labels.get(names::NODEPOOL).cloned().unwrap_or_default();
        let labels = labels.iter().filter(|(key, _)| is_of_machine(key)).map(|(k, v)| (k.clone(), v.clone()));
        let (labels, allocatable) = (labels.collect(), allocatable.clone());
        let capacity = ResourceList::new();
        Some(Self {
            instance_type,
            allocatable,
            capacity,
            labels,
            node_pool,
            nodes: 0,
            accelerators: Accelerators::Stated,
            source,
        })
    }

    /// Both merged, with the other's source: the least of each resource, but the most of each device.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let mut allocatable = resources::min(&self.allocatable, &other.allocatable);
        allocatable.extend(resources::max(&devices(&self.allocatable), &devices(&other.allocatable)));
        let capacity = resources::max(&self.capacity, &other.capacity);
        Self { allocatable, capacity, ..other.clone() }
    }

    /// This observed shape, capped at `expected`. Devices that a single node lacks may be unhealthy, or not there yet.
    #[must_use]
    pub fn within(mut self, expected: &Self) -> Self {
        let devices = devices(&expected.allocatable);
        if self.nodes < 2 {
            self.allocatable = resources::max(&self.allocatable, &devices);
        }
        let capacity = expected.capacity.clone();
        let expected = expected.allocatable.iter().filter(|(key, _)| self.allocatable.contains_key(*key));
        let expected: ResourceList = expected.map(|(key, amount)| (key.clone(), amount.clone())).collect();
        Self { allocatable: resources::min(&self.allocatable, &expected), capacity, ..self }
    }

    /// Whether Nodes showed it, instead of an estimate or a statement.
    pub fn is_shown(&self) -> bool {
        matches!(self.source, Source::Node { .. })
    }

    /// Whether it has accelerators, or a part of one.
    pub fn has_accelerator(&self) -> bool {
        let is_one = |key: &String| ACCELERATOR_NAMES.contains(&key.as_str());
        self.accelerators == Accelerators::Some
            || resources::has_accelerator(&self.allocatable)
            || resources::has_accelerator(&self.capacity)
            || self.labels.keys().any(is_one)
    }

    /// The room for pods beside these DaemonSets.
    pub fn room(&self, daemons: &ResourceList) -> ResourceList {
        let mut allocatable = self.allocatable.clone();
        // The system takes no pods from what the machine has.
        let pods = || self.capacity.get("pods").cloned().unwrap_or_else(|| Quantity(PODS.to_string()));
        allocatable.entry("pods".to_owned()).or_insert_with(pods);
        if !self.states_disk() {
            allocatable.insert(DISK.to_owned(), Quantity(ANY_DISK.to_owned()));
        }
        resources::minus(&allocatable, daemons)
    }

    /// Whether it says how much disk pods may use. Catalogue and metrics do not.
    pub fn states_disk(&self) -> bool {
        let is_of_machine = matches!(self.source, Source::Catalogue { .. } | Source::Metrics { .. });
        self.allocatable.contains_key(DISK) || !is_of_machine
    }

    /// Whether a node with these requirements may be of this type, by the listed types or its labels. If no types are listed,
    /// every required machine label must be known.
    pub fn may_be(&self, requirements: &Requirements) -> bool {
        let listed = requirements.get(names::INSTANCE_TYPE).is_some_and(|v| v.listed().is_some());
        let type_fits = requirements.get(names::INSTANCE_TYPE).is_none_or(|v| v.allows(&self.instance_type));
        let of_machine = requirements.iter().filter(|(key, _)| is_of_machine(key));
        type_fits
            && of_machine.filter(|(key, _)| *key != names::INSTANCE_TYPE).all(|(key, values)| {
                match self.labels.get(key) {
                    Some(value) => values.allows(value),
                    None => listed || [names::ARCH, names::OS].contains(&key.as_str()),
                }
            })
    }
}

/// The devices of a list.
pub(super) fn devices(list: &ResourceList) -> ResourceList {
    let devices = list.iter().filter(|(key, _)| resources::is_device(key));
    devices.map(|(key, amount)| (key.clone(), amount.clone())).collect()
}

/// Whether a label describes the machine, not its place or how it was requested.
pub fn is_of_machine(key: &str) -> bool {
    is_well_known(key) && !OF_PLACE.contains(&key) && !key.ends_with("nodeclass")
}

/// Labels of machines with accelerators, even if only a part of one.
pub const ACCELERATOR_NAMES: [&str; 4] = [
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
    "karpenter.azure.com/sku-gpu-manufacturer",
    "karpenter.k8s.gcp/instance-gpu-name",
];

/// Well-known labels that say where or how a machine is bought, not what it is.
const OF_PLACE: [&str; 7] = [
    names::ZONE,
    names::ZONE_ID,
    names::REGION,
    names::CAPACITY_TYPE,
    names::NODEPOOL,
    names::RESERVATION_ID,
    names::RESERVATION_TYPE,
];
