//! The second front-end: a ProvisioningRequest of Setu's class, mirrored as a Workload.
//!
//! Kueue's own provisioning check makes such a request when quota is reserved, and reads its conditions. The request is mirrored as
//! the Workload that owns it: the same pods, admission and conditions, under the request's own name, UID and annotations, with
//! the request's conditions as the state of the check. So the gang of a request is planned, stepped and reported like any other.
//! Only what is written back differs: the journal goes into the request's annotations, and the verdict into its conditions.
//!
//! Rule: pods and counts come from the Workload that Kueue admitted. A request that no Workload controls has none; see
//! [`standalone`](super::standalone).

use crate::api::provisioning_request::controlling_workload;
use crate::api::workload::{CheckState, Verdict, WorkloadSpec};
use crate::api::{FrontEnd, NodeClaim, ProvisioningRequest, Workload, condition};
use crate::gang::statechart::failure::Failure;
use crate::names;
use crate::plan::demand::granted;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Longest message of a condition that the API server takes, in characters.
const MESSAGE_LIMIT: usize = 32_768;
/// Conditions by which Kueue admits a Workload or takes it down. A mirrored request has them too, and `PodsReady`.
const BY_KUEUE: [&str; 4] = ["QuotaReserved", "Admitted", "Evicted", "Finished"];
/// How much of a long name of a request Kueue keeps: `objNameMaxPrefixLength` of its provisioning check.
const KEPT_OF_NAME: usize = 247;

/// Why a request that is open when Setu is uninstalled gets no nodes.
pub const UNINSTALLED: &str = "Setu was uninstalled, so this request gets no nodes";

/// The detail in which a request says which nodes are its own: the value of [`names::GANG`] on them.
pub const GANG_DETAIL: &str = "gang";

/// Name of a request as a Workload. No Workload can have it, because names have no slash.
pub fn name_as_workload(request: &str) -> String {
    format!("{}{request}", names::REQUEST_PREFIX)
}

/// `namespace/name/UID` of the Workload that owns the mirrored request.
pub fn owner_ref(mirror: &Workload) -> Option<String> {
    let (name, uid) = owner(mirror)?;
    Some(format!("{}/{name}/{uid}", mirror.metadata.namespace.as_deref().unwrap_or_default()))
}

/// Name and UID of the Workload that owns the mirrored request.
pub fn owner(mirror: &Workload) -> Option<(&str, &str)> {
    mirror.request_name()?;
    controlling_workload(&mirror.metadata)
}

/// Namespace, name and UID of the Workload whose ProvisioningRequest a claim was made for; `None` if it was made for none.
pub fn owner_of(claim: &NodeClaim) -> Option<(&str, &str, &str)> {
    let mut parts = claim.annotation(names::OWNER).split('/');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Whether this is a mirrored request without the Workload that is to control it: Kueue's Workloads have pods.
pub fn is_unowned(mirror: &Workload) -> bool {
    mirror.front_end() == FrontEnd::ProvisioningRequest && mirror.spec.pod_sets.is_empty()
}

/// Whether a mirrored request's owner is still in the state that the mirror shows, so that what was decided still holds.
pub fn stands_as_mirrored(mirror: &Workload, owner: Option<&Workload>) -> bool {
    let is_same = |owner: &Workload| BY_KUEUE.iter().all(|kind| owner.is(kind) == mirror.is(kind));
    owner.is_some_and(is_same)
}

/// The check that a request was made for, among the Workload's checks that `is_provisioning` accepts.
pub fn check_of<'w>(
    request: &ProvisioningRequest,
    workload: &'w Workload,
    is_provisioning: impl Fn(&str) -> bool,
) -> Option<&'w str> {
    let checks: Vec<&str> = workload
        .checks()
        .iter()
        .map(|check| check.name.as_str())
        .filter(|name| is_provisioning(name))
        .collect();
    let (name, of) =
        (request.metadata.name.as_deref().unwrap_or_default(), workload.metadata.name.as_deref());
    let prefix = |check: &str| format!("{}-{check}-", of.unwrap_or_default());
    let is_attempt = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let named = checks.iter().find(|check| name.strip_prefix(&prefix(check)).is_some_and(is_attempt));
    let mut shortened = checks.iter().filter(|check| is_shortened(name, &prefix(check)));
    let only = checks.first().filter(|_| checks.len() == 1);
    // A name that was shortened may fit several checks.
    named.or(only).or_else(|| shortened.next().filter(|_| shortened.next().is_none())).copied()
}

