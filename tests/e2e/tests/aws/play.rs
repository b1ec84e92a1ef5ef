//! One scenario on the AWS stack: its world, its Setu, and its calls to the cloud.

use crate::own_world;
use crate::real::{Real, Shared};
use crate::rights;
use ::setu::api::NodeClaim;
use ::setu::sim::scenario::{self, Run, Scenario, ScenarioWorld, Theatre as _};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use setu_e2e::aws::{Cloud, Instance, MachineBehaviour, ProviderCall};
use setu_e2e::{Program, Stack};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the cloud may take to reach the state that Karpenter wants. Karpenter garbage-collects instances without an
/// owner once they are 30 s old. It does so every 10 s after its start, and every two minutes once it has run for about
/// four. Scenarios that depend on this restart Karpenter.
pub const SETTLED: Duration = Duration::from_secs(90);

/// The largest factor by which a busy machine extends an asserted time limit.
const SLOWEST: f64 = 4.0;

/// The GPU quota, more than any scenario requests.
const GPUS: u32 = 300;

/// The state that all scenarios share.
pub struct Stage {
    pub stack: Arc<Stack>,
    pub shared: Shared,
    /// How often the current scenario ran before.
    pub played: AtomicUsize,
}

/// Every expectation of a scenario was met, but some exceeded their time limits.
#[derive(Debug)]
pub struct TooSlow(String);

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all came true, but {}", self.0)
    }
}

impl std::error::Error for TooSlow {}

impl Stage {
    /// Restarts Karpenter, so that it forgets which offerings were unavailable.
    pub async fn restart_karpenter(&self) -> Result<()> {
        self.stack.stop_program(Program::Karpenter).await?;
        self.stack.start_program(Program::Karpenter).await
    }

    /// Runs this while the cloud sells one more family. Karpenter sees what is sold when it starts.
    pub async fn selling(&self, family: &'static str, act: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let cloud = self.stack.cloud()?;
        cloud.sell(&[family]);
        self.restart_karpenter().await?;
        let ran = act().await;
        cloud.sell(&[]);
        self.restart_karpenter().await?;
        ran
    }
}

/// A running scenario.
pub struct Play<'a> {
    pub world: ScenarioWorld<Real>,
    pub cloud: &'a Cloud,
    pub instance_type: &'static str,
    /// The number of calls before it started.
    since: usize,
    slowness: f64,
    /// The operations that exceeded their time limit.
    late: Mutex<Vec<String>>,
}

/// The factor on asserted time limits: `SETU_SLOW` for an unoptimized Setu on shared cores, 1 without it. If the load per
/// processor at the start of a scenario is higher, the load is used. The factor is at most [`SLOWEST`].
fn slowness() -> f64 {
    let slow = std::env::var("SETU_SLOW").ok().and_then(|slow| slow.parse().ok()).unwrap_or(1.0);
    wanting_each_processor().map_or(slow, |wanting| wanting.max(slow)).min(SLOWEST)
}

/// The load average of the last minute, per processor.
fn wanting_each_processor() -> Option<f64> {
    let processors = std::thread::available_parallelism().ok()?.get();
    let load: f64 = std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    Some(load / f64::from(u32::try_from(processors).ok()?))
}

impl<'a> Play<'a> {
    /// Creates a world with this ID and this type for GPU machines, and starts Setu. Karpenter caches unavailable offerings
    /// for minutes. Later scenarios therefore use another type or capacity type, or restart Karpenter.
    pub async fn start(
        stage: &'a Stage,
        id: &str,
        instance_type: &'static str,
        policy: Value,
    ) -> Result<Self> {
        Self::start_until(stage, id, instance_type, policy, None).await
    }

    /// The same with a Setu that kills itself right after this write, for example `nodeclaims 3`. The steps restart it.
    pub async fn start_until(
        stage: &'a Stage,
        id: &str,
        instance_type: &'static str,
        policy: Value,
        kill_after: Option<&str>,
    ) -> Result<Self> {
        let (cloud, slowness) = (stage.stack.cloud()?, slowness());
        let id = match stage.played.load(Relaxed) {
            0 => id.to_owned(),
            before => format!("{id}-{before}"),
        };
        // A failed scenario may have left Karpenter stopped.
        if !stage.stack.processes().await.iter().any(|(program, _)| *program == Program::Karpenter) {
            stage.stack.start_program(Program::Karpenter).await?;
        }
        cloud.rules(Vec::new());
        cloud.reservations(Vec::new());
        cloud.machines(MachineBehaviour::default());
        let scenario: Scenario =
            serde_json::from_value(json!({"title": id, "policy": policy, "gpus": GPUS}))?;
        let run = Run { title: id.clone(), id, scenario };
        // Karpenter makes a launch template when it validates the NodeClass of the new world.
        let since = cloud.calls().len();
        let mut real = Real::new(&stage.stack, &stage.shared, &run)?;
        real.aws_type = Some(instance_type);
        let mut world = ScenarioWorld::new(real, &run).await?;
        // Setu is restarted without the kill.
        let end = kill_after.map(|write| ("SETU_KILL_AFTER_WRITE", write.to_owned()));
        world.theatre.setu.environment.extend(end);
        world.theatre.start_setu(None)?;
        world.theatre.setu.environment.clear();
        let play = Self { world, cloud, instance_type, since, slowness, late: Mutex::default() };
        play.until_ready().await?;
        Ok(play)
    }

