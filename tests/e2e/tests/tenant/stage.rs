//! The cluster of the test: a tenant in one namespace, honest neighbours in another, one queue for both, and
//! a NodePool that no gang may use.

use crate::ledger::Ledger;
use crate::replicas::Replicas;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use setu::api::{NodeClaim, Workload};
use setu::names;
use setu_e2e::apply;
use std::path::Path;
use std::time::{Duration, Instant};

/// The tenant's namespace; also the name of its queues, check and NodePool.
pub const TENANT: &str = "tenant";
pub const NEIGHBOURS: &str = "neighbours";
pub const POLICIES: [&str; 4] = ["setu-journal", "setu-nodeclaims", "setu-bounds", "setu-workloads"];
/// The number of pods of every gang.
pub const PODS: usize = 2;

pub struct Stage {
    pub play: Replicas,
    pub ledger: Ledger,
    pub admin: Client,
    /// Has the permissions that Kubernetes and Kueue intend for tenants, and may create ProvisioningRequests.
    pub tenant: Client,
    /// May also do everything with Workloads in its namespace.
    pub writer: Client,
}

fn role_binding(name: &str, kind: &str, role: &str, accounts: &[&str]) -> Value {
    let subject = |name: &&str| json!({"kind": "ServiceAccount", "name": name, "namespace": TENANT});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": TENANT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
    })
}

fn surroundings() -> Vec<Value> {
    let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": TENANT}});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NEIGHBOURS}}),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "queue", "namespace": NEIGHBOURS}, "spec": {"clusterQueue": TENANT},
        }),
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "expensive"},
            "spec": {"template": {"metadata": {"labels": {"pool": "expensive"}}, "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": TENANT},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]},
                ],
                // Otherwise Karpenter would buy nodes for pods that select this pool.
                "taints": [{"key": "reserved", "effect": "NoExecute"}],
            }}},
        }),
        account("tenant"),
        account("writer"),
        role_binding("edit", "ClusterRole", "edit", &["tenant", "writer"]),
        role_binding("batch-user", "ClusterRole", "kueue-batch-user-role", &["tenant", "writer"]),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "writer", "namespace": TENANT},
            "rules": [{"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["*"]}],
        }),
        role_binding("writer", "Role", "writer", &["writer"]),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "requester", "namespace": TENANT},
            "rules": [
                {"apiGroups": ["autoscaling.x-k8s.io"], "resources": ["provisioningrequests"], "verbs": ["*"]},
                {"apiGroups": [""], "resources": ["podtemplates"], "verbs": ["*"]},
            ],
        }),
        role_binding("requester", "Role", "requester", &["tenant"]),
    ]
}

/// A Job of [`PODS`] pods with one GPU each, which run until they are deleted.
pub fn job(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "queue"},
            "annotations": {},
        },
        "spec": {
            "parallelism": PODS, "completions": PODS, "suspend": true,
            "template": {"spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "nodeSelector": {},
                "containers": [{"name": "main", "image": "none", "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"},
                }}],
            }},
        },
    })
}

impl Stage {
    /// Starts two gangs of the neighbours: `runs` runs, and `waits` waits for its nodes.
    pub async fn set() -> Self {
        let mut play = Replicas::start(TENANT, &["--provisioning-requests"]).await;
        let admin = play.stack.client().unwrap();
        let ledger = Ledger::keep(admin.clone());
        apply::all(&admin, surroundings()).await.unwrap();
        let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/admission-policies.yaml");
        apply::path(&admin, &policies).await.unwrap();
        let everybody = json!({"spec": {"namespaceSelector": {"matchLabels": null}}});
        play.step(json!({"patch": {"kind": "ClusterQueue", "name": TENANT, "patch": everybody}})).await;
        play.enter("setu");
        let tenant = play.stack.client_of(TENANT, "tenant").await.unwrap();
        let writer = play.stack.client_of(TENANT, "writer").await.unwrap();
        let mut stage = Self { play, ledger, admin, tenant, writer };
        stage.play.step(json!({"weather": []})).await;
        apply::one(&stage.admin, job(NEIGHBOURS, "runs")).await.unwrap();
        stage.until("the neighbours' gang runs", async |s| s.running(NEIGHBOURS, "runs").await == PODS).await;
        stage.nodes_do_not_come().await;
        apply::one(&stage.admin, job(NEIGHBOURS, "waits")).await.unwrap();
        stage.until("the other waits", async |s| s.claims(NEIGHBOURS).await.len() == 2 * PODS).await;
        stage
    }

