//! Measurements over all gangs: how long nodes usually take, and how long Karpenter stands still.
//!
//! Rule: nothing is decided on them. They serve messages and metrics.

use crate::api::NodeClaim;
use crate::cluster::lock;
use crate::gang::snapshot::observed::allowed;
use crate::names;
use crate::telemetry::metrics;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The latest nodes of a kind that an estimate uses.
const SAMPLES: usize = 64;
/// The most kinds that are kept.
const KINDS: usize = 1_000;
/// Labels that distinguish tiers of one NodePool whose nodes take different times.
const KIND_LABELS: [&str; 3] = [names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::ZONE];

/// How long the latest nodes of a kind took, by ready time and claim name: a node that is recorded twice or late counts
/// the same.
type Samples = BTreeMap<(Timestamp, String), SignedDuration>;

/// The kind of a node as it was requested: its NodePool, and the values of [`KIND_LABELS`] in that order.
type RequestedKind = (String, [String; 3]);

/// How long nodes took lately, by what was requested. Kept apart from the registry, because all gangs share it.
#[derive(Debug, Default)]
pub struct ReadyEstimates(Mutex<BTreeMap<RequestedKind, Samples>>);

impl ReadyEstimates {
    /// Records when the node of a claim was ready.
    pub fn note(&self, claim: &NodeClaim, ready: Timestamp) {
        let Some(created) = claim.metadata.creation_timestamp.as_ref() else { return };
        let took = ready.duration_since(created.0).max(SignedDuration::ZERO);
        let mut all = lock(&self.0);
        let kind = kind(claim);
        if all.len() >= KINDS && !all.contains_key(&kind) {
            // The kind that was not updated for the longest time.
            let latest = |samples: &Samples| samples.last_key_value().map(|(key, _)| key.0);
            if let Some(oldest) = all.iter().min_by_key(|(_, s)| latest(s)).map(|(kind, _)| kind.clone()) {
                all.remove(&oldest);
            }
        }
        let samples = all.entry(kind).or_default();
        samples.insert((ready, claim.name_any()), took);
        if samples.len() > SAMPLES {
            samples.pop_first();
        }
    }

    /// When the last of these claims is usually ready; `None` if no such node was seen yet.
    pub fn ready_by(&self, claims: &[&NodeClaim]) -> Option<Timestamp> {
        let all = lock(&self.0);
        let due = |claim: &&NodeClaim| {
            let created = claim.metadata.creation_timestamp.as_ref()?.0;
            created.checked_add(median(all.get(&kind(claim))?)?).ok()
        };
        claims.iter().map(due).collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
    }
}

