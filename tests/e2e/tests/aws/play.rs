//! One scenario on the AWS stack: its world and Setu, and what the cloud saw of it.

use crate::real::{Real, Shared};
use ::setu::api::NodeClaim;
use ::setu::sim::scenario::{self, Run, Scenario, Step, Theatre as _, World};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use setu_e2e::aws::{Call, Cloud, Instance, Machines};
use setu_e2e::{Program, Stack};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the cloud may take to have what Karpenter wants. Instances that nobody owns are collected once they are half
/// a minute old, in rounds of ten seconds by a Karpenter that has just started, and of two minutes by one that has run for
/// some four: scenarios that depend on it start Karpenter anew.
pub const SETTLED: Duration = Duration::from_secs(90);

/// The most that a busy machine lengthens a time that is asserted.
const SLOWEST: f64 = 4.0;

/// Quota of GPUs, more than any scenario asks for.
const GPUS: u32 = 300;

/// What Karpenter's documentation of this version lets its controller do.
const POLICY: [&str; 30] = [
    "ec2:CreateFleet",
    "ec2:CreateLaunchTemplate",
    "ec2:CreateTags",
    "ec2:DeleteLaunchTemplate",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:RunInstances",
    "ec2:TerminateInstances",
    "eks:DescribeCluster",
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:GetInstanceProfile",
    "iam:ListInstanceProfiles",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
    "pricing:GetProducts",
    "sqs:DeleteMessage",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
    "ssm:GetParameter",
];

/// What all scenarios have in common.
pub struct Stage {
    pub stack: Arc<Stack>,
    pub shared: Shared,
    /// How often the scenario of now was played before.
    pub played: AtomicUsize,
}

/// All of a scenario came true, but some of it took longer than is asserted.
#[derive(Debug)]
pub struct TooSlow(String);

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all came true, but {}", self.0)
    }
}

impl std::error::Error for TooSlow {}

impl Stage {
    /// A Karpenter that remembers nothing of what was sold out before.
    pub async fn restart_karpenter(&self) -> Result<()> {
        self.stack.stop_program(Program::Karpenter).await?;
        self.stack.start_program(Program::Karpenter).await
    }
}

/// A scenario that is being played.
pub struct Play<'a> {
    pub world: World<Real>,
    pub cloud: &'a Cloud,
    pub instance_type: &'static str,
    /// How many calls there were before it.
    since: usize,
    slowness: f64,
    /// What took too long.
    late: Mutex<Vec<String>>,
}

/// How many times longer work may take than it is asserted to: `SETU_SLOW` where Setu is not optimized and shares its cores,
/// 1 without it. Where more programs than that want each processor as a scenario begins, all of them wait for each other;
/// beyond [`SLOWEST`] a scenario fails.
fn slowness() -> f64 {
    let slow = std::env::var("SETU_SLOW").ok().and_then(|slow| slow.parse().ok()).unwrap_or(1.0);
    wanting_each_processor().map_or(slow, |wanting| wanting.max(slow)).min(SLOWEST)
}

/// How many programs wanted each processor in the last minute.
fn wanting_each_processor() -> Option<f64> {
    let processors = std::thread::available_parallelism().ok()?.get();
    let load: f64 = std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    Some(load / f64::from(u32::try_from(processors).ok()?))
}

impl<'a> Play<'a> {
    /// A world of this id, with Setu running, in which GPU machines are of this type. Karpenter remembers for
    /// minutes what a scenario found sold out: those after it ask for another type or on other terms, or start Karpenter
    /// anew.
    pub async fn start(
        stage: &'a Stage,
        id: &str,
        instance_type: &'static str,
        policy: Value,
    ) -> Result<Self> {
        Self::start_until(stage, id, instance_type, policy, None).await
    }

