//! Runs an ordinary kubectl against the embedded API server, and checks what users see.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod demo;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use setu_clock::Clock;
use setu_e2e::programs;
use setu_sim::api::{ApiServer, ServerOptions, kinds};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than any kubectl command takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An embedded server on a port, and a kubectl that knows no other server.
struct Served {
    server: ApiServer,
    address: String,
    kubectl: PathBuf,
    /// The folder of kubectl's discovery cache.
    home: TempDir,
    stop: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start() -> Self {
        let kubectl = programs::kubectl(&setu_e2e::HarnessLayout::default()).unwrap();
        let server =
            ApiServer::new(ServerOptions { seed: 7, clock: Clock::wall(), replicas: 1, history: 1000 });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(setu_sim::http::serve(server.clone(), listener, stop.clone()));
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
        let output = tokio::time::timeout(TIMEOUT, self.command(arguments).output());
        output.await.unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end")).unwrap()
    }

    /// The output of kubectl, which must succeed.
    async fn prints(&self, arguments: &[&str]) -> String {
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
        tokio::time::timeout(TIMEOUT, self.serving).await.expect("serving does not end").unwrap().unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The table of a `kubectl get`, with ages in seconds replaced by `AGE`.
fn ageless(table: &str) -> String {
    let age = |word: &str| {
        word.strip_suffix('s').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let line = |line: &str| {
        let words: Vec<&str> =
            line.split_whitespace().map(|word| if age(word) { "AGE" } else { word }).collect();
        words.join(" ")
    };
    table.lines().map(line).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Creates a gang with one of its two nodes.
fn half_a_gang(server: &ApiServer) {
    let admin = server.user("admin");
    let create = |kind, object: Value| admin.create(kind, object).unwrap();
    let template = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(
        &kinds::WORKLOAD,
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "train", "namespace": "default", "labels": {"team": "a"}},
            "spec": {"queueName": "team-a", "podSets": [{"name": "main", "count": 2, "template": template}]},
        }),
    );
    for (name, node) in [("train-0", "node-0"), ("train-1", "")] {
        create(
            &kinds::NODE_CLAIM,
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {"name": name, "labels": {
                    "node.kubernetes.io/instance-type": "g5.4xlarge", "karpenter.sh/capacity-type": "on-demand",
                    "topology.kubernetes.io/zone": "zone-a",
                }},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                    "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}],
                },
            }),
        );
        let ready = if node.is_empty() { "Unknown" } else { "True" };
        let status = json!({"status": {"nodeName": node, "conditions": [condition("Ready", ready)]}});
        admin.merge_status(&kinds::NODE_CLAIM, "", name, &status).unwrap();
    }
    create(&kinds::NODE, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"}}));
    let status = json!({"status": {
        "conditions": [condition("Ready", "True")], "nodeInfo": {"kubeletVersion": "v1.36.3"},
    }});
    admin.merge_status(&kinds::NODE, "", "node-0", &status).unwrap();
}

fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Test", "message": "set by the test",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    })
}

