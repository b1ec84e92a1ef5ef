//! Nodes that gangs are about to create, offerings that ran out lately, and shapes that nodes had.
//!
//! The controller makes and enters plans under one lock, so that two gangs never take the same capacity. Rule: it may be lost at
//! any time. Then a gang starts again from its first tier, and gangs that already create claims are entered again before
//! others are planned.

pub mod capacity_returns;
mod inflight;
pub mod known_capacity;
pub mod refused;
pub mod shortage;

use crate::api::Workload;
use crate::gang::statechart::option_position::OptionPosition;
use crate::plan::gates::inflight::{HOUR, HeldNodes, MINUTE};
use crate::plan::market::Market;
use crate::plan::observed_shapes::ObservedShapes;
use crate::plan::offering::{Offering, SHORTAGE_TTL};
use crate::plan::shape::Shape;
use crate::plan::{ObstacleReason, OptionSelection, PendingNodes, Plan, Slot};
use capacity_returns::CapacityReturns;
use jiff::{SignedDuration, Timestamp};
use known_capacity::{CapacityByGang, KnownCapacity};
use refused::Refused;
use shortage::{CapacityReport, ShortageEntry, ShortageSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long Karpenter's metrics are believed if they cannot be read again.
const MARKET: SignedDuration = SignedDuration::from_mins(10);

/// How long creations are kept: the longest span that a guard counts over.
const LOG: SignedDuration = HOUR;

/// How long others wait for gangs whose claims an earlier leader began to create. A gang that cannot be reconciled must
/// not stop all others.
const AWAITED: SignedDuration = SignedDuration::from_secs(5);

/// Improvements since the previous page of Karpenter's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarketChange {
    /// Something has capacity again.
    pub eased: bool,
    /// Something costs less, or has a price for the first time.
    pub is_better: bool,
}

/// Nodes that gangs are about to create, gangs that wait, and what is known about capacity.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<String, LedgerEntry>,
    exhausted: BTreeMap<Offering, ExhaustedUntil>,
    /// The last page of Karpenter's metrics.
    market: Option<Arc<Market>>,
    options: BTreeMap<String, OptionPosition>,
    /// The known capacity that each gang was planned from.
    capacity_by_gang: CapacityByGang,
    observed_shapes: ObservedShapes,
    /// When the first plan was entered. Older claims were created before a restart.
    since: Option<Timestamp>,
    /// Claims created in the last hour: when, for which LocalQueue and how many; the oldest first.
    created: Vec<(Timestamp, String, u32)>,
    /// Nodes that others gave back, for gangs that waited for capacity.
    pub capacity_returns: CapacityReturns,
    /// Refused gangs.
    pub refused: Refused,
    /// The gates' last answer about each gang since it moved, as counted; `None` if they let it pass.
    answers: BTreeMap<String, Option<ObstacleReason>>,
    /// Gangs whose claims an earlier leader began to create and that are not entered again yet.
    awaited: BTreeSet<String>,
    /// Until when they are awaited.
    awaited_until: Option<Timestamp>,
}

/// Until when an offering counts as out of capacity, and who reported it.
#[derive(Clone, Copy, Debug)]
struct ExhaustedUntil {
    until: Timestamp,
    source: ShortageSource,
}

/// An accepted plan whose nodes do not all exist yet.
#[derive(Debug)]
struct LedgerEntry {
    reservations: Vec<PendingNodes>,
    held: Vec<HeldNodes>,
    offerings: BTreeSet<Offering>,
    option_index: u32,
    capacity: KnownCapacity,
    shared_domain: Option<String>,
    queue: String,
}

/// Option and inputs of a gang's accepted plan.
#[derive(Debug)]
pub struct Accepted {
    /// The index of the option that was taken.
    pub option_index: u32,
    /// Shapes and offerings as known then.
    pub capacity: KnownCapacity,
    /// Value of the shared label on the nodes of the gang's elastic Job.
    pub shared_domain: Option<String>,
}

