//! Runs the commands in the documents that need a cluster, unchanged, in the order in which a new user reads them.
//! Only the name of a Workload and the address of Setu are filled in.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "../scenarios/setu.rs"]
mod setu;
mod typed;

use ::setu::names;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use setu::Setu;
use setu_e2e::{HarnessLayout, KUEUE_NAMESPACE, Stack, StackJobKinds, StackOptions, apply, programs};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use typed::{FIRST_GANG, INSTALL, SECTIONS, lines, section, shown};

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// The job in the documents' examples, in both namespaces that they use.
const TRAIN: &str = r"
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team-a, namespace: team-a}
spec: {clusterQueue: training}
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A terminal with an additional folder at the front of the PATH, and the cluster's kubeconfig.
struct Terminal {
    stack: Stack,
    path: String,
    typed: usize,
}

impl Terminal {
    async fn open() -> Self {
        let layout = HarnessLayout::default();
        let stack = Stack::start(StackOptions { job_kinds: StackJobKinds::Sets, ..StackOptions::default() })
            .await
            .unwrap();
        let kubectl = programs::kubectl(&layout).unwrap();
        let folder = stack.folder().join("path");
        std::fs::create_dir_all(&folder).unwrap();
        let setu = setu::binary().unwrap().canonicalize().unwrap();
        let helm = layout.bin().join("helm");
        for (program, name) in
            [(&setu, "setu"), (&setu, "kubectl-setu"), (&helm, "helm"), (&kubectl, "kubectl")]
        {
            std::os::unix::fs::symlink(program, folder.join(name)).unwrap();
        }
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        Self { stack, path, typed: 0 }
    }

    async fn run(&self, line: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(root());
        command.env("PATH", &self.path).env("KUBECONFIG", self.stack.kubeconfig());
        command.env("HOME", self.stack.folder());
        // The default ports of `setu run` may be taken on this machine.
        command.env("SETU_METRICS_BIND_ADDRESS", "127.0.0.1:0");
        command.env("SETU_HEALTH_PROBE_BIND_ADDRESS", "127.0.0.1:0");
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Runs a line, which must succeed, with output unless that goes to a file. A watch must produce output until it is stopped.
    async fn types(&mut self, line: &str) -> String {
        let keeps_running =
            ["--watch", "-w", "setu run"].iter().any(|part| format!("{line} ").contains(&format!("{part} ")));
        let output =
            if keeps_running { self.run(&format!("timeout 5 {line}")).await } else { self.run(line).await };
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // `timeout` exits with 124 when it stopped the command.
        let expected = if keeps_running { 124 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{line}\n{out}{err}");
        let is_quiet =
            ["setu run", "chmod"].iter().any(|start| line.starts_with(start)) || line.contains(" > ");
        assert!(!out.is_empty() || is_quiet, "{line} says nothing: {err}");
        self.typed += 1;
        if std::env::var_os("SETU_SHOW").is_some() {
            println!("$ {line}\n{out}{err}");
        }
        out.into_owned()
    }

    async fn types_all(&mut self, place: (&str, &str), setu: &Setu) {
        let workload = self.run("kubectl get workloads -o name | grep train").await;
        let workload = String::from_utf8(workload.stdout).unwrap();
        let name = workload.trim().rsplit('/').next().unwrap().to_owned();
        let probes = setu.address("probes").unwrap();
        for line in lines(place) {
            self.types(&line.replace("NAME", &name).replace("SETU:8081", &probes)).await;
        }
    }
}

/// The README's lines that install Setu and wait for it. This chart stands in for a released one.
fn install_lines() -> [String; 2] {
    let here = |line: String| match line.split_once("oci://") {
        Some((before, released)) => {
            let (_, after) = released.split_once(' ').unwrap();
            format!("{before}charts/setu --set image.repository=setu {after}")
        }
        None => line,
    };
    let lines = section(INSTALL).into_iter().filter(|line| !line.starts_with("docker "));
    lines.map(here).collect::<Vec<_>>().try_into().unwrap()
}

/// Runs the README's install line with helm over objects that kubectl applied, without changing anything. Helm refuses
/// objects it does not own, and accepts the values that the quickstart names for this case.
async fn helm_over_what_kubectl_applied(terminal: &mut Terminal, install: &str) {
    let quickstart = std::fs::read_to_string(root().join("docs/quickstart.md")).unwrap();
    let (_, section) = quickstart.split_once("\n## Into a cluster of your own\n").unwrap();
    let (_, set) = section.split_once("`--set ").unwrap();
    let values = set.split('`').next().unwrap();
    let dry = format!("{install} --dry-run=server");
    terminal.types("kubectl apply -f examples/setup").await;
    let refused = terminal.run(&dry).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("invalid ownership metadata"), "{said}");
    terminal.types(&format!("{dry} --set {values}")).await;
    terminal.types("kubectl delete -f examples/setup --timeout=60s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_commands_work_for_a_new_user() {
    let mut terminal = Terminal::open().await;
    let client = terminal.stack.client().unwrap();
    let [install, wait] = install_lines();
    helm_over_what_kubectl_applied(&mut terminal, &install).await;
    terminal.types(&install).await;
    // No kubelet starts containers here, so the Deployment must not cause nodes, and the test starts Setu itself.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), KUEUE_NAMESPACE);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch("setu", &PatchParams::default(), &none).await.unwrap();
    let kubeconfig = terminal.stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
    let folder = terminal.stack.folder().join("setu");
    let mut setu = Setu::new(&kubeconfig, names::CONTROLLER_NAME, POLICY, &folder).unwrap();
    setu.start(None).unwrap();
    terminal.types(&wait).await;

    // `just cluster` does this before it reports that it is ready.
    apply::path(&client, &root().join("examples/setup")).await.unwrap();
    for line in lines(FIRST_GANG) {
        let said = terminal.types(&line).await;
        assert!(said.contains("gang-of-four"), "{line}\n{said}");
    }
    let job = std::fs::read_to_string(root().join("examples/gang-of-four.yaml")).unwrap();
    let job = job.replace("gang-of-four", "train").replace("run-for: 20s", "run-for: 10m");
    let elsewhere = job.replace("namespace: default", "namespace: team-a");
    apply::yaml(&client, &format!("{TRAIN}---\n{elsewhere}---\n{job}")).await.unwrap();
    terminal.types("kubectl wait job/train --for=jsonpath='{.status.active}'=4 --timeout=60s").await;
    for place in SECTIONS {
        terminal.types_all(place, &setu).await;
    }
    let completed = terminal.types("kubectl __complete setu ins").await;
    assert_eq!(completed.lines().next(), Some("inspect"), "{completed}");
    assert!(terminal.typed > 20, "{} commands", terminal.typed);
    drop(setu);
    for document in ["README.md", "docs/quickstart.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for line in shown(&text).iter().filter(|line| line.starts_with("setu run")) {
            terminal.types(line).await;
        }
    }
    terminal.stack.stop();
}
