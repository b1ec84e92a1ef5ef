//! Keeps objects that come in thousands small: each as its difference from the first one of its kind.
//!
//! Decoded, an object is mostly maps of short strings, which take several times the size of the same object as text.
//! Objects of one kind are also much alike.

use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// An object of a store.
#[derive(Debug)]
pub enum Kept<K> {
    /// Ready to use.
    Whole(Arc<K>),
    /// Packed.
    Packed(Packed),
}

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(object) => Self::Whole(Arc::clone(object)),
            Self::Packed(packed) => Self::Packed(packed.clone()),
        }
    }
}

impl<K: DeserializeOwned> Kept<K> {
    /// The object, ready to use.
    pub fn object(&self) -> Option<Arc<K>> {
        match self {
            Self::Whole(object) => Some(Arc::clone(object)),
            Self::Packed(packed) => packed.unpack().map(Arc::new),
        }
    }
}

/// An object as text, compressed with another one as dictionary.
#[derive(Clone, Debug)]
pub struct Packed {
    bytes: Arc<[u8]>,
    /// Its length as text.
    length: usize,
    like: Arc<[u8]>,
}

impl Packed {
    fn unpack<K: DeserializeOwned>(&self) -> Option<K> {
        let unpacked = serde_json::from_slice(&self.text()?);
        // The caller treats it as gone.
        unpacked
            .inspect_err(|error| {
                let kind = std::any::type_name::<K>();
                tracing::error!(kind, error = %error, "an object that was packed cannot be read");
            })
            .ok()
    }

    fn text(&self) -> Option<Vec<u8>> {
        decompress_with_dict(&self.bytes, self.length, &self.like).ok()
    }
}

/// Packs objects of one kind.
#[derive(Debug, Default)]
pub struct Packer {
    /// The first object, as text.
    like: Option<Arc<[u8]>>,
}

impl Packer {
    /// Packs an object; `None` if unpacking would not restore its text.
    pub fn pack<K: Serialize>(&mut self, object: &K) -> Option<Packed> {
        let text = serde_json::to_vec(object).ok()?;
        let like = Arc::clone(self.like.get_or_insert_with(|| text.as_slice().into()));
        let bytes = compress_with_dict(&text, &like).into();
        let packed = Packed { bytes, length: text.len(), like };
        (packed.text()? == text).then_some(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Node, NodeClaim, Workload};
    use crate::names;
    use serde_json::{Value, json};
    use std::fmt::Debug;

    fn claim(slot: u32) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": format!("setu-train-{slot}"), "uid": format!("{slot}-5e2f"),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {(names::ZONE): "a"}, "annotations": {(names::SLOT): slot.to_string()},
            },
            "spec": {
                "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot"]}],
                "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "8"}},
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
            },
            "status": {"nodeName": format!("ip-{slot}"), "conditions": [{
                "type": "Launched", "status": "True", "reason": "Launched", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_packed_object_is_small_and_unpacks_as_it_was() {
        let mut packer = Packer::default();
        for slot in 0..100 {
            let small = packer.pack(&claim(slot)).unwrap();
            assert_eq!(small.unpack::<NodeClaim>().unwrap(), claim(slot));
            assert!(small.bytes.len() * 5 < small.length, "{} of {}", small.bytes.len(), small.length);
        }
    }

    /// Packs an object after another one, and compares it with the unpacked one.
    fn comes_back<K: Serialize + DeserializeOwned + PartialEq + Debug>(like: Value, object: Value) {
        let [like, object]: [K; 2] = [like, object].map(|json| serde_json::from_value(json).unwrap());
        let mut packer = Packer::default();
        packer.pack(&like).unwrap();
        assert_eq!(packer.pack(&object).unwrap().unpack::<K>().unwrap(), object);
    }

    #[test]
    fn every_packed_kind_unpacks_unchanged() {
        let condition = |name: &str| {
            json!({
                "type": name, "status": "True", "reason": "R", "message": "m", "observedGeneration": 3,
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            })
        };
        let requests = json!({"requests": {"cpu": "500m", "nvidia.com/gpu": "8"}});
        let pods = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "restartPolicy": "Never", "nodeSelector": {"e": "f"},
                "containers": [{"name": "main", "image": "i", "resources": requests}],
                "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always", "resources": requests}],
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            },
        });
        comes_back::<Workload>(
            json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"namespace": "n", "name": "w"}, "spec": {"queueName": "q", "podSets": []},
            }),
            json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {
                    "namespace": "team", "name": "job-train", "uid": "u", "resourceVersion": "7",
                    "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"x": "y"},
                    "finalizers": ["kueue.x-k8s.io/resource-in-use"],
                    "ownerReferences": [
                        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": true},
                    ],
                },
                "spec": {
                    "queueName": "queue", "priority": 5, "active": true,
                    "podSets": [{"name": "main", "count": 4, "minCount": 2, "template": pods, "topologyRequest": {
                        "required": "topology.kubernetes.io/zone", "podIndexLabel": "i", "subGroupCount": 2,
                    }}],
                },
                "status": {
                    "conditions": [condition("QuotaReserved"), condition("Admitted")],
                    "admission": {"clusterQueue": "cq", "podSetAssignments": [{
                        "name": "main", "count": 4, "flavors": {"cpu": "spot"},
                        "resourceUsage": {"cpu": "2", "nvidia.com/gpu": "32"},
                    }]},
                    "admissionChecks": [{
                        "name": "c", "state": "Ready", "message": "4 nodes ready",
                        "lastTransitionTime": "2026-01-01T00:00:01Z", "retryCount": 1,
                        "podSetUpdates": [{
                            "name": "main", "nodeSelector": {"g": "h"},
                            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
                        }],
                    }],
                    "requeueState": {"count": 2, "requeueAt": "2026-01-01T00:00:02Z"},
                },
            }),
        );
        comes_back::<Node>(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}),
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "ip-1", "uid": "u", "labels": {"topology.kubernetes.io/zone": "a"}},
                "spec": {
                    "providerID": "p", "unschedulable": true,
                    "taints": [{"key": "k", "value": "v", "effect": "NoExecute"}],
                },
                "status": {
                    "capacity": {"cpu": "8", "memory": "1Gi"}, "allocatable": {"cpu": "7910m", "memory": "900Mi"},
                    "conditions": [condition("Ready")],
                },
            }),
        );
    }
}