    /// The same with a Setu that kills itself right after this write, given as `nodeclaims 3`; the steps start it again.
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
        // A scenario that failed may have left it dead.
        if !stage.stack.processes().await.iter().any(|(program, _)| *program == Program::Karpenter) {
            stage.stack.start_program(Program::Karpenter).await?;
        }
        cloud.rules(Vec::new());
        cloud.reservations(Vec::new());
        cloud.machines(Machines::default());
        let scenario: Scenario =
            serde_json::from_value(json!({"title": id, "policy": policy, "gpus": GPUS}))?;
        let run = Run { title: id.clone(), id, scenario };
        let mut real = Real::new(&stage.stack, &stage.shared, &run)?;
        real.aws_type = Some(instance_type);
        let mut world = World::new(real, &run).await?;
        // What it is started with again has no such end.
        let end = kill_after.map(|write| ("SETU_KILL_AFTER_WRITE", write.to_owned()));
        world.theatre.setu.environment.extend(end);
        world.theatre.start_setu(None)?;
        world.theatre.setu.environment.clear();
        let play = Self {
            world,
            cloud,
            instance_type,
            since: cloud.calls().len(),
            slowness,
            late: Mutex::default(),
        };
        play.until_ready().await?;
        Ok(play)
    }

    /// Holds what took so long to a time, or as many times longer as the machine is slow. The scenario goes on, and fails in the
    /// end.
    pub fn within(&self, took: Duration, limit: Duration, what: &str) {
        if took > limit.mul_f64(self.slowness) {
            self.is_late(format!("{what} took {took:?}"));
        }
    }

    /// Notes what shows that something took too long.
    pub fn is_late(&self, what: String) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Waits until Karpenter takes the NodePool for ready.
    pub async fn until_ready(&self) -> Result<()> {
        self.until("the NodePool is ready", SETTLED, async |play| play.node_pool_ready().await).await
    }

    /// Starts Setu anew, so that it remembers nothing, with this in its environment.
    pub async fn restart_setu(&mut self, environment: (&'static str, String)) -> Result<()> {
        self.world.theatre.setu.environment.push(environment);
        self.steps(json!([{"setu": "kill"}, {"setu": "start"}])).await
    }

    /// Takes steps of a scenario.
    pub async fn steps(&mut self, steps: Value) -> Result<()> {
        for each in steps.as_array().context("steps are a list")? {
            let step = step(each.clone())?;
            scenario::take(&mut self.world, &step).await.with_context(|| step.told())?;
        }
        Ok(())
    }

    /// Waits until something holds of the world and its cloud.
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

    /// What the world's EC2NodeClass has at this place.
    pub async fn node_class(&self, pointer: &str) -> Result<Option<Value>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.k8s.aws", "v1", "EC2NodeClass"));
        let classes: Api<DynamicObject> = Api::all_with(self.world.client.clone(), &kind);
        Ok(classes.get(&self.world.id).await?.data.pointer(pointer).cloned())
    }

    /// Submits a Job of so many machines, and returns when its quota was reserved, as seen from outside.
    pub async fn submit(&mut self, job: &str, pods: usize, run_for: Option<&str>) -> Result<Instant> {
        self.steps(
            json!([{"submit": {"name": job, "pods": pods, "gpus": 1, "runFor": run_for, "restarts": 6}}]),
        )
        .await?;
        self.until("quota is reserved", SETTLED, async |play| {
            Ok(play.world.workload(job).await?.is_some_and(|workload| workload.is("QuotaReserved")))
        })
        .await?;
        Ok(Instant::now())
    }

    /// The provider's calls of an action since the start, refused ones too, but no dry runs.
    pub fn calls(&self, action: &str) -> Vec<Call> {
        let all = self.cloud.calls().into_iter().skip(self.since).filter(|call| !call.dry_run);
        all.filter(|call| call.action.strip_prefix("ec2:") == Some(action)).collect()
    }

    /// The launch templates of this world's NodeClass that there are, by the cloud's own list.
    pub async fn templates(&self) -> Result<Vec<String>> {
        let all = self.cloud.launch_templates().await?;
        let made = made_templates(self.cloud, self.since, &self.world.id);
        Ok(all.into_iter().filter(|name| made.contains(name)).collect())
    }

    /// The instances of this world's type that run, by the cloud's own list.
    pub async fn instances(&self) -> Result<Vec<Instance>> {
        let all = self.cloud.instances().await?;
        Ok(all.into_iter().filter(|instance| instance.instance_type == self.instance_type).collect())
    }

    /// Waits until so many instances run, each with its Node and NodeClaim and none without: by what these name, not only by
    /// their numbers.
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

    /// The instances that run, those that the world's Nodes are of, and those that its NodeClaims are of, in order.
    async fn named(&self) -> Result<[Vec<String>; 3]> {
        let instances = self.instances().await?.iter().map(Instance::provider_id).collect();
        let mut all = [instances, self.nodes().await?, self.known().await?];
        for ids in &mut all {
            ids.sort();
        }
        Ok(all)
    }

    /// The instances that the world's Nodes are of.
    pub async fn nodes(&self) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        let ours = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.world.id));
        let of = |node: Node| node.spec.and_then(|spec| spec.provider_id).unwrap_or_default();
        Ok(nodes.list(&ours).await?.into_iter().map(of).collect())
    }

    /// The instances that the world's NodeClaims are of; nothing for one that has none yet.
    pub async fn known(&self) -> Result<Vec<String>> {
        let of = |claim: NodeClaim| claim.status.map(|status| status.provider_id).unwrap_or_default();
        Ok(self.world.claims().await?.into_iter().map(of).collect())
    }

    /// Ends everything, after which the cloud has nothing of it. An error of kind [`TooSlow`] where all but times came true.
    pub async fn end(mut self) -> Result<()> {
        scenario::nothing_is_left(&mut self.world).await?;
        scenario::paths_are_lawful(&self.world)?;
        rights_suffice(self.cloud)?;
        self.audit(0).await?;
        nodes_are_given_up(&self.world, self.cloud, self.since).await?;
        let late = self.late.into_inner().unwrap_or_else(PoisonError::into_inner);
        if late.is_empty() { Ok(()) } else { Err(TooSlow(late.join("; ")).into()) }
    }
}

