//! The reading commands against the embedded API server, with the rights of examples/rbac/setu-viewer.yaml. Each
//! command needs no more than these, and together they need all of them.

use axum::Json;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};
use setu::policy::PolicyFile;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::kinds;
use setu_sim::http as sim_http;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The name of everything.
const ID: &str = "rights";
/// API group and resource.
type Right = (String, String);

/// The rights that the role grants. All its verbs are read-only.
fn granted() -> BTreeSet<Right> {
    let path = format!("{}/examples/rbac/setu-viewer.yaml", env!("CARGO_MANIFEST_DIR"));
    let role: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let words =
        |rule: &Value, key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap() };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        assert!(words(rule, "verbs").iter().all(|verb| ["get", "list", "watch"].contains(&verb.as_str())));
        for group in words(rule, "apiGroups") {
            all.extend(words(rule, "resources").into_iter().map(|resource| (group.clone(), resource)));
        }
    }
    all
}

/// The right that a request to this path needs; `None` if everyone may read it.
fn needed(path: &str) -> Option<Right> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (["namespaces", _, resource, ..] | [resource, ..]) = rest else { return None };
    Some((group.to_owned(), (*resource).to_owned()))
}

/// The rights that were used.
type Asked = Arc<Mutex<BTreeSet<Right>>>;

/// Serves the cluster to a client with these rights. Returns the address.
async fn serve(cluster: &SimCluster, rights: BTreeSet<Right>, asked: Asked) -> SocketAddr {
    serve_where(cluster, move |request| {
        let right = needed(request.uri().path());
        let reads = request.method() == http::Method::GET;
        let may = reads && right.as_ref().is_none_or(|right| rights.contains(right));
        asked.lock().unwrap().extend(right);
        may
    })
    .await
}

/// Serves only those requests to the cluster that `may` allows. Returns the address.
async fn serve_where(
    cluster: &SimCluster,
    may: impl Fn(&Request) -> bool + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let guard = middleware::from_fn(move |request: Request, next: Next| {
        let may = may(&request);
        async move { if may { next.run(request).await } else { forbidden() } }
    });
    let router = sim_http::router(cluster.server.clone(), CancellationToken::new()).layer(guard);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn forbidden() -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
        "reason": "Forbidden", "message": "no",
    });
    (StatusCode::FORBIDDEN, Json(status)).into_response()
}

fn job() -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": "train", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {"spec": {
            "restartPolicy": "Never",
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "persistentVolumeClaim": {"claimName": "scratch"}},
            ],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
            "containers": [{"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}}],
        }}},
    })
}

/// A claim bound to a volume, and one with a StorageClass.
fn storage() -> [(&'static kinds::ServedKind, Value); 4] {
    let claim = |name: &str, spec: Value| {
        let metadata = json!({"namespace": ID, "name": name});
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    };
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let volume =
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {}});
    [
        (&kinds::PERSISTENT_VOLUME, volume),
        (&kinds::STORAGE_CLASS, class),
        (&kinds::PERSISTENT_VOLUME_CLAIM, claim("data", json!({"volumeName": "pv"}))),
        (&kinds::PERSISTENT_VOLUME_CLAIM, claim("scratch", json!({"storageClassName": "fast"}))),
    ]
}

/// Each node has one device of this class; the weather in [`devices`] says the same.
const POLICY: &str = "apiVersion: setu.kueue.x-k8s.io/v1alpha1
kind: Policy
defaults: {devices: [{deviceClass: nic.example.com, driver: nic.example.com, perNode: 1}]}
";

/// The class, a template that asks for one of its devices, and the weather.
fn devices() -> [(&'static kinds::ServedKind, Value); 3] {
    let class = "nic.example.com";
    let request = json!({"name": "nic", "exactly": {"deviceClassName": class, "count": 1}});
    let weather = json!({"rules": [{"devices": {class: 1}}]}).to_string();
    [
        (
            &kinds::DEVICE_CLASS,
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class}, "spec": {}}),
        ),
        (
            &kinds::RESOURCE_CLAIM_TEMPLATE,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": {"namespace": ID, "name": "nic"}, "spec": {"spec": {"devices": {"requests": [request]}}},
            }),
        ),
        (
            &kinds::CONFIG_MAP,
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
                "data": {ID: weather},
            }),
        ),
    ]
}