impl Ledger {
    /// Forgets everything except what nodes and metrics have shown, which is true for any leader.
    pub fn forget_gangs(&mut self) {
        self.capacity_by_gang.forget_gangs();
        *self = Self {
            observed_shapes: std::mem::take(&mut self.observed_shapes),
            market: self.market.take(),
            capacity_by_gang: std::mem::take(&mut self.capacity_by_gang),
            ..Self::default()
        };
    }

    /// Nodes that all other gangs are about to create.
    pub fn others(&self, gang: &str) -> Vec<PendingNodes> {
        self.entries.iter().filter(|(id, _)| *id != gang).flat_map(|(_, e)| e.reservations.clone()).collect()
    }

    /// Enters a plan for a gang of this LocalQueue. `shared_domain` is the value that its elastic Job's nodes have. An existing entry
    /// stays.
    pub fn enter(
        &mut self,
        gang: &str,
        queue: &str,
        shared_domain: Option<String>,
        plan: &Plan,
        now: Timestamp,
    ) {
        if self.is_entered(gang) {
            return;
        }
        let KnownCapacity { shapes, market } = self.capacity_now(now);
        let capacity = self.capacity_by_gang.keep(gang, shapes, market.is_some());
        let entry = LedgerEntry {
            reservations: plan.reservations(gang),
            held: plan.held(),
            offerings: plan.offerings(),
            option_index: plan.option_index,
            capacity,
            shared_domain,
            queue: queue.to_owned(),
        };
        self.entries.insert(gang.to_owned(), entry);
        self.since.get_or_insert(now);
        self.note_created(queue, plan.to_create(), now);
    }

    /// Makes others wait for these gangs, whose claims an earlier leader began to create.
    pub fn await_reentry(&mut self, gangs: impl Iterator<Item = String>, now: Timestamp) {
        self.awaited.extend(gangs.filter(|gang| !self.entries.contains_key(gang)));
        self.awaited_until = now.checked_add(AWAITED).ok();
    }

