//! A release of the chart on the real node, and the gangs that are in flight while it changes.

use crate::helm::{command, root, said, values};
use crate::real::Real;
use crate::surroundings::{ID, NAMESPACE, surroundings, world};
use crate::watch::WatchRecords;
use ::setu::sim::scenario::{self, ScenarioStep, ScenarioWorld};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::{Program, Stack, StackOptions, StackScope, apply};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name that the archive's image gets in the node.
pub const IMAGE: &str = "docker.io/library/setu";
/// Nodes of each gang.
pub const NODES: usize = 2;
/// Longer than any wait that ends well, on a machine that does other work too.
const TIMEOUT: Duration = Duration::from_mins(4);

pub struct Release {
    pub world: ScenarioWorld<Real>,
    pub stack: Arc<Stack>,
    pub seen: WatchRecords,
    folder: PathBuf,
    /// The image's digest.
    digest: String,
    /// The gangs to check at the end: each must have had exactly its nodes.
    gangs: Vec<String>,
}

impl Release {
    /// A cluster with the real node, the image in it, and nothing installed.
    pub async fn prepare() -> Self {
        let stack = Arc::new(
            Stack::start(StackOptions { scope: StackScope::RealNode, ..StackOptions::default() })
                .await
                .unwrap(),
        );
        stack.load_image(&root().join("target/e2e/setu-image.tar")).unwrap();
        stack.load_image(&stack.folder().join("node/curl.tar")).unwrap();
        let digest = stack.image_digest(&format!("{IMAGE}:0.1.0")).unwrap();
        stack.name_image(&format!("{IMAGE}:0.1.0"), &format!("{IMAGE}:0.0.9")).unwrap();
        stack.name_image(&format!("{IMAGE}:0.1.0"), &format!("{IMAGE}@{digest}")).unwrap();
        let client = stack.client().unwrap();
        let authority = std::fs::read_to_string(stack.authority()).unwrap();
        apply::all(&client, surroundings(&authority)).await.unwrap();
        let kinds = Arc::new(apply::kinds(&client).await.unwrap());
        let world = world(&stack, kinds).await;
        let (seen, folder) = (WatchRecords::start(&client), stack.folder().join("helm"));
        Self { world, stack, seen, folder, digest, gangs: Vec::new() }
    }

    /// Runs helm, which waits for pods.
    pub async fn helm(&self, arguments: &[&str]) -> String {
        let mut helm = command(&self.folder);
        helm.args(arguments).args(["--namespace", NAMESPACE]).env("KUBECONFIG", self.stack.kubeconfig());
        let output = tokio::task::spawn_blocking(move || helm.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "helm {arguments:?}\n{}\n{}", said(&output), self.state().await);
        said(&output)
    }

    /// Installs or upgrades this chart with these values, and waits for its pods.
    pub async fn install(&self, chart: &Path, file: Option<&str>, more: &[&str]) {
        let chart = chart.display().to_string();
        let values = values(file);
        let by_digest = file.is_some_and(|file| file.contains("everything"));
        let digest = if by_digest { self.digest.as_str() } else { "" };
        let set = format!(
            "image.repository={IMAGE},image.digest={digest},image.pullPolicy=Never,\
             controller.name=e2e.setu/{ID},tests.image=docker.io/library/curl:e2e"
        );
        let mut arguments = vec!["upgrade", "--install", "setu", &chart, "--set", &set];
        arguments.extend(["--wait", "--timeout", "4m"]);
        arguments.extend(values.iter().map(String::as_str));
        arguments.extend(more);
        self.helm(&arguments).await;
    }

    /// Details for failure messages: each pod's status and last log lines, and those of the node.
    pub async fn state(&self) -> String {
        let mut state = String::new();
        for pod in self.pod_api().list(&ListParams::default()).await.unwrap().items {
            let name = pod.name_any();
            let log = self.stack.pod_logs(NAMESPACE, &name, "setu").unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(10)..].join("\n");
            state.extend(["--- ", &name, "\n", &json!(pod.status).to_string(), "\n", &last, "\n"]);
        }
        state + &self.stack.log_tail(Program::Node, 10)
    }

    pub async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !so().await {
            assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}\n{}", self.state().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn deployment(&self) -> Deployment {
        Api::namespaced(self.stack.client().unwrap(), NAMESPACE).get("setu").await.unwrap()
    }

    /// The pod that holds this Lease.
    pub async fn leader(&self, lease: &str) -> Option<String> {
        let leases: Api<Lease> = Api::namespaced(self.stack.client().unwrap(), NAMESPACE);
        let holder = leases.get_opt(lease).await.unwrap()?.spec?.holder_identity?;
        let (pod, _) = holder.rsplit_once('_')?;
        Some(pod.to_owned())
    }

    /// Waits until another pod holds this Lease, and says after how long.
    pub async fn another_leads(&self, lease: &str, than: &str) -> Duration {
        let begin = Instant::now();
        self.until(&format!("another pod than {than} holds the Lease {lease}"), async || {
            self.leader(lease).await.is_some_and(|leader| leader != than)
        })
        .await;
        begin.elapsed()
    }

    pub async fn step(&mut self, step: Value) {
        let text = step.to_string();
        let step: ScenarioStep = serde_json::from_value(step).unwrap();
        if let Err(error) = scenario::take(&mut self.world, &step).await {
            panic!("{text}: {error:#}\n{}", self.state().await);
        }
    }

    async fn submit(&mut self, job: &str) {
        self.step(json!({"submit": {"name": job, "pods": NODES, "gpus": 1, "runFor": "2s"}})).await;
        self.gangs.push(job.to_owned());
    }

    /// Starts gangs whose nodes do not register for now: one whose NodeClaims exist, and some that begin just now.
    pub async fn gangs_in_flight(&mut self, name: &str) -> Vec<String> {
        self.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
        let waits = format!("{name}-waits");
        self.submit(&waits).await;
        self.step(json!({"until": {"job": waits, "state": "WaitingReady", "claims": NODES}})).await;
        let mut all = vec![waits];
        for number in 1..=3 {
            let new = format!("{name}-new-{number}");
            self.submit(&new).await;
            all.push(new);
        }
        all
    }

    /// Lets nodes register, and waits until these gangs have run to their ends at their first attempt.
    pub async fn gangs_end(&mut self, gangs: Vec<String>) {
        self.step(json!({"weather": []})).await;
        for job in gangs {
            self.step(json!({"until": {"job": job, "finished": true, "state": "Released", "claims": 0}}))
                .await;
        }
    }

    /// Checks that each gang so far had its nodes once: none too many, none lost and replaced.
    pub fn each_had_its_nodes(&self) {
        for job in &self.gangs {
            assert_eq!(self.seen.claims(job), NODES, "NodeClaims that {job} ever had");
        }
        assert_eq!(self.seen.claims("stays"), 1);
    }

    /// Ends the stack of a test that succeeded.
    pub fn end(self) {
        let Self { world, stack, .. } = self;
        drop(world);
        if let Ok(stack) = Arc::try_unwrap(stack) {
            stack.stop();
        }
    }
}
