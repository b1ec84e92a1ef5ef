//! Plays a scenario: takes its steps in order, and then checks what must hold at the end of every scenario.

use super::file::{Expect, Offering, Power, Step};
use super::runs::Run;
use super::{Theatre, World};
use crate::api::workload::Verdict;
use crate::api::{NodeClaim, Workload, condition};
use crate::gang::{Journal, StateName, diagram};
use crate::names;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Polling interval.
const POLL: Duration = Duration::from_millis(250);
/// How long cleanup may take at the end.
const CLEAN_UP: Duration = Duration::from_secs(90);

/// Takes all steps. `kill_after` makes Setu kill itself once, right after that write; it is then restarted.
/// Returns the number of Setu's writes, or 0 with `kill_after`.
pub async fn play<T: Theatre>(world: &mut World<T>, run: &Run, kill_after: Option<u64>) -> Result<u64> {
    world.theatre.start_setu(kill_after)?;
    for (index, step) in run.scenario.steps.iter().enumerate() {
        take(world, step)
            .await
            .with_context(|| format!("step {} of {:?}: {}", index + 1, run.title, step.told()))?;
    }
    let writes = if kill_after.is_none() { world.theatre.writes().unwrap_or_default() } else { 0 };
    nothing_is_left(world).await.context("after the last step")?;
    paths_are_lawful(world)?;
    Ok(writes)
}

/// Takes one step.
pub async fn take<T: Theatre>(world: &mut World<T>, step: &Step) -> Result<()> {
    match step {
        Step::Submit(job) => world.submit(job).await,
        Step::Group(group) => world.group(group).await,
        Step::Apply(objects) => {
            for object in objects {
                world.apply(object.clone()).await?;
            }
            Ok(())
        }
        Step::Delete(target) => world.delete(&target.kind, &target.name).await,
        Step::Patch(change) => world.patch(&change.kind, &change.name, &change.patch).await,
        Step::Weather(rules) => world.weather(rules).await,
        Step::DeleteOneClaim(job) => {
            let claims = world.claims_of(job).await?;
            world.delete("NodeClaim", &claims.first().context("the gang has no NodeClaim")?.name_any()).await
        }
        Step::KeepClaims(job) => world.set_finalizer(job, true).await,
        Step::LetClaimsGo(job) => world.set_finalizer(job, false).await,
        Step::Annotate(annotation) => {
            let key = names::journal_key(&world.id);
            let patch = serde_json::json!({"metadata": {"annotations": {key: annotation.journal}}});
            world.patch("Workload", &annotation.name, &patch).await?;
            world.journals.clear();
            Ok(())
        }
        Step::Answer(answer) => world.answer(answer).await,
        Step::Evict(eviction) => world.evict(eviction).await,
        Step::KarpenterSays(offerings) => {
            let page: String = offerings.iter().map(Offering::line).collect();
            world.theatre.karpenter_says(&page).await
        }
        Step::Activate(check) => world.set_condition("AdmissionCheck", check, ("Active", true)).await,
        Step::NodeClassReady(ready) => world.set_condition("KWOKNodeClass", "${id}", ("Ready", *ready)).await,
        Step::Setu(Power::Start) => world.theatre.start_setu(None),
        Step::Setu(Power::Kill) => {
            world.theatre.kill_setu();
            Ok(())
        }
        Step::ApiServerGone(seconds) => world.theatre.api_server_gone(*seconds).await,
        Step::Use(axis) => bail!("axis {axis} was not resolved"),
        Step::Until(expect) => until(world, expect).await,
        Step::Holds(expect) => holds(world, expect).await,
    }
}

