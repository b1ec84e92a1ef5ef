//! Devices of dynamic resource allocation on a gang's nodes: whether their drivers have published enough of them.
//!
//! Rule: a node with such devices is ready only once the pools of each driver are complete on it and hold as many devices as its
//! claim records. Karpenter waits for the same, apart from the number, where it handles dynamic resource allocation. Nothing
//! watches ResourceSlices: they are read when all else is ready, and again a little later.

use super::claims::ClaimView;
use super::health::Health;
use super::waits::WaitsFor;
use crate::api::node_claim::RequestedDevices;
use crate::api::resource_slice::ResourceSlice;
use crate::api::{Node, NodeClaim};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// When ResourceSlices that lack something are read again.
const NEXT_READ: SignedDuration = SignedDuration::from_secs(10);

/// The result of reading the ResourceSlices of a gang's nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeResourceSlices {
    /// Nobody has read them, or no claim needs any.
    #[default]
    Unread,
    /// Those of its nodes.
    Read(Vec<ResourceSlice>),
    /// Setu may not list them.
    Forbidden,
    /// The API server does not serve them.
    NotServed,
}

impl NodeResourceSlices {
    /// The result as if only the ResourceSlices of these nodes had been read.
    #[must_use]
    pub fn on(&self, nodes: &[String]) -> Self {
        match self {
            _ if nodes.is_empty() => Self::Unread,
            Self::Read(slices) => {
                let is_on = |slice: &&ResourceSlice| nodes.contains(&slice.spec.node_name);
                Self::Read(slices.iter().filter(is_on).cloned().collect())
            }
            Self::Unread | Self::Forbidden | Self::NotServed => self.clone(),
        }
    }
}

/// Makes a ready claim wait for the devices that its pods ask for, if its node lacks some.
pub(super) fn wait_for_devices(
    view: &mut ClaimView,
    claim: &NodeClaim,
    node: Option<&Node>,
    slices: &NodeResourceSlices,
    now: Timestamp,
) {
    let name = node.and_then(|node| node.metadata.name.as_deref()).unwrap_or_default();
    if !matches!(view.health, Health::Ready { .. }) {
        return;
    }
    if let Some(lack) = lack(&claim.devices(), name, slices) {
        let waits_for = WaitsFor::ResourceSlices { node: name.to_owned(), lack };
        view.health = Health::Coming { waits_for, until: now.checked_add(NEXT_READ).ok() };
    }
}

/// The lack that keeps a node from offering these devices, to follow "waits for"; `None` if it has them all, or nothing was read.
fn lack(asked: &[RequestedDevices], node: &str, slices: &NodeResourceSlices) -> Option<String> {
    let driver = &asked.first()?.driver;
    let published = match slices {
        NodeResourceSlices::Unread => return None,
        NodeResourceSlices::Forbidden => {
            return Some(format!(
                "the right to list ResourceSlices, which show the devices of driver {driver}"
            ));
        }
        NodeResourceSlices::NotServed => {
            return Some(format!(
                "an API server that serves ResourceSlices (resource.k8s.io/v1) of driver {driver}"
            ));
        }
        NodeResourceSlices::Read(slices) => slices.iter().filter(|slice| slice.spec.node_name == node),
    };
    let mut drivers: BTreeMap<&str, u64> = BTreeMap::new();
    for devices in asked {
        let count = drivers.entry(&devices.driver).or_default();
        *count = count.saturating_add(devices.count);
    }
    let of = |driver: &str| published.clone().filter(|slice| slice.spec.driver == driver).collect::<Vec<_>>();
    let lack = drivers.into_iter().find_map(|(driver, count)| lack_of_driver(driver, count, &of(driver)));
    lack.map(|lack| format!("{lack}, on node {node}"))
}

