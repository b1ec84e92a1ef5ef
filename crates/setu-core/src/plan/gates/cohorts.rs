//! The quota that the cohorts above a ClusterQueue leave of one resource of one flavor, computed as Kueue does
//! (`pkg/cache/scheduler/resource_node.go`).
//!
//! A queue or cohort has its nominal quota plus what those below it lend. It keeps back what it does not lend, and passes usage
//! beyond that on to its parent. Rule: a borrower stays within its `borrowingLimit` at each step up, and the root cannot borrow.

use crate::api::quantity::Amount;
use crate::api::queue::{ResourceQuota, quota_of};
use crate::api::{ClusterQueue, Cohort};
use crate::plan::PlanSnapshot;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};

/// Why a queue cannot borrow what it needs.
#[derive(Debug, PartialEq, Eq)]
pub enum CannotBorrow {
    /// A cohort on the way up borrows more than it may.
    Limit {
        /// The cohort.
        cohort: String,
        /// The amount that it borrows.
        borrowed: Amount,
        /// Its `borrowingLimit`.
        limit: Amount,
    },
    /// The whole tree has less than is reserved in it.
    Whole {
        /// The cohort at the top.
        root: String,
        /// Nominal quota of the tree.
        quota: Amount,
        /// The amount that is reserved in the tree.
        used: Amount,
    },
    /// The tree has enough, but lends less.
    Lent {
        /// The cohort at the top.
        root: String,
        /// The most that the queue could borrow.
        most: Amount,
    },
}

/// One resource of one flavor.
#[derive(Clone, Copy)]
pub struct QuotaItem<'a> {
    /// The ResourceFlavor.
    pub flavor: &'a str,
    /// The resource.
    pub resource: &'a str,
}

/// Returns the highest cohort that `queue` borrows from.
///
/// # Errors
/// The first place on the way up that has too little, with its figures.
pub fn borrow<'a>(
    cluster: &'a PlanSnapshot<'a>,
    queue: &ClusterQueue,
    item: QuotaItem<'a>,
) -> Result<String, CannotBorrow> {
    let tree = Tree::of(cluster, &queue.spec.cohort_name, item);
    let own = CohortPart::of(queue, item);
    for (name, cohort) in &tree.way_up {
        let borrowed = cohort.used.minus(cohort.quota);
        let is_root = name == tree.root();
        if is_root && borrowed > Amount::default() {
            return Err(tree.cannot_borrow(own, borrowed));
        }
        if let Some(limit) = cohort.borrows.filter(|limit| !is_root && borrowed > *limit) {
            return Err(CannotBorrow::Limit { cohort: name.clone(), borrowed, limit });
        }
        if cohort.passed_on() == Amount::default() {
            return Ok(name.clone());
        }
    }
    Ok(tree.root().to_owned())
}

/// A ClusterQueue, or a cohort with everything below it.
#[derive(Clone, Copy, Default)]
struct CohortPart {
    quota: Amount,
    used: Amount,
    lends: Option<Amount>,
    borrows: Option<Amount>,
}

impl CohortPart {
    fn stating(quota: Option<&ResourceQuota>) -> Self {
        Self {
            quota: quota.map(|q| amount(&q.nominal_quota)).unwrap_or_default(),
            used: Amount::default(),
            lends: quota.and_then(|q| q.lending_limit.as_ref()).map(amount),
            borrows: quota.and_then(|q| q.borrowing_limit.as_ref()).map(amount),
        }
    }

    fn of(queue: &ClusterQueue, item: QuotaItem<'_>) -> Self {
        let quota = quota_of(&queue.spec.resource_groups, item.flavor, item.resource);
        let used = queue.reserved(item.flavor, item.resource).map(amount).unwrap_or_default();
        Self { used, ..Self::stating(quota) }
    }

    /// Quota that it never lends.
    fn kept_back(&self) -> Amount {
        self.lends.map(|most| self.quota.minus(most)).unwrap_or_default()
    }

    /// Usage beyond that.
    fn passed_on(&self) -> Amount {
        self.used.minus(self.kept_back())
    }

    fn take_in(&mut self, child: Self) {
        self.quota = self.quota.plus(child.quota.minus(child.kept_back()));
        self.used = self.used.plus(child.passed_on());
    }
}

