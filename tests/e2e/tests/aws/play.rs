//! One scenario on the AWS stack: its world and Setu, and what the cloud saw of it.

use crate::real::{Real, Shared};
use ::setu::sim::scenario::{self, Run, Scenario, Step, World};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use setu_e2e::aws::{Call, Cloud, Instance, Machines};
use setu_e2e::{Program, Stack};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the cloud may take to have what Karpenter wants: it collects instances that nobody owns after half a
/// minute, in rounds of ten seconds.
const SETTLED: Duration = Duration::from_secs(90);

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
}

/// A scenario that is being played.
pub struct Play<'a> {
    pub world: World<Real>,
    pub cloud: &'a Cloud,
    pub instance_type: &'static str,
    /// How many calls there were before it.
    since: usize,
}

/// A time as it is asserted: `SETU_SLOW` says how many times longer work may take where Setu is not optimized and shares
/// its cores; 1 without it.
pub fn limit(time: Duration) -> Duration {
    let factor = std::env::var("SETU_SLOW").ok().and_then(|slow| slow.parse().ok());
    time.mul_f64(factor.unwrap_or(1.0))
}

impl<'a> Play<'a> {
    /// A world of this id, with Setu running, in which GPU machines are of this type. Each scenario has a type of its own:
    /// Karpenter remembers for minutes what another one found sold out.
    pub async fn start(
        stage: &'a Stage,
        id: &str,
        instance_type: &'static str,
        policy: Value,
    ) -> Result<Self> {
        let cloud = stage.stack.cloud()?;
        // A scenario that failed may have left it dead.
        if !stage.stack.processes().await.iter().any(|(program, _)| *program == Program::Karpenter) {
            stage.stack.start_program(Program::Karpenter).await?;
        }
        cloud.rules(Vec::new());
        cloud.reservations(Vec::new());
        cloud.machines(Machines::default());
        let scenario: Scenario = serde_json::from_value(json!({"title": id, "policy": policy}))?;
        let run = Run { title: id.to_owned(), id: id.to_owned(), scenario };
        let mut real = Real::new(&stage.stack, &stage.shared, &run)?;
        real.aws_type = Some(instance_type);
        let mut world = World::new(real, &run).await?;
        scenario::take(&mut world, &step(json!({"setu": "start"}))?).await?;
        let play = Self { world, cloud, instance_type, since: cloud.calls().len() };
        play.until("the NodePool is ready", SETTLED, async |play| play.node_pool_ready().await).await?;
        Ok(play)
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

    /// The provider's calls of an action since the start, refused ones too.
    pub fn calls(&self, action: &str) -> Vec<Call> {
        let all = self.cloud.calls().into_iter().skip(self.since);
        all.filter(|call| call.action.strip_prefix("ec2:") == Some(action)).collect()
    }

    /// How long Setu took from its first NodeClaim to its last, by its own log.
    pub fn creates(&self) -> Result<Duration> {
        let log = self.world.theatre.setu.log();
        let lines = log.lines().filter(|line| line.contains("created a NodeClaim"));
        let times: Vec<jiff::Timestamp> =
            lines.filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
        let ends = times.iter().min().zip(times.iter().max()).context("Setu created no NodeClaim")?;
        Ok(Duration::try_from(ends.1.duration_since(*ends.0))?)
    }

    /// The instances of this world's type that run, by the cloud's own list.
    pub async fn instances(&self) -> Result<Vec<Instance>> {
        let all = self.cloud.instances().await?;
        Ok(all.into_iter().filter(|instance| instance.instance_type == self.instance_type).collect())
    }

    /// Waits until so many instances run, each with its Node and NodeClaim and none without.
    pub async fn audit(&self, wanted: usize) -> Result<()> {
        let what = format!("{wanted} instances run, and as many Nodes and NodeClaims are there");
        self.until(&what, SETTLED, async |play| Ok(play.counted().await? == [wanted; 3]))
            .await
            .with_context(|| format!("{:?}", self.cloud.actions()))
    }

    async fn counted(&self) -> Result<[usize; 3]> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        let ours = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.world.id));
        let nodes = nodes.list(&ours).await?.items.len();
        Ok([self.instances().await?.len(), nodes, self.world.claims().await?.len()])
    }

    /// Ends everything, after which the cloud has nothing of it.
    pub async fn end(mut self) -> Result<()> {
        scenario::nothing_is_left(&mut self.world).await?;
        scenario::paths_are_lawful(&self.world)?;
        let actions = self.cloud.actions();
        let more: Vec<&String> = actions.keys().filter(|action| !POLICY.contains(&action.as_str())).collect();
        ensure!(more.is_empty(), "Karpenter's own policy does not allow {more:?}");
        self.audit(0).await
    }
}

/// Plays a scenario that is a file, after which no instance runs by the cloud's own list.
pub async fn file(stage: &Stage, name: &str) -> Result<()> {
    let cloud = stage.stack.cloud()?;
    cloud.rules(Vec::new());
    cloud.machines(Machines::default());
    for run in scenario::find(name)? {
        let mut real = Real::new(&stage.stack, &stage.shared, &run)?;
        real.aws_type = Some("g5.4xlarge");
        scenario::play(&mut World::new(real, &run).await?, &run, None).await?;
    }
    let start = Instant::now();
    while !cloud.instances().await?.is_empty() {
        ensure!(start.elapsed() < SETTLED, "instances are left: {:?}", cloud.instances().await?);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

fn step(value: Value) -> Result<Step> {
    serde_json::from_value(value).context("reading a step")
}