/// An event about the gang.
fn event(server: &ApiServer, name: &str, reason: &str) -> Value {
    let gang = server.user("admin").get(&kinds::WORKLOAD, "default", "train").unwrap();
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "eventTime": format!("{:.6}", jiff::Timestamp::now()), "reportingController": "setu", "reportingInstance": "one",
        "action": "Provision", "reason": reason, "type": "Normal", "note": "2 NodeClaims were created",
        "regarding": {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "namespace": "default", "name": "train",
            "uid": gang["metadata"]["uid"],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn api_resources_have_the_names_of_a_real_cluster() {
    let served = Served::start().await;
    let kinds = served.prints(&["api-resources", "--no-headers"]).await;
    let kinds: Vec<String> = kinds.lines().map(ageless).collect();
    for kind in [
        "workloads kwl,kueueworkload,kueueworkloads kueue.x-k8s.io/v1beta2 true Workload",
        "nodeclaims karpenter.sh/v1 false NodeClaim",
        "provisioningparameters provparams setu.kueue.x-k8s.io/v1alpha1 false ProvisioningParameters",
        "pods po v1 true Pod",
        "events ev v1 true Event",
        "events ev events.k8s.io/v1 true Event",
        "jobs batch/v1 true Job",
    ] {
        assert!(kinds.iter().any(|line| line == kind), "{kind:?} is not among {kinds:#?}");
    }
    assert!(served.prints(&["version"]).await.contains("Server Version: v1.36"));
    assert_eq!(served.prints(&["get", "--raw", "/readyz"]).await, "ok");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_have_the_columns_of_a_real_cluster() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    let table = served.prints(&["get", "workloads,nodeclaims,nodes", "-A"]).await;
    assert_eq!(
        ageless(&table),
        "NAMESPACE NAME QUEUE RESERVED IN ADMITTED FINISHED AGE\n\
         default workload.kueue.x-k8s.io/train team-a AGE\n\
         \n\
         NAMESPACE NAME TYPE CAPACITY ZONE NODE READY AGE\n\
         nodeclaim.karpenter.sh/train-0 g5.4xlarge on-demand zone-a node-0 True AGE\n\
         nodeclaim.karpenter.sh/train-1 g5.4xlarge on-demand zone-a Unknown AGE\n\
         \n\
         NAMESPACE NAME STATUS ROLES AGE VERSION\n\
         node/node-0 Ready <none> AGE v1.36.3"
    );
    let wide = served.prints(&["get", "nodeclaim", "train-0", "-o", "wide"]).await;
    assert_eq!(
        ageless(&wide),
        "NAME TYPE CAPACITY ZONE NODE READY AGE IMAGEID ID NODEPOOL NODECLASS DRIFTED\n\
         train-0 g5.4xlarge on-demand zone-a node-0 True AGE default"
    );
    let yaml = served.prints(&["get", "workload", "train", "-o", "yaml"]).await;
    for line in ["apiVersion: kueue.x-k8s.io/v1beta2", "kind: Workload", "  queueName: team-a"] {
        assert!(yaml.lines().any(|found| found == line), "{line:?} is not in\n{yaml}");
    }
    assert!(!yaml.contains("managedFields"), "kubectl hides who manages what unless it is asked:\n{yaml}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_show_the_gangs_of_the_chart_and_of_the_demo() {
    let served = Served::start().await;
    let admin = served.server.user("admin");
    for check in ["karpenter-provision", "demo", "another"] {
        let state = format!("state.setu.kueue.x-k8s.io/{check}");
        admin
            .create(
                &kinds::WORKLOAD,
                json!({
                    "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                    "metadata": {"name": check, "namespace": "default", "annotations": {state: "WaitingReady: 1/2 nodes ready"}},
                    "spec": {"queueName": "team-a", "podSets": []},
                }),
            )
            .unwrap();
    }
    let message = json!({"status": {"admissionChecks": [
        {"name": "demo", "state": "Pending", "message": "1/2 nodes ready; slot 1 waits for launch", "lastTransitionTime": "2026-01-02T03:04:05Z"},
    ]}});
    admin.merge_status(&kinds::WORKLOAD, "default", "demo", &message).unwrap();
    let table =
        served.prints(&["get", "workloads", "-A", "-o", "custom-columns-file=examples/columns.txt"]).await;
    assert_eq!(
        ageless(&table),
        "NAMESPACE WORKLOAD QUEUE STATE PROGRESS\n\
         default another team-a <none> <none>\n\
         default demo team-a WaitingReady: 1/2 nodes ready 1/2 nodes ready; slot 1 waits for launch\n\
         default karpenter-provision team-a WaitingReady: 1/2 nodes ready <none>"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_changed_and_deleted_as_on_a_real_cluster() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    let admin = served.server.user("admin");
    let workload = || admin.get(&kinds::WORKLOAD, "default", "train").unwrap();

    served.prints(&["annotate", "workload", "train", "note=first"]).await;
    served.prints(&["annotate", "workload", "train", "note=second", "--overwrite"]).await;
    assert_eq!(workload()["metadata"]["annotations"]["note"], "second");
    served.prints(&["label", "workloads", "--all", "-A", "team-"]).await;
    assert_eq!(workload()["metadata"].get("labels"), None);
    served
        .prints(&["patch", "workload", "train", "--type=merge", "-p", r#"{"spec":{"active":false}}"#])
        .await;
    assert_eq!(workload()["spec"]["active"], false);
    let json = r#"[{"op":"test","path":"/spec/active","value":false},{"op":"remove","path":"/spec/active"}]"#;
    served.prints(&["patch", "workload", "train", "--type=json", "-p", json]).await;
    served.prints(&["label", "node", "node-0", "pool=gpu"]).await;
    assert_eq!(served.prints(&["get", "nodes", "-l", "pool=gpu", "-o", "name"]).await, "node/node-0\n");

    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    admin.merge(&kinds::WORKLOAD, "default", "train", &hold).unwrap();
    let mut waiting = served.command(&["delete", "workload", "train", "--wait"]).spawn().unwrap();
    tokio::time::timeout(TIMEOUT, async {
        while workload()["metadata"].get("deletionTimestamp").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("kubectl did not ask for the deletion");
    assert_eq!(waiting.try_wait().unwrap(), None, "kubectl did not wait for the finalizer");
    admin.merge(&kinds::WORKLOAD, "default", "train", &json!({"metadata": {"finalizers": null}})).unwrap();
    assert!(tokio::time::timeout(TIMEOUT, waiting.wait()).await.unwrap().unwrap().success());
    assert!(admin.get(&kinds::WORKLOAD, "default", "train").is_none());
    served.prints(&["delete", "nodeclaims", "--all"]).await;
    assert!(admin.list(&kinds::NODE_CLAIM).is_empty());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_can_be_applied_twice() {
    let served = Served::start().await;
    let setup = ["apply", "-f", "examples/setup"];
    let first = served.prints(&[&setup[..], &["--validate=false"]].concat()).await;
    assert!(first.lines().count() > 5 && first.lines().all(|line| line.ends_with(" created")), "{first}");
    let again = served.prints(&setup).await;
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    let gang = served.prints(&["apply", "--validate=false", "-f", "examples/gang-of-four.yaml"]).await;
    assert_eq!(gang, "job.batch/gang-of-four created\n");
    assert_eq!(served.prints(&["diff", "-f", "examples/gang-of-four.yaml"]).await, "");
    let side = served
        .prints(&["apply", "--server-side", "-f", "examples/setup/queues.yaml", "--force-conflicts"])
        .await;
    assert!(side.contains("clusterqueue.kueue.x-k8s.io/training serverside-applied"), "{side}");
    let jobs = served.prints(&["get", "jobs", "-A", "-o", "wide"]).await;
    assert!(ageless(&jobs).contains("default gang-of-four Running 0/4 AGE train busybox"), "{jobs}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_shows_an_object_and_its_events() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    served
        .server
        .user("setu")
        .create(&kinds::EVENT, event(&served.server, "train.1", "Provisioning"))
        .unwrap();
    let described = ageless(&served.prints(&["describe", "workload", "train"]).await);
    for line in
        ["Name: train", "Namespace: default", "Labels: team=a", "Queue Name: team-a", "Kind: Workload"]
    {
        assert!(described.lines().any(|found| found == line), "{line:?} is not in\n{described}");
    }
    assert!(described.ends_with("Normal Provisioning AGE setu 2 NodeClaims were created"), "{described}");
    let node = served.prints(&["describe", "node", "node-0"]).await;
    assert!(node.contains("Kubelet Version:"), "{node}");
    served.stop().await;
}

/// The lines of a kubectl that runs until it is dropped.
struct Following {
    lines: Lines<BufReader<ChildStdout>>,
    _kubectl: Child,
}

impl Following {
    fn start(served: &Served, arguments: &[&str]) -> Self {
        let mut kubectl = served.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(kubectl.stdout.take().unwrap()).lines();
        Self { lines, _kubectl: kubectl }
    }

    async fn next(&mut self) -> String {
        let line = tokio::time::timeout(TIMEOUT, self.lines.next_line()).await;
        ageless(&line.expect("kubectl says nothing").unwrap().expect("kubectl ended"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_changes_immediately() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    let admin = served.server.user("admin");
    let mut claims = Following::start(&served, &["get", "nodeclaims", "-w"]);
    for line in [
        "NAME TYPE CAPACITY ZONE NODE READY AGE",
        "train-0 g5.4xlarge on-demand zone-a node-0 True AGE",
        "train-1 g5.4xlarge on-demand zone-a Unknown AGE",
    ] {
        assert_eq!(claims.next().await, line);
    }
    let ready = json!({"status": {"nodeName": "node-1", "conditions": [condition("Ready", "True")]}});
    admin.merge_status(&kinds::NODE_CLAIM, "", "train-1", &ready).unwrap();
    assert_eq!(claims.next().await, "train-1 g5.4xlarge on-demand zone-a node-1 True AGE");

    let mut events = Following::start(&served, &["get", "events", "-w"]);
    admin.create(&kinds::EVENT, event(&served.server, "train.1", "Provisioning")).unwrap();
    assert_eq!(events.next().await, "LAST SEEN TYPE REASON OBJECT MESSAGE");
    assert_eq!(events.next().await, "AGE Normal Provisioning workload/train 2 NodeClaims were created");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_found_by_their_object() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    let admin = served.server.user("admin");
    admin.create(&kinds::EVENT, event(&served.server, "train.1", "Provisioning")).unwrap();
    assert_eq!(
        ageless(&served.prints(&["events", "--for", "workload/train"]).await),
        "LAST SEEN TYPE REASON OBJECT MESSAGE\n\
         AGE Normal Provisioning Workload/train 2 NodeClaims were created"
    );
    let by = |fields: &'static str| ["get", "events", "-o", "name", "--field-selector", fields];
    for (fields, found) in [
        ("involvedObject.apiVersion=kueue.x-k8s.io/v1beta2,reportingComponent=setu", "event/train.1\n"),
        ("source=setu,reason=Provisioning", "event/train.1\n"),
        ("involvedObject.apiVersion=batch/v1", ""),
        ("source=kueue", ""),
    ] {
        assert_eq!(served.prints(&by(fields)).await, found, "{fields}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_condition_ends_when_it_holds() {
    let served = Served::start().await;
    half_a_gang(&served.server);
    let admin = served.server.user("admin");
    let arguments = ["wait", "--for=condition=Ready", "nodeclaims", "--all", "--timeout=30s"];
    let waiting = served.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let ready = json!({"status": {"conditions": [condition("Ready", "True")]}});
    admin.merge_status(&kinds::NODE_CLAIM, "", "train-1", &ready).unwrap();
    let output = tokio::time::timeout(TIMEOUT, waiting.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(
        text(&output.stdout),
        "nodeclaim.karpenter.sh/train-0 condition met\nnodeclaim.karpenter.sh/train-1 condition met\n"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_objects_give_the_errors_of_a_real_cluster() {
    let served = Served::start().await;
    for (arguments, said) in [
        (&["get", "pod", "nonsense"][..], "Error from server (NotFound): pods \"nonsense\" not found"),
        (&["get", "nonsense"], "error: the server doesn't have a resource type \"nonsense\""),
        (&["explain", "workloads"], "not found in OpenAPI schema"),
    ] {
        let output = served.output(arguments).await;
        assert_eq!(output.status.code(), Some(1), "kubectl {arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(said), "kubectl {arguments:?}: {error}");
    }
    assert_eq!(text(&served.output(&["get", "workloads", "-A"]).await.stderr), "No resources found\n");
    served.stop().await;
}
