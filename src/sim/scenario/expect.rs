//! The unmet parts of an expectation of a scenario, in words.

use super::conditions::Expect;
use super::{ScenarioWorld, Theatre};
use crate::api::workload::Verdict;
use crate::api::{AdmissionCheck, NodeClaim, Workload, condition};
use crate::gang::{Journal, StateName};
use crate::names;
use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use std::collections::{BTreeMap, BTreeSet};

/// The first unmet expectation.
pub async fn lacks<T: Theatre>(world: &mut ScenarioWorld<T>, expect: &Expect) -> Result<Option<String>> {
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
        let nodes = world.of_node_pools::<Node>().await?.len();
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

async fn active<T: Theatre>(world: &ScenarioWorld<T>) -> Result<String> {
    let api: Api<AdmissionCheck> = Api::all(world.client.clone());
    let check = api.get(&world.id).await?;
    let found = condition::find(check.conditions(), "Active");
    Ok(found.map_or_else(String::new, |c| format!("{} {}", c.status, c.reason)))
}

async fn lacks_of_job<T: Theatre>(
    world: &mut ScenarioWorld<T>,
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
    let running = if expect.running.is_some() { running_on(world, job).await?.len() } else { 0 };
    let gang = ObservedGang { job, workload, journal, claims: own };
    let mut lacks = gang.other_values(expect, world, running);
    lacks.extend(gang.other_text(expect, world));
    if let Some(wanted) = expect.running_on_own_nodes {
        lacks.extend(misplaced(world, job, &gang.claims, wanted).await?);
    }
    lacks.extend(gang.other_claims(expect));
    if let Some(key) = &expect.together {
        lacks.extend(apart(world, &gang.claims, key).await?);
    }
    if let Some(wanted) = expect.foreign_pods {
        let found = foreign_pods(world, job, &gang.claims).await?;
        lacks.extend(
            (found.len() != wanted).then(|| format!("{found:?} are on nodes of {job}, not {wanted}")),
        );
    }
    if let Some(reason) = &expect.event {
        lacks.extend(no_event(world, &gang.workload, reason).await?);
    }
    Ok(lacks.into_iter().next())
}

/// A gang as the API server shows it.
struct ObservedGang<'o> {
    job: &'o str,
    workload: Workload,
    journal: Option<Journal>,
    /// Its NodeClaims.
    claims: Vec<&'o NodeClaim>,
}

