//! Which claims have the same price.

use crate::api::NodeClaim;
use crate::names;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A hash of what the price of a claim depends on: equal hashes mean equal prices, as long as prices do not change.
pub fn priced_as(claim: &NodeClaim) -> u64 {
    let mut hasher = DefaultHasher::new();
    claim.annotation(names::CHECK).hash(&mut hasher);
    claim.spec.node_class_ref.group.hash(&mut hasher);
    for key in [names::NODEPOOL, names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::ZONE, names::REGION] {
        claim.label(key).hash(&mut hasher);
    }
    for asked in &claim.spec.requirements {
        (&asked.key, &asked.operator, &asked.values).hash(&mut hasher);
    }
    hasher.finish()
}

/// These claims, with those that have the same price counted together.
pub(super) fn together<'c>(
    nodes: impl IntoIterator<Item = (&'c NodeClaim, u32)>,
) -> Vec<(&'c NodeClaim, u32)> {
    let (mut alike, mut places) = (Vec::<(&NodeClaim, u32)>::new(), BTreeMap::new());
    for (claim, count) in nodes {
        let place = *places.entry(priced_as(claim)).or_insert(alike.len());
        match alike.get_mut(place) {
            Some((_, counted)) => *counted = counted.saturating_add(count),
            None => alike.push((claim, count)),
        }
    }
    alike
}
