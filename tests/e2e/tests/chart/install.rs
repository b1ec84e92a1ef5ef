//! The life of the chart on the real control plane: the real helm installs, upgrades, rolls back and uninstalls
//! it, while Setu runs with only the permissions of its ServiceAccount.
//!
//! No kubelet starts containers here, so the test starts the commands of the pods, with their arguments.

use crate::helm::{EVERYTHING, PreviousChart, SETS, chart, command, previous_charts, said, succeed, values};
use crate::real::Real;
use crate::setu::Setu;
use crate::surroundings::{ID, NAMESPACE, surroundings, world};
use crate::{admission, hooks};
use ::setu::sim::scenario::{self, ScenarioStep, ScenarioWorld, controller_name_of};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::{Stack, StackOptions, apply};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A release in its world.
pub struct Install {
    pub world: ScenarioWorld<Real>,
    pub stack: Arc<Stack>,
    folder: PathBuf,
}

impl Install {
    async fn start() -> Self {
        let stack = Arc::new(Stack::start(StackOptions::default()).await.unwrap());
        let client = stack.client().unwrap();
        apply::all(&client, surroundings("of a collector that there is not")).await.unwrap();
        // The chart contains the CRD too, but the world lists the kinds before that.
        let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd()).unwrap();
        let kinds = Arc::new(apply::kinds(&client).await.unwrap());
        assert!(!kinds.has_group(::setu::names::API_GROUP), "{crd}");
        let world = world(&stack, kinds).await;
        let folder = stack.folder().join("helm");
        Self { world, stack, folder }
    }

    pub fn helm(&self, arguments: &[&str]) -> Command {
        let mut helm = command(&self.folder);
        helm.args(arguments).args(["--namespace", NAMESPACE]).env("KUBECONFIG", self.stack.kubeconfig());
        helm
    }

    /// Installs or upgrades the chart, and checks that its pods are created.
    async fn apply(&self, file: Option<&str>) {
        self.apply_chart(&chart(), file, &[]).await;
    }

    async fn apply_previous(&self, previous: &PreviousChart) {
        // Its policies require the labels of its own release, but the current controller runs here.
        self.apply_chart(&previous.path, None, &["--set", "admissionPolicies.enabled=false"]).await;
    }

    async fn apply_chart(&self, chart: &Path, file: Option<&str>, more: &[&str]) {
        let mut helm = self.helm(&["upgrade", "--install", "setu"]);
        helm.arg(chart)
            .args(more)
            .args(values(file))
            .args(["--set", &format!("controller.name=e2e.setu/{ID}")]);
        // Otherwise Karpenter would buy nodes for pods that no kubelet here can start.
        helm.args(["--set", "nodeSelector.nowhere=at-all"]);
        let output = succeed(&mut helm);
        assert!(output.contains("AdmissionCheck is Active"), "no notes in\n{output}");
        let acting = match file {
            Some(file) if file.contains("everything") => "as 2 replicas, which share the gangs in 3 shards.",
            Some(_) => "as 3 replicas, of which one acts.",
            None => "as 2 replicas, of which one acts.",
        };
        assert!(output.contains(acting), "no {acting:?} in\n{output}");
        // The example queues use a NodePool that this cluster does not have.
        let queues = file.is_some_and(|file| file.contains("everything"));
        assert_eq!(output.contains("WARNING: there is no NodePool default"), queues, "{output}");
        let replicas = self.deployment().await.spec.unwrap().replicas.unwrap();
        self.until("the pods are made", async || {
            let pods: Api<Pod> = Api::namespaced(self.stack.client().unwrap(), NAMESPACE);
            let list = pods.list(&ListParams::default().labels("app.kubernetes.io/name=setu")).await.unwrap();
            // There may be one more during a rollout.
            let deployment = self.deployment().await;
            let status = deployment.status.unwrap_or_default();
            let is_seen = status.observed_generation == deployment.metadata.generation;
            list.items.len() >= replicas.unsigned_abs() as usize
                && is_seen
                && status.updated_replicas >= Some(1)
        })
        .await;
    }

    pub async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !so().await {
            assert!(Instant::now() < deadline, "not within a minute: {what}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn deployment(&self) -> Deployment {
        Api::namespaced(self.stack.client().unwrap(), NAMESPACE).get("setu").await.unwrap()
    }

    /// Starts the command of the Deployment, with the permissions of its ServiceAccount.
    pub async fn run(&self, name: &str) -> Setu {
        let pod = self.deployment().await.spec.unwrap().template.spec.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(self.stack.client().unwrap(), NAMESPACE);
        let policy = maps.get("setu-policy").await.unwrap().data.unwrap()["policy.yaml"].clone();
        let account = pod.service_account_name.unwrap();
        let kubeconfig = self.stack.kubeconfig_of(NAMESPACE, &account).await.unwrap();
        let arguments = pod.containers[0].args.clone().unwrap();
        assert_eq!(arguments[0], "run");
        // The test's process gets these anyway, with its own values.
        let given = ["--config=", "--controller-name=", "--log-level=", "--log-format="];
        let rest: Vec<&str> = arguments[1..]
            .iter()
            .map(String::as_str)
            .filter(|a| !given.iter().any(|g| a.starts_with(g)))
            .collect();
        assert_eq!(rest.len() + 1 + given.len(), arguments.len());
        let folder = self.stack.folder().join(name);
        let setu = Setu::new(&kubeconfig, &controller_name_of(ID), &policy, &folder).unwrap();
        let mut setu = setu.with(&rest).with(&["--leader-election-namespace", NAMESPACE]).on(name);
        setu.start(None).unwrap();
        setu
    }

    pub async fn step(&mut self, step: Value) {
        let step: ScenarioStep = serde_json::from_value(step).unwrap();
        scenario::take(&mut self.world, &step).await.unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// The number of attempts of a gang.
    async fn attempts(&mut self, job: &str) -> u64 {
        let workload = self.world.workload(job).await.unwrap().unwrap();
        let journal = &workload.annotations()[&::setu::names::journal_key(ID)];
        serde_json::from_str::<Value>(journal).unwrap()["attempt"].as_u64().unwrap()
    }

    /// Runs a gang from its submission to its end.
    async fn lead_a_gang(&mut self, job: &str, setu: &Setu) {
        self.step(json!({"submit": {"name": job, "pods": 2, "gpus": 1, "runFor": "2s"}})).await;
        let mut end =
            json!({"job": job, "finished": true, "state": "Released", "claims": 0, "event": "GangReleased"});
        end["wentThrough"] = json!(["Provisioning", "WaitingReady", "Approved"]);
        let step: ScenarioStep = serde_json::from_value(json!({"until": end})).unwrap();
        let ended = scenario::take(&mut self.world, &step).await;
        ended.unwrap_or_else(|e| panic!("{e:#}\n{}", setu.log_tail(30)));
    }

    /// Checks that no permission was missing so far.
    fn misses_no_right(setu: &Setu) {
        let log = setu.log();
        for word in ["Forbidden", "forbidden"] {
            let line = log.lines().find(|l| l.contains(word));
            assert_eq!(line, None, "a right is missing with these values");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_install_to_uninstall_setu_does_its_work_with_its_own_rights_and_leaves_nothing_stuck() {
    let mut install = Install::start().await;
    let previous = previous_charts(&install.folder);
    let (last, earlier) = previous.split_last().unwrap();
    for chart in earlier {
        install.apply_previous(chart).await;
        install.apply(None).await;
    }
    for (name, file) in SETS {
        // The first set has the last release's chart, which the rollback restores later. Only the current hooks are tested.
        if name == "default" {
            install.apply_previous(last).await;
        } else {
            install.apply(file).await;
        }
        let setu = install.run(name).await;
        install.lead_a_gang(name, &setu).await;
        Install::misses_no_right(&setu);
        if name == "default" {
            install.step(json!({"submit": {"name": "stays", "pods": 1, "gpus": 1}})).await;
            install.step(json!({"until": {"job": "stays", "admitted": true, "runningOnOwnNodes": 1}})).await;
        } else {
            hooks::test(&install, &setu, file == EVERYTHING).await;
        }
        if name == "everything" {
            admission::hold(&mut install).await;
            install.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
            install.step(json!({"submit": {"name": "crosses", "pods": 1, "gpus": 1, "runFor": "2s"}})).await;
            install.step(json!({"until": {"job": "crosses", "state": "WaitingReady", "claims": 1}})).await;
        }
        setu.signal("TERM").unwrap();
    }
    let active = json!({"until": {"active": "True Active"}});
    install.step(active).await;

    let revision = (2 * earlier.len() + 1).to_string();
    succeed(&mut install.helm(&["rollback", "setu", &revision]));
    let deployment = install.deployment().await;
    assert_eq!(deployment.labels()["app.kubernetes.io/version"], last.version);
    assert_eq!(deployment.spec.unwrap().replicas, Some(2));
    let setu = install.run("rolled-back").await;
    // The gang that waited during the upgrade continues, and the running gang was not affected.
    install.step(json!({"weather": []})).await;
    install.step(json!({"until": {"job": "crosses", "finished": true, "claims": 0}})).await;
    install
        .step(json!({"holds": {"job": "stays", "admitted": true, "runningOnOwnNodes": 1, "within": 2}}))
        .await;
    assert_eq!(install.attempts("stays").await, 1, "its node is still the first");
    install.step(json!({"delete": {"kind": "Job", "name": "stays"}})).await;
    install.lead_a_gang("rolled-back", &setu).await;

    install.apply(None).await;
    setu.signal("TERM").unwrap();
    let setu = install.run("default-again").await;
    install.lead_a_gang("default-again", &setu).await;
    Install::misses_no_right(&setu);
    hooks::test(&install, &setu, false).await;
    install.step(json!({"until": {"allClaims": 0}})).await;

    let lines = ["close AdmissionCheck", "give back the quota", "hand NodeClaim", "delete NodeClaim"];
    uninstall(&mut install, &setu, &lines).await;
    what_ran_runs_on(&mut install).await;

    install.apply(EVERYTHING).await;
    let setu = install.run("everything-again").await;
    install.step(json!({"until": {"active": "True Active"}})).await;
    uninstall(&mut install, &setu, &["close AdmissionCheck", "give back the quota", "delete NodeClaim"])
        .await;
    what_ran_is_gone(&mut install).await;
    scenario::nothing_is_left(&mut install.world).await.unwrap();
    let Install { world, stack, .. } = install;
    drop(world);
    if let Ok(stack) = Arc::try_unwrap(stack) {
        stack.stop();
    }
}

/// Uninstalls while one gang runs and one waits. Checks that the hook prints each of these lines.
async fn uninstall(install: &mut Install, setu: &Setu, lines: &[&str]) {
    install.step(json!({"weather": []})).await;
    install.step(json!({"submit": {"name": "runs", "pods": 1, "gpus": 1}})).await;
    install.step(json!({"until": {"job": "runs", "admitted": true, "runningOnOwnNodes": 1}})).await;
    install.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
    install.step(json!({"submit": {"name": "waits", "pods": 1, "gpus": 1}})).await;
    install.step(json!({"until": {"job": "waits", "state": "WaitingReady", "claims": 1}})).await;

    let mut helm = install.helm(&["uninstall", "setu", "--timeout", "3m"]);
    let uninstalled = tokio::task::spawn_blocking(move || helm.output().unwrap());
    hooks::uninstall(install, setu, lines).await;
    let output = uninstalled.await.unwrap();
    assert!(output.status.success(), "{}", said(&output));

    let client = install.stack.client().unwrap();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let left = roles.list(&ListParams::default()).await.unwrap().items;
    let left: Vec<String> =
        left.iter().map(kube::ResourceExt::name_any).filter(|n| n.starts_with("setu")).collect();
    assert_eq!(left, Vec::<String>::new());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    assert!(definitions.get_opt("provisioningparameters.setu.kueue.x-k8s.io").await.unwrap().is_some());
    let checks: Api<::setu::api::AdmissionCheck> = Api::all(client);
    install
        .until("the chart's AdmissionCheck is gone", async || {
            checks.get_opt("karpenter-provision").await.unwrap().is_none()
        })
        .await;

    // The waiting gang holds neither nodes nor quota.
    install.step(json!({"until": {"job": "waits", "claims": 0, "admitted": false}})).await;
    let waits = install.world.workload("waits").await.unwrap().unwrap();
    assert!(!waits.is("QuotaReserved"), "{:?}", waits.status);
}

/// Checks that the running gang still runs after the uninstall.
async fn what_ran_runs_on(install: &mut Install) {
    install
        .step(json!({"holds": {"job": "runs", "admitted": true, "runningOnOwnNodes": 1, "within": 2}}))
        .await;
    // Karpenter owns its node now, and removes it without Setu once the pods are gone.
    install.step(json!({"delete": {"kind": "Job", "name": "runs"}})).await;
    install.step(json!({"until": {"allClaims": 0, "within": 180}})).await;
    install.step(json!({"delete": {"kind": "Job", "name": "waits"}})).await;
    install.step(json!({"until": {"gone": {"kind": "Job", "name": "waits"}}})).await;
}

/// With the matching values, checks that the running gang lost its nodes and no trace of Setu is left.
async fn what_ran_is_gone(install: &mut Install) {
    install.step(json!({"until": {"allClaims": 0, "nodes": 0}})).await;
    for job in ["runs", "waits"] {
        let workload = install.world.workload(job).await.unwrap().unwrap();
        let mut keys = workload.annotations().keys();
        assert!(!keys.any(|k| k.starts_with(::setu::names::JOURNAL_PREFIX)), "{:?}", workload.metadata);
        assert!(!workload.finalizers().iter().any(|f| f == ::setu::names::FINALIZER));
        install.step(json!({"delete": {"kind": "Job", "name": job}})).await;
    }
}
