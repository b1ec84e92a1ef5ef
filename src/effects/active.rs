//! Reports whether an AdmissionCheck works: the condition `Active`, with message and observedGeneration, by server-side
//! apply.

use crate::api::{AdmissionCheck, condition};
use crate::effects::write;
use crate::error::Error;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// The condition Active of a check, to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// Whether the check can be answered.
    pub works: bool,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Message for users: the problem and its remedy if the check does not work.
    pub message: String,
}

impl Active {
    /// The condition to write, or `None` if the check has it already.
    fn condition(&self, check: &AdmissionCheck, now: Timestamp) -> Option<Condition> {
        let status = if self.works { "True" } else { "False" };
        let old = check.conditions();
        let mut next = condition::next(old, ("Active", status), self.reason, &*self.message, now);
        next.observed_generation = check.metadata.generation;
        (condition::find(old, "Active") != Some(&next)).then_some(next)
    }
}

/// Reports, if that changes anything.
pub async fn report(
    client: &Client,
    check: &AdmissionCheck,
    active: &Active,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(condition) = active.condition(check, now) else {
        return Ok(());
    };
    let name = check.name_any();
    let api: Api<AdmissionCheck> = Api::all(client.clone());
    let body = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": { "name": name, "uid": check.uid() },
        "status": { "conditions": [condition] },
    });
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    write("reporting on AdmissionCheck", &name, api.patch_status(&name, &params, &Patch::Apply(&body)))
        .await?;
    tracing::info!(
        check = name,
        active = active.works,
        reason = active.reason,
        "reported on an AdmissionCheck"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::admission_check::{AdmissionCheckSpec, AdmissionCheckStatus};

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        let mut check = AdmissionCheck::new("c", AdmissionCheckSpec::default());
        let works = Active { works: true, reason: "Active", message: "fine".into() };
        let first = works.condition(&check, then).unwrap();
        check.status = Some(AdmissionCheckStatus { conditions: vec![first] });
        assert_eq!(works.condition(&check, now), None);
        let other = Active { message: "still fine".into(), ..works.clone() };
        assert_eq!(other.condition(&check, now).unwrap().last_transition_time.0, then);
        let broken = Active { works: false, ..works };
        assert_eq!(broken.condition(&check, now).unwrap().last_transition_time.0, now);
    }
}
