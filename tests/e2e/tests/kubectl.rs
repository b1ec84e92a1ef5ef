//! The ordinary kubectl on the embedded API server: what people will type, and what they should see.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use setu::clock::Clock;
use setu::sim::api::{ApiServer, Options, kinds};
use setu_e2e::programs;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than any kubectl needs for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An embedded server behind a port, and kubectl that knows no other.
struct Served {
    server: ApiServer,
    address: String,
    kubectl: PathBuf,
    /// kubectl's own cache of what a server serves.
    home: TempDir,
    stop: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start() -> Self {
        let kubectl = programs::kubectl(&setu_e2e::Layout::default()).unwrap();
        let server = ApiServer::new(Options { seed: 7, clock: Clock::wall(), replicas: 1, history: 1000 });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(setu::sim::http::serve(server.clone(), listener, stop.clone()));
        Self { server, address, kubectl, home: TempDir::new().unwrap(), stop, serving }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        command.current_dir(root).env("HOME", self.home.path()).env("KUBECONFIG", "/dev/null");
        command.args(["--server", &self.address]).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn output(&self, arguments: &[&str]) -> Output {
        let output = tokio::time::timeout(PATIENCE, self.command(arguments).output());
        output.await.unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end")).unwrap()
    }

    /// What kubectl prints; it must succeed and complain about nothing.
    async fn says(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments).await;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if std::env::var_os("SETU_SHOW").is_some() {
            println!("$ kubectl {}\n{out}{err}", arguments.join(" "));
        }
        assert!(output.status.success(), "kubectl {arguments:?}: {out}{err}");
        out
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("serving does not end").unwrap().unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn show() {
    let served = Served::start().await;
    let s = &served;
    for line in [
        "version",
        "api-resources",
        "get nodes",
        "get workloads -A",
        "apply --validate=false -f examples/setup",
        "apply -f examples/setup",
        "apply --validate=false -f examples/gang-of-four.yaml",
        "get jobs -A",
        "get jobs -A -o wide",
        "get all -A",
        "get provparams,nodepools,cq,lq,ac,rf -A",
        "describe job",
        "explain workloads",
        "get crd",
        "annotate job --all x=y -n default",
        "label nodepool --all x=y",
        "get nodepools -l x=y -o wide",
        "get nodepool -o yaml",
        "patch nodepool spot --type merge -p {\"spec\":{\"weight\":3}}",
        "delete nodepool --all",
        "get events -A",
        "get nonsense",
        "get pod nonsense",
        "create configmap x --from-literal=a=b",
        "edit configmap x --output-patch=false",
        "get cm x -o jsonpath={.data.a}",
        "describe cm x",
        "auth can-i get pods",
        "cluster-info",
        "get --raw /readyz",
        "replace --force -f examples/gang-of-four.yaml",
        "diff -f examples/gang-of-four.yaml",
        "top nodes",
        "apply --server-side -f examples/gang-of-four.yaml",
        "wait --for=condition=Ready nodepool/x --timeout=1s",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let output = s.output(&arguments).await;
        println!("$ kubectl {line}\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    served.stop().await;
}
