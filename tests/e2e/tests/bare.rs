//! In a cluster with missing parts, Setu stays up. It reports what to do before it can work, or what it does not do there.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "scenarios/setu.rs"]
mod setu;

use setu::Setu;
use setu_e2e::{HarnessLayout, Stack, StackOptions, StackScope, definitions, versions};
use std::path::Path;
use std::time::{Duration, Instant};

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// The first answer of `/readyz` with this status that contains all of `words`.
async fn readyz_with(setu: &mut Setu, status: u16, words: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        assert!(setu.ended().unwrap().is_none(), "Setu ended:\n{}", setu.log_tail(20));
        let answer = setu.get("probes", "/readyz").unwrap_or_default();
        let has_status = answer.starts_with(&format!("HTTP/1.1 {status} "));
        if has_status && words.iter().all(|word| answer.contains(word)) {
            return answer;
        }
        assert!(Instant::now() < deadline, "not {status} with {words:?} but:\n{answer}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A copy of a kubeconfig without its user, so that requests are anonymous.
fn without_user(kubeconfig: &Path, to: &Path) {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let mut config: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    config["users"][0]["user"] = serde_json::json!({});
    std::fs::write(to, config.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_names_what_is_missing_or_forbidden_and_the_fix() {
    let stack =
        Stack::start(StackOptions { scope: StackScope::ApiServer, ..StackOptions::default() }).await.unwrap();
    let mut setu =
        Setu::new(stack.kubeconfig(), "e2e.setu/bare", POLICY, &stack.folder().join("bare")).unwrap();
    setu.start(None).unwrap();
    readyz_with(
        &mut setu,
        503,
        &["workloads: ", "does not serve workloads: install Kueue", "nodeclaims: install Karpenter"],
    )
    .await;
    let nobody = stack.folder().join("nobody");
    without_user(stack.kubeconfig(), &nobody);
    let mut setu = Setu::new(&nobody, "e2e.setu/nobody", POLICY, &stack.folder().join("denied")).unwrap();
    setu.start(None).unwrap();
    readyz_with(&mut setu, 503, &["grant this ServiceAccount get, list and watch on nodes"]).await;
    drop(setu);
    stack.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_and_the_log_name_what_setu_does_not_do_where_a_kind_is_not_served() {
    let stack =
        Stack::start(StackOptions { scope: StackScope::ApiServer, ..StackOptions::default() }).await.unwrap();
    definitions::install(&stack.client().unwrap()).await.unwrap();
    let mut setu =
        Setu::new(stack.kubeconfig(), "e2e.setu/bare", POLICY, &stack.folder().join("limited")).unwrap();
    setu = setu.with(&["--provisioning-requests"]);
    setu.start(None).unwrap();
    let answer = readyz_with(&mut setu, 200, &["\nok\n"]).await;
    let layout = HarnessLayout::default();
    let serves_devices = versions::of(&layout).unwrap().has(&layout, "kubernetes", "1.34").unwrap();
    for (limitation, is_expected) in [
        ("ProvisioningRequests are not served", true),
        ("pods with ResourceClaims are refused", !serves_devices),
    ] {
        assert_eq!(answer.contains(limitation), is_expected, "{answer}");
        assert_eq!(setu.log().matches(limitation).count(), usize::from(is_expected), "{}", setu.log());
    }
    drop(setu);
    stack.stop();
}