fn median(samples: &Samples) -> Option<SignedDuration> {
    let mut sorted: Vec<SignedDuration> = samples.values().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// The kind of node that a claim requested, known while the claim exists. What it got shows only later.
fn kind(claim: &NodeClaim) -> RequestedKind {
    let asked = KIND_LABELS.map(|key| {
        // The order of the values does not matter.
        let values: BTreeSet<&str> = allowed(claim, key).iter().map(String::as_str).collect();
        Vec::from_iter(values).join(",")
    });
    (claim.label(names::NODEPOOL).to_owned(), asked)
}

/// How long any claim of ours lacked a provider ID. Karpenter provisions nothing itself during that time. Kept apart from the
/// registry, because it counts NodeClaims of all gangs, from their events.
#[derive(Debug, Default)]
pub struct Stall(Mutex<Stalled>);

#[derive(Debug, Default)]
struct Stalled {
    waiting: BTreeSet<String>,
    since: Option<Timestamp>,
    uncounted: SignedDuration,
}

impl Stall {
    /// Records whether a claim waits for its provider ID.
    pub fn note(&self, claim: &str, waits: bool, now: Timestamp) {
        let mut stalled = lock(&self.0);
        stalled.count(now);
        if waits {
            stalled.waiting.insert(claim.to_owned());
        } else {
            stalled.waiting.remove(claim);
        }
        stalled.since = (!stalled.waiting.is_empty()).then_some(now);
    }

    /// Counts up to now, and drops claims that stopped waiting without an event.
    pub fn tick(&self, waits: impl Fn(&str) -> bool, now: Timestamp) {
        let mut stalled = lock(&self.0);
        stalled.count(now);
        stalled.waiting.retain(|claim| waits(claim));
        stalled.since = (!stalled.waiting.is_empty()).then_some(now);
    }
}

impl Stalled {
    fn count(&mut self, now: Timestamp) {
        let Some(since) = self.since else { return };
        self.uncounted += now.duration_since(since).max(SignedDuration::ZERO);
        let whole = self.uncounted.as_secs();
        self.uncounted -= SignedDuration::from_secs(whole);
        metrics::karpenter_stalled(u64::try_from(whole).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claim(created: i64, capacity: &str) -> NodeClaim {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "c", "creationTimestamp": at(created).to_string(),
                "labels": {names::NODEPOOL: "gpu"},
            },
            "spec": {
                "nodeClassRef": {"group": "", "kind": "", "name": ""},
                "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": [capacity]}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_estimate_is_the_median_of_its_kind() {
        let estimates = ReadyEstimates::default();
        let (spot, on_demand) = (claim(100, "spot"), claim(110, "on-demand"));
        assert_eq!(estimates.ready_by(&[&spot]), None);
        for seconds in [70, 60, 500, 60] {
            estimates.note(&spot, at(100 + seconds));
        }
        assert_eq!(estimates.ready_by(&[&spot]), Some(at(170)));
        estimates.note(&spot, at(700));
        estimates.note(&spot, at(800));
        assert_eq!(estimates.ready_by(&[&spot]), Some(at(600)));
        assert_eq!(estimates.ready_by(&[&spot, &on_demand]), None);
        estimates.note(&on_demand, at(200));
        assert_eq!(estimates.ready_by(&[&spot, &on_demand]), Some(at(600)));
    }

    /// A claim that also requests these values of a label.
    fn asked_for(mut claim: NodeClaim, key: &str, values: &[&str]) -> NodeClaim {
        claim.spec.requirements.push(crate::api::node_claim::Requirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            min_values: None,
        });
        claim
    }

    #[test]
    fn tiers_of_one_pool_that_differ_by_type_or_zone_are_estimated_apart() {
        let estimates = ReadyEstimates::default();
        let of = |key, values: &[&str]| asked_for(claim(100, "spot"), key, values);
        let (large, small) = (of(names::INSTANCE_TYPE, &["p5", "p4"]), of(names::INSTANCE_TYPE, &["g5"]));
        let (here, there) = (of(names::ZONE, &["a"]), of(names::ZONE, &["b"]));
        estimates.note(&large, at(700));
        estimates.note(&here, at(160));
        assert_eq!(estimates.ready_by(&[&large]), Some(at(700)));
        let turned = of(names::INSTANCE_TYPE, &["p4", "p5"]);
        assert_eq!(estimates.ready_by(&[&turned]), Some(at(700)), "the same types");
        assert_eq!(estimates.ready_by(&[&here]), Some(at(160)));
        for (gang, other) in [("small", &small), ("there", &there), ("any", &claim(100, "spot"))] {
            assert_eq!(estimates.ready_by(&[other]), None, "{gang}");
        }
    }

    #[test]
    fn the_kind_without_updates_for_longest_is_dropped_first() {
        let estimates = ReadyEstimates::default();
        let of = |n: usize| asked_for(claim(0, "spot"), names::ZONE, &[&n.to_string()]);
        for n in 0..=KINDS {
            estimates.note(&of(n), at(100 + i64::try_from(n).unwrap()));
        }
        assert_eq!(estimates.ready_by(&[&of(0)]), None);
        assert_eq!(estimates.ready_by(&[&of(1)]), Some(at(101)));
        assert_eq!(estimates.ready_by(&[&of(KINDS)]), Some(at(1_100)));
    }

    #[test]
    fn karpenter_is_stalled_while_any_claim_waits() {
        let recorder = metrics::recorder().unwrap();
        ::metrics::with_local_recorder(&recorder, || {
            let stall = Stall::default();
            stall.note("a", true, at(0));
            stall.note("b", true, at(4));
            stall.note("a", false, at(7));
            stall.tick(|claim| claim == "b", at(9));
            stall.note("b", false, at(10));
            stall.tick(|_| true, at(50));
            stall.note("c", true, at(60));
            stall.tick(|_| false, at(61));
            stall.tick(|_| false, at(90));
        });
        assert!(recorder.handle().render().contains("setu_karpenter_stall_seconds_total 11"));
    }
}
