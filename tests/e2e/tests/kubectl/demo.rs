//! Runs an ordinary kubectl against the cluster of `setu demo --serve`, in which Setu reacts to the changes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use setu_e2e::programs;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::{TIMEOUT, text};

/// A served demo, and a kubectl without other configuration.
struct Demo {
    address: String,
    kubectl: PathBuf,
    home: TempDir,
    _setu: Child,
}

impl Demo {
    async fn start() -> Self {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/e2e/setu/debug/setu");
        let setu = std::env::var_os("SETU_BIN").map_or(built, PathBuf::from);
        let mut setu = Command::new(&setu)
            .args(["demo", "--serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}; `just e2e` builds it", setu.display()));
        let mut lines = BufReader::new(setu.stdout.take().unwrap()).lines();
        let address = tokio::time::timeout(TIMEOUT, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the demo ended");
                if let Some((_, rest)) = line.split_once("--server ") {
                    return rest.split(' ').next().unwrap_or_default().to_owned();
                }
            }
        });
        let address = address.await.expect("the demo does not serve");
        // Drains the output, so that the demo does not block.
        tokio::spawn(async move { while lines.next_line().await.is_ok_and(|line| line.is_some()) {} });
        let kubectl = programs::kubectl(&setu_e2e::HarnessLayout::default()).unwrap();
        Self { address, kubectl, home: TempDir::new().unwrap(), _setu: setu }
    }

    /// The output of kubectl, which must succeed.
    async fn prints(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.kubectl);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        command.env("HOME", self.home.path()).env("KUBECONFIG", "/dev/null").stdin(Stdio::null());
        command.args(["--server", &self.address]).args(arguments).kill_on_drop(true);
        let output = tokio::time::timeout(TIMEOUT, command.output());
        let output = output.await.unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end")).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {out}{err}");
        out
    }

    /// The output within five seconds of a kubectl command that runs until it is stopped.
    async fn prints_for_a_while(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("5").arg(&self.kubectl).args(["--server", &self.address]).args(arguments);
        command.env("HOME", self.home.path()).env("KUBECONFIG", "/dev/null").stdin(Stdio::null());
        let output = command.output().await.unwrap();
        assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Repeats a command until its output meets a condition, and returns the output.
    async fn until(&self, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + 2 * TIMEOUT;
        loop {
            let said = self.prints(arguments).await;
            if wanted(&said) {
                return said;
            }
            assert!(Instant::now() < deadline, "kubectl {arguments:?} still says {said:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The arguments of the kubectl commands in docs/quickstart.md, without the address.
fn shown_in_quickstart() -> [String; 3] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quickstart.md");
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|l| l.strip_prefix("kubectl --server http://127.0.0.1:8080 "));
    lines.map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
}

const WORKLOADS: [&str; 4] = ["get", "workloads", "-n", "default"];

#[tokio::test(flavor = "multi_thread")]
async fn an_applied_gang_gets_nodes_and_a_deleted_gang_releases_them() {
    let demo = Demo::start().await;
    let lines = shown_in_quickstart();
    let [listing, apply, watch] = lines.each_ref().map(|line| line.split(' ').collect::<Vec<_>>());
    demo.prints(&apply).await;
    let of_workload = |path: &'static str| [&WORKLOADS[..], &["-o", path]].concat();
    let state = of_workload("jsonpath={.items[0].status.admissionChecks[0].state}");
    demo.until(&[&WORKLOADS[..], &["-o", "name"]].concat(), |said| !said.is_empty()).await;
    demo.until(&state, |said| said == "Ready").await;
    assert!(demo.prints(&listing).await.contains("nodeclaim"), "{listing:?}");
    let watched = demo.prints_for_a_while(&watch).await;
    assert!(watched.contains("GangReady"), "{watched}");
    let uid = demo.prints(&of_workload("jsonpath={.items[0].metadata.uid}")).await;
    let selector = format!("setu.kueue.x-k8s.io/workload-uid={uid}");
    let claims = ["get", "nodeclaims", "-l", selector.as_str(), "-o", "name"];
    assert_eq!(demo.prints(&claims).await.lines().count(), 4);

    let name = demo.prints(&of_workload("jsonpath={.items[0].metadata.name}")).await;
    let journal = "gang.setu.kueue.x-k8s.io/karpenter-provision";
    let forged = format!("{journal}=nonsense");
    demo.prints(&["annotate", "workload", &name, "-n", "default", "--overwrite", &forged]).await;
    let annotation = of_workload(
        r"jsonpath={.items[0].metadata.annotations.gang\.setu\.kueue\.x-k8s\.io/karpenter-provision}",
    );
    demo.until(&annotation, |said| said.contains(r#""state":"Approved""#)).await;
    assert_eq!(demo.prints(&claims).await.lines().count(), 4, "the nodes are still the gang's");

    demo.prints(&["delete", "job", "gang-of-four"]).await;
    demo.until(&claims, str::is_empty).await;
    let all = demo.prints(&["get", "nodes", "-l", selector.as_str(), "-o", "name"]).await;
    assert_eq!(all, "");
}
