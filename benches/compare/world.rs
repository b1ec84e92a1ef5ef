//! The control plane and its objects: one queue per system, over the same cloud.

use crate::meter::Meter;
use crate::setu::Setu;
use crate::systems;
use crate::watch::{self, resource};
use ::setu::names;
use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::{KUEUE_NAMESPACE, Stack, StackOptions, apply, requests};
use std::path::Path;
use std::time::{Duration, Instant};

/// The name of the namespace, NodePool, flavor and ClusterQueue.
pub const ID: &str = "compare";

/// The time limit for cleaning up.
const CLEARING: Duration = Duration::from_mins(10);

pub struct World {
    pub stack: Stack,
    pub client: Client,
    pub setu: Setu,
}

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy, \
    guards: {gangNodes: 1000, claimsInFlight: 100000, createsPerMinute: 100000}}";

fn queue(name: &str, flavor: &str, check: Option<&str>) -> Vec<Value> {
    let checks: Vec<Value> = check.iter().map(|c| json!({"name": c})).collect();
    let resource = |name: &str| json!({"name": name, "nominalQuota": "1000Gi"});
    let full = format!("{ID}-{name}");
    let mut spec = json!({
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": [
            {"name": flavor, "resources": [resource("cpu"), resource("memory"), resource("nvidia.com/gpu")]},
        ]}],
    });
    if !checks.is_empty() {
        spec["admissionChecksStrategy"] = json!({"admissionChecks": checks});
    }
    vec![
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": full}, "spec": spec}),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": ID}, "spec": {"clusterQueue": full},
        }),
    ]
}

impl World {
    pub async fn start() -> Result<Self> {
        let stack =
            Stack::start(StackOptions { provisioning_requests: true, ..StackOptions::default() }).await?;
        let client = stack.client()?;
        let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd())?;
        apply::all(&client, vec![crd]).await?;
        for file in ["manifests/rbac.yaml", "examples/rbac/setu-provisioning-requests.yaml"] {
            apply::path(&client, &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).await?;
        }
        let mut objects = ::setu::sim::scenario::objects(ID, 100_000)?;
        for object in &mut objects {
            if object["kind"] == "ClusterQueue" {
                object["spec"]["resourceGroups"][0]["flavors"][1]["resources"][0]["nominalQuota"] =
                    json!("1000Gi");
                // The gangs of the matrix are larger than the scenarios' queue allows.
                object["spec"]["resourceGroups"][0]["flavors"].as_array_mut().context("flavors")?.remove(0);
            }
        }
        objects.push(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
            // No NodePool has this label: Karpenter creates no nodes for what the stand-in grants.
            "metadata": {"name": "compare-nowhere"}, "spec": {"nodeLabels": {"pool": "nowhere"}},
        }));
        objects.extend(requests::check("compare-kueue", "stand-in.example.com", None));
        let selector = Some((names::GANG, "gang"));
        objects.extend(requests::check("compare-requests", names::REQUEST_CLASS, selector));
        objects.push(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck",
            "metadata": {"name": "compare-poller"}, "spec": {"controllerName": "e2e.poller/compare"},
        }));
        objects.extend(queue("kueue", "compare-nowhere", Some("compare-kueue")));
        objects.extend(queue("requests", ID, Some("compare-requests")));
        objects.extend(queue("poller", ID, Some("compare-poller")));
        objects.extend(queue("plain", ID, None));
        apply::all(&client, objects).await?;
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource("AdmissionCheck"));
        let active = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "status": {"conditions": [{
            "type": "Active", "status": "True", "reason": "Active", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        api.patch_status("compare-poller", &PatchParams::default(), &kube::api::Patch::Merge(&active))
            .await?;
        let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await?;
        let folder = stack.folder().join("compare");
        let setu = Setu::new(&kubeconfig, "e2e.setu/compare", POLICY, &folder)?;
        let mut setu = setu.with(&["--provisioning-requests"]);
        setu.start(None)?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        if let Some(status) = setu.ended()? {
            bail!("Setu ended: {status}\n{}", setu.log_tail(5));
        }
        Ok(Self { stack, client, setu })
    }

    /// Stops Setu before the control plane.
    pub fn end(mut self) {
        self.setu.kill();
        self.stack.stop();
    }

    /// Starts measuring what each program uses.
    pub async fn meter(&self) -> Result<Meter> {
        Ok(Meter::start(self.stack.processes().await, self.setu.id().context("Setu does not run")?))
    }

    /// Runs the imitation.
    pub fn poller(&self) -> impl Future<Output = ()> + use<> {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "annotations": {names::DO_NOT_DISRUPT: "true"},
                "labels": {names::NODEPOOL: ID, "pool": ID},
            },
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID},
                "requirements": [
                    {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5.4xlarge"]},
                    {"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
                ],
                "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}},
            },
        });
        systems::poll(self.client.clone(), "compare-poller", claim)
    }

    /// Submits Jobs at once. With `run_for`, their pods end after that time.
    pub async fn submit(
        &self,
        prefix: &str,
        queue: &str,
        nodes: usize,
        gangs: usize,
        run_for: Option<&str>,
    ) -> Result<()> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), ID, &resource("Job"));
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
        let annotations =
            run_for.map_or_else(|| json!({}), |time| json!({setu_e2e::RUN_FOR_ANNOTATION: time}));
        let creates = stream::iter(0..gangs).map(|i| {
            let job = json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": format!("{prefix}-{i}"), "labels": {"kueue.x-k8s.io/queue-name": queue}},
                "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {"restartPolicy": "Never", "containers": [
                        {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
                    ]},
                }},
            });
            let api = api.clone();
            async move {
                let job = serde_json::from_value(job)?;
                api.create(&PostParams::default(), &job).await?;
                Ok::<_, anyhow::Error>(())
            }
        });
        let made: Vec<Result<()>> = creates.buffer_unordered(16).collect().await;
        made.into_iter().collect()
    }

    /// Deletes every Job and waits until nothing is left.
    pub async fn clear(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            // An overloaded API server sometimes drops a connection.
            let left = self.take_away().await;
            if matches!(left, Ok(0)) {
                return Ok(());
            }
            if start.elapsed() > CLEARING {
                bail!("{} objects are left after {CLEARING:?}", left?);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Deletes the Jobs and the NodeClaims that are not Setu's; Setu deletes its own. Returns the number of objects that
    /// still existed.
    async fn take_away(&self) -> Result<usize> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), ID, &resource("Job"));
        api.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        let claims = watch::list(&self.client, "NodeClaim").await?;
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("NodeClaim"));
        for claim in claims.iter().filter(|c| c.metadata.deletion_timestamp.is_none()) {
            if claim.labels().get(names::MANAGED_BY).is_none_or(|by| by != names::SETU) {
                let _ = api.delete(&claim.name_any(), &DeleteParams::default()).await;
            }
        }
        Ok(claims.len()
            + watch::list(&self.client, "Workload").await?.len()
            + watch::list(&self.client, "ProvisioningRequest").await?.len()
            + watch::list(&self.client, "Pod").await?.len())
    }
}
