//! The pods of a pod set group as input for packing: which of them may share a node, and which node.

use super::{GroupPlanner, apart};
use crate::api::pod::ResourceList;
use crate::plan::PodShare;
use crate::plan::demand::PodSetDemand;
use crate::plan::host_anti_affinity::exclude_each_other;
use crate::plan::packing::{Batch, Filled, Misfit, NodeKind};
use crate::plan::resources;
use crate::plan::shape::DISK;

impl GroupPlanner<'_> {
    /// Resources that these pods request together.
    pub(super) fn requests_of(&self, pods: &[PodShare]) -> ResourceList {
        let of_share = |share: &PodShare| {
            let set = self.group.sets.iter().find(|set| set.pod_set.name == share.pod_set)?;
            Some(resources::times(&set.each, share.pods))
        };
        let each = pods.iter().filter_map(of_share);
        each.fold(ResourceList::new(), |sum, more| resources::sum(&sum, &more))
    }

    /// The pods of all sets, ready for packing.
    pub(super) fn batches(&self) -> Vec<Batch> {
        let sets = &self.group.sets;
        let by_disk = |set: &PodSetDemand<'_>| self.disk_is_open() && requests_disk(set);
        let apart = |n: usize, set: &PodSetDemand<'_>| {
            let others = sets.iter().enumerate().filter(|(other, _)| *other != n);
            let keeps_off = |other: &PodSetDemand<'_>| {
                exclude_each_other(set.pod_set, other.pod_set) || (by_disk(set) && by_disk(other))
            };
            others.filter(|(_, other)| keeps_off(other)).map(|(other, _)| other).collect()
        };
        let batch = |(n, set): (usize, &&PodSetDemand<'_>)| Batch {
            pods: set.pods,
            needs: set.each.clone(),
            per_node: if by_disk(set) { 1 } else { set.per_node },
            apart: apart(n, set),
        };
        sets.iter().enumerate().map(batch).collect()
    }

    /// As [`Self::batches`], but only the resources of this room count.
    pub(super) fn batches_of(&self, room: &ResourceList) -> Vec<Batch> {
        let mut batches = self.batches();
        for batch in &mut batches {
            batch.needs.retain(|key, _| room.contains_key(key));
            if batch.needs.is_empty() {
                // Pods that ask for none of these resources give no hint of how many of them fit.
                batch.per_node = 1;
            }
        }
        batches
    }

    /// Packs all pods. Pods that nodes below the ceilings hold go into such nodes.
    pub(super) fn spread(&self, batches: &[Batch], kinds: &[NodeKind]) -> Result<Vec<Filled>, Misfit> {
        if self.group.ceilings.is_empty() {
            return apart::spread(batches, kinds);
        }
        let small = self.small(kinds);
        let goes_there = |batch: &Batch| apart::any_holds(&small, batch);
        let mut filled = apart::spread(&apart::these(batches, |batch| !goes_there(batch)), kinds)?;
        filled.extend(apart::spread(&apart::these(batches, goes_there), &small)?);
        Ok(filled)
    }

    /// The number of pods of each set on a node, without sets that have none there.
    pub(super) fn shares(&self, pods: impl Fn(usize) -> u32) -> Vec<PodShare> {
        let sets = self.group.sets.iter().enumerate();
        sets.map(|(n, set)| PodShare { pod_set: set.pod_set.name.clone(), pods: pods(n) })
            .filter(|s| s.pods > 0)
            .collect()
    }

    /// Whether one of the possible types has unknown disk space.
    fn disk_is_open(&self) -> bool {
        self.group.known.shapes.iter().any(|shape| !shape.states_disk())
    }

    /// A note that the nodes' disk space is unknown, so that pods that ask for disk do not share nodes where others may. `None`
    /// if no pod asks for disk.
    pub(super) fn by_disk(&self) -> Option<String> {
        let sets = self.group.sets.iter().filter(|set| self.disk_is_open() && requests_disk(set));
        let names: Vec<&str> = sets.map(|set| set.pod_set.name.as_str()).collect();
        let share = if self.group.fills { " and share no node with others that do" } else { "" };
        let unread = disk_field(self.group.draft.node_class_group());
        let unread = unread.map_or_else(String::new, |field| format!(", as {field} is not read"));
        (!names.is_empty()).then(|| {
            format!(
                "pods of pod set {} request {DISK}{share}, but the amount on nodes of NodePool {} is unknown until one \
                 exists{unread}; Karpenter launches nothing if it is too small; state it under packing.shapes",
                names.join(" and "),
                self.group.draft.node_pool
            )
        })
    }
}

/// The field of this API group's NodeClass that sets the disk size of its nodes.
fn disk_field(group: &str) -> Option<&'static str> {
    match group {
        "karpenter.k8s.aws" => Some("spec.blockDeviceMappings of its EC2NodeClass"),
        "eks.amazonaws.com" => Some("spec.ephemeralStorage of its NodeClass"),
        "karpenter.azure.com" => Some("spec.osDiskSizeGB of its AKSNodeClass"),
        "karpenter.k8s.gcp" => Some("spec.disks of its GCENodeClass"),
        _ => None,
    }
}

/// Whether its pods request a node's disk.
fn requests_disk(set: &PodSetDemand<'_>) -> bool {
    set.each.get(DISK).is_some_and(resources::is_positive)
}
