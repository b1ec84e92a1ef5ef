//! The objects that exist before the chart: its namespace with the strictest Pod Security profile, what the pods mount
//! with everything enabled, and the CRDs of the Prometheus Operator, reduced to their names.

use serde_json::{Value, json};

/// The id of the world, which everything-values.yaml names in its NodePools.
pub const ID: &str = "chart";
pub const NAMESPACE: &str = "setu-system";

/// These objects. The collector's certificate is `authority`.
pub fn surroundings(authority: &str) -> Vec<Value> {
    let kind = |kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        })
    };
    vec![
        kind("ServiceMonitor", "servicemonitors"),
        kind("PrometheusRule", "prometheusrules"),
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "collector-ca", "namespace": NAMESPACE},
            "data": {"ca.crt": authority},
        }),
    ]
}