/// The conditions after which a request gets no nodes any more.
pub const ENDS: [&str; 3] = ["Failed", "BookingExpired", "CapacityRevoked"];

/// Whether a request with these conditions gets no nodes any more.
pub fn has_ended(conditions: &[Condition]) -> bool {
    ENDS.iter().any(|kind| condition::is_true(conditions, kind))
}

/// The check that a request is served for, among its Workload's checks that `is_provisioning` accepts. None if the request ended
/// before its Workload was admitted, or if an earlier request in `all` for the same check has not ended.
pub fn served_for<'w>(
    request: &ProvisioningRequest,
    workload: &'w Workload,
    all: &[Arc<ProvisioningRequest>],
    is_provisioning: impl Fn(&str) -> bool,
) -> Option<&'w str> {
    // A standalone request never answers the check of the Workload that Setu created for it, whatever owner it
    // names.
    let check_of = |request: &ProvisioningRequest| {
        check_of(request, workload, &is_provisioning).filter(|_| !workload.is_for(request))
    };
    let check = check_of(request)?;
    let order = |r: &ProvisioningRequest| {
        (r.metadata.creation_timestamp.clone().map(|t| t.0), r.metadata.name.clone().unwrap_or_default())
    };
    let comes_first = |other: &Arc<ProvisioningRequest>| {
        order(other) < order(request) && !has_ended(other.conditions()) && check_of(other) == Some(check)
    };
    let is_over = has_ended(request.conditions()) && !workload.is_admitted();
    (!is_over && !all.iter().any(comes_first)).then_some(check)
}

/// Whether this can be the name of a request whose full name begins with `prefix` and is too long for Kueue: it keeps the first
/// [`KEPT_OF_NAME`] characters, and appends a hash of the full name.
fn is_shortened(name: &str, prefix: &str) -> bool {
    let Some((kept, hash)) = name.split_at_checked(KEPT_OF_NAME) else { return false };
    // What is cut off may begin within the number of the attempt.
    hash.starts_with('-') && kept.starts_with(prefix.get(..KEPT_OF_NAME).unwrap_or(prefix))
}

/// A request as a Workload, with the check that it is served for. Without the Workload that owns it, nothing is reserved for it.
pub fn as_workload(request: &ProvisioningRequest, owner: Option<(&Workload, Option<&str>)>) -> Workload {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let mut mirror =
        owner.map_or_else(|| Workload::new("", WorkloadSpec::default()), |(workload, _)| workload.clone());
    let of_owner = mirror.metadata.clone();
    let of_job = mirror.metadata.annotations.take().unwrap_or_default();
    mirror.metadata = request.metadata.clone();
    mirror.metadata.name = Some(name_as_workload(name));
    if mirror.is_admitted() {
        // A request that is being deleted takes nothing from what runs.
        mirror.metadata.deletion_timestamp = of_owner.deletion_timestamp;
        mirror.metadata.finalizers = of_owner.finalizers;
    }
    mirror.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != names::FINALIZER);
    let mut annotations: BTreeMap<String, String> = own_annotations(request).collect();
    let of_owner = |key: &str| key.starts_with(names::JOB_OVERRIDE_PREFIX) || key == names::ELASTIC_JOB;
    annotations.extend(of_job.into_iter().filter(|(key, _)| of_owner(key)));
    let mark = owner.and_then(|(owner, _)| owner.standalone_request());
    annotations.extend(mark.map(|(name, uid)| (names::REQUEST.to_owned(), format!("{name}/{uid}"))));
    annotations.extend(overrides(request));
    mirror.metadata.annotations = Some(annotations);
    keep_requested(&mut mirror, request);
    let status = mirror.status.get_or_insert_default();
    match owner {
        // The check that the request answers comes first.
        Some((_, Some(check))) => status.admission_checks.sort_by_key(|entry| entry.name != check),
        Some((_, None)) | None => status.admission_checks.clear(),
    }
    let was_ready =
        mirror.is_admitted() && own_check(&mirror).is_some_and(|entry| entry.state == Verdict::Ready);
    answered(&mut mirror, request);
    if was_ready {
        keep_ready(&mut mirror);
    }
    mirror
}

