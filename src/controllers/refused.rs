//! Gangs that are refused until somebody changes something, and that stay out of Kueue's queue until then.
//!
//! Kueue queues a Workload again as soon as it has given its quota back, but reserves none for one whose check says
//! Retry. So the check of a refused gang says Retry also after its eviction: it holds no quota and is in nobody's way.
//! It says Pending again when what it was refused for may have changed, or after a while, as not all of that is watched.
//!
//! Rule: a hint, which may be lost at any time; then the gang is tried once more.

use super::context::Context;
use crate::api::Workload;
use crate::gang::Refusal;
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How long quota is held that Kueue reserved before it was told Retry again; doubles each time.
const PAUSE: SignedDuration = SignedDuration::from_millis(250);

/// Refused gangs, by their ids.
#[derive(Debug, Default)]
pub struct Refused(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    workload: ObjectRef<Workload>,
    generation: Option<i64>,
    causes: Causes,
    refusal: Refusal,
    /// How often Kueue reserved quota again before it was kept from it.
    lost: u32,
}

/// Everything that is watched and that a refusal may be due to, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes(u64);

impl Refused {
    /// Refuses a gang now, until this time or until another cause.
    pub fn refuse(
        &mut self,
        gang: &str,
        workload: &Workload,
        causes: Causes,
        (now, until): (Timestamp, Timestamp),
    ) {
        let lost = self.0.get(gang).map_or(0, |entry| entry.lost.saturating_add(1));
        let again_at = now + PAUSE.saturating_mul(1 << lost.min(8));
        let (generation, workload) = (workload.metadata.generation, ObjectRef::from_obj(workload));
        let refusal = Refusal { until, again_at };
        self.0.insert(gang.to_owned(), Entry { workload, generation, causes, refusal, lost });
    }

    /// The refusal of a gang, if it stands.
    pub fn refusal(
        &mut self,
        gang: &str,
        workload: &Workload,
        causes: impl FnOnce() -> Causes,
        now: Timestamp,
    ) -> Option<Refusal> {
        let entry = self.0.get(gang)?;
        let is_same = entry.generation == workload.metadata.generation;
        let stands = entry.refusal.until > now && is_same && entry.causes == causes();
        if !stands {
            return self.0.remove(gang).and(None);
        }
        Some(entry.refusal)
    }

    /// A gang is not refused any more, or is gone.
    pub fn forget(&mut self, gang: &str) {
        self.0.remove(gang);
    }

    /// How many gangs are refused.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The Workloads of the gangs that were refused for other causes than these.
    fn outdated(&self, causes: Causes) -> Vec<ObjectRef<Workload>> {
        self.0.values().filter(|entry| entry.causes != causes).map(|entry| entry.workload.clone()).collect()
    }
}

impl Context {
    /// What refusals may be due to, as of now.
    pub(super) fn causes_of_refusal(&self) -> Causes {
        let mut hasher = DefaultHasher::new();
        self.policies.revision().hash(&mut hasher);
        let stores = &self.stores;
        by_generation(&stores.pools.state(), &mut hasher);
        by_generation(&stores.queues.state(), &mut hasher);
        by_generation(&stores.flavors.state(), &mut hasher);
        by_generation(&stores.daemon_sets.state(), &mut hasher);
        by_generation(&stores.local_queues.store.state(), &mut hasher);
        by_generation(&stores.cohorts.store.state(), &mut hasher);
        by_version(&stores.limit_ranges.state(), &mut hasher);
        by_version(&stores.runtime_classes.state(), &mut hasher);
        by_version(&stores.device_classes.store.state(), &mut hasher);
        by_version(&stores.namespaces.store.state(), &mut hasher);
        Causes(hasher.finish())
    }

    /// Something changed that plans are made from: gangs that were refused for what is not so any more are reconciled.
    pub(super) fn wake_refused(&self) {
        if self.ledger.open().refused.count() == 0 {
            return;
        }
        let causes = self.causes_of_refusal();
        for workload in self.ledger.open().refused.outdated(causes) {
            self.wake_workload(workload);
        }
    }
}

/// Objects whose status says nothing that a refusal depends on.
fn by_generation<K: Resource>(all: &[Arc<K>], hasher: &mut DefaultHasher) {
    let mut sorted: Vec<_> = all.iter().map(|o| (o.namespace(), o.name_any(), o.meta().generation)).collect();
    sorted.sort();
    sorted.hash(hasher);
}

/// Objects that have no generation, or whose labels count.
fn by_version<K: Resource>(all: &[Arc<K>], hasher: &mut DefaultHasher) {
    let mut sorted: Vec<_> =
        all.iter().map(|o| (o.namespace(), o.name_any(), o.resource_version())).collect();
    sorted.sort();
    sorted.hash(hasher);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refused_gang_is_kept_out_until_its_workload_or_a_cause_changes_or_time_is_up() {
        let workload = |generation: i64| -> Workload {
            serde_json::from_value(json!({
                "metadata": {"name": "large", "namespace": "ns", "generation": generation}, "spec": {},
            }))
            .unwrap()
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        for (generation, causes, now, stands) in
            [(1, 7, 9, true), (2, 7, 9, false), (1, 8, 9, false), (1, 7, 60, false)]
        {
            let mut refused = Refused::default();
            assert_eq!(refused.refusal("g", &workload(1), || Causes(7), at(9)), None);
            refused.refuse("g", &workload(1), Causes(7), (at(8), at(60)));
            let found = refused.refusal("g", &workload(generation), || Causes(causes), at(now));
            assert_eq!(found.map(|r| r.until), stands.then(|| at(60)), "{generation} {causes} {now}");
            assert_eq!(refused.count(), usize::from(stands));
            assert_eq!(refused.outdated(Causes(8)).len(), usize::from(stands));
        }
        let mut refused = Refused::default();
        for pause in [1, 2, 4] {
            refused.refuse("g", &workload(1), Causes(7), (at(8), at(60)));
            let refusal = refused.refusal("g", &workload(1), || Causes(7), at(9)).unwrap();
            assert_eq!(refusal.again_at, at(8) + PAUSE * pause, "Kueue was faster");
        }
    }
}