    /// Checks a duration against a limit, times the slowness of the machine. The scenario continues, and fails at its end.
    pub fn within(&self, took: Duration, limit: Duration, what: &str) {
        if took > limit {
            println!(
                "{what} took {took:?}, and {limit:?} on a machine that is not {} times as slow",
                self.slowness
            );
        }
        if took > limit.mul_f64(self.slowness) {
            self.is_late(format!("{what} took {took:?}"));
        }
    }

    /// Records that something took too long.
    pub fn is_late(&self, what: String) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Waits until Karpenter reports the NodePool as ready.
    pub async fn until_ready(&self) -> Result<()> {
        self.until("the NodePool is ready", SETTLED, async |play| play.node_pool_ready().await).await
    }

    /// Restarts Setu with this environment variable, so that it has no state in memory.
    pub async fn restart_setu(&mut self, environment: (&'static str, String)) -> Result<()> {
        self.world.theatre.setu.environment.push(environment);
        self.steps(json!([{"setu": "kill"}, {"setu": "start"}])).await
    }

    /// Runs steps of a scenario.
    pub async fn steps(&mut self, steps: Value) -> Result<()> {
        own_world::take(&mut self.world, steps).await
    }

    /// Waits until a condition on the world and its cloud holds.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl AsyncFn(&Self) -> Result<bool>,
    ) -> Result<()> {
        let start = Instant::now();
        while !holds(self).await? {
            let tail =
                if start.elapsed() > limit { self.world.theatre.setu.log_tail(20) } else { String::new() };
            ensure!(start.elapsed() <= limit, "not so after {limit:?}: {what}\n{tail}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn node_pool_ready(&self) -> Result<bool> {
        let pools: Api<setu::api::NodePool> = Api::all(self.world.client.clone());
        let pool = serde_json::to_value(pools.get(&self.world.id).await?)?;
        let conditions = pool["status"]["conditions"].as_array().into_iter().flatten();
        Ok(conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    }

    /// The value of the world's EC2NodeClass at this JSON pointer.
    pub async fn node_class(&self, pointer: &str) -> Result<Option<Value>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.k8s.aws", "v1", "EC2NodeClass"));
        let classes: Api<DynamicObject> = Api::all_with(self.world.client.clone(), &kind);
        Ok(classes.get(&self.world.id).await?.data.pointer(pointer).cloned())
    }

    /// Submits a Job for this many machines. Returns when its quota was reserved, as the test observed it.
    pub async fn submit(&mut self, job: &str, pods: usize, run_for: Option<&str>) -> Result<Instant> {
        self.steps(
            json!([{"submit": {"name": job, "pods": pods, "gpus": 1, "runFor": run_for, "restarts": 6}}]),
        )
        .await?;
        // The last request that found no quota is before the reservation.
        let before = Cell::new(Instant::now());
        self.until("quota is reserved", SETTLED, async |play| {
            let asked = Instant::now();
            let workload = play.world.workload(job).await?;
            let reserved = workload.is_some_and(|workload| workload.is("QuotaReserved"));
            if !reserved {
                before.set(asked);
            }
            Ok(reserved)
        })
        .await?;
        Ok(before.get())
    }

    /// The provider's calls of an action since the start: with refused calls, without dry runs.
    pub fn calls(&self, action: &str) -> Vec<ProviderCall> {
        let all = self.cloud.calls().into_iter().skip(self.since).filter(|call| !call.dry_run);
        all.filter(|call| call.action.strip_prefix("ec2:") == Some(action)).collect()
    }

    /// The existing launch templates of this world's NodeClass, as the cloud lists them.
    pub async fn templates(&self) -> Result<Vec<String>> {
        let all = self.cloud.launch_templates().await?;
        let made = made_templates(self.cloud, self.since, &self.world.id);
        Ok(all.into_iter().filter(|name| made.contains(name)).collect())
    }

    /// The running instances of this world's type, as the cloud lists them.
    pub async fn instances(&self) -> Result<Vec<Instance>> {
        let all = self.cloud.instances().await?;
        Ok(all.into_iter().filter(|instance| instance.instance_type == self.instance_type).collect())
    }

    /// Waits until this many instances run and Nodes and NodeClaims match them one to one. Compares provider IDs, not just
    /// counts.
    pub async fn audit(&self, wanted: usize) -> Result<()> {
        let what = format!("{wanted} instances run, and Nodes and NodeClaims are theirs");
        let agree = async |play: &Self| {
            let [instances, nodes, claims] = play.named().await?;
            Ok(instances.len() == wanted && instances == nodes && instances == claims)
        };
        if let Err(error) = self.until(&what, SETTLED, agree).await {
            let [instances, nodes, claims] = self.named().await?;
            return Err(error.context(format!(
                "instances {instances:?}, Nodes of {nodes:?}, NodeClaims of {claims:?}, {:?}",
                self.cloud.actions()
            )));
        }
        Ok(())
    }

    /// The sorted provider IDs of the running instances, of the world's Nodes and of its NodeClaims.
    async fn named(&self) -> Result<[Vec<String>; 3]> {
        let instances = self.instances().await?.iter().map(Instance::provider_id).collect();
        let mut all = [instances, self.nodes().await?, self.known().await?];
        for ids in &mut all {
            ids.sort();
        }
        Ok(all)
    }

    /// The provider IDs of the world's Nodes.
    pub async fn nodes(&self) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        let ours = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.world.id));
        let of = |node: Node| node.spec.and_then(|spec| spec.provider_id).unwrap_or_default();
        Ok(nodes.list(&ours).await?.into_iter().map(of).collect())
    }

    /// The provider IDs of the world's NodeClaims; empty for a claim without an instance.
    pub async fn known(&self) -> Result<Vec<String>> {
        let of = |claim: NodeClaim| claim.status.map(|status| status.provider_id).unwrap_or_default();
        Ok(self.world.claims().await?.into_iter().map(of).collect())
    }

    /// Deletes everything, and checks that nothing is left in the cloud, then and after Karpenter has cleaned up. Fails with
    /// [`TooSlow`] if only time limits were exceeded.
    pub async fn end(mut self) -> Result<()> {
        scenario::nothing_is_left(&mut self.world).await?;
        scenario::paths_are_lawful(&self.world)?;
        rights::suffice(self.cloud)?;
        self.audit(0).await?;
        nodes_are_given_up(&self.world, self.cloud, self.since).await?;
        let left = self.instances().await?;
        ensure!(left.is_empty(), "instances came late: {left:?}");
        let late = self.late.into_inner().unwrap_or_else(PoisonError::into_inner);
        if late.is_empty() { Ok(()) } else { Err(TooSlow(late.join("; ")).into()) }
    }
}