/// Keeps the Ready by which Kueue admitted the Workload, if the request only waits now: Kueue reads a request that withdraws it some
/// time later, and never while no quota is reserved.
fn keep_ready(mirror: &mut Workload) {
    let entry = mirror.status.as_mut().and_then(|status| status.admission_checks.first_mut());
    if let Some(entry) = entry.filter(|entry| entry.state == Verdict::Pending) {
        entry.state = Verdict::Ready;
    }
}

/// The overrides in a request's parameters, as the annotations by which a Job asks for them.
pub fn overrides(request: &ProvisioningRequest) -> impl Iterator<Item = (String, String)> {
    request.spec.parameters.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(names::REQUEST_PARAMETER_PREFIX)?;
        Some((format!("{}{key}", names::JOB_OVERRIDE_PREFIX), value.clone()))
    })
}

/// Keeps only the pod sets that the request asks for: Kueue leaves out those without the check's `managedResources`.
fn keep_requested(mirror: &mut Workload, request: &ProvisioningRequest) {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let asked = &request.spec.pod_sets;
    // Kueue names a PodTemplate ppt-REQUEST-PODSET.
    let is_asked = |set: &str| {
        let template = format!("ppt-{name}-{set}");
        asked.iter().any(|pods| pods.pod_template_ref.name == template)
    };
    let kept = mirror.spec.pod_sets.iter().filter(|set| is_asked(&set.name));
    let (sets, pods) =
        kept.fold((0, 0), |(sets, pods), set| (sets + 1, pods + i64::from(granted(mirror, set))));
    // A pod set under another name, or one that others were merged into, does not show which one it stands for.
    if asked.is_empty()
        || sets != asked.len()
        || pods != asked.iter().map(|pods| i64::from(pods.count)).sum::<i64>()
    {
        return;
    }
    mirror.spec.pod_sets.retain(|set| is_asked(&set.name));
    if let Some(admission) = mirror.status.as_mut().and_then(|status| status.admission.as_mut()) {
        admission.pod_set_assignments.retain(|assignment| is_asked(&assignment.name));
    }
}

/// The mirrored Workload after its request was written.
pub fn after_write(mut mirror: Workload, request: &ProvisioningRequest) -> Workload {
    mirror.metadata.resource_version.clone_from(&request.metadata.resource_version);
    mirror.metadata.annotations.get_or_insert_default().extend(own_annotations(request));
    answered(&mut mirror, request);
    mirror
}

/// A request's annotations, except a Job's overrides, for which a request has parameters, and what only its Workload states.
fn own_annotations(request: &ProvisioningRequest) -> impl Iterator<Item = (String, String)> {
    let all = request.metadata.annotations.clone().unwrap_or_default().into_iter();
    let of_workload = [names::REQUEST, names::ELASTIC_JOB, names::SLICE_REPLACES];
    all.filter(move |(key, _)| {
        !key.starts_with(names::JOB_OVERRIDE_PREFIX) && !of_workload.contains(&key.as_str())
    })
}