/// Nothing was called that Karpenter's own policy does not allow.
pub fn rights_suffice(cloud: &Cloud) -> Result<()> {
    let actions = cloud.actions();
    let more: Vec<&String> = actions.keys().filter(|action| !POLICY.contains(&action.as_str())).collect();
    ensure!(more.is_empty(), "Karpenter's own policy does not allow {more:?}");
    Ok(())
}

/// Takes the NodePools and the NodeClass of a world away, after which no launch template of it is left.
pub async fn nodes_are_given_up(world: &World<Real>, cloud: &Cloud, since: usize) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool"));
    let pools: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind);
    for pool in pools.list(&ListParams::default()).await? {
        let class = pool.data.pointer("/spec/template/spec/nodeClassRef/name");
        if class.is_some_and(|name| *name == world.id) {
            world.delete("NodePool", &pool.name_any()).await?;
        }
    }
    world.delete("EC2NodeClass", &world.id).await?;
    let start = Instant::now();
    loop {
        let made = made_templates(cloud, since, &world.id);
        let mut left = cloud.launch_templates().await?;
        left.retain(|name| made.contains(name));
        if left.is_empty() && !world.exists("EC2NodeClass", &world.id).await? {
            return Ok(());
        }
        ensure!(
            start.elapsed() < SETTLED,
            "launch templates {left:?} are left, and the EC2NodeClass may be there still"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The launch templates that were made for an EC2NodeClass of this name.
fn made_templates(cloud: &Cloud, since: usize, class: &str) -> BTreeSet<String> {
    let calls = cloud.calls().into_iter().skip(since);
    let made = calls.filter(|call| {
        call.action == "ec2:CreateLaunchTemplate"
            && call.form.iter().any(|(key, value)| key.starts_with("TagSpecification.") && value == class)
    });
    made.filter_map(|call| call.form.get("LaunchTemplateName").cloned()).collect()
}

fn step(value: Value) -> Result<Step> {
    serde_json::from_value(value).context("reading a step")
}
