//! The NodeClaims of NodePools, added up once for all gangs that are planned from one list of them.
//!
//! Rule: a plan goes through gangs and not through their claims, because a NodePool may have thousands. Only claims that may count
//! differently for each gang are kept apart.

use super::PendingNodes;
use super::resources::{minus, sum, with_nodes};
use crate::api::NodeClaim;
use crate::api::pod::ResourceList;
use crate::names;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// No claims.
pub static NO_CLAIMS: PoolClaims = PoolClaims { pools: BTreeMap::new() };

/// Live claims, by their NodePools.
#[derive(Clone, Debug, Default)]
pub struct PoolClaims {
    pools: BTreeMap<String, ClaimsOfPool>,
}

#[derive(Clone, Debug, Default)]
struct ClaimsOfPool {
    /// Sum of what the settled claims of all gangs count as, with their number.
    settled: ResourceList,
    gangs: Vec<GangClaims>,
}

/// The claims of one gang in one NodePool.
#[derive(Clone, Debug)]
struct GangClaims {
    /// Its id.
    gang: String,
    /// The value of its label, and the UID of its Workload.
    owner: (String, String),
    /// Sum of what its settled claims count as, with their number.
    settled: ResourceList,
    /// Its claims that are not settled: not launched, being deleted or kept warm.
    unsettled: Vec<Arc<NodeClaim>>,
    /// All of its claims.
    claims: Vec<Arc<NodeClaim>>,
}

impl PoolClaims {
    /// Adds up these claims. `gang_of` returns the id of the gang that a claim was made for.
    pub fn of(
        claims: impl IntoIterator<Item = Arc<NodeClaim>>,
        gang_of: impl Fn(&NodeClaim) -> String,
    ) -> Self {
        let mut grouped: BTreeMap<(String, [String; 3]), Vec<Arc<NodeClaim>>> = BTreeMap::new();
        for claim in claims {
            let own =
                [claim.label(names::GANG), claim.label(names::WORKLOAD_UID), claim.annotation(names::CHECK)];
            let key = (claim.label(names::NODEPOOL).to_owned(), own.map(str::to_owned));
            grouped.entry(key).or_default().push(claim);
        }
        let mut all = Self::default();
        for ((pool, [label, uid, _]), claims) in grouped {
            let gang = claims.first().map(|claim| gang_of(claim)).unwrap_or_default();
            let group = GangClaims::of(gang, (label, uid), claims);
            let pool = all.pools.entry(pool).or_default();
            pool.settled = sum(&pool.settled, &group.settled);
            pool.gangs.push(group);
        }
        all
    }

    /// The claims of a NodePool as the gang with this label and Workload sees them, beside these reservations of others.
    pub fn beside(
        &self,
        node_pool: &str,
        (label, uid): (&str, &str),
        pending: &[PendingNodes],
    ) -> ClaimsBeside<'_> {
        self.pools.get(node_pool).map(|pool| pool.beside(label, uid, pending)).unwrap_or_default()
    }

    /// Every claim, without those of gangs whose planned nodes are reserved: such a gang counts with all nodes of its plan.
    pub fn each_other<'c>(&'c self, pending: &'c [PendingNodes]) -> impl Iterator<Item = &'c Arc<NodeClaim>> {
        let entered = entered(pending);
        let gangs = self.pools.values().flat_map(|pool| &pool.gangs);
        gangs.filter(move |gang| !entered.contains(gang.gang.as_str())).flat_map(|gang| &gang.claims)
    }
}

/// The claims of one NodePool as one gang sees them, without those of gangs whose planned nodes are reserved.
#[derive(Debug, Default)]
pub struct ClaimsBeside<'c> {
    /// Sum of what the settled claims of other gangs count as, with their number.
    pub settled: ResourceList,
    /// The other claims of other gangs.
    pub unsettled: Vec<&'c Arc<NodeClaim>>,
    /// The gang's own claims.
    pub own: Vec<&'c Arc<NodeClaim>>,
}

