//! The CRD of ProvisioningParameters: its names, its columns, and what its rules accept.

use kube::CustomResourceExt;
use kube_cel::Validator;
use serde_json::{Value, json};
use setu::api::{ProvisioningParameters, RawParameters};
use setu::controllers::parameters::read;

fn crd() -> Value {
    serde_json::to_value(ProvisioningParameters::crd()).unwrap()
}

/// The result of the CRD's rules for an object with this spec.
fn by_rules(spec: &Value) -> Result<(), String> {
    let schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let object =
        json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "ProvisioningParameters", "spec": spec});
    Validator::new().validate(&schema, &object, None).map_err(|e| e.to_string())
}

/// The result of Setu's validation.
fn by_setu(spec: &Value) -> Result<(), String> {
    let object = json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "ProvisioningParameters", "metadata": {"name": "p"}, "spec": spec});
    read(&serde_json::from_value::<RawParameters>(object).unwrap()).map(|_| ())
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

#[test]
fn the_kind_is_cluster_scoped_and_shows_whether_it_is_valid_and_used() {
    let crd = crd();
    assert_eq!(crd["spec"]["scope"], "Cluster");
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["provparams"]));
    let version = &crd["spec"]["versions"][0];
    assert_eq!((&version["name"], version["subresources"]["status"].is_object()), (&json!("v1alpha1"), true));
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["NodePool", "Strategy", "Valid", "Used", "Age"]);
}

#[test]
fn valid_parameters_are_accepted() {
    for text in [
        "{}",
        "nodePoolName: gpu-nodepool
strategy: {type: Proactive, bufferTime: 15s}
nodeSelectorRequirements:
- {key: node.kubernetes.io/instance-type, operator: In, values: [p4d.24xlarge, p4de.24xlarge]}
- {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}",
        "nodeSelectorRequirements: [{key: a, operator: Exists}, {key: b, operator: Gt, values: ['4']}]",
        "retry: {compat: Setu}",
        "retry: {compat: None, inCheck: {limit: 1}}\ndeadlines: {launch: 1m}",
        "custody: {release: HandBack}",
        "custody: {release: Delete, warmFor: 0s}",
        "custody: {release: Warm, warmFor: 10m}",
    ] {
        let spec = yaml(text);
        assert_eq!((by_rules(&spec), by_setu(&spec)), (Ok(()), Ok(())), "{text}");
    }
}

#[test]
fn parameters_that_can_never_work_are_refused_by_the_rules_and_by_setu() {
    for (text, words) in [
        ("nodeSelectorRequirements: [{key: a, operator: In}]", "need values"),
        ("nodeSelectorRequirements: [{key: a, operator: NotIn, values: []}]", "need values"),
        ("nodeSelectorRequirements: [{key: a, operator: Exists, values: [b]}]", "take no values"),
        ("nodeSelectorRequirements: [{key: a, operator: Gt, values: [b]}]", "whole number"),
        ("nodeSelectorRequirements: [{key: a, operator: Lt, values: ['1', '2']}]", "whole number"),
        ("tiers: [{name: t, requirements: [{key: a, operator: In}]}]", "need values"),
        ("retry: {compat: Setu, inCheck: {limit: 1}}", "brings its own"),
        ("retry: {compat: Setu, onExhausted: Yield}", "brings its own"),
        ("retry: {compat: Setu}\ndeadlines: {gang: 1m}", "brings its own"),
        ("custody: {release: Delete, warmFor: 10m}", "release: Warm"),
    ] {
        let spec = yaml(text);
        let message = by_rules(&spec).unwrap_err();
        assert!(message.contains(words), "{text}: {message}");
        assert!(by_setu(&spec).is_err(), "{text}");
    }
}

#[test]
fn setu_refuses_what_the_rules_cannot_express() {
    for (text, words) in [
        ("retry: {inCheck: {base: 10s, max: 5s}}", "shorter than base"),
        ("retry: {inCheck: {base: 10ms}}", "least wait"),
        ("deadlines: {launch: 0s}", "is zero"),
        ("packing: {shapes: [{instanceType: a, allocatable: {cpu: many}}]}", "not an amount"),
        (
            "nodeSelectorRequirements: [{key: kubernetes.io/hostname, operator: Exists}]",
            "no NodeClaim may ask",
        ),
        ("gates: {budget: {prices: {p5: {spott: '1'}}}}", "karpenter.sh/capacity-type"),
        ("gates: {placement: {namespaces: {matchLabel: {}}}}", "did you mean matchLabels?"),
        ("deadlines: {gang: 99999999999999999999h}", "spec.deadlines.gang"),
        ("deadlines: {gang: 0s, launch: 0s}", "spec.deadlines.launch: is zero"),
    ] {
        let message = by_setu(&yaml(text)).unwrap_err();
        assert!(message.contains(words), "{text}: {message}");
    }
}