    /// Until when no new plan is made, because gangs that must be counted are not entered again yet.
    pub fn reentry_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        self.awaited_until.filter(|until| *until > now && !self.awaited.is_empty())
    }

    /// Records that a gang is entered again, or need not be. Returns whether it was the last awaited one.
    pub fn note_reentered(&mut self, gang: &str) -> bool {
        self.awaited.remove(gang) && self.awaited.is_empty()
    }

    /// Records that this many claims are created for a gang of this LocalQueue.
    pub fn note_created(&mut self, queue: &str, claims: u32, now: Timestamp) {
        self.created.retain(|(at, ..)| *at + LOG > now);
        self.created.push((now, queue.to_owned(), claims));
    }

    /// Whether a plan of this gang is entered.
    pub fn is_entered(&self, gang: &str) -> bool {
        self.entries.contains_key(gang)
    }

    /// Whether claims that were created within the last minute may not be in this ledger.
    pub fn may_lack_creates(&self, now: Timestamp) -> bool {
        self.since.is_none_or(|since| since + MINUTE > now)
    }

    /// Whether claims created at this time are not in this ledger.
    pub fn is_older(&self, created: Timestamp) -> bool {
        // Creation times of objects are in whole seconds.
        self.since.is_none_or(|since| created.as_second() < since.as_second())
    }

    /// Records what a gang waits for, or that it waits for nothing. Returns whether that is new.
    pub fn note_answer(&mut self, gang: &str, obstacle: Option<ObstacleReason>) -> bool {
        self.answers.insert(gang.to_owned(), obstacle) != Some(obstacle)
    }

    /// Option and inputs of a gang's entered plan; `None` if none is entered.
    pub fn accepted(&self, gang: &str) -> Option<Accepted> {
        let accepted = |entry: &LedgerEntry| Accepted {
            option_index: entry.option_index,
            capacity: entry.capacity.clone(),
            shared_domain: entry.shared_domain.clone(),
        };
        self.entries.get(gang).map(accepted)
    }

    /// The known capacity to plan a gang from. New shapes and prices must not change its plan while its claims are created or replaced.
    pub fn capacity_for(&self, gang: &str, selection: OptionSelection<'_>, now: Timestamp) -> KnownCapacity {
        if let Some(entry) = self.entries.get(gang) {
            return entry.capacity.clone();
        }
        let is_replacement = matches!(selection, OptionSelection::Like { .. });
        let began = self.capacity_at_entry(gang).filter(|_| is_replacement);
        began.map_or_else(|| self.capacity_now(now), |began| began.or_market(self.market(now)))
    }

    /// The known capacity that the last entered plan of a gang was made from; `None` if it is not kept.
    pub fn capacity_at_entry(&self, gang: &str) -> Option<KnownCapacity> {
        self.capacity_by_gang.of(gang).cloned()
    }

    /// Forgets everything about a gang. Returns whether others may now have their turn.
    pub fn forget(&mut self, gang: &str) -> bool {
        self.note_option(gang, None);
        self.capacity_returns.forget(gang);
        self.refused.forget(gang);
        self.remove(gang)
    }

    /// How many gangs have entries of each kind.
    pub fn counts(&self) -> [(&'static str, usize); 7] {
        let Self {
            entries,
            options,
            capacity_by_gang,
            capacity_returns,
            refused,
            answers,
            awaited,
            // These are about nodes, creations and times, not about gangs.
            exhausted: _,
            market: _,
            observed_shapes: _,
            since: _,
            created: _,
            awaited_until: _,
        } = self;
        [
            ("entries", entries.len()),
            ("options", options.len()),
            ("capacity_by_gang", capacity_by_gang.count()),
            ("answers", answers.len()),
            ("awaited", awaited.len()),
            ("capacity_returns", capacity_returns.count()),
            ("refused", refused.count()),
        ]
    }

    /// Removes a gang's entry. Returns whether others may now have their turn.
    pub fn remove(&mut self, gang: &str) -> bool {
        let was_last = self.note_reentered(gang);
        self.entries.remove(gang).is_some() || was_last
    }

    /// Records the option that a gang has reached, or that it is over.
    pub fn note_option(&mut self, gang: &str, option: Option<OptionPosition>) {
        self.answers.remove(gang);
        if let Some(option) = option {
            self.options.insert(gang.to_owned(), option);
        } else {
            self.options.remove(gang);
            self.capacity_by_gang.forget(gang);
        }
    }

    /// The option that a gang has reached by this replica's decisions. It is not read from the journal, which a tenant
    /// can write.
    pub fn option(&self, gang: &str) -> Option<OptionPosition> {
        self.options.get(gang).copied()
    }

    /// Records what ran out of capacity.
    pub fn note_shortage(&mut self, offerings: BTreeSet<Offering>, now: Timestamp) {
        let exhausted = ExhaustedUntil { until: now + SHORTAGE_TTL, source: ShortageSource::Launch };
        self.exhausted.extend(offerings.into_iter().map(|offering| (offering, exhausted)));
    }

    /// Takes over a page of Karpenter's metrics.
    pub fn take_market(&mut self, market: Market) -> MarketChange {
        // A page that is too old to count is ignored, so what it said is new again.
        let is_better = market.is_better_than(self.market(market.seen).as_deref());
        let reported = market.exhausted();
        let before = self.exhausted.len();
        self.exhausted.retain(|offering, exhausted| {
            exhausted.source == ShortageSource::Launch || reported.contains(offering)
        });
        let eased = self.exhausted.len() < before;
        let new = ExhaustedUntil { until: market.seen + SHORTAGE_TTL, source: ShortageSource::Karpenter };
        for offering in reported {
            let exhausted = self.exhausted.entry(offering).or_insert(new);
            if exhausted.until < new.until {
                *exhausted = new;
            }
        }
        let market = Arc::new(market);
        self.capacity_by_gang.take_market(&market);
        self.market = Some(market);
        MarketChange { eased, is_better }
    }

    /// The last page of Karpenter's metrics, unless it is too old.
    pub fn market(&self, now: Timestamp) -> Option<Arc<Market>> {
        self.market.clone().filter(|market| market.seen + MARKET > now)
    }

    /// Makes a gang that met exhausted capacity wait until others give back as many nodes as its entered plan has.
    pub fn await_nodes(&mut self, gang: &str, workload: &Workload) {
        if let Some(entry) = self.entries.get(gang) {
            self.capacity_returns.wait(gang, workload, &entry.reservations);
        }
    }

    /// The offerings that are known to be out of capacity.
    pub fn exhausted(&mut self, now: Timestamp) -> BTreeSet<Offering> {
        self.exhausted.retain(|_, exhausted| exhausted.until > now);
        self.exhausted.keys().cloned().collect()
    }

    /// An exhausted offering that this plan wants and another gang is trying.
    pub fn tried_by_others(&mut self, gang: &str, plan: &Plan, now: Timestamp) -> Option<Offering> {
        let exhausted = self.exhausted(now);
        if exhausted.is_empty() {
            return None;
        }
        // A node that may become something else needs no turn.
        let out = plan.wanted().filter(|slot| slot.is_exhausted(&exhausted));
        let wanted: BTreeSet<Offering> =
            out.flat_map(Slot::offerings).filter(|offering| offering.is_in(&exhausted)).collect();
        let others = self.entries.iter().filter(|(id, _)| *id != gang);
        others.flat_map(|(_, entry)| entry.offerings.intersection(&wanted)).next().cloned()
    }

    /// The observed nodes of each type.
    pub fn observed_shapes(&mut self) -> &mut ObservedShapes {
        &mut self.observed_shapes
    }

    /// Shapes and offerings as known now.
    pub fn capacity_now(&self, now: Timestamp) -> KnownCapacity {
        KnownCapacity { shapes: self.shapes(now), market: self.market(now) }
    }

    /// The shape of every type that was seen.
    pub fn shapes(&self, now: Timestamp) -> Arc<[Shape]> {
        self.observed_shapes.shapes(now).collect()
    }

    /// Offerings that ran out of capacity lately, and whose turn it is there.
    pub fn shortages(&self, now: Timestamp) -> Vec<ShortageEntry> {
        let turn = |offering: &Offering| {
            let entries = self.entries.iter().filter(|(_, entry)| entry.offerings.contains(offering));
            entries.map(|(gang, _)| gang.clone()).next()
        };
        let lasting = self.exhausted.iter().filter(|(_, exhausted)| exhausted.until > now);
        lasting
            .map(|(offering, exhausted)| ShortageEntry {
                offering: offering.clone(),
                until: exhausted.until,
                source: exhausted.source,
                turn: turn(offering),
            })
            .collect()
    }

    /// Everything known about capacity, for users.
    pub fn capacity_report(&self, now: Timestamp) -> CapacityReport {
        CapacityReport { shortages: self.shortages(now), shapes: self.observed_shapes.shapes(now).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeClaim;
    use crate::api::parameters::Pinning;
    use crate::plan::Slot;
    use crate::plan::fixtures::offer;
    use serde_json::json;

    /// A plan of one node of this type.
    fn plan(instance_type: &str) -> Plan {
        let template: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": ""},
            "spec": {
                "requirements": [{"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": [instance_type]}],
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            },
        }))
        .unwrap();
        let slot = Slot {
            index: 0,
            pods: Arc::from([]),
            node_pool: "gpu".into(),
            template: Arc::new(template),
            shape: None,
            most: Arc::default(),
            domain_keys: Arc::default(),
            pod_sets: None,
            held_to: Arc::default(),
        };
        Plan {
            slots: vec![slot],
            pinning: Pinning::Selector,
            notes: Vec::new(),
            facts: Arc::default(),
            tier: 0,
            option_name: Box::default(),
            option_index: 0,
            option_count: 1,
            reports: Arc::default(),
            cost: Arc::default(),
            reused: Arc::default(),
            passed_over: Arc::default(),
        }
    }

    #[test]
    fn while_capacity_is_short_one_gang_tries_and_the_others_wait() {
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        ledger.enter("a", "ns/lq", None, &plan("p5"), now);
        assert_eq!(ledger.tried_by_others("b", &plan("p5"), now), None);
        ledger.note_shortage(plan("p5").offerings(), now);
        assert_eq!(ledger.tried_by_others("b", &plan("p5"), now), plan("p5").offerings().pop_first());
        assert_eq!(
            ledger.tried_by_others("b", &plan("g5"), now),
            None,
            "what is not exhausted needs no turn"
        );
        let mut either = plan("p5");
        let template = Arc::make_mut(&mut either.slots[0].template);
        template.spec.requirements[0].values.push("g5".to_owned());
        assert_eq!(ledger.tried_by_others("b", &either, now), None, "another type may be had");
        assert_eq!(ledger.tried_by_others("a", &plan("p5"), now), None);
        assert_eq!(ledger.tried_by_others("b", &plan("p5"), now + SHORTAGE_TTL), None);
        assert!(ledger.remove("a") && !ledger.remove("a"));
    }

    #[test]
    fn a_shortage_in_karpenters_metrics_lasts_until_they_show_capacity() {
        let now = Timestamp::UNIX_EPOCH;
        let page =
            |available: u8| Market::read(&offer("available", ["p5", "spot", "a"], available), now).unwrap();
        let mut ledger = Ledger::default();
        assert!(!ledger.take_market(page(0)).eased, "nothing was exhausted before");
        assert!(plan("p5").is_exhausted(Some(&ledger.exhausted(now))));
        let shown = serde_json::to_value(ledger.shortages(now)).unwrap();
        assert_eq!(shown[0]["source"], "Karpenter");
        assert!(ledger.take_market(page(1)).eased, "gangs that wait are to be reconciled");
        assert!(!plan("p5").is_exhausted(Some(&ledger.exhausted(now))));
        ledger.note_shortage(plan("p5").offerings(), now);
        assert!(!ledger.take_market(page(1)).eased);
        assert!(plan("p5").is_exhausted(Some(&ledger.exhausted(now))), "a launch has shown it since");
    }

    #[test]
    fn a_shortage_lasts_three_minutes_for_all_gangs_and_is_shown() {
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        ledger.note_shortage(plan("p5").offerings(), now);
        assert!(plan("p5").is_exhausted(Some(&ledger.exhausted(now))));
        let shown = serde_json::to_value(ledger.capacity_report(now)).unwrap();
        let expected = json!({"instanceType": "p5", "zone": "any", "capacityType": "any", "until": "1970-01-01T00:03:00Z", "source": "Launch"});
        assert_eq!(shown["shortages"], json!([expected]));
        assert!(!plan("p5").is_exhausted(Some(&ledger.exhausted(now + SHORTAGE_TTL))));
    }

    #[test]
    fn what_others_have_entered_and_created_is_counted_in_all_and_by_queue() {
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        ledger.enter("a", "ns/one", None, &plan("p5"), now);
        ledger.enter("b", "ns/two", None, &plan("p5"), now + SignedDuration::from_secs(30));
        ledger.enter("b", "ns/two", None, &plan("p5"), now + SignedDuration::from_secs(31));
        let nodes = |gang, queue| ledger.held_by_others(gang, queue).map(|held| held.nodes).sum::<u32>();
        assert_eq!((nodes("c", None), nodes("a", None), nodes("c", Some("ns/one"))), (2, 1, 1));
        let minute = SignedDuration::from_mins(1);
        let at = |seconds| now + SignedDuration::from_secs(seconds);
        let all = ledger.created(None, minute, at(59));
        assert_eq!((all.claims, all.frees_at), (2, Some(at(60))));
        assert_eq!(ledger.created(None, minute, at(60)).claims, 1);
        assert_eq!(ledger.created(Some("ns/one"), LOG, at(60)).claims, 1);
    }

    #[test]
    fn the_known_capacity_of_a_gang_is_kept_until_it_is_over_and_shared_with_gangs_planned_alike() {
        let shape = |instance_type: &str| Shape {
            instance_type: instance_type.into(),
            allocatable: crate::api::pod::ResourceList::new(),
            capacity: BTreeMap::new(),
            labels: BTreeMap::new(),
            node_pool: "gpu".into(),
            nodes: 1,
            accelerators: crate::plan::shape::Accelerators::Stated,
            source: crate::plan::source::Source::Node {
                name: instance_type.into(),
                seen: Timestamp::UNIX_EPOCH,
            },
        };
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        ledger.enter("a", "ns/lq", Some("r1".into()), &plan("p5"), now);
        ledger.enter("b", "ns/lq", None, &plan("p5"), now);
        let shapes = |ledger: &Ledger, gang| ledger.capacity_at_entry(gang).unwrap().shapes;
        assert!(Arc::ptr_eq(&shapes(&ledger, "a"), &shapes(&ledger, "b")));
        ledger.observed_shapes().note(shape("p5"), now);
        ledger.enter("c", "ns/lq", None, &plan("p5"), now);
        assert_eq!(ledger.accepted("a").unwrap().shared_domain.as_deref(), Some("r1"));
        ledger.remove("a");
        assert!(ledger.accepted("a").is_none());
        assert_eq!(["a", "c"].map(|gang| shapes(&ledger, gang).len()), [0, 1]);
        ledger.note_option("a", None);
        assert_eq!(ledger.capacity_at_entry("a"), None);
    }

    #[test]
    fn the_prices_of_a_gangs_plan_are_kept_and_shared_while_unchanged() {
        let page = |price: &str, seen: Timestamp| {
            let of = ["p5", "spot", "a"];
            let page = offer("available", of, 1) + &offer("price_estimate", of, price);
            Market::read(&page, seen).unwrap()
        };
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        for (gang, price, seconds) in [("a", "4", 0), ("b", "4", 60), ("c", "5", 120)] {
            let now = now + SignedDuration::from_secs(seconds);
            ledger.take_market(page(price, now));
            ledger.enter(gang, "ns/lq", None, &plan("p5"), now);
        }
        let market = |gang| ledger.accepted(gang).unwrap().capacity.market.unwrap();
        assert!(Arc::ptr_eq(&market("a"), &market("b")) && *market("a") == page("4", now));
        assert_eq!(ledger.capacity_at_entry("c").unwrap().market, ledger.market(now));
        assert_ne!(ledger.capacity_at_entry("a").unwrap().market, ledger.market(now));
        for price in 10..17 {
            let now = now + SignedDuration::from_secs(price * 60);
            ledger.take_market(page(&price.to_string(), now));
            ledger.enter(&price.to_string(), "ns/lq", None, &plan("p5"), now);
        }
        let kept = |gang| ledger.capacity_at_entry(gang).unwrap().market.is_some();
        assert_eq!((kept("a"), kept("b"), kept("c"), kept("16")), (false, false, true, true));
    }

    #[test]
    fn others_wait_at_most_five_seconds_for_gangs_of_an_earlier_leader() {
        let now = Timestamp::UNIX_EPOCH;
        let begun = || ["a", "b"].map(str::to_owned).into_iter();
        let mut ledger = Ledger::default();
        ledger.await_reentry(begun(), now);
        assert_eq!(ledger.reentry_deadline(now), Some(now + AWAITED));
        assert_eq!(ledger.reentry_deadline(now + AWAITED), None);
        ledger.enter("a", "ns/lq", None, &plan("p5"), now);
        assert!(
            !ledger.note_reentered("a")
                && !ledger.note_reentered("c")
                && ledger.reentry_deadline(now).is_some()
        );
        assert!(ledger.forget("b"));
        assert_eq!(ledger.reentry_deadline(now), None);
        ledger.await_reentry(begun(), now);
        assert!(ledger.remove("b"), "the other is entered already");
    }

    #[test]
    fn a_gate_answer_is_new_once_until_it_changes_or_the_gang_moves() {
        let mut ledger = Ledger::default();
        let limit = Some(ObstacleReason::LimitExceeded);
        assert!(ledger.note_answer("a", limit) && !ledger.note_answer("a", limit));
        assert!(ledger.note_answer("a", None) && !ledger.note_answer("a", None));
        ledger.note_option("a", Some(OptionPosition::default()));
        assert!(ledger.note_answer("a", None) && ledger.note_answer("b", None));
    }

    #[test]
    fn a_gangs_option_is_forgotten_with_the_gang() {
        let mut ledger = Ledger::default();
        let option = OptionPosition { tier: 1, index: 3, count: 4 };
        ledger.note_option("a", Some(option));
        assert_eq!((ledger.option("a"), ledger.option("b")), (Some(option), None));
        ledger.note_option("a", None);
        assert_eq!(ledger.option("a"), None);
    }
}