/// The check that a mirrored request answers.
pub fn own_check(mirror: &Workload) -> Option<&CheckState> {
    mirror.checks().first()
}

/// Puts the request's conditions into the Workload, also as the state of its check.
fn answered(mirror: &mut Workload, request: &ProvisioningRequest) {
    let Some(status) = &mut mirror.status else { return };
    let of_workload = |kind: &str| kind == "PodsReady" || BY_KUEUE.contains(&kind);
    status.conditions.retain(|condition| of_workload(&condition.type_));
    status.conditions.extend(request.conditions().iter().cloned());
    if let Some(entry) = status.admission_checks.first_mut() {
        *entry = state(&entry.name, request);
    }
}

/// The state of a check as the request's conditions say it.
fn state(check: &str, request: &ProvisioningRequest) -> CheckState {
    let said = |kind| condition::find(request.conditions(), kind).filter(|c| c.status == "True");
    let rejected = said("Failed").filter(|failed| failed.reason == RequestFailure::Rejected.reason());
    let (state, condition) = match (rejected, said("Failed").or(said("BookingExpired")), said("Provisioned"))
    {
        (Some(rejected), _, _) => (Verdict::Rejected, Some(rejected)),
        (None, Some(failed), _) => (Verdict::Retry, Some(failed)),
        (None, None, Some(provisioned)) => (Verdict::Ready, Some(provisioned)),
        (None, None, None) => (Verdict::Pending, condition::find(request.conditions(), "Provisioned")),
    };
    CheckState {
        name: check.to_owned(),
        state,
        last_transition_time: condition.map_or(Timestamp::UNIX_EPOCH, |c| c.last_transition_time.0),
        message: condition.map_or_else(String::new, |c| c.message.clone()),
        requeue_after_seconds: Some(0),
        // Kueue takes them from its ProvisioningRequestConfig.
        pod_set_updates: Vec::new(),
    }
}

/// How a request that is not met ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFailure {
    /// Another request may be met.
    Retry,
    /// It can never be met.
    Rejected,
    /// Nobody is there to meet it.
    Uninstalled,
}

impl RequestFailure {
    /// Reason of the condition.
    const fn reason(self) -> &'static str {
        match self {
            Self::Retry => "GangNotProvisioned",
            Self::Rejected => "GangRejected",
            Self::Uninstalled => "Uninstalled",
        }
    }
}

/// Details that a request reports about its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The values of the gang's label on them, each once. There are several if a Workload has several checks of Setu's.
    pub gangs: Vec<String>,
    /// Their NodePools, each once.
    pub node_pools: Vec<String>,
    /// How many there are.
    pub nodes: u32,
}

impl Details {
    /// Those of the claims among these that are not being deleted.
    pub fn of<'c>(claims: impl IntoIterator<Item = &'c NodeClaim>) -> Self {
        let live = claims.into_iter().filter(|claim| !claim.is_deleting());
        let live: Vec<&NodeClaim> = live.collect();
        Self {
            gangs: values(live.iter().copied(), names::GANG),
            node_pools: values(live.iter().copied(), names::NODEPOOL),
            nodes: u32::try_from(live.len()).unwrap_or(u32::MAX),
        }
    }

    /// Those of a gang with this label and this many slots. `claims` are those that fill them: fewer while nodes are replaced.
    pub fn of_gang<'c>(label: &str, slots: u32, claims: impl IntoIterator<Item = &'c NodeClaim>) -> Self {
        Self { gangs: vec![label.to_owned()], node_pools: values(claims, names::NODEPOOL), nodes: slots }
    }

    /// As they stand in the status. Without nodes there is no gang to select, and Kueue adds no selector for a missing detail.
    pub fn in_status(&self) -> BTreeMap<String, String> {
        let gangs = (self.nodes > 0).then(|| (GANG_DETAIL, self.gangs.join(",")));
        let others = [("nodePool", self.node_pools.join(",")), ("count", self.nodes.to_string())];
        gangs.into_iter().chain(others).map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The values of a label on these claims, each once.
fn values<'c>(claims: impl IntoIterator<Item = &'c NodeClaim>, label: &str) -> Vec<String> {
    let values: BTreeSet<&str> = claims.into_iter().map(|claim| claim.label(label)).collect();
    values.into_iter().map(str::to_owned).collect()
}

