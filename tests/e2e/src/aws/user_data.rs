//! Parses the user data of a machine as AL2023's nodeadm does.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;
use serde_json::Value;

/// The part of a NodeConfig that affects the Node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeConfig {
    /// The labels that the kubelet registers with.
    pub labels: BTreeMap<String, String>,
    /// The taints that the kubelet registers with.
    pub taints: Vec<Taint>,
    /// The maximum number of pods.
    pub max_pods: u64,
}

/// Reads the NodeConfig from a launch template's user data. The error names what is missing.
pub(super) fn read(user_data: &str) -> Result<NodeConfig> {
    let bytes = STANDARD.decode(user_data).context("user data is not base64")?;
    let text = String::from_utf8(bytes).context("user data is not text")?;
    let part = text.split("Content-Type: application/node.eks.aws").nth(1);
    let part = part.context("user data has no part of type application/node.eks.aws")?;
    // The part ends at the next boundary; no line of a NodeConfig begins like one.
    let part = part.split("\n--").next().unwrap_or_default();
    let config =
        Value::deserialize(serde_yaml::Deserializer::from_str(part)).context("reading the NodeConfig")?;
    let kubelet = config.pointer("/spec/kubelet").context("the NodeConfig has no spec.kubelet")?;
    let taints = kubelet.pointer("/config/registerWithTaints").cloned().unwrap_or_default();
    let taints: Option<Vec<Taint>> = serde_json::from_value(taints).context("reading the taints")?;
    let max_pods = kubelet.pointer("/config/maxPods").and_then(Value::as_u64);
    Ok(NodeConfig {
        labels: labels(kubelet),
        taints: taints.unwrap_or_default(),
        max_pods: max_pods.context("the NodeConfig has no maxPods")?,
    })
}

fn labels(kubelet: &Value) -> BTreeMap<String, String> {
    let flags = kubelet.get("flags").and_then(Value::as_array).into_iter().flatten();
    let listed = flags.filter_map(|flag| flag.as_str()?.strip_prefix("--node-labels="));
    let pairs =
        listed.flat_map(|list| list.trim_matches('"').split(',')).filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_taints_and_max_pods_are_read_from_the_multipart_text() {
        let text = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n--//\n\
            Content-Type: application/node.eks.aws\n\n# Karpenter Generated NodeConfig\n\
            apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n    config:\n      maxPods: 58\n\
            \x20     registerWithTaints:\n      - effect: NoExecute\n        key: karpenter.sh/unregistered\n\
            \x20   flags:\n    - --node-labels=\"a=1,b=\"\n--//--\n";
        let config = read(&STANDARD.encode(text)).unwrap();
        assert_eq!(config.labels, BTreeMap::from([("a".into(), "1".into()), ("b".into(), String::new())]));
        assert_eq!((config.max_pods, config.taints[0].key.as_str()), (58, "karpenter.sh/unregistered"));
        let none = read(&STANDARD.encode("#!/bin/sh\n")).unwrap_err();
        assert!(none.to_string().contains("application/node.eks.aws"), "{none}");
    }
}
