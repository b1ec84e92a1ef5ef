//! Gangs that are refused until something changes, and stay out of Kueue's queue until then.
//!
//! Kueue queues a Workload again as soon as its quota is released, but reserves none while a check says Retry. So the
//! check of a refused gang says Retry after its eviction too. In a `StrictFIFO` ClusterQueue such a Workload would block
//! all others from the head of the queue, and in other queues no change of the check brings it back. So its condition
//! `Requeued` is also False until the cause of the refusal may have changed, or for a while, as not every cause is
//! watched.
//!
//! Rule: a hint, which may be lost at any time; then the gang is tried once more.

use super::context::Context;
use super::gang::Reconciled;
use super::others::Others;
use crate::api::{ClusterQueue, Workload};
use crate::effects::requeued::{self, Queueing};
use crate::error::Error;
use crate::gang::Refusal;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How long quota is held that Kueue reserved before it saw Retry again; doubles each time.
const PAUSE: SignedDuration = SignedDuration::from_millis(250);

/// Refused gangs, by their ids.
#[derive(Debug, Default)]
pub struct Refused(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    /// The Workload as it was refused, with what Kueue had reserved for it.
    workload: Arc<Workload>,
    causes: Causes,
    refusal: Refusal,
    /// How often Kueue reserved quota again before it was kept out.
    lost: u32,
}

/// What a refusal may be due to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes {
    /// Digest of what Kueue reserves by. If it changes, the next reservation may have a plan.
    reserved: u64,
    /// Digest of what plans are made from. It changes all the time, so it ends no refusal until a plan shows that it
    /// helps.
    planned: u64,
}

impl Refused {
    /// Refuses a gang now, until this time or until a cause changes.
    pub fn refuse(
        &mut self,
        gang: &str,
        workload: &Workload,
        causes: Causes,
        (now, until): (Timestamp, Timestamp),
    ) {
        let lost = self.0.get(gang).map_or(0, |entry| entry.lost.saturating_add(1));
        let again_at = now + PAUSE.saturating_mul(1 << lost.min(8));
        let (workload, refusal) = (Arc::new(workload.clone()), Refusal { until, again_at });
        self.0.insert(gang.to_owned(), Entry { workload, causes, refusal, lost });
    }

    /// The refusal of a gang, if it still stands.
    pub fn refusal(
        &mut self,
        gang: &str,
        workload: &Workload,
        causes: Causes,
        now: Timestamp,
    ) -> Option<Refusal> {
        let entry = self.0.get(gang)?;
        let is_same = entry.workload.metadata.generation == workload.metadata.generation
            && overrides(&entry.workload).eq(overrides(workload));
        let stands = entry.refusal.until > now && is_same && entry.causes.reserved == causes.reserved;
        if !stands {
            return self.0.remove(gang).and(None);
        }
        Some(entry.refusal)
    }

    /// The Workload as it was refused, if what plans are made from has changed since.
    pub fn changed(&self, gang: &str, causes: Causes) -> Option<Arc<Workload>> {
        let entry = self.0.get(gang).filter(|entry| entry.causes.planned != causes.planned)?;
        Some(Arc::clone(&entry.workload))
    }

    /// Records that a plan has shown that these causes do not help.
    pub fn stays(&mut self, gang: &str, causes: Causes) {
        if let Some(entry) = self.0.get_mut(gang) {
            entry.causes.planned = causes.planned;
        }
    }

    /// Whether a gang is refused, whatever has changed since.
    pub fn has(&self, gang: &str) -> bool {
        self.0.contains_key(gang)
    }

    /// Forgets a gang that is no longer refused, or is gone.
    pub fn forget(&mut self, gang: &str) {
        self.0.remove(gang);
    }

    /// How many gangs are refused.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The Workloads of the gangs that were refused for causes other than these.
    fn outdated(&self, causes: impl Fn(&Workload) -> Causes) -> Vec<ObjectRef<Workload>> {
        let outdated = self.0.values().filter(|entry| entry.causes != causes(&entry.workload));
        outdated.map(|entry| ObjectRef::from_obj(&*entry.workload)).collect()
    }
}

impl Context {
    /// The current causes that a refusal of this gang may be due to.
    pub(super) fn causes_of_refusal(&self, workload: &Workload) -> Causes {
        Causes { reserved: self.reserved_by(workload), planned: self.planned_from() }
    }

