//! In a cluster with missing parts, Setu stays up, is not ready, and reports what to do.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "scenarios/setu.rs"]
mod setu;

use setu::Setu;
use setu_e2e::{Stack, StackOptions, StackScope};
use std::path::Path;
use std::time::{Duration, Instant};

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// Waits until `/readyz` contains all of `words`.
async fn wait_for_readyz(setu: &mut Setu, words: &[&str]) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        assert!(setu.ended().unwrap().is_none(), "Setu ended:\n{}", setu.log_tail(20));
        let said = setu.get("probes", "/readyz").unwrap_or_default();
        if words.iter().all(|word| said.contains(word)) {
            assert!(said.starts_with("HTTP/1.1 503"), "{said}");
            return;
        }
        assert!(Instant::now() < deadline, "not {words:?} but:\n{said}");
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
    wait_for_readyz(
        &mut setu,
        &["workloads: ", "does not serve workloads: install Kueue", "nodeclaims: install Karpenter"],
    )
    .await;
    let nobody = stack.folder().join("nobody");
    without_user(stack.kubeconfig(), &nobody);
    let mut setu = Setu::new(&nobody, "e2e.setu/nobody", POLICY, &stack.folder().join("denied")).unwrap();
    setu.start(None).unwrap();
    wait_for_readyz(&mut setu, &["grant this ServiceAccount get, list and watch on nodes"]).await;
    drop(setu);
    stack.stop();
}