/// All cohorts that share quota with each other.
struct Tree {
    /// From the cohort of the queue to the top.
    way_up: Vec<(String, CohortPart)>,
    /// Nominal quota and reserved usage of the whole tree.
    whole: (Amount, Amount),
}

impl Tree {
    fn of<'a>(cluster: &'a PlanSnapshot<'a>, cohort: &'a str, item: QuotaItem<'a>) -> Self {
        let known: BTreeMap<&str, &Cohort> =
            cluster.cohorts.iter().filter_map(|c| Some((c.metadata.name.as_deref()?, c.as_ref()))).collect();
        let way_up = way_up(&known, cohort);
        let mut below: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, cohort) in &known {
            below.entry(&cohort.spec.parent_name).or_default().push(name);
        }
        let mut members: BTreeMap<&str, Vec<CohortPart>> = BTreeMap::new();
        for queue in &cluster.objects.cluster_queues {
            members.entry(&queue.spec.cohort_name).or_default().push(CohortPart::of(queue, item));
        }
        let own = |name: &str| {
            let groups = known.get(name).map(|c| c.spec.resource_groups.as_slice()).unwrap_or_default();
            CohortPart::stating(quota_of(groups, item.flavor, item.resource))
        };
        let mut parts: BTreeMap<&str, CohortPart> = BTreeMap::new();
        let mut whole = (Amount::default(), Amount::default());
        for (name, children) in from_top(&below, way_up.last().copied().unwrap_or_default()).iter().rev() {
            let mut part = own(name);
            whole.0 = whole.0.plus(part.quota);
            for queue in members.get(name).into_iter().flatten() {
                whole = (whole.0.plus(queue.quota), whole.1.plus(queue.used));
                part.take_in(*queue);
            }
            for child in children.iter().filter_map(|child| parts.get(child)) {
                part.take_in(*child);
            }
            parts.insert(name, part);
        }
        let way_up =
            way_up.into_iter().filter_map(|name| Some((name.to_owned(), *parts.get(name)?))).collect();
        Self { way_up, whole }
    }

    fn root(&self) -> &str {
        self.way_up.last().map_or("", |(name, _)| name)
    }

    /// Why `missing` is not available at the root.
    fn cannot_borrow(&self, queue: CohortPart, missing: Amount) -> CannotBorrow {
        let root = self.root().to_owned();
        let (quota, used) = self.whole;
        if used > quota {
            return CannotBorrow::Whole { root, quota, used };
        }
        CannotBorrow::Lent { root, most: queue.used.minus(queue.quota).minus(missing) }
    }
}

/// The cohort and its ancestors. A cohort need not have an object.
fn way_up<'a>(known: &BTreeMap<&str, &'a Cohort>, cohort: &'a str) -> Vec<&'a str> {
    let mut way = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = cohort;
    while !at.is_empty() && seen.insert(at) {
        way.push(at);
        at = known.get(at).map_or("", |c| c.spec.parent_name.as_str());
    }
    way
}

/// Each cohort under the top one with its direct children: parents before children, each once.
fn from_top<'a>(below: &BTreeMap<&'a str, Vec<&'a str>>, top: &'a str) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut seen = BTreeSet::from([top]);
    let mut waiting = vec![top];
    let mut order = Vec::new();
    while let Some(name) = waiting.pop() {
        let children: Vec<&str> =
            below.get(name).into_iter().flatten().copied().filter(|child| seen.insert(child)).collect();
        waiting.extend(&children);
        order.push((name, children));
    }
    order
}