impl ClaimsOfPool {
    fn beside(&self, label: &str, uid: &str, pending: &[PendingNodes]) -> ClaimsBeside<'_> {
        let entered = entered(pending);
        let mut beside = ClaimsBeside { settled: self.settled.clone(), ..ClaimsBeside::default() };
        for gang in &self.gangs {
            let is_own = gang.owner.0 == label && gang.owner.1 == uid;
            let is_entered = entered.contains(gang.gang.as_str());
            if is_own || is_entered {
                beside.settled = minus(&beside.settled, &gang.settled);
            }
            match (is_entered, is_own) {
                (true, _) => {}
                (_, true) => beside.own.extend(&gang.claims),
                _ => beside.unsettled.extend(&gang.unsettled),
            }
        }
        beside
    }
}

impl GangClaims {
    fn of(gang: String, owner: (String, String), claims: Vec<Arc<NodeClaim>>) -> Self {
        let (settled, unsettled): (Vec<_>, Vec<_>) =
            claims.iter().cloned().partition(|claim| is_settled(claim));
        let counted = settled.iter().map(|claim| with_nodes(claim.counts_with(), 1));
        let settled = counted.fold(ResourceList::new(), |all, one| sum(&all, &one));
        Self { gang, owner, settled, unsettled, claims }
    }
}

/// Whether a claim counts with its capacity for every other gang.
fn is_settled(claim: &NodeClaim) -> bool {
    let is_launched = claim.status.as_ref().is_some_and(|status| !status.capacity.is_empty());
    is_launched && !claim.is_deleting() && !claim.is_warm()
}

fn entered(pending: &[PendingNodes]) -> BTreeSet<&str> {
    pending.iter().map(|reservation| reservation.gang.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::identity::{gang_id, gang_of};
    use crate::plan::fixtures::object;
    use kube_core::ResourceExt as _;
    use serde_json::{Value, json};

    /// A claim of the gang of this Workload, whose label is that of its elastic Job, with a node of this many GPUs.
    fn claim(uid: &str, gpus: &str) -> Value {
        json!({
            "metadata": {
                "name": uid, "annotations": {(names::CHECK): "prov"},
                "labels": {(names::NODEPOOL): "gpu", (names::GANG): "job", (names::WORKLOAD_UID): uid},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            "status": {"capacity": {"gpu": gpus}},
        })
    }

    fn pending(uid: &str) -> PendingNodes {
        PendingNodes {
            gang: gang_id(uid, "prov"),
            node_pool: "gpu".into(),
            nodes: 1,
            most: ResourceList::new(),
            or_more: 0,
            counted: BTreeSet::new(),
            unknown: BTreeSet::new(),
            drawn: BTreeMap::new(),
        }
    }

    fn names(claims: &[&Arc<NodeClaim>]) -> Vec<String> {
        claims.iter().map(|claim| claim.name_any()).collect()
    }

    #[test]
    fn a_gang_whose_plan_is_entered_is_left_out_though_its_label_is_that_of_its_elastic_job() {
        let claims = PoolClaims::of([claim("earlier", "1"), claim("later", "2")].map(object), gang_of);
        let pending = [pending("later")];
        let each: Vec<_> = claims.each_other(&pending).collect();
        assert_eq!(names(&each), ["earlier"]);
        let beside = claims.beside("gpu", ("job", "third"), &pending);
        assert_eq!((beside.settled["gpu"].0.as_str(), beside.settled["nodes"].0.as_str()), ("1", "1"));
    }

    #[test]
    fn only_launched_nodes_that_stay_are_added_up() {
        let mut all = vec![claim("own", "1"), claim("a", "2"), claim("a", "4")];
        let [mut launching, mut deleted, mut warm] = ["b", "c", "d"].map(|uid| claim(uid, "8"));
        launching["status"] = json!({});
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        warm["metadata"]["labels"][names::WARM] = json!("key");
        all.extend([launching, deleted, warm]);
        let claims = PoolClaims::of(all.into_iter().map(object), gang_of);
        let beside = claims.beside("gpu", ("job", "own"), &[]);
        assert_eq!((beside.settled["gpu"].0.as_str(), beside.settled["nodes"].0.as_str()), ("6", "2"));
        assert_eq!(
            (names(&beside.unsettled), names(&beside.own)),
            (vec!["b".into(), "c".into(), "d".into()], vec!["own".into()])
        );
        assert!(claims.beside("other", ("job", "own"), &[]).settled.is_empty());
    }
}
