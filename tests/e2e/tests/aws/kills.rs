//! Kills Setu or Karpenter: the cloud still ends up with exactly the gang's machines, and with none after the gang
//! finishes.

use crate::play::{Play, Stage};
use crate::setu::Setu;
use ::setu::sim::scenario::controller_name_of;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use setu_e2e::Program;
use setu_e2e::aws::{Ec2Rule, Offerings};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of machines of each gang.
const MACHINES: usize = 3;

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// The resources that Setu writes for a gang, without Events, which have no effect.
const KINDS: [&str; 2] = ["nodeclaims", "workloads"];

/// The machine types of the gangs that run at the same time.
const AT_ONCE: [&str; 4] = ["g5.xlarge", "g5.4xlarge", "g5.8xlarge", "g5.16xlarge"];

/// The zone with room for all machines but one, and the zone with room for all.
const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

/// The process to kill.
#[derive(Clone, Copy, Debug)]
pub enum Victim {
    Setu,
    Karpenter,
}

/// A process dies during a launch: in the end, exactly the instances of the admitted gang run.
pub async fn killed(stage: &Stage, victim: Victim, instance_type: &'static str) -> Result<()> {
    let id = format!("killed-{victim:?}").to_lowercase();
    let mut play = Play::start(stage, &id, instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::Delay("CreateFleet", Duration::from_secs(1))]);
    play.submit("train", 4, None).await?;
    play.until("a fleet is asked for", Duration::from_secs(30), async |play| {
        Ok(!play.calls("CreateFleet").is_empty())
    })
    .await?;
    match victim {
        Victim::Setu => play.steps(json!([{"setu": "kill"}, {"setu": "start"}])).await?,
        Victim::Karpenter => {
            stage.stack.stop_program(Program::Karpenter).await?;
            // EC2 executes the call, but Karpenter does not get the answer.
            play.until("instances run", Duration::from_secs(30), async |play| {
                Ok(!play.instances().await?.is_empty())
            })
            .await?;
            stage.stack.start_program(Program::Karpenter).await?;
        }
    }
    let mut runs = json!({"job": "train", "admitted": true, "runningOnOwnNodes": 4});
    if matches!(victim, Victim::Setu) {
        runs["attempt"] = json!(1);
    }
    play.steps(json!([{"until": runs}])).await?;
    play.audit(4).await?;
    play.end().await
}

/// The leader dies during a launch: the other replica continues with the same instances.
pub async fn leader_killed(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "killed-leader", instance_type, json!({})).await?;
    // Replicas with a lease replace it.
    play.steps(json!([{"setu": "kill"}])).await?;
    let controller = controller_name_of(&play.world.id);
    let mut replicas = Vec::new();
    for name in ["first", "second"] {
        let folder = stage.stack.folder().join(&play.world.id).join(name);
        let replica = Setu::new(&stage.shared.kubeconfig, &controller, POLICY, &folder)?;
        let mut replica = replica.with(&["--leader-elect"]).on(name);
        replica.start(None)?;
        replicas.push(replica);
    }
    let leads = |replica: &Setu| replica.log().contains("became leader");
    play.until("a replica leads", Duration::from_mins(1), async |_| Ok(replicas.iter().any(leads))).await?;
    play.cloud.rules(vec![Ec2Rule::Delay("CreateFleet", Duration::from_secs(1))]);
    play.submit("train", 4, None).await?;
    play.until("a fleet is asked for", Duration::from_secs(30), async |play| {
        Ok(!play.calls("CreateFleet").is_empty())
    })
    .await?;
    let leader = replicas.iter().position(leads).context("nobody leads")?;
    replicas.remove(leader).kill();
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 1}}]))
        .await?;
    ensure!(replicas.iter().all(leads), "the other replica does not lead");
    play.audit(4).await?;
    play.end().await
}

