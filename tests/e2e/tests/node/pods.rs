//! Setu's pods on the node. Their processes are also processes of the host, which inspects them.

use crate::cannot;
use crate::release::Release;
use crate::surroundings::NAMESPACE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::node;
use std::path::{Path, PathBuf};

impl Release {
    pub fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.stack.client().unwrap(), NAMESPACE)
    }

    async fn setu_pods(&self) -> Vec<Pod> {
        let of_setu = ListParams::default().labels("app.kubernetes.io/name=setu");
        self.pod_api().list(&of_setu).await.unwrap().items
    }

    /// The replicas that are not being deleted.
    pub async fn replicas(&self) -> Vec<Pod> {
        self.setu_pods().await.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// The id on the host of a replica's process.
    pub async fn process(&self, pod: &str) -> u32 {
        let pod = self.pod_api().get(pod).await.unwrap();
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        self.stack.container_process(&status.container_id.unwrap()).unwrap()
    }

    /// Checks that there are so many replicas, that all are Ready, and what each process may do.
    pub async fn are_ready_and_restricted(&self, replicas: usize) {
        self.until("old pods are gone", async || self.setu_pods().await.len() == replicas).await;
        for pod in self.replicas().await {
            let name = pod.name_any();
            let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
            assert_eq!(spec.node_name.as_deref(), Some(node::NAME), "{name}");
            assert_eq!(status.phase.as_deref(), Some("Running"), "{name}");
            let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
            assert_eq!(ready.status, "True", "{name}: {:?}", ready.message);
            let container = status.container_statuses.unwrap().remove(0);
            assert_eq!(container.restart_count, 0, "{name} was restarted: {:?}", container.last_state);
            let process = self.process(&name).await;
            is_restricted(process);
            has_its_token(process, &name, spec.service_account_name.as_deref().unwrap());
        }
        // The namespace's profile does refuse a pod with fewer restrictions.
        let asked = json!({
            "metadata": {"name": "of-the-host"},
            "spec": {"hostNetwork": true, "containers": [{"name": "main", "image": "setu"}]},
        });
        let dry_run = PostParams { dry_run: true, field_manager: None };
        let refused = self.pod_api().create(&dry_run, &serde_json::from_value(asked).unwrap()).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("violates PodSecurity \"restricted"), "{refused}");
    }

    /// Checks the logs that are there: no right was missing, and nothing panicked.
    pub async fn logs_are_clean(&self) {
        for pod in self.replicas().await {
            let log = self.stack.pod_logs(NAMESPACE, &pod.name_any(), "setu").unwrap();
            assert!(!log.is_empty(), "{} has no log", pod.name_any());
            for word in ["Forbidden", "forbidden", "panicked"] {
                let line = log.lines().find(|line| line.contains(word));
                assert_eq!(line, None, "in the log of {}", pod.name_any());
            }
        }
    }

    /// Lowers the memory limit of a replica's container to what it uses, until the kernel kills the process.
    pub async fn runs_out_of_memory(&self, pod: &str) -> bool {
        let process = self.process(pod).await;
        let Some((used, limit)) = memory_files(process) else {
            cannot("oom", "this machine has no memory controller for control groups");
            return false;
        };
        let alive = || Path::new(&format!("/proc/{process}/root")).exists();
        self.until("the kernel kills the process", async || {
            let bytes: u64 = std::fs::read_to_string(&used).unwrap_or_default().trim().parse().unwrap_or(0);
            // The write fails while more is in use, or if the process is already gone.
            let _ = std::fs::write(&limit, bytes.saturating_sub(1 << 20).to_string());
            let _ = std::fs::write(&limit, bytes.to_string());
            !alive()
        })
        .await;
        true
    }
}

/// The files with what the process's control group uses and may use, in version 2 or version 1.
fn memory_files(process: u32) -> Option<(PathBuf, PathBuf)> {
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let one = |name: &str| groups.lines().find_map(|line| line.split_once(name).map(|(_, path)| path));
    let (folder, used, limit) = match one(":memory:") {
        Some(path) => {
            (format!("/sys/fs/cgroup/memory{path}"), "memory.usage_in_bytes", "memory.limit_in_bytes")
        }
        None => (format!("/sys/fs/cgroup{}", one("0::")?), "memory.current", "memory.max"),
    };
    let folder = PathBuf::from(folder);
    let limit = folder.join(limit);
    limit.exists().then(|| (folder.join(used), limit))
}

/// Checks the user, the capabilities and the file system of a process.
fn is_restricted(process: u32) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    for line in [
        "Uid:\t65532\t65532\t65532\t65532",
        "Gid:\t65532\t65532\t65532\t65532",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.lines().any(|shown| shown == line), "no {line:?} in\n{status}");
    }
    let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let options = |place: &str| {
        let of_place = |line: &&str| line.split(' ').nth(4) == Some(place);
        mounts.lines().find(of_place).and_then(|line| line.split(' ').nth(5)).map(str::to_owned)
    };
    for place in ["/", "/etc/setu", "/var/run/secrets/kubernetes.io/serviceaccount"] {
        let read_only = options(place).is_some_and(|options| options.split(',').any(|option| option == "ro"));
        assert!(read_only, "{place} can be written to\n{mounts}");
    }
}

/// Checks that the process's token is one that the kubelet has asked for, for this pod and a limited time.
fn has_its_token(process: u32, pod: &str, account: &str) {
    let path = format!("/proc/{process}/root/var/run/secrets/kubernetes.io/serviceaccount/token");
    let token = std::fs::read_to_string(path).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["sub"], format!("system:serviceaccount:{NAMESPACE}:{account}"));
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], pod);
    assert_eq!(claims["kubernetes.io"]["node"]["name"], node::NAME);
    // The kubelet requests this lifetime. The API server accepts the token for longer, for clients that never reread it.
    let life = claims["kubernetes.io"]["warnafter"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
    assert_eq!(life, 3607, "{claims}");
}
