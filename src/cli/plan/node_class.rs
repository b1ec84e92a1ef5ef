//! Settings of NodeClasses in the files that affect the room on nodes: kubelet settings and disk size. Plans do not use them.
//!
//! Rule: the controller reads no NodeClass, so `setu plan` must not decide by one. It only adds notes to the plan.

use crate::api::NodePool;
use crate::api::node_claim::NodeClassRef;
use crate::api::quantity::Amount;
use crate::gang::snapshot::observed::capacity_type;
use crate::names;
use crate::plan::resources::{amount, shown};
use crate::plan::shape::DISK;
use crate::plan::{Plan, Slot};
use crate::words::few;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where providers put the kubelet settings that change what pods can use.
const KUBELET: [&str; 2] = ["kubelet", "kubeletConfiguration"];
const SETTINGS: [&str; 6] =
    ["maxPods", "podsPerCore", "systemReserved", "kubeReserved", "evictionHard", "evictionSoft"];
const EC2: &str = "EC2NodeClass";
/// Default volume size of the AWS provider.
const DEFAULT_DISK: &str = "20Gi";

/// A NodeClass from the files.
pub struct NodeClass(Value);

impl NodeClass {
    /// Takes the manifest of a file.
    pub const fn new(manifest: Value) -> Self {
        Self(manifest)
    }

    fn is_meant(&self, reference: &NodeClassRef) -> bool {
        let is = |pointer: &str, word: &str| self.0.pointer(pointer).and_then(Value::as_str) == Some(word);
        is("/kind", &reference.kind) && is("/metadata/name", &reference.name)
    }

    /// The kubelet settings that it states, for display.
    fn settings(&self) -> Vec<String> {
        let stated = |at: &&str, key: &&str| self.0.pointer(&format!("/spec/{at}/{key}")).is_some();
        let of = |at: &'static str| {
            SETTINGS.iter().filter(move |key| stated(&at, key)).map(move |key| format!("{at}.{key}"))
        };
        KUBELET.into_iter().flat_map(of).collect()
    }

    /// The size of the EC2 volume that holds the pods' disk, by the rules of Karpenter's AWS provider. `None` if a
    /// local disk replaces it or the image family is unknown.
    fn volume(&self) -> Option<String> {
        let spec = self.0.get("spec")?;
        if self.0.get("kind")? != EC2 || spec.get("instanceStorePolicy").is_some() {
            return None;
        }
        let device = self.device()?;
        let mappings = spec.get("blockDeviceMappings").and_then(Value::as_array);
        let size = |mapping: &Value| mapping.pointer("/ebs/volumeSize")?.as_str().map(str::to_owned);
        let of = |key: &str, value: Value| {
            let mut those = mappings.into_iter().flatten().filter(|mapping| mapping.get(key) == Some(&value));
            those.find_map(size)
        };
        let stated = of("rootVolume", Value::Bool(true)).or_else(|| of("deviceName", device.into()));
        Some(stated.unwrap_or_else(|| DEFAULT_DISK.to_owned()))
    }

    /// The device of that volume, by image family.
    fn device(&self) -> Option<&'static str> {
        let alias = || self.0.pointer("/spec/amiSelectorTerms/0/alias");
        let family = self.0.pointer("/spec/amiFamily").or_else(alias)?.as_str()?.to_lowercase();
        match family.split('@').next()? {
            "al2" | "al2023" => Some("/dev/xvda"),
            "bottlerocket" => Some("/dev/xvdb"),
            _ => None,
        }
    }

    /// Requirements of a node of this slot that this NodeClass does not meet, for display.
    fn lacks(&self, slot: &Slot) -> Vec<String> {
        let claim = &slot.template.spec;
        let (kind, name) = (&claim.node_class_ref.kind, &claim.node_class_ref.name);
        let lack = |key: &str, has: Option<String>, what: &str, remedy: &str| {
            let has = has?;
            let asked = &claim.resources.requests;
            (Amount::parse(&has)? < amount(asked, key)).then(|| {
                format!(
                    "nodes of NodePool {} are asked for with {} {key}, and {what} of {kind} {name} is {has}: Karpenter may launch \
                     nothing; {remedy}",
                    slot.node_pool,
                    shown(asked, key)
                )
            })
        };
        let pods = KUBELET.iter().find_map(|at| self.0.pointer(&format!("/spec/{at}/maxPods"))?.as_u64());
        let remedy = "enlarge it under spec.blockDeviceMappings, or request less per pod";
        let disk = lack(DISK, self.volume(), "the volume", remedy);
        let remedy = "state that number of pods under packing.shapes";
        let pods = lack("pods", pods.map(|most| most.to_string()), "maxPods", remedy);
        disk.into_iter().chain(pods).chain(self.lacks_reservations(slot)).collect()
    }

    /// Says that a node of this slot can only come from a reservation, and this NodeClass selects none.
    fn lacks_reservations(&self, slot: &Slot) -> Option<String> {
        let reference = &slot.template.spec.node_class_ref;
        let selected = self.0.pointer("/spec/capacityReservationSelectorTerms").and_then(Value::as_array);
        let lacks = reference.kind == EC2
            && selected.is_none_or(Vec::is_empty)
            && capacity_type(&slot.template) == Some(names::RESERVED);
        lacks.then(|| {
            format!(
                "nodes of NodePool {} are asked for with capacity type reserved, and {EC2} {} selects no reservation: Karpenter \
                 launches nothing; state spec.capacityReservationSelectorTerms",
                slot.node_pool, reference.name
            )
        })
    }
}