impl ObservedGang<'_> {
    /// The single values that are other than expected.
    fn other_values<T: Theatre>(
        &self,
        expect: &Expect,
        world: &ScenarioWorld<T>,
        running: usize,
    ) -> Vec<String> {
        let Self { job, workload, journal, claims } = self;
        let of_journal = |f: &dyn Fn(&Journal) -> String| journal.as_ref().map_or_else(String::new, f);
        let failure =
            |j: &Journal| j.memory.last_failure.as_ref().map_or_else(String::new, |f| f.reason.to_string());
        let verdict = |verdict: Verdict| format!("{verdict:?}");
        let reported = workload.check(&world.id).map_or_else(String::new, |entry| verdict(entry.state));
        let wanted_state = expect.state.map(|state| state.to_string());
        let values = [
            ("state", of_journal(&|j| j.state.name().to_string()), wanted_state),
            ("failure", of_journal(&failure), expect.failure.map(|class| class.to_string())),
            ("verdict", reported, expect.verdict.map(verdict)),
            ("quota", workload.has_quota().to_string(), shown(expect.reserved)),
            ("admission", workload.is_admitted().to_string(), shown(expect.admitted)),
            ("end", workload.is_finished().to_string(), shown(expect.finished)),
            ("number of running pods", running.to_string(), shown(expect.running)),
            ("number of NodeClaims", claims.len().to_string(), shown(expect.claims)),
            ("attempt", of_journal(&|j| j.memory.attempt.to_string()), shown(expect.attempt)),
        ];
        let other = values.into_iter().filter_map(|(what, is, wanted)| {
            let wanted = wanted.filter(|wanted| *wanted != is)?;
            Some(format!("{what} of {job} is {is:?}, not {wanted:?}"))
        });
        other.collect()
    }

    /// The parts of the check's message and of the journal's history that are other than expected.
    fn other_text<T: Theatre>(&self, expect: &Expect, world: &ScenarioWorld<T>) -> Vec<String> {
        let job = self.job;
        let mut other = Vec::new();
        if let Some(words) = &expect.message {
            let message = self.workload.check(&world.id).map_or("", |entry| entry.message.as_str());
            if !message.contains(&words.replace("${id}", &world.id)) {
                other.push(format!("the message of {job} is {message:?}, without {words:?}"));
            }
        }
        if let Some(states) = &expect.went_through {
            let been: Vec<StateName> =
                self.journal.iter().flat_map(|j| &j.history).map(|step| step.to).collect();
            let mut rest = been.iter();
            if !states.iter().all(|state| rest.any(|b| b == state)) {
                other.push(format!("{job} went through {been:?}"));
            }
        }
        other
    }

    /// The facts about the NodeClaims that are other than expected.
    fn other_claims(&self, expect: &Expect) -> Vec<String> {
        let Self { job, claims, .. } = self;
        let mut other = Vec::new();
        if let Some(wanted) = &expect.capacity_types {
            let found = capacity_types(claims);
            other.extend(
                (found != *wanted).then(|| format!("{job} has NodeClaims {found:?}, not {wanted:?}")),
            );
        }
        if let Some(wanted) = expect.gpu_nodes {
            let has_gpu = |claim: &&&NodeClaim| {
                claim.status.as_ref().is_some_and(|status| status.capacity.contains_key("nvidia.com/gpu"))
            };
            let found = claims.iter().filter(has_gpu).count();
            other
                .extend((found != wanted).then(|| format!("{found} nodes of {job} have GPUs, not {wanted}")));
        }
        for (key, wanted) in expect.annotations.iter().flatten() {
            let is_so = |claim: &NodeClaim| claim.annotations().get(key) == wanted.as_ref();
            let wrong = claims.iter().find(|claim| !is_so(claim));
            other.extend(wrong.map(|claim| format!("{key} of {} is not {wanted:?}", claim.name_any())));
        }
        other
    }
}

fn shown(wanted: Option<impl ToString>) -> Option<String> {
    wanted.map(|wanted| wanted.to_string())
}

/// Checks that exactly `wanted` pods of the Job run, each alone on a node of these claims.
///
/// Nodes of NodeClaims that are being deleted do not count. A pod may still run on such a node, so the gang would
/// seem complete before the replacement exists.
async fn misplaced<T: Theatre>(
    world: &ScenarioWorld<T>,
    job: &str,
    own: &[&NodeClaim],
    wanted: usize,
) -> Result<Option<String>> {
    let kept = own.iter().filter(|c| !c.is_deleting());
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
async fn apart<T: Theatre>(
    world: &ScenarioWorld<T>,
    own: &[&NodeClaim],
    key: &str,
) -> Result<Option<String>> {
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
async fn foreign_pods<T: Theatre>(
    world: &ScenarioWorld<T>,
    job: &str,
    own: &[&NodeClaim],
) -> Result<Vec<String>> {
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
async fn running_on<T: Theatre>(world: &ScenarioWorld<T>, job: &str) -> Result<Vec<String>> {
    let runs = |p: &Pod| {
        p.name_any().starts_with(&format!("{job}-"))
            && p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
    };
    let pods = world.pods().await?;
    Ok(pods.into_iter().filter(runs).filter_map(|p| p.spec?.node_name).collect())
}

async fn no_event<T: Theatre>(
    world: &ScenarioWorld<T>,
    workload: &Workload,
    reason: &str,
) -> Result<Option<String>> {
    let api: Api<Event> = Api::namespaced(world.client.clone(), &world.id);
    let uid = workload.uid();
    let events = api.list(&ListParams::default()).await?;
    let about = |e: &Event| e.regarding.as_ref().is_some_and(|r| r.uid == uid);
    let reasons: BTreeSet<String> =
        events.items.iter().filter(|e| about(e)).filter_map(|e| e.reason.clone()).collect();
    Ok((!reasons.contains(reason)).then(|| format!("events are {reasons:?}, without {reason}")))
}
