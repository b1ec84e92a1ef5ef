//! The node costs that the reading commands show, in the embedded cluster: by the check's policy, if a command knows it.

use crate::page::{priced, served};
use crate::world;
use serde_json::{Value, json};
use setu::sim::cluster::Start;
use setu::sim::scenario;
use setu_sim::api::kinds;
use setu_sim::http;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The name of everything.
const ID: &str = "prices";
/// The controller's policy file.
const POLICY: &str = "defaults: {gates: {budget: {prices: {g5.4xlarge: {on-demand: \"3\"}}}}}";

/// Runs a command. Returns its stdout and stderr.
async fn setu(kubeconfig: &str, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
    command.args(arguments).args(["--controller-name", &scenario::controller_name_of(ID)]);
    command.env("KUBECONFIG", kubeconfig).env_remove("KUBERNETES_SERVICE_HOST").env_remove("SETU_CONFIG");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

/// Checks that every command shows this cost, and the source of its prices.
async fn costs(kubeconfig: &str, more: &[&str], money: &str, by: &str) {
    let (explained, _) = setu(kubeconfig, &[&["explain", "train", "-n", ID], more].concat()).await;
    assert!(explained.contains(&format!("2/2 ready, {money} an hour by {by}\n")), "{explained}");
    let (listed, stderr) = setu(kubeconfig, &[&["inspect", "-n", ID, "-o", "wide"], more].concat()).await;
    assert!(listed.contains(&format!("  {money}  ")), "{listed}");
    assert!(stderr.contains(&format!("PER HOUR is by {by}")), "{stderr}");
    let (summed, _) = setu(kubeconfig, &[&["top"], more].concat()).await;
    assert!(summed.contains(&format!("   {money}\n\nPER HOUR is by {by}.\n")), "{summed}");
}

fn scratch(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("setu-prices-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn node_costs_follow_the_policy_of_the_check_and_name_their_source() {
    let (mut cluster, admin) = world::cluster(ID, world::policy(POLICY));
    let class = json!({"spec": {"template": {"spec": {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": ID},
    }}}});
    admin.merge(&kinds::NODE_POOL, "", ID, &class).unwrap();
    let euros = json!({"gates": {"budget": {"currency": "EUR", "multiplier": {"g5": "0.5"}}}});
    world::parameters(&admin, ID, &euros);
    let _setu = cluster.start_setu(&Start::default());
    admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
    while !admin.list(&kinds::WORKLOAD).iter().any(|workload| world::is(workload, "Admitted")) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(http::serve(cluster.server.clone(), listener, CancellationToken::new()));
    let kubeconfig = scratch("kubeconfig", &http::kubeconfig(address));
    let head = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
    let config = scratch("policy.yaml", &format!("{head}{POLICY}"));
    let (at, config_path) = (kubeconfig.to_str().unwrap(), config.to_str().unwrap());

    // Twice half of the list price of 1.624, and twice the 3 in the file.
    costs(at, &[], "1.63 EUR", "the check's ProvisioningParameters").await;
    costs(at, &["--config", config_path], "6 EUR", "the check's policy").await;
    let board = cluster.board()().unwrap();
    let entry: Vec<Value> = board.gangs.values().map(|noted| json!(*noted.entry)).collect();
    assert_eq!((&entry[0]["costPerHour"], &entry[0]["currency"]), (&json!("6"), &json!("EUR")));
    admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &json!({"spec": {"gates": null}})).unwrap();
    costs(at, &[], "3.25 USD", "list prices").await;
    let in_zone = |zone: &str| priced(["g5.4xlarge", "on-demand", zone], 2);
    let live = served(["us-east-1a", "us-east-1b"].map(in_zone).concat());
    costs(at, &["--karpenter-metrics", &live], "4 USD", "Karpenter's metrics").await;
    let broken = served("<html>".to_owned());
    costs(at, &["--karpenter-metrics", &broken], "3.25 USD", "list prices").await;
    let (_, stderr) = setu(at, &["top", "--karpenter-metrics", &broken]).await;
    assert!(stderr.contains("prices and availability come from elsewhere"), "{stderr}");
    for path in [kubeconfig, config] {
        std::fs::remove_file(path).unwrap();
    }
}
