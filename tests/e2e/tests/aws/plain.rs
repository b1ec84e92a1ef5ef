//! Compares plain Karpenter with Setu: the same Job, the same NodePool, the same cloud.

use crate::play::{Play, Stage};
use ::setu::api::NodeClaim;
use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use setu_e2e::aws::{Ec2Rule, Offerings};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long to observe a gang with room for all machines but one.
const SHORT: Duration = Duration::from_mins(2);

/// Who creates the NodeClaims for a Job.
#[derive(Clone, Copy, Debug)]
enum Who {
    Setu,
    Karpenter,
}

/// Plain Karpenter first: Setu may cause only the actions that plain Karpenter calls.
const BOTH: [Who; 2] = [Who::Karpenter, Who::Setu];

/// Prints a table for gangs of these sizes, each with its own type. Checks that Setu causes one launch template for each,
/// and no action that plain Karpenter does not call.
pub async fn compare(stage: &Stage, sizes: &[(usize, &'static str)]) -> Result<()> {
    println!(
        "\n| machines | by | calls until all were launched | all launched after the submission | after the reservation |\n|---|---|---|---|---|"
    );
    let mut actions = Actions::default();
    for (machines, instance_type) in sizes {
        for who in BOTH {
            let from = stage.stack.cloud()?.calls().len();
            println!("{}", all(stage, who, *machines, instance_type).await?);
            actions.take(stage, who, from)?;
        }
    }
    actions.are_karpenters()
}

/// The same for the billed instance seconds in the first two minutes of a gang that cannot run. Checks that Setu bills less
/// than half of what plain Karpenter does, and that nothing runs at the end.
pub async fn compare_short(stage: &Stage, sizes: &[(usize, &'static str)]) -> Result<()> {
    println!("\n| room for | by | instance-seconds | instances at the end | calls |\n|---|---|---|---|---|");
    let mut actions = Actions::default();
    for (machines, instance_type) in sizes {
        let mut bills = Vec::new();
        for who in BOTH {
            let from = stage.stack.cloud()?.calls().len();
            let bill = short(stage, who, *machines, instance_type).await?;
            let Bill { seconds, running, calls } = &bill;
            println!("| {} of {machines} | {who:?} | {seconds:.0} | {running} | {calls} |", machines - 1);
            bills.push(bill);
            actions.take(stage, who, from)?;
        }
        let [plain, setu] = &bills[..] else { bail!("both are billed") };
        ensure!(setu.running == 0, "{} instances run, and nothing runs on them", setu.running);
        ensure!(
            setu.seconds < plain.seconds / 2.0,
            "Setu bills {:.0} instance-seconds, plain Karpenter {:.0}",
            setu.seconds,
            plain.seconds
        );
    }
    actions.are_karpenters()
}

/// The actions that Karpenter called since its start, without and with Setu.
#[derive(Default)]
struct Actions {
    plain: BTreeSet<String>,
    setu: BTreeSet<String>,
}

impl Actions {
    fn take(&mut self, stage: &Stage, who: Who, from: usize) -> Result<()> {
        let called = stage.stack.cloud()?.calls().into_iter().skip(from).map(|call| call.action);
        match who {
            Who::Setu => self.setu.extend(called),
            Who::Karpenter => self.plain.extend(called),
        }
        Ok(())
    }

    fn are_karpenters(&self) -> Result<()> {
        println!("\nactions: {:?}", self.plain);
        let more: Vec<&String> = self.setu.difference(&self.plain).collect();
        ensure!(more.is_empty(), "only beside Setu Karpenter called {more:?}");
        Ok(())
    }
}

async fn all(stage: &Stage, who: Who, machines: usize, instance_type: &'static str) -> Result<String> {
    let mut play = begin(stage, who, machines, instance_type, "all").await?;
    let (from, start) = (play.cloud.calls().len(), Instant::now());
    let reserved = submit(&mut play, who, machines).await?;
    play.until("all are launched", Duration::from_mins(5), async |play| {
        Ok(play.instances().await?.len() == machines)
    })
    .await?;
    let counts = counted(&play, from);
    if matches!(who, Who::Setu) {
        let templates = counts.get("CreateLaunchTemplate").copied().unwrap_or_default();
        ensure!(templates == 1, "{templates} launch templates, not 1");
    }
    let launched = play.calls("CreateFleet").iter().filter_map(|call| call.done).max();
    let launched = launched.context("nothing was launched")?;
    let since = |at: Instant| format!("{:.1} s", launched.saturating_duration_since(at).as_secs_f64());
    end(play, who).await?;
    let reserved = reserved.map(since).unwrap_or_default();
    Ok(format!("| {machines} | {who:?} | {} | {} | {reserved} |", formatted(&counts), since(start)))
}

/// The cost of a gang that cannot run.
struct Bill {
    seconds: f64,
    running: usize,
    calls: String,
}

async fn short(stage: &Stage, who: Who, machines: usize, instance_type: &'static str) -> Result<Bill> {
    let mut play = begin(stage, who, machines, instance_type, "short").await?;
    play.cloud.rules(vec![Ec2Rule::Room(Offerings::of(instance_type), machines - 1)]);
    let (from, start) = (play.cloud.calls().len(), Instant::now());
    submit(&mut play, who, machines).await?;
    let (mut seconds, mut looked, mut running) = (0.0, Instant::now(), 0);
    while start.elapsed() < SHORT {
        running = play.instances().await?.len();
        seconds += f64::from(u32::try_from(running)?) * looked.elapsed().as_secs_f64();
        looked = Instant::now();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let calls = formatted(&counted(&play, from));
    end(play, who).await?;
    Ok(Bill { seconds, running, calls })
}

/// Restarts Karpenter and creates a world with Setu, which has nothing to do when Karpenter runs alone.
async fn begin<'s>(
    stage: &'s Stage,
    who: Who,
    machines: usize,
    instance_type: &'static str,
    what: &str,
) -> Result<Play<'s>> {
    stage.restart_karpenter().await?;
    let id = format!("{what}-{machines}-{who:?}").to_lowercase();
    Play::start(stage, &id, instance_type, json!({})).await
}

/// Returns when quota was reserved, if the Job needs quota.
async fn submit(play: &mut Play<'_>, who: Who, machines: usize) -> Result<Option<Instant>> {
    match who {
        Who::Setu => play.submit("train", machines, None).await.map(Some),
        Who::Karpenter => {
            play.steps(json!([{"apply": [without_queue(machines)]}])).await?;
            Ok(None)
        }
    }
}

/// The same Job as Setu's, for nodes of the same NodePool, but in no queue.
fn without_queue(machines: usize) -> Value {
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {"parallelism": machines, "completions": machines, "template": {"spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "nodeSelector": {"pool": "${id}"},
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        }}},
    })
}

/// The number of calls of each EC2 action since `from`: with reads, without dry runs.
fn counted(play: &Play<'_>, from: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let calls = play.cloud.calls().into_iter().skip(from).filter(|call| !call.dry_run);
    for action in calls.filter_map(|call| call.action.strip_prefix("ec2:").map(str::to_owned)) {
        *counts.entry(action).or_default() += 1;
    }
    counts
}

fn formatted(counts: &BTreeMap<String, usize>) -> String {
    let formatted: Vec<String> = counts.iter().map(|(action, count)| format!("{action} {count}")).collect();
    formatted.join(", ")
}

async fn end(mut play: Play<'_>, who: Who) -> Result<()> {
    if matches!(who, Who::Karpenter) {
        play.steps(json!([{"delete": {"kind": "Job", "name": "train"}}])).await?;
        // Otherwise Karpenter removes only a tenth of them at a time.
        let claims: Api<NodeClaim> = Api::all(play.world.client.clone());
        let ours = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", play.world.id));
        claims.delete_collection(&DeleteParams::default(), &ours).await?;
        play.until("its nodes are gone", Duration::from_mins(5), async |play| {
            Ok(play.instances().await?.is_empty())
        })
        .await?;
    }
    play.end().await
}
