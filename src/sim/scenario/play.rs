//! Plays a scenario: takes its steps in order, and then checks what must hold at the end of every scenario.

use super::conditions::Expect;
use super::expect::lacks;
use super::file::{ListedOffering, Power, ScenarioStep};
use super::runs::Run;
use super::{ScenarioWorld, Theatre};
use crate::api::NodeClaim;
use crate::gang::statechart::diagram;
use crate::names;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Polling interval.
const POLL: Duration = Duration::from_millis(250);
/// How long cleanup may take at the end.
const CLEAN_UP: Duration = Duration::from_secs(90);

/// Takes all steps. `kill_after` makes Setu kill itself once, right after that write; it is then restarted.
/// Returns the number of Setu's writes, or 0 with `kill_after`.
pub async fn play<T: Theatre>(
    world: &mut ScenarioWorld<T>,
    run: &Run,
    kill_after: Option<u64>,
) -> Result<u64> {
    world.theatre.start_setu(kill_after)?;
    for (index, step) in run.scenario.steps.iter().enumerate() {
        take(world, step)
            .await
            .with_context(|| format!("step {} of {:?}: {}", index + 1, run.title, step.description()))?;
    }
    let writes = if kill_after.is_none() { world.theatre.writes().unwrap_or_default() } else { 0 };
    nothing_is_left(world).await.context("after the last step")?;
    paths_are_lawful(world)?;
    Ok(writes)
}

/// Takes one step.
pub async fn take<T: Theatre>(world: &mut ScenarioWorld<T>, step: &ScenarioStep) -> Result<()> {
    match step {
        ScenarioStep::Submit(job) => world.submit(job).await,
        ScenarioStep::Group(group) => world.group(group).await,
        ScenarioStep::Apply(objects) => {
            for object in objects {
                world.apply(object.clone()).await?;
            }
            Ok(())
        }
        ScenarioStep::Delete(target) => world.delete(&target.kind, &target.name).await,
        ScenarioStep::Patch(change) => world.patch(&change.kind, &change.name, &change.patch).await,
        ScenarioStep::Weather(rules) => world.weather(rules).await,
        ScenarioStep::DeleteOneClaim(job) => {
            let claims = world.claims_of(job).await?;
            world.delete("NodeClaim", &claims.first().context("the gang has no NodeClaim")?.name_any()).await
        }
        ScenarioStep::KeepClaims(job) => world.set_finalizer(job, true).await,
        ScenarioStep::LetClaimsGo(job) => world.set_finalizer(job, false).await,
        ScenarioStep::Annotate(annotation) => {
            let key = names::journal_key(&world.id);
            let patch = serde_json::json!({"metadata": {"annotations": {key: annotation.journal}}});
            world.patch("Workload", &annotation.name, &patch).await?;
            world.journals.clear();
            Ok(())
        }
        ScenarioStep::Answer(answer) => world.answer(answer).await,
        ScenarioStep::Evict(eviction) => world.evict(eviction).await,
        ScenarioStep::KarpenterSays(offerings) => {
            let page: String = offerings.iter().map(ListedOffering::line).collect();
            world.theatre.karpenter_says(&page).await
        }
        ScenarioStep::Activate(check) => world.set_condition("AdmissionCheck", check, ("Active", true)).await,
        ScenarioStep::NodeClassReady(ready) => {
            world.set_condition("KWOKNodeClass", "${id}", ("Ready", *ready)).await
        }
        ScenarioStep::Setu(Power::Start) => world.theatre.start_setu(None),
        ScenarioStep::Setu(Power::Kill) => {
            world.theatre.kill_setu();
            Ok(())
        }
        ScenarioStep::ApiServerGone(seconds) => world.theatre.api_server_gone(*seconds).await,
        ScenarioStep::Use(axis) => bail!("axis {axis} was not resolved"),
        ScenarioStep::Until(expect) => until(world, expect).await,
        ScenarioStep::Holds(expect) => holds(world, expect).await,
    }
}

async fn until<T: Theatre>(world: &mut ScenarioWorld<T>, expect: &Expect) -> Result<()> {
    let within = expect.within.saturating_mul(world.theatre.time_factor());
    let deadline = Instant::now() + Duration::from_secs(within);
    loop {
        world.theatre.revive_setu()?;
        let lack = lacks(world, expect).await;
        let lack = match lack {
            Ok(None) => return Ok(()),
            Ok(Some(lack)) => lack,
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() > deadline {
            bail!("not so within {within} s: {lack}{}", last_lines(world));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn holds<T: Theatre>(world: &mut ScenarioWorld<T>, expect: &Expect) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(expect.within);
    while Instant::now() < end {
        world.theatre.revive_setu()?;
        if let Some(lack) = lacks(world, expect).await? {
            bail!("it did not stay so: {lack}{}", last_lines(world));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Setu's last log lines, if it has a log.
fn last_lines<T: Theatre>(world: &ScenarioWorld<T>) -> String {
    let tail = world.theatre.log_tail();
    if tail.is_empty() { tail } else { format!("\nSetu's last lines:\n{tail}") }
}

/// Deletes all Jobs and pods of the scenario. Then no NodeClaim, Node and Workload may be left, in any of its NodePools.
pub async fn nothing_is_left<T: Theatre>(world: &mut ScenarioWorld<T>) -> Result<()> {
    use k8s_openapi::api::batch::v1::Job;
    let all = ListParams::default();
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::background() };
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &world.id);
    jobs.delete_collection(&DeleteParams::background(), &all).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.id);
    pods.delete_collection(&now, &all).await?;
    let deadline = Instant::now() + CLEAN_UP;
    loop {
        world.theatre.revive_setu()?;
        let mut claims: BTreeSet<String> = world.of_node_pools::<NodeClaim>().await?.into_iter().collect();
        claims.extend(world.claims().await?.iter().map(ResourceExt::name_any));
        let nodes = world.of_node_pools::<Node>().await?;
        let workloads = world.workloads().await?;
        for workload in &workloads {
            world.journal(workload);
        }
        if claims.is_empty() && nodes.is_empty() && workloads.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let workloads: Vec<String> = workloads.iter().map(ResourceExt::name_any).collect();
            bail!(
                "left over: NodeClaims {claims:?}, Nodes {nodes:?}, Workloads {workloads:?}{}",
                last_lines(world)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Checks that every journal history seen is a path of the published chart.
pub fn paths_are_lawful<T: Theatre>(world: &ScenarioWorld<T>) -> Result<()> {
    let edges = diagram::edges();
    for journal in world.journals.values() {
        let mut last: Option<&crate::gang::statechart::transition::Transition> = None;
        for step in &journal.history {
            ensure!(
                edges.contains_key(&(step.from, step.to)),
                "{} → {} is no edge of the chart",
                step.from,
                step.to
            );
            if let Some(last) = last {
                ensure!(last.to == step.from && last.seq + 1 == step.seq, "{last:?} is followed by {step:?}");
            }
            last = Some(step);
        }
    }
    Ok(())
}
