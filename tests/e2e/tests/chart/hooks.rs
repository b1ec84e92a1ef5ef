//! The chart's hooks: helm creates their pods, and the test acts as their kubelet.

use crate::helm::{chart, said};
use crate::install::Install;
use crate::setu::Setu;
use crate::surroundings::NAMESPACE;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Command, Output};

/// The pod with this name in its labels, once helm has created it.
async fn pod_of(install: &Install, name: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(install.stack.client().unwrap(), NAMESPACE);
    let of_hook = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
    install
        .until("the hook's pod is made", async || !pods.list(&of_hook).await.unwrap().items.is_empty())
        .await;
    pods.list(&of_hook).await.unwrap().items.remove(0)
}

/// Sets a pod's phase to Succeeded, as the kubelet would.
async fn has_succeeded(install: &Install, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(install.stack.client().unwrap(), NAMESPACE);
    let succeeded = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &succeeded).await.unwrap();
}

/// Runs `setu uninstall` as the pre-delete hook while helm waits for it. Checks that it prints each of these lines.
pub async fn uninstall(install: &Install, setu: &Setu, lines: &[&str]) {
    let pod = pod_of(install, "setu-uninstall").await;
    let spec = pod.spec.clone().unwrap();
    let account = spec.service_account_name.unwrap();
    let kubeconfig = install.stack.kubeconfig_of(NAMESPACE, &account).await.unwrap();
    // The hook scales the Deployment to zero, which ends its pods.
    setu.signal("TERM").unwrap();
    let mut command = Command::new(crate::setu::binary().unwrap());
    command.args(spec.containers[0].args.clone().unwrap()).env("KUBECONFIG", kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let output_text = said(&output);
    assert!(output.status.success(), "{output_text}");
    for line in lines {
        assert!(output_text.contains(*line), "without {line:?}: {output_text}");
    }
    let hands_back = |text: &str| text.contains("hand NodeClaim");
    assert_eq!(hands_back(&output_text), lines.iter().any(|line| hands_back(line)), "{output_text}");
    has_succeeded(install, &pod).await;
}

/// Runs `helm test` against the running process. `limits_egress` says whether the values limit egress.
pub async fn test(install: &Install, setu: &Setu, limits_egress: bool) {
    let mut helm = install.helm(&["test", "setu", "--timeout", "2m"]);
    let tested = tokio::task::spawn_blocking(move || helm.output().unwrap());
    let pod = pod_of(install, "setu-test").await;
    is_let_through(install, &pod, limits_egress).await;
    let container = pod.spec.clone().unwrap().containers.remove(0);
    let output = run(&container, &setu.address("metrics").unwrap(), &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    // Nothing listens there, and retries would only take time.
    let output = run(&container, "127.0.0.1:1", &["--retry", "0"]).await;
    assert!(!output.status.success(), "the test cannot fail");
    has_succeeded(install, &pod).await;
    let output = tested.await.unwrap();
    let output_text = said(&output);
    assert!(output.status.success() && output_text.contains("Succeeded"), "{output_text}");
}

/// Runs a container's command locally, with every host name resolved to this address, like a Service.
async fn run(container: &Container, address: &str, more: &[&str]) -> Output {
    let program = container.command.clone().unwrap();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(container.args.clone().unwrap());
    command.args(["--connect-to", &format!("::{address}")]).args(more);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The ports that the chart's README names for a value of the NetworkPolicy.
fn documented(value: &str) -> Vec<(String, IntOrString)> {
    let text = std::fs::read_to_string(chart().join("README.md")).unwrap();
    let start = format!("| networkPolicy.egress.{value} |");
    let row = text.lines().find(|line| line.starts_with(&start)).unwrap();
    let ports = row.split('`').nth(1).unwrap().trim_matches(['[', ']']).split(',');
    ports.map(|port| ("TCP".to_owned(), IntOrString::Int(port.parse().unwrap()))).collect()
}

/// The ports of a rule, which would cover every port without them.
fn of_rule(ports: Option<Vec<NetworkPolicyPort>>) -> Vec<(String, IntOrString)> {
    ports.unwrap().into_iter().map(|port| (port.protocol.unwrap(), port.port.unwrap())).collect()
}

/// Checks that the policy opens only the replicas' own ports, and for egress those in the chart's README.
fn has_documented_ports(policy: NetworkPolicySpec, own: &[ContainerPort], limits_egress: bool) {
    let own: Vec<_> = own.iter().map(|port| IntOrString::String(port.name.clone().unwrap())).collect();
    for (protocol, port) in policy.ingress.unwrap().into_iter().flat_map(|rule| of_rule(rule.ports)) {
        assert!(protocol == "TCP" && own.contains(&port), "{protocol} {port:?} is none of {own:?}");
    }
    assert_eq!(policy.policy_types.unwrap().contains(&"Egress".to_owned()), limits_egress);
    let rules = policy.egress.unwrap_or_default().into_iter();
    let let_out: Vec<_> = rules.flat_map(|rule| of_rule(rule.ports)).collect();
    let dns = ["UDP", "TCP"].map(|protocol| (protocol.to_owned(), IntOrString::Int(53))).to_vec();
    let [server, karpenter, collector] =
        ["apiServerPorts", "karpenterMetricsPort", "collectorPorts"].map(documented);
    let expected = if limits_egress { [server, dns, karpenter, collector].concat() } else { Vec::new() };
    assert_eq!(let_out, expected);
}

/// Checks that the pod's URL belongs to the Service, that the Service selects the Deployment's pods, and that
/// the NetworkPolicy admits this pod.
async fn is_let_through(install: &Install, pod: &Pod, limits_egress: bool) {
    let client = install.stack.client().unwrap();
    let service: Service = Api::namespaced(client.clone(), NAMESPACE).get("setu").await.unwrap();
    let service = service.spec.unwrap();
    let port = &service.ports.unwrap()[0];
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let url = format!("http://setu:{}/metrics", port.port);
    assert!(container.args.as_ref().unwrap().contains(&url), "{container:?} does not ask for {url}");
    let template = install.deployment().await.spec.unwrap().template;
    let replica = template.metadata.unwrap().labels.unwrap();
    let ports = template.spec.unwrap().containers.remove(0).ports.unwrap();
    let target = ports.iter().find(|p| p.name == Some("metrics".into())).unwrap();
    assert_eq!(
        (port.target_port.clone(), target.container_port),
        (Some(IntOrString::String("metrics".into())), 8080)
    );
    let selects = |selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>| {
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    let selector = service.selector.unwrap();
    assert!(selects(&selector, &replica), "{selector:?} does not select {replica:?}");
    assert!(!selects(&selector, pod.labels()), "the test's pod would be taken for a replica");
    let policy: NetworkPolicy = Api::namespaced(client, NAMESPACE).get("setu").await.unwrap();
    let policy = policy.spec.unwrap();
    has_documented_ports(policy.clone(), &ports, limits_egress);
    let bound = policy.pod_selector.unwrap_or_default().match_labels.unwrap();
    assert!(!selects(&bound, pod.labels()), "the policy would keep the test's pod from going out");
    let peers = policy.ingress.unwrap().remove(0).from.unwrap_or_default();
    let is_test = |selector: &BTreeMap<String, String>| selects(selector, pod.labels());
    let let_in =
        peers.iter().filter_map(|peer| peer.pod_selector.as_ref()?.match_labels.as_ref()).any(is_test);
    assert!(peers.is_empty() || let_in, "nobody lets the test's pod in: {peers:?}");
}