/// Deletes the NodePools and the NodeClass of a world, and waits until none of its launch templates is left.
pub async fn nodes_are_given_up(world: &ScenarioWorld<Real>, cloud: &Cloud, since: usize) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool"));
    let pools: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind);
    for pool in pools.list(&ListParams::default()).await? {
        let class = pool.data.pointer("/spec/template/spec/nodeClassRef/name");
        if class.is_some_and(|name| *name == world.id) {
            world.delete("NodePool", &pool.name_any()).await?;
        }
    }
    world.delete("EC2NodeClass", &world.id).await?;
    until_gone(SETTLED, async || {
        let made = made_templates(cloud, since, &world.id);
        let mut left = cloud.launch_templates().await?;
        left.retain(|name| made.contains(name));
        left.extend(world.exists("EC2NodeClass", &world.id).await?.then(|| "the EC2NodeClass".to_owned()));
        Ok(left)
    })
    .await
}

/// Waits until this list is empty.
pub async fn until_gone<T: fmt::Debug>(
    limit: Duration,
    list: impl AsyncFn() -> Result<Vec<T>>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = list().await?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(start.elapsed() < limit, "left after {limit:?}: {left:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The launch templates created for an EC2NodeClass with this name.
fn made_templates(cloud: &Cloud, since: usize, class: &str) -> BTreeSet<String> {
    let calls = cloud.calls().into_iter().skip(since);
    let made = calls.filter(|call| {
        call.action == "ec2:CreateLaunchTemplate"
            && call.form.iter().any(|(key, value)| key.starts_with("TagSpecification.") && value == class)
    });
    made.filter_map(|call| call.form.get("LaunchTemplateName").cloned()).collect()
}