/// Notes about NodeClasses of these NodePools that state kubelet settings or give a node less than a slot asks for.
pub fn notes(classes: &[NodeClass], pools: &[Arc<NodePool>], plan: Option<&Plan>) -> BTreeSet<String> {
    let class = |reference: &NodeClassRef| classes.iter().find(|class| class.is_meant(reference));
    let of_pool = |pool: &Arc<NodePool>| {
        let reference = &pool.spec.template.spec.node_class_ref;
        let settings = class(reference)?.settings();
        (!settings.is_empty()).then(|| {
            format!(
                "{} {} states {}, which Setu does not read: it reckons with the provider's defaults until a Node has shown what pods \
                 can use; state packing.shapes where the settings take much",
                reference.kind,
                reference.name,
                few(settings.iter().map(String::as_str))
            )
        })
    };
    let slots = plan.into_iter().flat_map(Plan::groups);
    let slots = slots.flat_map(|(slot, _)| {
        class(&slot.template.spec.node_class_ref).map_or_else(Vec::new, |class| class.lacks(slot))
    });
    pools.iter().filter_map(of_pool).chain(slots).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(spec: &Value) -> NodeClass {
        NodeClass::new(json!({"kind": EC2, "metadata": {"name": "default"}, "spec": spec}))
    }

    #[test]
    fn the_volume_size_comes_from_the_root_volume_the_image_family_or_the_default() {
        let disk = |name: &str, size: &str| json!({"deviceName": name, "ebs": {"volumeSize": size}});
        let root = json!({"deviceName": "x", "rootVolume": true, "ebs": {"volumeSize": "80Gi"}});
        let of = |family: &str, disks: Value| json!({"amiFamily": family, "blockDeviceMappings": disks});
        let alias = json!({"amiSelectorTerms": [{"alias": "al2023@latest"}]});
        for (spec, size) in [
            (alias, Some("20Gi")),
            (of("AL2023", json!([disk("/dev/xvda", "100Gi")])), Some("100Gi")),
            (of("Bottlerocket", json!([disk("/dev/xvda", "4Gi"), disk("/dev/xvdb", "90Gi")])), Some("90Gi")),
            (of("Bottlerocket", json!([disk("/dev/xvda", "100Gi")])), Some("20Gi")),
            (of("AL2", json!([disk("/dev/xvda", "4Gi"), root])), Some("80Gi")),
            (json!({"amiFamily": "AL2023", "instanceStorePolicy": "RAID0"}), None),
            (json!({"amiFamily": "Custom"}), None),
        ] {
            assert_eq!(class(&spec).volume().as_deref(), size, "{spec}");
        }
    }

    #[test]
    fn only_kubelet_settings_that_take_room_are_named() {
        let named = |kubelet: Value| class(&json!({"kubelet": kubelet})).settings();
        assert_eq!(
            named(json!({"maxPods": 20, "kubeReserved": {}})),
            ["kubelet.maxPods", "kubelet.kubeReserved"]
        );
        assert!(named(json!({"clusterDNS": ["10.0.0.10"]})).is_empty());
    }
}