/// The present conditions of a request, from which its next ones are made.
pub(super) struct Before<'a> {
    /// Those it has.
    pub(super) conditions: &'a [Condition],
    /// The time of those that change.
    pub(super) now: Timestamp,
}

impl Before<'_> {
    pub(super) fn condition(&self, kind: &str, status: &str, reason: &str, message: &str) -> Condition {
        let message: String = message.chars().take(MESSAGE_LIMIT).collect();
        condition::next(self.conditions, (kind, status), reason, message, self.now)
    }

    pub(super) fn accepted(&self) -> Condition {
        self.condition("Accepted", "True", "Accepted", "Setu provides the nodes of the whole gang or none")
    }

    /// All conditions of a request that ends like this.
    pub(super) fn failed(&self, failing: RequestFailure, message: &str) -> Vec<Condition> {
        let provisioned = self.condition("Provisioned", "False", failing.reason(), message);
        vec![self.accepted(), provisioned, self.condition("Failed", "True", failing.reason(), message)]
    }
}

/// The conditions that a request is to have for this state of its check. `before` are those it has; `failure` is why the last
/// attempt failed.
pub fn conditions(
    entry: &CheckState,
    failure: Option<&Failure>,
    before: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    let before = Before { conditions: before, now };
    // Here Kueue decides about quota and the next attempt, so the message leaves out what the gang's own check says about them.
    let message = match failure {
        Some(failure) if entry.state == Verdict::Retry => failure.to_string(),
        _ => entry.message.clone(),
    };
    let message = message.as_str();
    let provisioned = |status, reason| before.condition("Provisioned", status, reason, message);
    match entry.state {
        Verdict::Pending => vec![before.accepted(), provisioned("False", "GangNotReady")],
        Verdict::Ready => vec![before.accepted(), provisioned("True", "GangReady")],
        // Kueue ignores an expired booking of a Workload that it admitted meanwhile.
        Verdict::Retry
            if failure.is_some_and(|failure| !failure.reason.blames_nodes())
                && !condition::is_true(before.conditions, "Admitted") =>
        {
            let expired = before.condition("BookingExpired", "True", "NotAdmitted", message);
            vec![before.accepted(), provisioned("False", "BookingExpired"), expired]
        }
        Verdict::Retry => before.failed(RequestFailure::Retry, message),
        Verdict::Rejected => before.failed(RequestFailure::Rejected, message),
    }
}