/// The amount of a quantity, or zero if it cannot be read.
pub(super) fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::quota::tests::{gpus, nominal, queue, world};
    use super::super::{Gate, GateAnswer};
    use super::*;
    use crate::plan::fixtures::{Fixture, object};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn cohort(name: &str, parent: &str, quota: &Value) -> Arc<Cohort> {
        let mut resource = quota.clone();
        resource["name"] = json!("nvidia.com/gpu");
        Arc::new(object(json!({"metadata": {"name": name}, "spec": {
            "parentName": parent, "resourceGroups": [{"flavors": [{"name": "gpu", "resources": [resource]}]}],
        }})))
    }

    /// A queue that uses 12 of its 8 under `left`, and another that uses this much of its 6 under `right`. Both cohorts are under
    /// `top`, which has no quota.
    fn three_levels(left: &Value, right: &Value, others_use: &str) -> Fixture {
        let mut world = world(vec![
            queue("q", "left", &nominal("8"), "12"),
            queue("other", "right", &nominal("6"), others_use),
        ]);
        world.cohorts = vec![
            cohort("left", "top", left),
            cohort("right", "top", right),
            cohort("top", "", &nominal("0")),
        ];
        world
    }

    fn limited(key: &str, most: &str) -> Value {
        json!({"nominalQuota": "0", (key): most})
    }

    #[test]
    fn cohorts_on_the_way_up_lend_and_borrow_within_their_own_limits() {
        let none = nominal("0");
        for (left, right, others_use, answer, words) in [
            (&none, &none, "2", GateAnswer::Allow, "4 of it borrowed in cohort top"),
            (&none, &none, "3", GateAnswer::Wait, "the cohort top as a whole has 14 and 15 are reserved"),
            (
                &limited("borrowingLimit", "3"),
                &none,
                "0",
                GateAnswer::Wait,
                "cohort left borrows 4, and its borrowingLimit is 3",
            ),
            (
                &limited("borrowingLimit", "4"),
                &none,
                "0",
                GateAnswer::Allow,
                "4 of it borrowed in cohort top",
            ),
            (
                &none,
                &limited("lendingLimit", "3"),
                "0",
                GateAnswer::Wait,
                "4 borrowed, and the others in cohort top lend 3 at most",
            ),
            (&none, &limited("lendingLimit", "4"), "2", GateAnswer::Allow, "4 of it borrowed in cohort top"),
            (
                &none,
                &limited("lendingLimit", "4"),
                "3",
                GateAnswer::Wait,
                "the cohort top as a whole has 14 and 15 are reserved",
            ),
        ] {
            let report = gpus(&three_levels(left, right, others_use));
            assert_eq!(report.answer, answer, "{left} {right} {}", report.message);
            assert!(report.message.contains(words), "{left} {right} {}", report.message);
        }
    }

    #[test]
    fn quota_that_a_cohort_does_not_lend_serves_only_its_children() {
        // 4 of its own, lent to no other cohort, so its ancestors do not matter.
        let own = json!({"nominalQuota": "4", "lendingLimit": "0"});
        let report = gpus(&three_levels(&own, &nominal("0"), "99"));
        assert_eq!(report.answer, GateAnswer::Allow, "{}", report.message);
        assert!(report.message.contains("4 of it borrowed in cohort left"), "{}", report.message);
        // The same 4 in a sibling cohort do not help.
        let report =
            gpus(&three_levels(&nominal("0"), &json!({"nominalQuota": "4", "lendingLimit": "0"}), "6"));
        assert_eq!(report.answer, GateAnswer::Wait, "{}", report.message);
        assert!(report.message.contains("the others in cohort top lend 0 at most"), "{}", report.message);
    }

    #[test]
    fn quota_that_others_have_borrowed_cannot_be_borrowed_again() {
        let mut world = world(vec![
            queue("q", "c", &nominal("8"), "12"),
            queue("lender", "c", &json!({"nominalQuota": "9", "lendingLimit": "5"}), "0"),
            queue("other", "c", &nominal("0"), "4"),
        ]);
        let report = gpus(&world);
        assert_eq!(report.answer, GateAnswer::Wait, "{}", report.message);
        assert!(report.message.contains("the others in cohort c lend 1 at most"), "{}", report.message);
        world.objects.cluster_queues.pop();
        assert_eq!(gpus(&world).answer, GateAnswer::Allow);
    }

    #[test]
    fn a_cycle_of_cohorts_terminates_from_every_entry() {
        for (name, parent) in [("left", "left"), ("top", "left"), ("top", "right")] {
            let mut world = three_levels(&nominal("0"), &nominal("0"), "0");
            world.cohorts.retain(|c| c.metadata.name.as_deref() != Some(name));
            world.cohorts.push(cohort(name, parent, &nominal("0")));
            assert_eq!(gpus(&world).gate, Gate::Quota, "{name} under {parent}");
        }
    }
}
