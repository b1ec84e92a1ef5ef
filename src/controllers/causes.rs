//! The possible causes of refusals, as digests of the stores, and which gangs are woken when one changes.

use super::context::Context;
use super::digests::{by_generation, by_version};
use crate::api::{ClusterQueue, Workload};
use crate::gang::ledger::refused::Causes;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Context {
    /// The current causes that a refusal of this gang may be due to.
    pub(super) fn causes_of_refusal(&self, workload: &Workload) -> Causes {
        Causes { reserved: self.reserved_by(workload), planned: self.planned_from() }
    }

    /// A digest of the objects by which Kueue reserves quota for this Workload.
    fn reserved_by(&self, workload: &Workload) -> u64 {
        let mut hasher = DefaultHasher::new();
        let stores = &self.stores;
        let namespace = workload.namespace().unwrap_or_default();
        let local_queue = ObjectRef::new(&workload.spec.queue_name).within(&namespace);
        let local_queue = stores.local_queues.store.get(&local_queue);
        // If Setu may not read LocalQueues, any queue may be the gang's.
        let is_its = |queue: &ClusterQueue| {
            let name = queue.metadata.name.as_deref();
            local_queue.as_ref().is_none_or(|local| name == Some(&local.spec.cluster_queue))
        };
        let queues: Vec<_> =
            stores.plan.cluster_queues.state().into_iter().filter(|queue| is_its(queue)).collect();
        let groups = queues.iter().flat_map(|queue| &queue.spec.resource_groups);
        let flavors = groups.flat_map(|group| &group.flavors);
        let flavors = flavors.filter_map(|flavor| stores.plan.flavors.get(&ObjectRef::new(&flavor.name)));
        by_generation(flavors, &mut hasher);
        if queues.iter().any(|queue| !queue.spec.cohort_name.is_empty()) {
            by_generation(stores.cohorts.store.state(), &mut hasher);
        }
        by_generation(queues, &mut hasher);
        by_generation(local_queue, &mut hasher);
        hasher.finish()
    }

    /// A digest of what plans are made from.
    fn planned_from(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.policies.revision(), self.better_offers()).hash(&mut hasher);
        let stores = &self.stores;
        stores.plan.hash_into(&mut hasher);
        by_version(stores.limit_ranges.state(), &mut hasher);
        by_version(stores.namespaces.store.state(), &mut hasher);
        hasher.finish()
    }

    /// Wakes the refused gangs whose causes have changed.
    pub(super) fn wake_refused(&self) {
        let refused = &self.gang_state.ledger().refused;
        if refused.count() == 0 {
            return;
        }
        let planned = self.planned_from();
        let outdated = refused.outdated(|workload| Causes { reserved: self.reserved_by(workload), planned });
        for workload in outdated {
            self.wake_workload(ObjectRef::from_obj(&*workload));
        }
    }
}
