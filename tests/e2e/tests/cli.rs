//! The read commands against a real API server, with the permissions of their users, and kubectl.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use setu_e2e::{HarnessLayout, Stack, StackOptions, StackScope, apply, programs};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const CHECK: &str = "karpenter-provision";

/// Three Workloads in one namespace, one in another, and the claims of the first.
const WORLD: &str = r"
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: Namespace
metadata: {name: team-b}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: karpenter-provision}
spec: {controllerName: setu.kueue.x-k8s.io/provisioning}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: setu-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant, namespace: team-a}
rules: [{apiGroups: [kueue.x-k8s.io], resources: [workloads], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]
";

struct World {
    stack: Stack,
    client: Client,
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn ago(seconds: u64) -> String {
    let now = jiff::Timestamp::try_from(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    now.round(jiff::Unit::Second).unwrap().to_string()
}

fn condition(kind: &str, status: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": kind, "message": message, "lastTransitionTime": ago(40)})
}

impl World {
    async fn start() -> Self {
        let stack = Stack::start(StackOptions { scope: StackScope::ApiServer, ..StackOptions::default() })
            .await
            .unwrap();
        let client = stack.client().unwrap();
        for file in ["kueue.yaml", "karpenter.yaml"] {
            let text = std::fs::read_to_string(HarnessLayout::default().upstream().join(file)).unwrap();
            let mut definitions = apply::documents(&text).unwrap();
            definitions.retain(|d| d["kind"] == "CustomResourceDefinition");
            for definition in &mut definitions {
                // No conversion webhook runs here, and none is needed.
                definition["spec"].as_object_mut().unwrap().remove("conversion");
            }
            apply::all(&client, definitions).await.unwrap();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        apply::path(&client, &root.join("examples/setup/crds.yaml")).await.unwrap();
        apply::path(&client, &root.join("examples/rbac/setu-viewer.yaml")).await.unwrap();
        apply::yaml(&client, WORLD).await.unwrap();
        let world = Self { stack, client };
        world.fill().await;
        world
    }

    async fn fill(&self) {
        let reserved = json!({
            "conditions": [condition("QuotaReserved", "True", "Quota reserved in ClusterQueue gpu")],
            "admission": {"clusterQueue": "gpu", "podSetAssignments": [{"name": "main"}]},
            "admissionChecks": [{
                "name": CHECK, "state": "Pending", "lastTransitionTime": ago(39), "podSetUpdates": [],
                "message": "1/2 nodes ready; slot 1 waits for launch; attempt 1", "requeueAfterSeconds": 0,
            }],
        });
        let uid = self.workload("team-a", "train", &reserved).await;
        self.journal(&uid, "WaitingReady").await;
        let foreign = json!({
            "conditions": [condition("QuotaReserved", "True", "")],
            "admission": {"clusterQueue": "cpu", "podSetAssignments": [{"name": "main"}]},
            "admissionChecks": [{"name": "budget", "state": "Pending", "lastTransitionTime": ago(9), "message": "", "podSetUpdates": []}],
        });
        self.workload("team-a", "foreign", &foreign).await;
        let queued =
            json!({"conditions": [condition("QuotaReserved", "False", "insufficient quota for gpu")]});
        self.workload("team-a", "early", &queued).await;
        self.workload("team-b", "elsewhere", &reserved).await;
        self.claims(&uid).await;
    }

    /// Creates the Workload of a Job with this status, and returns its UID.
    async fn workload(&self, namespace: &str, job: &str, status: &Value) -> String {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "name": format!("job-{job}-1a2b3"), "namespace": namespace,
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job}],
            },
            "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 2, "template": {"spec": {
                "containers": [container], "restartPolicy": "Never"}}}]},
        });
        let stored = apply::one(&self.client, object).await.unwrap();
        self.status(namespace, "Workload", &format!("job-{job}-1a2b3"), status).await;
        stored.metadata.uid.unwrap()
    }

    async fn status(&self, namespace: &str, kind: &str, name: &str, status: &Value) {
        let api: Api<DynamicObject> = match kind {
            "Workload" => Api::namespaced_with(
                self.client.clone(),
                namespace,
                &resource("kueue.x-k8s.io", "v1beta2", kind),
            ),
            "NodeClaim" => Api::all_with(self.client.clone(), &resource("karpenter.sh", "v1", kind)),
            _ => Api::all_with(self.client.clone(), &resource("", "v1", kind)),
        };
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
            .await
            .unwrap();
    }

    async fn journal(&self, uid: &str, state: &str) {
        let journal = json!({
            "version": 1, "workloadUid": uid, "seq": 2, "state": state, "enteredAt": ago(38), "epoch": "1-0-a",
            "attempt": 1, "slots": 2, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "history": [
                {"seq": 1, "from": "Validating", "to": "Provisioning", "at": ago(39), "reason": "PlanAccepted"},
                {"seq": 2, "from": "Provisioning", "to": state, "at": ago(38), "reason": "AllCreated"},
            ],
        });
        let annotations = json!({
            format!("gang.setu.kueue.x-k8s.io/{CHECK}"): journal.to_string(),
            format!("state.setu.kueue.x-k8s.io/{CHECK}"): format!("{state}: 1/2 nodes ready"),
        });
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            "team-a",
            &resource("kueue.x-k8s.io", "v1beta2", "Workload"),
        );
        let patch = json!({"metadata": {"annotations": annotations}});
        api.patch("job-train-1a2b3", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn claims(&self, uid: &str) {
        let gang = setu::gang::GangIdentity {
            namespace: "team-a".into(),
            workload: "job-train-1a2b3".into(),
            uid: uid.to_owned(),
            check: CHECK.into(),
        };
        for slot in 0..2 {
            let name = gang.claim_name(1, slot);
            let labels = json!({
                "app.kubernetes.io/managed-by": "setu", "setu.kueue.x-k8s.io/gang": gang.id(),
                "setu.kueue.x-k8s.io/attempt": "1",
                "setu.kueue.x-k8s.io/workload-uid": gang.uid, "karpenter.sh/nodepool": "gpu",
            });
            let annotations = json!({
                "setu.kueue.x-k8s.io/check": CHECK, "setu.kueue.x-k8s.io/slot": slot.to_string(),
            });
            let claim = json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {"name": name, "labels": labels, "annotations": annotations},
                "spec": {"nodeClassRef": {"group": "g.example", "kind": "K", "name": "n"}, "requirements": [],
                    "resources": {"requests": {"cpu": "1"}}},
            });
            apply::one(&self.client, claim).await.unwrap();
            if slot == 0 {
                let done = ["Launched", "Registered", "Initialized"].map(|kind| condition(kind, "True", ""));
                self.status(
                    "",
                    "NodeClaim",
                    &name,
                    &json!({"nodeName": "node-0", "providerID": "p", "conditions": done}),
                )
                .await;
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": labels}});
                apply::one(&self.client, node).await.unwrap();
                let ready = json!({
                    "allocatable": {"cpu": "8"}, "capacity": {"cpu": "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                });
                self.status("", "Node", "node-0", &ready).await;
            }
        }
        // A new Node has a not-ready taint, which no controller removes here.
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("", "v1", "Node"));
        let clear = json!({"spec": {"taints": null}});
        nodes.patch("node-0", &PatchParams::default(), &Patch::Merge(clear)).await.unwrap();
    }

    /// The administrator's kubeconfig, impersonating another user.
    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        let text = std::fs::read_to_string(self.stack.kubeconfig()).unwrap();
        let mut config: Value = serde_yaml::from_str(&text).unwrap();
        config["users"][0]["user"]["as"] = json!(user);
        let path = self.stack.folder().join(format!("kubeconfig-{user}"));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    fn setu(&self, user: &str, arguments: &[&str]) -> Output {
        Command::new(binary()).args(arguments).env("KUBECONFIG", self.kubeconfig_of(user)).output().unwrap()
    }

    /// The output of a command, which must succeed without writing to standard error.
    fn prints(&self, user: &str, arguments: &[&str]) -> String {
        let output = self.setu(user, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error output of a command, which must fail with this code.
    fn fails(&self, user: &str, arguments: &[&str], code: i32) -> String {
        let output = self.setu(user, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }
}

fn binary() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/e2e/setu/debug/setu");
    std::env::var_os("SETU_BIN").map_or(built, PathBuf::from)
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_all_gangs_tenants_their_own_and_errors_name_the_fix() {
    let world = World::start().await;
    let all = world.prints("viewer", &["inspect", "-A"]);
    assert!(
        all.lines().any(|l| l.contains("job-train-1a2b3") && l.contains("WaitingReady") && l.contains("1/2")),
        "{all}"
    );
    assert!(all.contains("team-b") && all.contains("check karpenter-provision has no answer yet"), "{all}");
    assert!(!all.contains('\u{1b}'), "no colour without a terminal");
    let listed: Value =
        serde_json::from_str(&world.prints("viewer", &["inspect", "-n", "team-a", "-o", "json"])).unwrap();
    assert_eq!(
        (listed["gangs"][0]["gang"]["ready"].as_u64(), listed["gangs"].as_array().unwrap().len()),
        (Some(1), 1)
    );
    let yaml: Value =
        serde_yaml::from_str(&world.prints("viewer", &["inspect", "-n", "team-a", "-o", "yaml"])).unwrap();
    assert_eq!(yaml["gangs"][0]["gang"]["workload"], listed["gangs"][0]["gang"]["workload"]);
    let explained = world.prints("viewer", &["explain", "job/train", "-n", "team-a"]);
    for words in ["(Job/train)", "1/2 ready", "slot 1   waits for launch", "What comes next"] {
        assert!(explained.contains(words), "no {words:?} in\n{explained}");
    }
    let early = world.prints("viewer", &["explain", "early", "-n", "team-a"]);
    assert!(early.contains("quota is not reserved: insufficient quota for gpu"), "{early}");
    let traced =
        world.prints("viewer", &["trace", "train", "-n", "team-a", "--trace-url", "http://t/{traceId}"]);
    let id = traced.lines().find_map(|l| l.strip_prefix("trace ")).unwrap();
    assert!(traced.contains(&format!("http://t/{id}")) && traced.contains("slot 0"), "{traced}");
    let top = world.prints("viewer", &["top"]);
    assert!(top.lines().any(|l| l.starts_with("gpu")) && top.contains("team-a/job-train-1a2b3"), "{top}");

    let tenant = world.setu("tenant", &["inspect", "train", "-n", "team-a"]);
    let (out, said) = (String::from_utf8(tenant.stdout).unwrap(), String::from_utf8(tenant.stderr).unwrap());
    assert!(out.contains("slot 1 waits for launch"), "{out}");
    assert!(said.contains("you may not list nodeclaims"), "{said}");

    let fails = |arguments: &[&str], words: &str| {
        let said = world.fails("viewer", arguments, 1);
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    fails(&["explain", "trian", "-n", "team-a"], "did you mean train");
    fails(&["explain", "elsewhere", "-n", "team-a"], "there is one in team-b: add -n team-b");
    fails(&["explain", "foreign", "-n", "team-a"], "has only checks budget");
    let denied = world.fails("nobody", &["inspect", "-n", "team-a"], 1);
    assert!(denied.contains("you may not list workloads"), "{denied}");
    let refused = world.fails("viewer", &["trace", "train", "--trace-url", "http://t/"], 2);
    assert!(refused.contains("{traceId}"), "{refused}");
    world.stack.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_journal_is_rebuilt_from_the_claims() {
    let world = World::start().await;
    let api: Api<DynamicObject> = Api::namespaced_with(
        world.client.clone(),
        "team-a",
        &resource("kueue.x-k8s.io", "v1beta2", "Workload"),
    );
    let key = format!("gang.setu.kueue.x-k8s.io/{CHECK}");
    let spoilt = json!({"metadata": {"annotations": {key.as_str(): "{\"version\":99}"}}});
    api.patch("job-train-1a2b3", &PatchParams::default(), &Patch::Merge(spoilt)).await.unwrap();
    let journal =
        async || api.get("job-train-1a2b3").await.unwrap().metadata.annotations.unwrap()[&key].clone();
    let admin = |arguments: &[&str]| {
        let output = Command::new(binary())
            .args(arguments)
            .env("KUBECONFIG", world.stack.kubeconfig())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let repair_plan = admin(&["repair", "job/train", "-n", "team-a"]);
    assert!(repair_plan.contains("--yes") && journal().await.contains("99"), "{repair_plan}");
    admin(&["repair", "job/train", "-n", "team-a", "--yes"]);
    let repaired: Value = serde_json::from_str(&journal().await).unwrap();
    assert_eq!(
        (&repaired["version"], &repaired["attempt"], &repaired["slots"]),
        (&json!(2), &json!(1), &json!(2))
    );
    world.fails("viewer", &["repair", "job/train", "-n", "team-a", "--yes"], 1);
    world.stack.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_a_line_when_a_gang_moves() {
    let world = World::start().await;
    let mut watch = Command::new(binary())
        .args(["inspect", "-n", "team-a", "--watch"])
        .env("KUBECONFIG", world.kubeconfig_of("viewer"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("WORKLOAD"));
    assert!(lines.next().unwrap().unwrap().contains("WaitingReady"));
    let api: Api<DynamicObject> = Api::namespaced_with(
        world.client.clone(),
        "team-a",
        &resource("kueue.x-k8s.io", "v1beta2", "Workload"),
    );
    let uid = api.get("job-train-1a2b3").await.unwrap().metadata.uid.unwrap();
    world.journal(&uid, "Approved").await;
    let moved = tokio::task::spawn_blocking(move || lines.next().unwrap().unwrap()).await.unwrap();
    assert!(moved.contains("Approved"), "{moved}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    world.stack.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_the_columns_and_runs_the_plugin() {
    let world = World::start().await;
    let folder = world.stack.folder().join("plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(binary().canonicalize().unwrap(), folder.join("kubectl-setu")).unwrap();
    let program = programs::kubectl(&HarnessLayout::default()).unwrap();
    let kubectl = |arguments: &[&str]| {
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let kubeconfig = world.kubeconfig_of("viewer");
        let output =
            Command::new(&program).args(arguments).env("PATH", path).env("KUBECONFIG", kubeconfig).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let columns = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/columns.txt");
    let columns = format!("custom-columns-file={}", columns.display());
    let listed = kubectl(&["get", "workloads", "-n", "team-a", "-o", &columns]);
    let train = listed.lines().find(|l| l.contains("job-train")).unwrap();
    assert!(train.contains("WaitingReady: 1/2 nodes ready"), "{listed}");
    assert!(train.contains("slot 1 waits for launch"), "{listed}");
    assert!(kubectl(&["setu", "inspect", "-n", "team-a"]).contains("job-train-1a2b3"));
    assert!(kubectl(&["setu", "inspect", "--help"]).contains("Usage: kubectl setu inspect"));
    world.stack.stop();
}
