//! Examples applied as they stand to the real control plane and driven to their end: those of kinds that the embedded
//! cluster does not know, and one of each way in which examples differ besides (without a GPU, with queues of its own, a single pod).

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::api::{NodeClaim, Workload};
use ::setu::names;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use setu::Setu;
use setu_e2e::{KUEUE_NAMESPACE, Options, Stack, apply};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// File, number of its pods, and whether it ends by itself.
const EXAMPLES: [(&str, usize, bool); 5] = [
    ("jobset.yaml", 5, true),
    ("leader-worker-set.yaml", 4, false),
    ("cpu-gang.yaml", 3, true),
    ("one-zone.yaml", 3, true),
    ("jupyterhub.yaml", 1, true),
];

struct Play {
    client: Client,
    setu: Setu,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Play {
    async fn until(&self, what: &str, mut so: impl AsyncFnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(2);
        while !so(self).await {
            assert!(Instant::now() < deadline, "not so: {what}\n{}", self.setu.log_tail(20));
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// The Nodes of all of Setu's NodeClaims.
    async fn nodes(&self) -> BTreeSet<String> {
        let claims: Api<NodeClaim> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let claims = claims.list(&ours).await.unwrap().items;
        claims.iter().map(|c| c.node_name().unwrap_or_default().to_owned()).collect()
    }

    /// The Node of each pod that runs.
    async fn used(&self) -> Vec<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        let runs = |p: &Pod| p.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
        pods.into_iter().filter(runs).filter_map(|p| p.spec?.node_name).collect()
    }

    async fn comes_to_its_end(&self, file: &str, pods: usize, ends: bool) {
        let text = std::fs::read_to_string(root().join("examples").join(file)).unwrap();
        let mut objects = apply::documents(&text).unwrap();
        let object: Value = objects.pop().unwrap();
        apply::all(&self.client, objects).await.unwrap();
        let stored = apply::one(&self.client, object).await.unwrap();
        self.until(&format!("{file} runs on nodes of its own"), async |play| {
            let used = play.used().await;
            used.len() == pods && used.into_iter().collect::<BTreeSet<_>>() == play.nodes().await
        })
        .await;
        if ends {
            let workloads: Api<Workload> = Api::namespaced(self.client.clone(), "default");
            self.until(&format!("{file} has finished"), async |_| {
                let all = workloads.list(&ListParams::default()).await.unwrap().items;
                !all.is_empty() && all.iter().all(|w| w.is("Finished"))
            })
            .await;
            self.until(&format!("{file} has given its nodes back"), async |p| p.nodes().await.is_empty())
                .await;
        }
        let api = apply::api_for(&self.client, &stored).await.unwrap();
        api.delete(&stored.name_any(), &DeleteParams::foreground()).await.unwrap();
        self.until(&format!("{file} is gone with its nodes"), async |play| {
            api.get_opt(&stored.name_any()).await.unwrap().is_none() && play.nodes().await.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_that_needs_the_real_control_plane_comes_to_its_end_there() {
    let apply = vec![root().join("examples/setup"), root().join("manifests/rbac.yaml")];
    let stack = Stack::start(Options { apply, job_kinds: true, ..Options::default() }).await.unwrap();
    let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
    let folder = stack.folder().join("setu");
    let mut setu = Setu::new(&kubeconfig, names::CONTROLLER_NAME, POLICY, &folder).unwrap();
    setu.start(None).unwrap();
    let play = Play { client: stack.client().unwrap(), setu };
    for (file, pods, ends) in EXAMPLES {
        play.comes_to_its_end(file, pods, ends).await;
    }
    drop(play);
    stack.stop();
}
