//! Finds the Workload that a user names, by its own name or by the name of its Job.

use super::CliError;
use super::cluster::{ClusterObjects, ClusterReader, Scope};
use super::frameworks::is_meant;
use super::report::{self, GangReport};
use super::requests::{check_without_request, why_not_ours};
use crate::api::{FrontEnd, Workload};
use kube::ResourceExt;
use std::time::Duration;
use tokio::time::Instant;

/// How long to wait for a Workload that does not exist yet or has no checks yet. Kueue creates it a moment
/// after its Job, and lists its checks a moment after it reserves quota.
const WORKLOAD_WAIT: Duration = Duration::from_secs(2);
/// Time between two reads.
const BETWEEN: Duration = Duration::from_millis(250);
/// Names with at least this similarity are suggested; 1 means equal.
const SIMILAR: f64 = 0.7;
/// Maximum number of suggested names.
const SUGGESTIONS: usize = 3;

/// Letters and digits of the names that Kubernetes makes up.
const MADE_UP: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Workloads with that name, or whose owner has that name. `kind/name` selects owners of the kind. The pods of a Deployment own
/// the Workloads that Kueue makes of it.
pub fn matches<'w>(workloads: &'w [Workload], wanted: &str) -> Vec<&'w Workload> {
    let (kind, name) = wanted.split_once('/').unwrap_or(("", wanted));
    // `kubectl get -o name` appends the group.
    let kind = kind.split('.').next().unwrap_or_default();
    let by_name = |w: &&Workload| {
        ["", "workload", "workloads", "wl"].contains(&kind.to_lowercase().as_str()) && w.name_any() == name
    };
    let of_request = |w: &&Workload| {
        ["", "provisioningrequest", "provisioningrequests", "provreq"].contains(&kind.to_lowercase().as_str())
            && (w.request_name() == Some(name) || w.standalone_request().is_some_and(|(of, _)| of == name))
    };
    let found: Vec<&Workload> = workloads.iter().filter(|w| by_name(w) || of_request(w)).collect();
    if !found.is_empty() {
        return with_requests(workloads, found);
    }
    let of_kind = |owner: &str| kind.is_empty() || is_meant(owner, kind);
    let of_deployment = is_meant("Deployment", kind);
    let by_owner = |w: &&Workload| {
        w.metadata.owner_references.iter().flatten().any(|o| {
            o.name == name && of_kind(&o.kind)
                || of_deployment && o.kind == "Pod" && is_pod_of_deployment(&o.name, name)
        })
    };
    with_requests(workloads, workloads.iter().filter(by_owner).collect())
}

/// Whether a pod has such a name as Kubernetes gives to those of a Deployment: `DEPLOYMENT-HASH-END`.
fn is_pod_of_deployment(pod: &str, deployment: &str) -> bool {
    let rest = pod.strip_prefix(deployment).and_then(|rest| rest.strip_prefix('-')?.split_once('-'));
    let is_made_up = |part: &str| !part.is_empty() && part.chars().all(|c| MADE_UP.contains(c));
    rest.is_some_and(|(hash, end)| is_made_up(hash) && is_made_up(end))
}

/// These Workloads, followed by the ProvisioningRequests that they own.
fn with_requests<'w>(workloads: &'w [Workload], mut found: Vec<&'w Workload>) -> Vec<&'w Workload> {
    let owned = |w: &&Workload| {
        let owners = || w.metadata.owner_references.iter().flatten();
        let is_owner = |owner: &&Workload| owners().any(|o| Some(&o.uid) == owner.metadata.uid.as_ref());
        w.front_end() == FrontEnd::ProvisioningRequest && found.iter().any(is_owner)
    };
    let requests: Vec<&Workload> = workloads.iter().filter(owned).collect();
    found.extend(requests);
    found.dedup_by_key(|w| &w.metadata.uid);
    found
}

/// Names similar to the wanted one, most similar first.
pub fn similar(workloads: &[Workload], wanted: &str) -> Vec<String> {
    let name = wanted.split_once('/').map_or(wanted, |(_, name)| name);
    let names = workloads.iter().flat_map(|w| {
        let owners = w.metadata.owner_references.iter().flatten().map(|o| o.name.clone());
        owners.chain([w.name_any()]).collect::<Vec<_>>()
    });
    let mut scored: Vec<(f64, String)> = names
        .map(|candidate| {
            let likeness =
                if candidate.contains(name) { 1.0 } else { strsim::jaro_winkler(name, &candidate) };
            (likeness, candidate)
        })
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(SUGGESTIONS).map(|(_, name)| name).collect()
}

