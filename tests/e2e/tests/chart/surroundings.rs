//! The objects that exist before the chart: its namespace with the strictest Pod Security profile, what the pods mount
//! with everything enabled, and the CRDs of the Prometheus Operator, reduced to their names.

use crate::real::{Real, Shared};
use ::setu::sim::scenario::{Run, Scenario, ScenarioWorld};
use kube::discovery::Discovery;
use serde_json::{Value, json};
use setu_e2e::Stack;
use std::sync::Arc;

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

/// The world in which the chart is installed, with the kinds that are served.
pub async fn world(stack: &Arc<Stack>, kinds: Arc<Discovery>) -> ScenarioWorld<Real> {
    let scenario: Scenario = serde_json::from_value(json!({"title": ID})).unwrap();
    let run = Run { title: ID.into(), id: ID.into(), scenario };
    let shared = Shared { kinds, kubeconfig: stack.kubeconfig().into() };
    ScenarioWorld::new(Real::new(stack, &shared, &run).unwrap(), &run).await.unwrap()
}