/// The lack that keeps these ResourceSlices of a driver from offering `asked` devices; `None` if they do.
fn lack_of_driver(driver: &str, asked: u64, slices: &[&ResourceSlice]) -> Option<String> {
    if slices.is_empty() {
        return Some(format!("driver {driver} to publish its ResourceSlices"));
    }
    let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        pools.entry(&slice.spec.pool.name).or_default().push(slice);
    }
    let mut devices = 0;
    for (name, mut slices) in pools {
        let latest = slices.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or_default();
        slices.retain(|slice| slice.spec.pool.generation == latest);
        let wanted =
            slices.iter().map(|slice| slice.spec.pool.resource_slice_count).max().unwrap_or_default();
        let published = i64::try_from(slices.len()).unwrap_or(i64::MAX);
        if published != wanted {
            return Some(format!(
                "the rest of pool {name} of driver {driver}: {published} of {wanted} ResourceSlices of generation {latest}"
            ));
        }
        devices += slices.iter().flat_map(|slice| &slice.spec.devices).filter(|one| one.is_usable()).count();
    }
    let devices = u64::try_from(devices).unwrap_or(u64::MAX);
    (devices < asked).then(|| {
        format!("driver {driver} to publish enough devices: {devices} of {asked} in its ResourceSlices")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;
    use serde_json::{Value, json};

    fn slice(driver: &str, pool: (&str, i64, i64), node: &str, devices: usize) -> ResourceSlice {
        let (name, generation, count) = pool;
        let devices: Vec<Value> = (0..devices).map(|n| json!({"name": format!("gpu-{n}")})).collect();
        let spec = json!({
            "driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
        });
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec,
        });
        serde_json::from_value(slice).unwrap()
    }

    /// The lack that keeps node `n` from offering four devices of driver `gpu` in two classes.
    fn lacks(slices: Vec<ResourceSlice>) -> Option<String> {
        let devices = |class: &str, count| RequestedDevices {
            device_class: class.to_owned(),
            driver: "gpu".to_owned(),
            count,
        };
        lack(&[devices("large", 3), devices("small", 1)], "n", &NodeResourceSlices::Read(slices))
    }

    #[test]
    fn a_node_lacks_devices_until_its_pools_are_complete_and_hold_enough() {
        let publish = Some("driver gpu to publish its ResourceSlices, on node n".to_owned());
        assert_eq!(lacks(Vec::new()), publish);
        assert_eq!(
            lacks(vec![slice("nic", ("n", 1, 1), "n", 4), slice("gpu", ("m", 1, 1), "m", 4)]),
            publish
        );
        let half = || slice("gpu", ("n", 1, 2), "n", 2);
        let rest = "the rest of pool n of driver gpu: 1 of 2 ResourceSlices of generation 1, on node n";
        assert_eq!(lacks(vec![half()]).as_deref(), Some(rest));
        assert_eq!(lacks(vec![half(), half()]), None);
        let few = "driver gpu to publish enough devices: 3 of 4 in its ResourceSlices, on node n";
        assert_eq!(lacks(vec![slice("gpu", ("n", 1, 1), "n", 3)]).as_deref(), Some(few));
    }

    #[test]
    fn slices_of_an_outdated_generation_do_not_count() {
        let old = slice("gpu", ("n", 1, 1), "n", 8);
        let new = slice("gpu", ("n", 2, 2), "n", 8);
        let rest = "the rest of pool n of driver gpu: 1 of 2 ResourceSlices of generation 2, on node n";
        assert_eq!(lacks(vec![old.clone(), new.clone()]).as_deref(), Some(rest));
        assert_eq!(lacks(vec![old, new.clone(), new]), None);
    }

    #[test]
    fn tainted_devices_do_not_count() {
        let mut slice = slice("gpu", ("n", 1, 1), "n", 4);
        let taint = |effect: &str| {
            serde_json::from_value(json!({"taints": [{"key": "k", "effect": effect}]})).unwrap()
        };
        slice.spec.devices[0] = taint("NoSchedule");
        slice.spec.devices[1] = taint("None");
        let few = "driver gpu to publish enough devices: 3 of 4 in its ResourceSlices, on node n";
        assert_eq!(lacks(vec![slice]).as_deref(), Some(few));
    }

    #[test]
    fn several_pools_count_together() {
        let pools = ["a", "b"].map(|pool| slice("gpu", (pool, 1, 1), "n", 2)).to_vec();
        assert_eq!(lacks(pools), None);
    }

    #[test]
    fn a_ready_claim_with_devices_waits_until_they_were_read_and_are_there() {
        let devices = json!([{"deviceClass": "gpu", "driver": "gpu", "count": 1}]).to_string();
        let claim = |annotations: Value| -> NodeClaim {
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {"name": "c", "annotations": annotations},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            }))
            .unwrap()
        };
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let health = |claim: &NodeClaim, slices: &NodeResourceSlices| {
            let mut view = ClaimView::new("c", 1, 0, Health::Ready { since: Timestamp::UNIX_EPOCH });
            wait_for_devices(&mut view, claim, Some(&node), slices, Timestamp::UNIX_EPOCH);
            view.health
        };
        let with = claim(json!({names::DEVICES: devices}));
        let Health::Coming { waits_for, until } = health(&with, &NodeResourceSlices::Read(Vec::new())) else {
            panic!("ready")
        };
        assert_eq!(waits_for.to_string(), "driver gpu to publish its ResourceSlices, on node n");
        assert!(until.is_some(), "nobody else would read them again");
        for (slices, words) in [
            (NodeResourceSlices::Forbidden, "the right to list"),
            (NodeResourceSlices::NotServed, "an API server that serves"),
        ] {
            let Health::Coming { waits_for, .. } = health(&with, &slices) else { panic!("ready") };
            assert!(waits_for.to_string().starts_with(words), "{waits_for}");
        }
        let there = NodeResourceSlices::Read(vec![slice("gpu", ("n", 1, 1), "n", 1)]);
        assert!(matches!(health(&with, &there), Health::Ready { .. }));
        assert!(matches!(health(&claim(json!({})), &NodeResourceSlices::Forbidden), Health::Ready { .. }));
    }
}
