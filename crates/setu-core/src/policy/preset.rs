//! Presets of the cloud providers: the NodeClass that their NodePools use if a NodePool does not state it, and the resources
//! that are accelerators.

use crate::api::node_claim::NodeClassRef;
use crate::api::pod::ResourceList;
use crate::names;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A cloud provider whose NodeClass is known.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CloudProvider {
    /// Amazon Web Services: `karpenter.k8s.aws` EC2NodeClass.
    Aws,
    /// Google Cloud: `karpenter.k8s.gcp` GCENodeClass or `karpenter.gcp.io` GCPNodeClass, whichever the
    /// cluster serves.
    Gcp,
    /// Microsoft Azure: `karpenter.azure.com` AKSNodeClass.
    Azure,
    /// Karpenter's kwok provider, which simulates nodes: `karpenter.kwok.sh` KWOKNodeClass.
    Kwok,
    /// No preset: every NodePool says it itself.
    #[default]
    None,
}

impl CloudProvider {
    /// Group and kind of its NodeClass, the more likely one first.
    pub fn node_classes(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Aws => &[("karpenter.k8s.aws", "EC2NodeClass")],
            Self::Gcp => &[("karpenter.k8s.gcp", "GCENodeClass"), ("karpenter.gcp.io", "GCPNodeClass")],
            Self::Azure => &[("karpenter.azure.com", "AKSNodeClass")],
            Self::Kwok => &[(names::KWOK_GROUP, "KWOKNodeClass")],
            Self::None => &[],
        }
    }
}

impl fmt::Display for CloudProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::Kwok => "kwok",
            Self::None => "none",
        })
    }
}

/// Resources that are accelerators at any provider.
pub const ACCELERATORS: [&str; 6] = [
    "nvidia.com/gpu",
    "amd.com/gpu",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
];

/// Defaults for the parts of a nodeClassRef that a NodePool leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClassDefaults {
    /// API group, if any is known.
    pub group: Option<String>,
    /// Kind, if any is known.
    pub kind: Option<String>,
    /// Name for nodes without accelerators.
    pub default: String,
    /// Name for nodes with accelerators.
    pub gpu: String,
}

impl Default for NodeClassDefaults {
    fn default() -> Self {
        Self { group: None, kind: None, default: "default".to_owned(), gpu: "gpu".to_owned() }
    }
}

impl NodeClassDefaults {
    /// The NodePool's own reference, completed with the defaults.
    pub fn complete(&self, own: &NodeClassRef, accelerated: bool) -> NodeClassRef {
        let or = |own: &String, fallback: Option<&String>| {
            if own.is_empty() { fallback.cloned().unwrap_or_default() } else { own.clone() }
        };
        let name = if accelerated { &self.gpu } else { &self.default };
        NodeClassRef {
            group: or(&own.group, self.group.as_ref()),
            kind: or(&own.kind, self.kind.as_ref()),
            name: or(&own.name, Some(name)),
        }
    }
}

/// Whether these requests ask for an accelerator: a known one, or one that `managed` names.
pub fn asks_for_accelerator(requests: &ResourceList, managed: &[String]) -> bool {
    let named = |name: &String| managed.contains(name) && name.contains('/');
    requests.keys().any(|name| ACCELERATORS.contains(&name.as_str()) || named(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    fn reference(group: &str, kind: &str, name: &str) -> NodeClassRef {
        NodeClassRef { group: group.into(), kind: kind.into(), name: name.into() }
    }

    #[test]
    fn the_node_pools_own_reference_overrides_the_defaults() {
        let fallback = NodeClassDefaults {
            group: Some("karpenter.k8s.aws".into()),
            kind: Some("EC2NodeClass".into()),
            ..NodeClassDefaults::default()
        };
        let own = reference("g", "k", "n");
        assert_eq!(fallback.complete(&own, true), own);
        let empty = NodeClassRef::default();
        assert_eq!(
            fallback.complete(&empty, false),
            reference("karpenter.k8s.aws", "EC2NodeClass", "default")
        );
        assert_eq!(fallback.complete(&empty, true).name, "gpu");
        assert_eq!(
            NodeClassDefaults::default().complete(&reference("", "k", ""), false),
            reference("", "k", "default")
        );
    }

    #[test]
    fn accelerators_are_known_devices_and_managed_ones() {
        let asks = |name: &str, managed: &[&str]| {
            let managed: Vec<String> = managed.iter().map(|m| (*m).to_owned()).collect();
            asks_for_accelerator(&[(name.to_owned(), Quantity("1".into()))].into(), &managed)
        };
        assert!(asks("nvidia.com/gpu", &[]) && asks("aws.amazon.com/neuron", &[]));
        assert!(!asks("example.com/fpga", &[]) && asks("example.com/fpga", &["example.com/fpga"]));
        assert!(!asks("cpu", &["cpu"]));
    }
}