/// A cluster with a gang that has its nodes.
async fn world() -> (SimCluster, Setu) {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let policy = PolicyFile::parse(POLICY).unwrap();
    let mut cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(ID), policy);
    let admin = cluster.server.user("admin");
    for object in scenario::objects(ID, 100).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    for (kind, object) in storage().into_iter().chain(devices()) {
        admin.create(kind, object).unwrap();
    }
    let setu = cluster.start_setu(&Start::default());
    admin.create(&kinds::JOB, job()).unwrap();
    let admitted = |workload: &Arc<Value>| {
        let conditions = workload["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|c| c["type"] == "Admitted" && c["status"] == "True")
    };
    while !admin.list(&kinds::WORKLOAD).iter().any(admitted) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (cluster, setu)
}

/// A temporary folder, deleted after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("setu-rights-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn setu(kubeconfig: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
    command.args(arguments).env("KUBECONFIG", kubeconfig).env_remove("KUBERNETES_SERVICE_HOST");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn the_viewer_role_grants_exactly_what_the_reading_commands_need() {
    let (cluster, _setu) = world().await;
    let folder = Folder::new("reads");
    let manifest = folder.write("job.yaml", &job().to_string());
    let name = scenario::controller_name_of(ID);
    let policy = folder.write("policy.yaml", POLICY);
    let plan = ["plan", "--controller-name", &name, "--config", &policy];
    let commands: [Vec<&str>; 6] = [
        [&plan[..], &["-f", &manifest]].concat(),
        [&plan[..], &["-n", ID, "train"]].concat(),
        vec!["inspect", "-A", "--controller-name", &name],
        vec!["explain", "-n", ID, "train", "--controller-name", &name],
        vec!["trace", "-n", ID, "train", "--controller-name", &name],
        vec!["top", "--controller-name", &name],
    ];
    let asked = Asked::default();
    let address = serve(&cluster, granted(), Arc::clone(&asked)).await;
    let kubeconfig = folder.write("kubeconfig", &sim_http::kubeconfig(address));
    for command in &commands {
        let output = setu(&kubeconfig, command).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}{}", String::from_utf8_lossy(&output.stdout));
        assert!(!stderr.contains("you may not"), "{command:?}: {stderr}");
    }
    assert_eq!(*asked.lock().unwrap(), granted(), "what is read, and what is granted");
    // A missing right is named together with the remedy.
    let mut rights = granted();
    rights.retain(|(_, resource)| resource != "nodepools");
    let address = serve(&cluster, rights, Asked::default()).await;
    let kubeconfig = folder.write("poorer", &sim_http::kubeconfig(address));
    let output = setu(&kubeconfig, &commands[0]).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let expected = "you may not list nodepools; examples/rbac/setu-viewer.yaml has what is needed";
    assert!(output.status.code() == Some(1) && stderr.contains(expected), "{stderr}");
}

#[tokio::test]
async fn a_watching_command_ends_with_a_remedy_once_a_right_is_revoked() {
    let (cluster, _setu) = world().await;
    let folder = Folder::new("follows");
    // Everything is read once, and then listed again for the watch.
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    let address = serve_where(&cluster, move |request| {
        let is_list = request.uri().path().ends_with("/workloads");
        !is_list || counted.fetch_add(1, Ordering::Relaxed) == 0
    })
    .await;
    let kubeconfig = folder.write("kubeconfig", &sim_http::kubeconfig(address));
    let name = scenario::controller_name_of(ID);
    let command = ["inspect", "-A", "--watch", "--controller-name", &name];
    let mut child = Command::new(env!("CARGO_BIN_EXE_setu"));
    child.args(command).env("KUBECONFIG", &kubeconfig).env_remove("KUBERNETES_SERVICE_HOST");
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_mins(1);
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A command that is still running has no exit code.
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let expected = "cannot watch workloads: listing: no (403): grant this ServiceAccount get, list and watch on workloads";
    assert!(output.status.code() == Some(1) && stderr.contains(expected), "{stderr}");
    assert!(lists.load(Ordering::Relaxed) > 1);
}