/// The conditions of a request that is open when Setu is uninstalled. `before` are those it has.
pub fn conditions_after_uninstall(before: &[Condition], now: Timestamp) -> Vec<Condition> {
    Before { conditions: before, now }.failed(RequestFailure::Uninstalled, UNINSTALLED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::provisioning_request::ProvisioningRequestSpec;
    use crate::gang::statechart::failure::FailureClass;
    use serde_json::{Value, json};

    fn workload(name: &str, conditions: &[&str], checks: &[&str]) -> Workload {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|kind| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let checks: Vec<Value> =
            checks.iter().map(|check| json!({"name": check, "state": "Pending"})).collect();
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ns", "name": name, "uid": "u"}, "spec": {},
            "status": {"conditions": conditions, "admissionChecks": checks},
        }))
        .unwrap()
    }

    fn answered_by(request: &str, workload: &Workload) -> Option<String> {
        let request = ProvisioningRequest::new(request, ProvisioningRequestSpec::default());
        check_of(&request, workload, |_| true).map(str::to_owned)
    }

    #[test]
    fn a_request_is_for_the_check_in_its_name() {
        let both = workload("job-a", &[], &["gpu", "gpu-1"]);
        for (request, check) in [
            ("job-a-gpu-1", Some("gpu")),
            ("job-a-gpu-12", Some("gpu")),
            ("job-a-gpu-1-1", Some("gpu-1")),
            ("job-a-cpu-1", None),
            ("job-a-gpu-", None),
        ] {
            assert_eq!(answered_by(request, &both).as_deref(), check, "{request}");
        }
        assert_eq!(answered_by("any", &workload("job-a", &[], &["gpu"])).as_deref(), Some("gpu"));
    }

    #[test]
    fn a_shortened_name_is_for_the_only_check_that_it_fits() {
        let (name, long) = ("w".repeat(200), "c".repeat(60));
        let (first, second) = (format!("a{long}"), format!("b{long}"));
        let two = workload(&name, &[], &[&first, &second]);
        let shortened = |check: &str| format!("{}-1a2b3", &format!("{name}-{check}-1")[..KEPT_OF_NAME]);
        for check in [&first, &second] {
            assert_eq!(answered_by(&shortened(check), &two).as_ref(), Some(check));
        }
        let alike = workload(&name, &[], &[&format!("{long}a"), &format!("{long}b")]);
        assert_eq!(answered_by(&shortened(&long), &alike), None);
        // Only the number of the attempt is cut off.
        let edge = workload(&"w".repeat(244), &[], &["c", "d"]);
        let request = format!("{}-c--1a2b3", "w".repeat(244));
        assert_eq!(answered_by(&request, &edge).as_deref(), Some("c"));
    }

    #[test]
    fn a_request_stands_for_the_pod_sets_that_it_asks_for_where_its_templates_tell() {
        let mut owner = workload("w", &["QuotaReserved"], &["gpu", "tpu"]);
        let sets = json!([{"name": "driver", "count": 1}, {"name": "worker", "count": 9}]);
        owner.spec = serde_json::from_value(json!({"podSets": sets})).unwrap();
        let assigned = json!({"clusterQueue": "q", "podSetAssignments": [{"name": "driver"}, {"name": "worker", "count": 4}]});
        owner.status.as_mut().unwrap().admission = serde_json::from_value(assigned).unwrap();
        let sets = |asked: &[(&str, i32)]| -> Vec<String> {
            let set = |(name, count): &(&str, i32)| json!({"podTemplateRef": {"name": format!("ppt-{name}")}, "count": count});
            let request: ProvisioningRequest = serde_json::from_value(json!({
                "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": {"name": "w-gpu-1"},
                "spec": {"podSets": asked.iter().map(set).collect::<Vec<_>>()},
            }))
            .unwrap();
            let mirror = as_workload(&request, Some((&owner, Some("gpu"))));
            let assigned =
                mirror.admission().unwrap().pod_set_assignments.iter().map(|assigned| assigned.name.clone());
            let sets: Vec<String> = mirror.spec.pod_sets.iter().map(|set| set.name.clone()).collect();
            assert!(assigned.eq(sets.iter().cloned()));
            sets
        };
        let (worker, both) = (vec!["worker"], vec!["driver", "worker"]);
        assert_eq!(sets(&[("w-gpu-1-worker", 4)]), worker);
        assert_eq!(sets(&[("w-gpu-1-driver", 1), ("w-gpu-1-worker", 4)]), both);
        assert_eq!(sets(&[("w-gpu-1-driver", 5)]), both, "both were merged into one");
        assert_eq!(sets(&[("long-1a2b3", 4)]), both, "the name was shortened");
        assert_eq!(sets(&[]), both);
    }

    #[test]
    fn the_ready_that_a_workload_was_admitted_on_stands_until_kueue_reads_that_it_was_withdrawn() {
        let mut request = ProvisioningRequest::new("w-gpu-1", ProvisioningRequestSpec::default());
        let verdict = |request: &ProvisioningRequest, conditions: &[&str], before: &str| {
            let mut owner = workload("w", conditions, &["gpu"]);
            let entry = json!({"name": "gpu", "state": before});
            owner.status.as_mut().unwrap().admission_checks = vec![serde_json::from_value(entry).unwrap()];
            own_check(&as_workload(request, Some((&owner, Some("gpu"))))).unwrap().state
        };
        let admitted = ["QuotaReserved", "Admitted"];
        assert_eq!(verdict(&request, &admitted, "Ready"), Verdict::Ready);
        assert_eq!(verdict(&request, &admitted, "Pending"), Verdict::Pending, "its pods ran before");
        assert_eq!(verdict(&request, &["QuotaReserved"], "Ready"), Verdict::Pending);
        let failed = conditions_after_uninstall(&[], Timestamp::UNIX_EPOCH);
        request.status = serde_json::from_value(json!({"conditions": failed})).unwrap();
        assert_eq!(verdict(&request, &admitted, "Ready"), Verdict::Retry);
    }

    #[test]
    fn a_request_takes_from_its_workload_alone_whether_its_job_is_elastic() {
        let elastic = |value: &str| [(names::ELASTIC_JOB.to_owned(), value.to_owned())].into();
        let mut request = ProvisioningRequest::new("w-gpu-1", ProvisioningRequestSpec::default());
        let mut owner = workload("w", &["QuotaReserved"], &["gpu"]);
        request.metadata.annotations = Some(elastic("true"));
        assert!(!as_workload(&request, Some((&owner, Some("gpu")))).is_elastic());
        owner.metadata.annotations = Some(elastic("true"));
        request.metadata.annotations = Some(elastic("false"));
        assert!(as_workload(&request, Some((&owner, Some("gpu")))).is_elastic());
    }

    #[test]
    fn a_gang_without_nodes_has_no_label_for_kueue_to_select() {
        let details = Details { gangs: vec!["g".to_owned()], node_pools: Vec::new(), nodes: 0 };
        assert!(!details.in_status().contains_key(GANG_DETAIL));
        assert!(Details { nodes: 1, ..details }.in_status().contains_key(GANG_DETAIL));
    }

    #[test]
    fn a_booking_that_expires_after_kueue_admitted_the_workload_fails_the_request() {
        let failure = Failure::new(FailureClass::NotAdmitted, "not admitted in time");
        let entry: CheckState = serde_json::from_value(json!({"name": "c", "state": "Retry"})).unwrap();
        let ends = |conditions: &[&str]| -> Vec<String> {
            let before = workload("w", conditions, &[]);
            let next = conditions_of(&entry, &failure, before.conditions());
            let is_end = |c: &Condition| ENDS.contains(&c.type_.as_str()) && c.status == "True";
            next.into_iter().filter(is_end).map(|c| c.type_).collect()
        };
        assert_eq!(ends(&["QuotaReserved"]), ["BookingExpired"]);
        assert_eq!(ends(&["QuotaReserved", "Admitted"]), ["Failed"]);
    }

    fn conditions_of(entry: &CheckState, failure: &Failure, before: &[Condition]) -> Vec<Condition> {
        conditions(entry, Some(failure), before, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_workload_that_was_admitted_evicted_or_finished_meanwhile_does_not_stand_as_mirrored() {
        let reserved = workload("w", &["QuotaReserved"], &[]);
        assert!(stands_as_mirrored(&reserved, Some(&workload("w", &["QuotaReserved", "PodsReady"], &[]))));
        let admitted = ["QuotaReserved", "Admitted"].as_slice();
        for now in [admitted, &["QuotaReserved", "Evicted"], &["QuotaReserved", "Finished"], &[]] {
            assert!(!stands_as_mirrored(&reserved, Some(&workload("w", now, &[]))), "{now:?}");
        }
        assert!(!stands_as_mirrored(&reserved, None));
    }
}