/// Whether matching Workloads exist, and none waits for Kueue to list its checks, or to make the ProvisioningRequest that answers
/// one of them.
fn is_settled(objects: &ClusterObjects, wanted: &str) -> bool {
    let found = matches(&objects.workloads, wanted);
    let lacks_checks = |w: &&Workload| w.has_quota() && w.checks().is_empty() && !w.is_admitted();
    let lacks_request = |w: &&Workload| check_without_request(objects, w).is_some();
    !found.is_empty() && !found.iter().any(|w| lacks_checks(w) || lacks_request(w))
}

/// Reads the cluster. Reads it again for up to `WORKLOAD_WAIT` while Kueue may be about to create the Workload or
/// list its checks.
pub async fn read(cluster: &ClusterReader, wanted: &str) -> Result<ClusterObjects, CliError> {
    let until = Instant::now() + WORKLOAD_WAIT;
    loop {
        let mut objects = cluster.read().await?;
        if is_settled(&objects, wanted) || Instant::now() >= until {
            let found = matches(&objects.workloads, wanted);
            if let Some(admitted) = found.iter().find(|w| w.runs()) {
                objects.pods = cluster.unbound_pods(&admitted.namespace().unwrap_or_default()).await;
            }
            if let Some(planned) = found.iter().find(|w| w.has_quota()) {
                objects.plans = cluster.plans(&planned.namespace().unwrap_or_default()).await;
            }
            if found.iter().any(|w| !w.has_quota() && !w.is_finished()) {
                objects.elsewhere = cluster.elsewhere().await;
            }
            return Ok(objects);
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// The gangs of the Workload that the user names, or one line about what to type instead.
pub async fn gangs(
    cluster: &ClusterReader,
    objects: &ClusterObjects,
    wanted: &str,
) -> Result<Vec<GangReport>, CliError> {
    let found = matches(&objects.workloads, wanted);
    if found.is_empty() {
        return Err(CliError::Failed(missing(cluster, objects, wanted).await));
    }
    let gangs: Vec<GangReport> = found.iter().flat_map(|w| report::gangs_of(objects, w)).collect();
    match found.first() {
        Some(workload) if gangs.is_empty() => early(objects, workload).map(|gang| vec![gang]),
        _ => Ok(gangs),
    }
}

/// The report of a Workload that has no check of Setu's yet: it may get one with its quota.
pub fn early(objects: &ClusterObjects, workload: &Workload) -> Result<GangReport, CliError> {
    if let Some(check) = check_without_request(objects, workload).filter(|_| objects.requests.is_some()) {
        return Ok(report::report(objects, workload, check));
    }
    if workload.has_quota() || workload.is_finished() {
        let why = why_not_ours(objects, workload).unwrap_or_else(|| not_ours(objects, workload));
        return Err(CliError::Failed(why));
    }
    Ok(report::report(objects, workload, ""))
}

async fn missing(cluster: &ClusterReader, objects: &ClusterObjects, wanted: &str) -> String {
    let (place, others) = match &cluster.scope {
        Scope::Everywhere => ("any namespace".to_owned(), Vec::new()),
        Scope::Namespace(namespace) => {
            let everywhere = cluster.elsewhere().await;
            let mut others: Vec<String> =
                matches(&everywhere, wanted).into_iter().filter_map(ResourceExt::namespace).collect();
            others.dedup();
            others.retain(|other| other != namespace);
            (format!("namespace {namespace}"), others)
        }
    };
    absent(wanted, &place, &others, &similar(&objects.workloads, wanted))
}

/// The message for a Workload that does not exist.
pub fn absent(wanted: &str, place: &str, others: &[String], similar: &[String]) -> String {
    let start = format!("no Workload or Job {wanted} in {place}");
    match (others, similar) {
        ([], []) => format!("{start}; `setu inspect -A` lists all gangs"),
        ([], near) => format!("{start}; did you mean {}?", near.join(" or ")),
        ([other], _) => format!("{start}, but there is one in {other}: add -n {other}"),
        (others, _) => format!("{start}, but there are in {}: add -n", others.join(", ")),
    }
}

/// The message for a Workload that Setu does not handle.
fn not_ours(objects: &ClusterObjects, workload: &Workload) -> String {
    let name = workload.full_name();
    let checks: Vec<&str> = workload.checks().iter().map(|c| c.name.as_str()).collect();
    let has = if checks.is_empty() {
        "no admission check".to_owned()
    } else {
        format!("only checks {}", checks.join(", "))
    };
    let unread = if objects.checks.is_none() { ", as far as may be read" } else { "" };
    format!(
        "Workload {name} has {has}{unread}: none is of {}. Its ClusterQueue must name an AdmissionCheck of that controller",
        objects.controller_name
    )
}