async fn until<T: Theatre>(world: &mut World<T>, expect: &Expect) -> Result<()> {
    let within = expect.within.saturating_mul(world.theatre.patience());
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

async fn holds<T: Theatre>(world: &mut World<T>, expect: &Expect) -> Result<()> {
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
fn last_lines<T: Theatre>(world: &World<T>) -> String {
    let tail = world.theatre.log_tail();
    if tail.is_empty() { tail } else { format!("\nSetu's last lines:\n{tail}") }
}

/// The first unmet expectation.
async fn lacks<T: Theatre>(world: &mut World<T>, expect: &Expect) -> Result<Option<String>> {
    let claims = world.claims().await?;
    for workload in world.workloads().await? {
        world.journal(&workload);
    }
    if let Some(wanted) = expect.all_claims
        && claims.len() != wanted
    {
        return Ok(Some(format!("{} NodeClaims in all, not {wanted}", claims.len())));
    }
    if let Some(wanted) = expect.nodes {
        let nodes = nodes(world).await?.len();
        if nodes != wanted {
            return Ok(Some(format!("{nodes} Nodes of the scenario's NodePools, not {wanted}")));
        }
    }
    if let Some(target) = &expect.gone
        && world.exists(&target.kind, &target.name).await?
    {
        return Ok(Some(format!("{} {} is still there", target.kind, target.name)));
    }
    if let Some(wanted) = &expect.active {
        let is = active(world).await?;
        if is != *wanted {
            return Ok(Some(format!("the check's Active condition is {is:?}, not {wanted:?}")));
        }
    }
    match &expect.job {
        None => Ok(None),
        Some(job) => lacks_of_job(world, &job.replace("${id}", &world.id), expect, &claims).await,
    }
}

async fn active<T: Theatre>(world: &World<T>) -> Result<String> {
    let api: Api<crate::api::AdmissionCheck> = Api::all(world.client.clone());
    let check = api.get(&world.id).await?;
    let found = condition::find(check.conditions(), "Active");
    Ok(found.map_or_else(String::new, |c| format!("{} {}", c.status, c.reason)))
}

async fn lacks_of_job<T: Theatre>(
    world: &mut World<T>,
    job: &str,
    expect: &Expect,
    claims: &[NodeClaim],
) -> Result<Option<String>> {
    let Some(workload) = world.workload(job).await? else {
        return Ok(Some(format!("{job} has no Workload")));
    };
    let journal = world.journal(&workload);
    let uid = workload.uid().unwrap_or_default();
    let own: Vec<&NodeClaim> = claims.iter().filter(|c| c.label(names::WORKLOAD_UID) == uid).collect();
    let entry = workload.check(&world.id);
    let mut lack = Vec::new();
    let mut same = |what: &str, is: String, wanted: &Option<String>| {
        if let Some(wanted) = wanted.as_ref().filter(|w| **w != is) {
            lack.push(format!("{what} of {job} is {is:?}, not {wanted:?}"));
        }
    };
    let of_journal = |f: &dyn Fn(&Journal) -> String| journal.as_ref().map_or_else(String::new, f);
    let wanted = expect.state.map(|state| state.to_string());
    same("state", of_journal(&|j| j.state.name().to_string()), &wanted);
    let failure =
        |j: &Journal| j.memory.last_failure.as_ref().map_or_else(String::new, |f| f.reason.to_string());
    same("failure", of_journal(&failure), &expect.failure.map(|class| class.to_string()));
    let verdict = |verdict: Verdict| format!("{verdict:?}");
    same("verdict", entry.map_or_else(String::new, |e| verdict(e.state)), &expect.verdict.map(verdict));
    same("quota", workload.is("QuotaReserved").to_string(), &expect.reserved.map(|b| b.to_string()));
    same("admission", workload.is("Admitted").to_string(), &expect.admitted.map(|b| b.to_string()));
    same("end", workload.is("Finished").to_string(), &expect.finished.map(|b| b.to_string()));
    let running = if expect.running.is_some() { running_on(world, job).await?.len() } else { 0 };
    same("number of running pods", running.to_string(), &expect.running.map(|n| n.to_string()));
    same("number of NodeClaims", own.len().to_string(), &expect.claims.map(|n| n.to_string()));
    let attempt = of_journal(&|j| j.memory.attempt.to_string());
    same("attempt", attempt, &expect.attempt.map(|n| n.to_string()));
    if let Some(words) = &expect.message {
        let message = entry.map_or("", |e| e.message.as_str());
        if !message.contains(&words.replace("${id}", &world.id)) {
            lack.push(format!("the message of {job} is {message:?}, without {words:?}"));
        }
    }
    if let Some(states) = &expect.went_through {
        let been: Vec<StateName> = journal.iter().flat_map(|j| &j.history).map(|s| s.to).collect();
        let mut rest = been.iter();
        if !states.iter().all(|state| rest.any(|b| b == state)) {
            lack.push(format!("{job} went through {been:?}"));
        }
    }
    if let Some(wanted) = expect.running_on_own_nodes {
        lack.extend(misplaced(world, job, &own, wanted).await?);
    }
    if let Some(wanted) = &expect.capacity_types {
        let found = capacity_types(&own);
        lack.extend((found != *wanted).then(|| format!("{job} has NodeClaims {found:?}, not {wanted:?}")));
    }
    if let Some(wanted) = expect.gpu_nodes {
        let has_gpu = |claim: &&&NodeClaim| {
            claim.status.as_ref().is_some_and(|status| status.capacity.contains_key("nvidia.com/gpu"))
        };
        let found = own.iter().filter(has_gpu).count();
        lack.extend((found != wanted).then(|| format!("{found} nodes of {job} have GPUs, not {wanted}")));
    }
    for (key, wanted) in expect.annotations.iter().flatten() {
        let is_so = |claim: &NodeClaim| claim.annotations().get(key) == wanted.as_ref();
        let other = own.iter().find(|claim| !is_so(claim));
        lack.extend(other.map(|claim| format!("{key} of {} is not {wanted:?}", claim.name_any())));
    }
    if let Some(key) = &expect.together {
        lack.extend(apart(world, &own, key).await?);
    }
    if let Some(wanted) = expect.strangers {
        let found = strangers(world, job, &own).await?;
        lack.extend(
            (found.len() != wanted).then(|| format!("{found:?} are on nodes of {job}, not {wanted}")),
        );
    }
    if let Some(reason) = &expect.event {
        lack.extend(no_event(world, &workload, reason).await?);
    }
    Ok(lack.into_iter().next())
}

/// Checks that exactly `wanted` pods of the Job run, each alone on a node of these claims.
///
/// Nodes of NodeClaims that are being deleted do not count. A pod may still run on such a node, so the gang would
/// seem complete before the replacement exists.
async fn misplaced<T: Theatre>(
    world: &World<T>,
    job: &str,
    own: &[&NodeClaim],
    wanted: usize,
) -> Result<Option<String>> {
    let kept = own.iter().filter(|c| c.metadata.deletion_timestamp.is_none());
    let nodes: BTreeSet<&str> =
        kept.filter_map(|c| c.status.as_ref()).map(|s| s.node_name.as_str()).collect();
    let running = running_on(world, job).await?;
    let used: BTreeSet<&str> = running.iter().map(String::as_str).collect();
    if running.len() != wanted {
        return Ok(Some(format!("{} pods of {job} run, not {wanted}", running.len())));
    }
    let good = used.len() == wanted && used.is_subset(&nodes) && nodes.len() == wanted;
    Ok((!good).then(|| format!("pods of {job} run on {used:?}, and the gang's nodes are {nodes:?}")))
}

/// The number of these claims by capacity type, from Karpenter's label.
fn capacity_types(own: &[&NodeClaim]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for claim in own {
        *counts.entry(claim.label(names::CAPACITY_TYPE).to_owned()).or_default() += 1;
    }
    counts
}

/// Checks that all claims require the same single value of a label, and that their Nodes have it.
async fn apart<T: Theatre>(world: &World<T>, own: &[&NodeClaim], key: &str) -> Result<Option<String>> {
    let required = |claim: &&NodeClaim| {
        let of_key = claim.spec.requirements.iter().filter(|r| r.key == key && r.operator == "In");
        of_key.map(|r| r.values.join(" ")).collect::<Vec<_>>().join(" and ")
    };
    let required: BTreeSet<String> = own.iter().map(required).collect();
    let api: Api<Node> = Api::all(world.client.clone());
    let nodes = api.list(&ListParams::default()).await?.items;
    let label = |claim: &&NodeClaim| {
        let node = nodes.iter().find(|node| Some(node.name_any().as_str()) == claim.node_name());
        node.and_then(|node| node.labels().get(key).cloned()).unwrap_or_default()
    };
    let labels: BTreeSet<String> = own.iter().map(label).collect();
    let held = required.len() == 1 && required.iter().all(|value| !value.is_empty() && !value.contains(' '));
    let together = held && labels == required;
    Ok((!together).then(|| format!("the gang requires {key} {required:?}, and its nodes have {labels:?}")))
}

/// Pods of other Jobs that run on the nodes of these claims.
async fn strangers<T: Theatre>(world: &World<T>, job: &str, own: &[&NodeClaim]) -> Result<Vec<String>> {
    let nodes: BTreeSet<&str> = own.iter().filter_map(|c| c.node_name()).collect();
    let there = |p: &Pod| {
        let node = p.spec.as_ref().and_then(|s| s.node_name.as_deref());
        let phase = p.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        // Ended pods of a gang that used the node before remain until their Job is deleted.
        let over = matches!(phase, "Succeeded" | "Failed");
        !over
            && node.is_some_and(|node| nodes.contains(node))
            && !p.name_any().starts_with(&format!("{job}-"))
    };
    Ok(world.pods().await?.iter().filter(|p| there(p)).map(ResourceExt::name_any).collect())
}

/// The Node of each running pod of a Job.
async fn running_on<T: Theatre>(world: &World<T>, job: &str) -> Result<Vec<String>> {
    let runs = |p: &Pod| {
        p.name_any().starts_with(&format!("{job}-"))
            && p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
    };
    let pods = world.pods().await?;
    Ok(pods.into_iter().filter(runs).filter_map(|p| p.spec?.node_name).collect())
}

async fn no_event<T: Theatre>(world: &World<T>, workload: &Workload, reason: &str) -> Result<Option<String>> {
    let api: Api<Event> = Api::namespaced(world.client.clone(), &world.id);
    let uid = workload.uid();
    let events = api.list(&ListParams::default()).await?;
    let about = |e: &Event| e.regarding.as_ref().is_some_and(|r| r.uid == uid);
    let reasons: BTreeSet<String> =
        events.items.iter().filter(|e| about(e)).filter_map(|e| e.reason.clone()).collect();
    Ok((!reasons.contains(reason)).then(|| format!("events are {reasons:?}, without {reason}")))
}

/// Deletes all Jobs and pods of the scenario. Then no NodeClaim, Node and Workload may be left.
pub async fn nothing_is_left<T: Theatre>(world: &mut World<T>) -> Result<()> {
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
        let claims = world.claims().await?;
        let nodes = nodes(world).await?;
        let workloads = world.workloads().await?;
        for workload in &workloads {
            world.journal(workload);
        }
        if claims.is_empty() && nodes.is_empty() && workloads.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let claims: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
            let workloads: Vec<String> = workloads.iter().map(ResourceExt::name_any).collect();
            bail!(
                "left over: NodeClaims {claims:?}, Nodes {nodes:?}, Workloads {workloads:?}{}",
                last_lines(world)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Names of the Nodes of the scenario's NodePools.
async fn nodes<T: Theatre>(world: &World<T>) -> Result<Vec<String>> {
    let pools = format!("{} in ({1}, {1}-cpu)", names::NODEPOOL, world.id);
    let nodes: Api<Node> = Api::all(world.client.clone());
    let nodes = nodes.list(&ListParams::default().labels(&pools)).await?.items;
    Ok(nodes.iter().map(ResourceExt::name_any).collect())
}

/// Checks that every journal history seen is a path of the published chart.
pub fn paths_are_lawful<T: Theatre>(world: &World<T>) -> Result<()> {
    let edges = diagram::edges();
    for journal in world.journals.values() {
        let mut last: Option<&crate::gang::journal::Transition> = None;
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
