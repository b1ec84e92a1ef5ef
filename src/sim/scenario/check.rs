//! Checks a scenario before it is played on the embedded cluster: finds names of things that do not exist.
//!
//! Rule: whatever is found here could never become true, so nothing should wait for it.

use super::conditions::Expect;
use super::file::ScenarioStep;
use super::fill::filled;
use super::runs::Run;
use anyhow::{Context as _, Result, ensure};
use setu_sim::api::is_name;
use setu_sim::api::kinds;
use setu_sim::values::{label, name, text};
use std::collections::BTreeSet;

/// Label that names the group of a plain pod. The group's Workload has the same name.
const POD_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// The form of a name.
const FORM: &str =
    "it must consist of lower-case letters, digits, '-' and '.', and begin and end with one of the first two";
/// Maximum length of a namespace name.
const NAMESPACE_LIMIT: usize = 63;

/// Refuses a run with invalid objects, or with Jobs that no step submits.
///
/// # Errors
/// The first fault, with its step.
pub fn check(run: &Run) -> Result<()> {
    let id = &run.id;
    let fits = is_name(id) && !id.contains('.') && id.len() <= NAMESPACE_LIMIT;
    ensure!(fits, "{id:?}, made from the names of the file and its choices, is not a name of a namespace");
    let steps = &run.scenario.steps;
    let owners: BTreeSet<&str> = steps.iter().flat_map(owners).collect();
    for (index, step) in steps.iter().enumerate() {
        check_step(step, &run.id, &owners)
            .with_context(|| format!("step {} of {:?}: {}", index + 1, run.title, step.description()))?;
    }
    Ok(())
}

/// Names of the objects of a step that can have a Workload.
fn owners(step: &ScenarioStep) -> Vec<&str> {
    match step {
        ScenarioStep::Submit(job) => vec![&job.name],
        ScenarioStep::Group(group) => vec![&group.name],
        ScenarioStep::Apply(objects) => {
            let groups = objects.iter().map(|o| label(o, POD_GROUP));
            objects.iter().map(name).chain(groups).filter(|name| !name.is_empty()).collect()
        }
        _ => Vec::new(),
    }
}

fn check_step(step: &ScenarioStep, id: &str, owners: &BTreeSet<&str>) -> Result<()> {
    let submitted = |job: &str| -> Result<()> {
        ensure!(owners.contains(job), "no step submits {job}");
        Ok(())
    };
    match step {
        ScenarioStep::Submit(job) => named(&job.name, id),
        ScenarioStep::Group(group) => named(&group.name, id),
        ScenarioStep::Apply(objects) => objects.iter().try_for_each(|object| {
            ensure!(
                !text(object, "/kind").is_empty() && !name(object).is_empty(),
                "an object without kind or name"
            );
            served(text(object, "/kind"))?;
            named(name(object), id)
        }),
        ScenarioStep::Delete(target) => served(&target.kind),
        ScenarioStep::Patch(change) if change.kind == "Workload" => submitted(&change.name),
        ScenarioStep::Patch(change) => served(&change.kind),
        ScenarioStep::DeleteOneClaim(job) => submitted(job),
        ScenarioStep::Answer(answer) => submitted(&answer.name),
        ScenarioStep::Evict(eviction) => submitted(&eviction.name),
        ScenarioStep::Annotate(annotation) => submitted(&annotation.name),
        ScenarioStep::Until(expect) | ScenarioStep::Holds(expect) => expected(expect, submitted),
        _ => Ok(()),
    }
}

fn expected(expect: &Expect, submitted: impl Fn(&str) -> Result<()>) -> Result<()> {
    if let Some(target) = &expect.gone {
        served(&target.kind)?;
    }
    expect.job.as_deref().map_or(Ok(()), submitted)
}

fn served(kind: &str) -> Result<()> {
    ensure!(kinds::ALL.iter().any(|k| k.kind == kind), "the embedded cluster serves no kind {kind}");
    Ok(())
}

fn named(name: &str, id: &str) -> Result<()> {
    ensure!(is_name(&filled(name, id)), "{name:?} is not a name: {FORM}");
    Ok(())
}