/// Setu is killed after each of its writes of NodeClaims and Workloads, for a gang that is rolled back once and then
/// admitted. The number of kills is the number of writes in the shortest of four such lives.
pub async fn setu_after_each_write(stage: &Stage) -> Result<()> {
    let whole = lives(stage, AT_ONCE.map(|instance_type| (instance_type, None)).to_vec()).await?;
    let mut kills = Vec::new();
    for kind in KINDS {
        let least = whole.iter().filter_map(|life| life.writes.get(kind)).min().copied().unwrap_or_default();
        println!("Setu makes {least} writes of {kind} or more in a life");
        kills.extend((1..=least).map(|number| format!("{kind} {number}")));
    }
    // Each NodeClaim of both attempts is created and deleted, and each transition writes the Workload.
    ensure!(kills.len() > 4 * MACHINES + 8, "Setu made {} writes only", kills.len());
    let mut shorter = 0;
    for round in kills.chunks(AT_ONCE.len()) {
        let lives_of_round: Vec<_> =
            AT_ONCE.into_iter().zip(round.iter().map(|kill| Some(kill.as_str()))).collect();
        for (life, kill) in lives(stage, lives_of_round).await?.iter().zip(round) {
            // The number of progress reports depends on how long the nodes take, so a life may have fewer writes.
            let (kind, number) = kill.split_once(' ').context("a kill has a kind and a number")?;
            let made = life.writes.get(kind).copied().unwrap_or_default();
            ensure!(
                life.died || made < number.parse()?,
                "Setu was not {} though it wrote {made} times",
                life.id
            );
            shorter += usize::from(!life.died);
        }
    }
    ensure!(shorter <= 2, "{shorter} lives ended before Setu was killed");
    println!("it was killed in {} lives", kills.len() - shorter);
    Ok(())
}

/// The result of one gang's life.
struct Life {
    id: String,
    /// Whether Setu was killed during it.
    died: bool,
    /// The number of writes by resource, if Setu was not killed.
    writes: BTreeMap<&'static str, u64>,
}

/// Runs the lives of several gangs at the same time, each with its type and the write after which Setu is killed.
async fn lives(stage: &Stage, lives: Vec<(&'static str, Option<&str>)>) -> Result<Vec<Life>> {
    // Otherwise it would remember the unavailable offerings of earlier lives.
    stage.restart_karpenter().await?;
    let mut plays = Vec::new();
    let mut short = Vec::new();
    for (instance_type, kill_after) in lives {
        let id = kill_after.map_or_else(
            || format!("not-killed-{}", plays.len()),
            |write| format!("killed-after-{}", write.replace(' ', "-")),
        );
        plays.push(Play::start_until(stage, &id, instance_type, in_two_zones(), kill_after).await?);
        short.push(room_for_all_but_one(instance_type));
    }
    stage.stack.cloud()?.rules(short);
    let lives = plays.into_iter().map(|play| async {
        let id = play.world.id.clone();
        live(play).await.with_context(|| id)
    });
    futures::future::try_join_all(lives).await
}

async fn live(mut play: Play<'_>) -> Result<Life> {
    play.submit("train", MACHINES, None).await?;
    admitted(&mut play).await?;
    play.steps(json!([
        {"delete": {"kind": "Job", "name": "train"}},
        {"until": {"allClaims": 0, "gone": {"kind": "Job", "name": "train"}}},
    ]))
    .await?;
    play.audit(0).await?;
    let setu = &play.world.theatre.setu;
    let died = setu.log().matches("what=\"metrics\" address=").count() > 1;
    let mut writes = BTreeMap::new();
    for kind in KINDS.into_iter().filter(|_| !died) {
        writes.insert(kind, setu.writes_of(kind)?);
    }
    let id = play.world.id.clone();
    play.end().await?;
    Ok(Life { id, died, writes })
}

/// Waits until the gang runs in the second zone, and checks that no other instance runs.
async fn admitted(play: &mut Play<'_>) -> Result<()> {
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": MACHINES, "claims": MACHINES, "within": 300}}]))
        .await?;
    play.audit(MACHINES).await?;
    let instances = play.instances().await?;
    ensure!(instances.iter().all(|i| i.zone == ZONES[1]), "some is elsewhere: {instances:?}");
    Ok(())
}

/// How many lives are tried for one kill.
const LIVES: usize = 3;

/// When Karpenter is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// While EC2 processes a fleet.
    Unanswered,
    /// Immediately after EC2's answer.
    Answered,
}

