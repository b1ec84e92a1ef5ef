//! Gangs that are refused until something changes, and stay out of Kueue's queue until then.
//!
//! Kueue queues a Workload again as soon as its quota is released, but reserves none while a check says Retry. So the
//! check of a refused gang says Retry after its eviction too. A Retry check alone would block a `StrictFIFO`
//! ClusterQueue, and elsewhere changing it does not requeue the Workload. So the condition `Requeued` is False too,
//! until the cause may have changed. Not every cause is watched, so the refusal also ends by time.
//!
//! Rule: a hint, which may be lost at any time; then the gang is tried once more.

use crate::api::Workload;
use crate::gang::snapshot::Refusal;
use crate::names;
use crate::plan::Outcome;
use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a gang holds quota that Kueue reserved before it saw Retry again; doubles each time.
const PAUSE: SignedDuration = SignedDuration::from_millis(250);

/// Refused gangs, by their ids.
#[derive(Debug, Default)]
pub struct Refused(BTreeMap<String, RefusedGang>);

#[derive(Debug)]
struct RefusedGang {
    /// The Workload as it was refused, with what Kueue had reserved for it.
    workload: Arc<Workload>,
    causes: Causes,
    refusal: Refusal,
    /// How often Kueue reserved quota again before it was kept out.
    lost: u32,
}

/// Digests of the possible causes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes {
    /// Digest of what Kueue reserves by. If it changes, the next reservation may have a plan.
    pub reserved: u64,
    /// Digest of what plans are made from. It changes all the time, so it ends no refusal until a plan shows that it
    /// helps.
    pub planned: u64,
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
        self.0.insert(gang.to_owned(), RefusedGang { workload, causes, refusal, lost });
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

    /// Records a gang's new planning outcome under these causes. Anything but a refusal ends the refusal, unless the
    /// outcome hides whether a plan exists.
    pub fn replanned(&mut self, gang: &str, causes: Causes, outcome: &Outcome) {
        match outcome {
            Outcome::Refuse(_) => {
                if let Some(entry) = self.0.get_mut(gang) {
                    entry.causes.planned = causes.planned;
                }
            }
            // That passes, and there may still be no plan afterwards.
            Outcome::Wait(obstacle) if obstacle.reason.hides_plan() => {}
            Outcome::Provision(_) | Outcome::NothingNeeded(_) | Outcome::Wait(_) | Outcome::Never(_) => {
                self.forget(gang);
            }
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
    pub fn outdated(&self, causes: impl Fn(&Workload) -> Causes) -> Vec<Arc<Workload>> {
        let outdated = self.0.values().filter(|entry| entry.causes != causes(&entry.workload));
        outdated.map(|entry| Arc::clone(&entry.workload)).collect()
    }
}

/// The annotations that override the policy for a Workload. They do not count in its generation.
fn overrides(workload: &Workload) -> impl Iterator<Item = (&String, &String)> {
    workload.annotations().iter().filter(|(key, _)| key.starts_with(names::JOB_OVERRIDE_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Obstacle, ObstacleReason};
    use serde_json::json;

    #[test]
    fn a_refused_gang_is_kept_out_until_its_workload_or_a_cause_changes_or_time_is_up() {
        let workload = |generation: i64| -> Workload {
            serde_json::from_value(json!({
                "metadata": {"name": "large", "namespace": "ns", "generation": generation}, "spec": {},
            }))
            .unwrap()
        };
        let same_outcome = Outcome::Refuse(Obstacle::new(ObstacleReason::TooManyNodes, ""));
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
            refused.replanned("g", causes(7, 4), &same_outcome);
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

    #[test]
    fn a_new_plan_ends_a_refusal_unless_it_refuses_too_or_is_unknown() {
        let workload: Workload =
            serde_json::from_value(json!({"metadata": {"name": "large"}, "spec": {}})).unwrap();
        let obstacle = |reason| Obstacle::new(reason, "");
        let (before, now) = (Causes { reserved: 7, planned: 3 }, Causes { reserved: 7, planned: 4 });
        for (outcome, is_refused, is_open) in [
            (Outcome::Refuse(obstacle(ObstacleReason::TooManyNodes)), true, false),
            (Outcome::Wait(obstacle(ObstacleReason::CapacityShort)), false, false),
            (Outcome::Wait(obstacle(ObstacleReason::NoPolicy)), true, true),
        ] {
            let mut refused = Refused::default();
            refused.refuse("g", &workload, before, (Timestamp::UNIX_EPOCH, Timestamp::MAX));
            refused.replanned("g", now, &outcome);
            let found = (refused.has("g"), refused.changed("g", now).is_some());
            assert_eq!(found, (is_refused, is_open), "{outcome:?}");
        }
    }
}