    pub async fn nodes_do_not_come(&mut self) {
        self.play.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
    }

    /// Runs a step of a scenario with the tenant's permissions.
    pub async fn as_tenant(&mut self, step: Value) {
        let admin = std::mem::replace(&mut self.play.world.client, self.tenant.clone());
        self.play.step(step).await;
        self.play.world.client = admin;
    }

    pub async fn until(&self, what: &str, mut so: impl AsyncFnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !so(self).await {
            assert!(Instant::now() < deadline, "not within a minute: {what}\n{}", self.play.logs());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The Workload of a Job.
    pub async fn workload(&self, namespace: &str, job: &str) -> Option<Workload> {
        let api: Api<Workload> = Api::namespaced(self.admin.clone(), namespace);
        let owned = |w: &Workload| w.metadata.owner_references.iter().flatten().any(|o| o.name == job);
        api.list(&ListParams::default()).await.unwrap().items.into_iter().find(owned)
    }

    /// The check message of a neighbours' gang.
    pub async fn said_of(&self, job: &str) -> String {
        let workload = self.workload(NEIGHBOURS, job).await;
        workload.and_then(|w| Some(w.check(TENANT)?.message.clone())).unwrap_or_default()
    }

    /// The number of running pods of a Job.
    pub async fn running(&self, namespace: &str, job: &str) -> usize {
        let api: Api<Pod> = Api::namespaced(self.admin.clone(), namespace);
        let pods = api.list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap();
        let runs = |p: &&Pod| p.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
        pods.items.iter().filter(runs).count()
    }

    /// Setu's NodeClaims for the Workloads of a namespace.
    pub async fn claims(&self, namespace: &str) -> Vec<NodeClaim> {
        let api: Api<NodeClaim> = Api::all(self.admin.clone());
        let all = api.list(&ListParams::default()).await.unwrap().items;
        let prefix = format!("{namespace}/");
        all.into_iter().filter(|c| c.annotation(names::WORKLOAD).starts_with(&prefix)).collect()
    }

    /// Checks that the neighbours lost no nodes, no NodeClaim breaks the rules of the ledger, and Setu is up.
    pub async fn nobody_was_harmed(&mut self, by: &str) {
        println!("after {by}");
        assert_eq!(self.running(NEIGHBOURS, "runs").await, PODS, "{by}");
        let claims = self.claims(NEIGHBOURS).await;
        let going = claims.iter().filter(|c| c.metadata.deletion_timestamp.is_some()).count();
        assert_eq!((claims.len(), going), (2 * PODS, 0), "{by}: {claims:?}");
        self.ledger.is_as_honest_gangs_would_have_it(TENANT, PODS);
        assert!(self.ledger.of(NEIGHBOURS).iter().all(|b| !b.deleted), "{by}");
        for setu in self.play.all.values_mut() {
            assert!(setu.ended().unwrap().is_none(), "{by}: Setu ended:\n{}", setu.log_tail(30));
        }
    }

    /// The same, repeated while Setu has time to react.
    pub async fn nobody_is_harmed(&mut self, by: &str) {
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            self.nobody_was_harmed(by).await;
        }
    }

    /// The label of the nodes of a Job's gang.
    pub async fn gang_label(&self, job: &str) -> String {
        let uid = self.workload(NEIGHBOURS, job).await.unwrap().uid().unwrap();
        let claims = self.claims(NEIGHBOURS).await;
        let claim = claims.iter().find(|c| c.label(names::WORKLOAD_UID) == uid).unwrap();
        claim.label(names::GANG).to_owned()
    }
}