    /// A digest of what Kueue reserves by for this Workload.
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
        let queues: Vec<_> = stores.plan.queues.state().into_iter().filter(|queue| is_its(queue)).collect();
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
        by_generation(stores.plan.pools.state(), &mut hasher);
        by_generation(stores.plan.daemon_sets.state(), &mut hasher);
        by_version(&stores.limit_ranges.state(), &mut hasher);
        by_version(&stores.plan.runtime_classes.state(), &mut hasher);
        by_version(&stores.plan.device_classes.state(), &mut hasher);
        by_version(&stores.namespaces.store.state(), &mut hasher);
        hasher.finish()
    }

    /// Wakes the refused gangs whose causes have changed.
    pub(super) fn wake_refused(&self) {
        let refused = &self.of_gangs.ledger.open().refused;
        if refused.count() == 0 {
            return;
        }
        let planned = self.planned_from();
        let outdated = refused.outdated(|workload| Causes { reserved: self.reserved_by(workload), planned });
        for workload in outdated {
            self.wake_workload(workload);
        }
    }
}

/// Takes a Workload out of Kueue's queue, or puts it back, as its gangs' reconciles require. Runs after its checks are
/// written, so that their old state does not get it refused at once.
pub(super) async fn queue(
    context: &Context,
    workload: &mut Workload,
    results: &[Reconciled],
    others: Others,
) -> Result<(), Error> {
    if workload.request_name().is_some() {
        // Kueue queues the Workload that owns it.
        return Ok(());
    }
    let is_kept_out = results.iter().any(|result| result.queueing == Queueing::KeptOut);
    let wanted = if is_kept_out { Queueing::KeptOut } else { Queueing::Allowed };
    // Another Setu that keeps it out also puts it back.
    let may_write = is_kept_out || !others.may_refuse;
    if may_write && wanted != Queueing::of(workload) {
        let client = context.client_of(workload.metadata.uid.as_deref().unwrap_or_default());
        *workload = requeued::apply(client, workload, wanted, context.now()).await?;
        context.of_gangs.own_writes.note(workload);
    }
    Ok(())
}

/// The annotations that override the policy for a Workload. They do not count in its generation.
fn overrides(workload: &Workload) -> impl Iterator<Item = (&String, &String)> {
    workload.annotations().iter().filter(|(key, _)| key.starts_with(names::JOB_OVERRIDE_PREFIX))
}

/// Hashes objects whose status does not matter for a refusal.
fn by_generation<K: Resource>(all: impl IntoIterator<Item = Arc<K>>, hasher: &mut DefaultHasher) {
    let mut sorted: Vec<_> = all.into_iter().map(|o| (o.uid(), o.meta().generation)).collect();
    sorted.sort();
    sorted.hash(hasher);
}

/// Hashes objects that have no generation, or whose labels count.
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
        let causes = |reserved, planned| Causes { reserved, planned };
        for (generation, reserved, now, stands) in
            [(1, 7, 9, true), (2, 7, 9, false), (1, 8, 9, false), (1, 7, 60, false)]
        {
            let mut refused = Refused::default();
            assert_eq!(refused.refusal("g", &workload(1), causes(7, 3), at(9)), None);
            refused.refuse("g", &workload(1), causes(7, 3), (at(8), at(60)));
            let found = refused.refusal("g", &workload(generation), causes(reserved, 4), at(now));
            assert_eq!(found.map(|r| r.until), stands.then(|| at(60)), "{generation} {reserved} {now}");
            assert_eq!((refused.count(), refused.has("g")), (usize::from(stands), stands));
            let outdated = |refused: &Refused, causes: Causes| refused.outdated(|_| causes).len();
            assert_eq!(outdated(&refused, causes(8, 3)), usize::from(stands));
            assert_eq!(
                outdated(&refused, causes(7, 4)),
                usize::from(stands),
                "a plan shows whether that helps"
            );
            for _ in 0..2 {
                assert_eq!(refused.changed("g", causes(7, 4)).is_some(), stands);
            }
            refused.stays("g", causes(7, 4));
            assert_eq!(refused.changed("g", causes(7, 4)), None);
            assert_eq!(outdated(&refused, causes(7, 4)), 0);
        }
        let mut refused = Refused::default();
        for pause in [1, 2, 4] {
            refused.refuse("g", &workload(1), causes(7, 3), (at(8), at(60)));
            let refusal = refused.refusal("g", &workload(1), causes(7, 3), at(9)).unwrap();
            assert_eq!(refusal.again_at, at(8) + PAUSE * pause, "Kueue was faster");
        }
    }
}
