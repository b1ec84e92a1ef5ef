//! The second front-end: a ProvisioningRequest of Setu's class, mirrored as a Workload.
//!
//! Kueue's own provisioning check makes such a request when quota is reserved, and reads its conditions. The request is mirrored as
//! the Workload that owns it: the same pods, admission and conditions, under the request's own name, UID and annotations, with
//! the request's conditions as the state of the check. So the gang of a request is planned, stepped and reported like any other.
//! Only what is written back differs: the journal goes into the request's annotations, and the verdict into its conditions.
//!
//! Rule: pods and counts come from the Workload that Kueue admitted. A request that no Workload controls has none.

use super::failure::{Failure, FailureClass};
use crate::api::workload::{CheckState, Verdict, WorkloadSpec};
use crate::api::{ProvisioningRequest, Workload, condition};
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::collections::BTreeMap;

/// Longest message of a condition that the API server takes, in characters.
const MESSAGE_LIMIT: usize = 32_768;
/// Conditions of a Workload that its request has too: those that say whether the gang may run.
const OF_WORKLOAD: [&str; 5] = ["QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady"];

/// The detail in which a request says which nodes are its own: the value of [`names::GANG`] on them.
pub const GANG_DETAIL: &str = "gang";

/// Name of a request as a Workload. No Workload can have it, because names have no slash.
pub fn name_as_workload(request: &str) -> String {
    format!("{}{request}", names::REQUEST_PREFIX)
}

/// `namespace/name/UID` of the Workload that owns the request that is mirrored as this Workload.
pub fn owner_ref(workload: &Workload) -> Option<String> {
    workload.request_name()?;
    let owner = workload.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))?;
    Some(format!(
        "{}/{}/{}",
        workload.metadata.namespace.as_deref().unwrap_or_default(),
        owner.name,
        owner.uid
    ))
}

/// The check of a Workload that a request was made for, among those that `is_provisioning` says are answered by requests.
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
    // Kueue names a request WORKLOAD-CHECK-ATTEMPT, and shortens what is too long.
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let rest = name.strip_prefix(workload.metadata.name.as_deref().unwrap_or_default()).unwrap_or_default();
    let is_attempt = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let named = checks.iter().find(|check| rest.strip_prefix(&format!("-{check}-")).is_some_and(is_attempt));
    named.or_else(|| checks.first().filter(|_| checks.len() == 1)).copied()
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
    if mirror.is("Admitted") {
        // A request that is being deleted takes nothing from what runs.
        mirror.metadata.deletion_timestamp = of_owner.deletion_timestamp;
        mirror.metadata.finalizers = of_owner.finalizers;
    }
    mirror.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != names::FINALIZER);
    let mut annotations: BTreeMap<String, String> = own_annotations(request).collect();
    annotations.extend(of_job.into_iter().filter(|(key, _)| key.starts_with(names::JOB_OVERRIDE_PREFIX)));
    let stated = |(key, value): (&String, &String)| {
        let key = key.strip_prefix(names::REQUEST_PARAMETER_PREFIX)?;
        Some((format!("{}{key}", names::JOB_OVERRIDE_PREFIX), value.clone()))
    };
    annotations.extend(request.spec.parameters.iter().filter_map(stated));
    mirror.metadata.annotations = Some(annotations);
    let status = mirror.status.get_or_insert_default();
    match owner {
        // The check that the request answers comes first.
        Some((_, Some(check))) => status.admission_checks.sort_by_key(|entry| entry.name != check),
        Some((_, None)) | None => status.admission_checks.clear(),
    }
    answered(&mut mirror, request);
    mirror
}

/// The same Workload after its request was written.
pub fn after_write(mut mirror: Workload, request: &ProvisioningRequest) -> Workload {
    mirror.metadata.resource_version.clone_from(&request.metadata.resource_version);
    mirror.metadata.annotations.get_or_insert_default().extend(own_annotations(request));
    answered(&mut mirror, request);
    mirror
}

/// A request's annotations but those by which a Job states overrides: a request has parameters for that.
fn own_annotations(request: &ProvisioningRequest) -> impl Iterator<Item = (String, String)> {
    let all = request.metadata.annotations.clone().unwrap_or_default().into_iter();
    all.filter(|(key, _)| !key.starts_with(names::JOB_OVERRIDE_PREFIX))
}

/// The check that a mirrored request answers.
pub fn own_check(mirror: &Workload) -> Option<&CheckState> {
    mirror.checks().first()
}

/// Puts the request's conditions into the Workload, also as the state of its check.
fn answered(mirror: &mut Workload, request: &ProvisioningRequest) {
    let Some(status) = &mut mirror.status else { return };
    status.conditions.retain(|condition| OF_WORKLOAD.contains(&condition.type_.as_str()));
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

/// How a request ends that is not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFailure {
    /// Kueue may ask again.
    Retry,
    /// It can never be met.
    Rejected,
}

impl RequestFailure {
    /// Reason of the condition.
    const fn reason(self) -> &'static str {
        match self {
            Self::Retry => "GangNotProvisioned",
            Self::Rejected => "GangRejected",
        }
    }
}

/// What a request says of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Value of the gang's label on them.
    pub gang: String,
    /// Their NodePools, each once.
    pub node_pools: Vec<String>,
    /// How many there are.
    pub nodes: u32,
}

impl Details {
    /// As they stand in the status.
    pub fn in_status(&self) -> BTreeMap<String, String> {
        [
            (GANG_DETAIL, self.gang.clone()),
            ("nodePool", self.node_pools.join(",")),
            ("count", self.nodes.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
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
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let last = condition::find(before, kind).filter(|last| last.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(MESSAGE_LIMIT).collect(),
            last_transition_time: last.map_or(Time(now), |last| last.last_transition_time.clone()),
            observed_generation: None,
        }
    };
    // What the gang's own check would say of quota and of the next attempt is Kueue's decision here.
    let message = match failure {
        Some(failure) if entry.state == Verdict::Retry => failure.to_string(),
        _ => entry.message.clone(),
    };
    let message = message.as_str();
    let accepted =
        condition("Accepted", "True", "Accepted", "Setu provides the nodes of the whole gang or none");
    let provisioned = |status, reason| condition("Provisioned", status, reason, message);
    match entry.state {
        Verdict::Pending => vec![accepted, provisioned("False", "GangNotReady")],
        Verdict::Ready => vec![accepted, provisioned("True", "GangReady")],
        Verdict::Retry if failure.is_some_and(|failure| failure.reason == FailureClass::NotAdmitted) => {
            let expired = condition("BookingExpired", "True", "NotAdmitted", message);
            vec![accepted, provisioned("False", "BookingExpired"), expired]
        }
        Verdict::Retry | Verdict::Rejected => {
            let failing =
                if entry.state == Verdict::Retry { RequestFailure::Retry } else { RequestFailure::Rejected };
            let failed = condition("Failed", "True", failing.reason(), message);
            vec![accepted, provisioned("False", failing.reason()), failed]
        }
    }
}