/// Karpenter is killed after each CreateFleet, before or after the answer, for a gang that is rolled back once and then
/// admitted. The number of kills is the number of fleets in a life without a kill.
pub async fn karpenter_after_each_fleet(stage: &Stage) -> Result<()> {
    let mut types = AT_ONCE.into_iter().cycle();
    let mut next = || types.next().unwrap_or(AT_ONCE[0]);
    let whole = karpenter_after(stage, None, next()).await?;
    println!("a life without a kill has {} fleets", whole.fleets);
    ensure!(whole.fleets >= ZONES.len(), "each attempt has one at least");
    let mut missed = Vec::new();
    for fleet in 1..=whole.fleets {
        for moment in [Moment::Unanswered, Moment::Answered] {
            // The number of NodeClaims that Karpenter merges depends on timing, so a life may have fewer fleets.
            let mut died = false;
            for _ in 0..LIVES {
                let life = karpenter_after(stage, Some((fleet, moment)), next()).await;
                died = life.with_context(|| format!("killed after fleet {fleet}, {moment:?}"))?.died;
                if died {
                    break;
                }
            }
            ensure!(died || fleet > ZONES.len(), "Karpenter was not killed after fleet {fleet}, {moment:?}");
            missed.extend((!died).then_some((fleet, moment)));
        }
    }
    println!("it was killed after each fleet but {missed:?}");
    Ok(())
}

/// The result of a life in which Karpenter may be killed.
struct Bought {
    died: bool,
    fleets: usize,
}

async fn karpenter_after(
    stage: &Stage,
    kill: Option<(usize, Moment)>,
    instance_type: &'static str,
) -> Result<Bought> {
    stage.restart_karpenter().await?;
    let id = kill.map_or_else(|| "fleets".to_owned(), |(fleet, moment)| format!("fleet-{fleet}-{moment:?}"));
    // Each life of one kill has a type of its own.
    let id = format!("{id}-{}", instance_type.replace('.', "-"));
    let mut play = Play::start(stage, &id.to_lowercase(), instance_type, in_two_zones()).await?;
    let slow = Ec2Rule::Delay("CreateFleet", Duration::from_millis(700));
    play.cloud.rules(vec![room_for_all_but_one(instance_type), slow]);
    play.submit("train", MACHINES, None).await?;
    let is_bought = |play: &Play<'_>| {
        kill.is_some_and(|(fleet, moment)| match (play.calls("CreateFleet").get(fleet - 1), moment) {
            (None, _) => false,
            (Some(_), Moment::Unanswered) => true,
            (Some(call), Moment::Answered) => call.done.is_some(),
        })
    };
    play.until("the fleet is asked for, or the gang admitted", Duration::from_mins(2), async |play| {
        let workload = play.world.workload("train").await?;
        Ok(is_bought(play) || workload.is_some_and(|workload| workload.is("Admitted")))
    })
    .await?;
    let died = is_bought(&play);
    if died {
        stage.restart_karpenter().await?;
        println!("killed after {} fleets, the last {kill:?}", play.calls("CreateFleet").len());
    }
    admitted(&mut play).await?;
    let fleets = play.calls("CreateFleet").len();
    play.end().await?;
    Ok(Bought { died, fleets })
}

fn in_two_zones() -> Value {
    let tier = |zone| {
        let requirements =
            json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]);
        json!({"name": zone, "nodePoolName": "${id}", "requirements": requirements})
    };
    json!({"tiers": ZONES.map(tier), "retry": {"inCheck": {"limit": 9, "base": "1s", "max": "1s"}}})
}

fn room_for_all_but_one(instance_type: &str) -> Ec2Rule {
    let [first, _] = ZONES;
    Ec2Rule::Room(Offerings::of(instance_type).in_zone(first), MACHINES - 1)
}
