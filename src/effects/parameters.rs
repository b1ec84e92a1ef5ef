//! Reports whether ProvisioningParameters can be used and which checks use them: the conditions `Valid` and `Used`, by
//! server-side apply.

use crate::api::{ProvisioningParameters, condition};
use crate::effects::write;
use crate::error::Error;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

/// The status of parameters, to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The fault in them; `None` if there is none.
    pub fault: Option<String>,
    /// Names of the checks that use them, sorted.
    pub checks: Vec<String>,
}

impl Report {
    /// The conditions to write, or `None` if the object has them already.
    fn conditions(&self, meta: &ObjectMeta, old: &[Condition], now: Timestamp) -> Option<Vec<Condition>> {
        let condition = |kind: &str, holds: bool, reason: &str, message: String| {
            let status = if holds { "True" } else { "False" };
            let next = condition::next(old, (kind, status), reason, message, now);
            Condition { observed_generation: meta.generation, ..next }
        };
        let valid = match &self.fault {
            None => condition("Valid", true, "Valid", "they can be used".to_owned()),
            Some(fault) => condition("Valid", false, "Invalid", fault.clone()),
        };
        let used = match self.checks.as_slice() {
            [] => condition("Used", false, "NotUsed", "no AdmissionCheck names them".to_owned()),
            checks => condition("Used", true, "Used", format!("by AdmissionCheck {}", checks.join(", "))),
        };
        let wanted = vec![valid, used];
        let unchanged = wanted.iter().all(|c| condition::find(old, &c.type_) == Some(c));
        (!unchanged).then_some(wanted)
    }
}

/// Reports, if that changes anything.
pub async fn report(
    client: &Client,
    meta: &ObjectMeta,
    old: &[Condition],
    report: &Report,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(conditions) = report.conditions(meta, old, now) else {
        return Ok(());
    };
    let name = meta.name.clone().unwrap_or_default();
    let api: Api<ProvisioningParameters> = Api::all(client.clone());
    let body = json!({
        "apiVersion": format!("{}/v1alpha1", names::API_GROUP),
        "kind": names::PARAMETERS_KIND,
        "metadata": { "name": name, "uid": meta.uid },
        "status": { "conditions": conditions },
    });
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let patch = Patch::Apply(&body);
    let written = api.patch_status(&name, &params, &patch);
    write("reporting on ProvisioningParameters", &name, written).await?;
    tracing::info!(
        parameters = name,
        valid = report.fault.is_none(),
        checks = report.checks.join(","),
        "reported on ProvisioningParameters"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_of_a_condition_changes_only_with_its_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let meta = ObjectMeta { generation: Some(1), ..ObjectMeta::default() };
        let unused = Report { fault: None, checks: Vec::new() };
        let first = unused.conditions(&meta, &[], at(1)).unwrap();
        assert_eq!(unused.conditions(&meta, &first, at(2)), None, "nothing new to say");
        let used = Report { checks: vec!["a".into(), "b".into()], ..unused };
        let second = used.conditions(&meta, &first, at(3)).unwrap();
        assert_eq!((second[0].last_transition_time.0, second[1].last_transition_time.0), (at(1), at(3)));
        assert_eq!(
            (second[1].status.as_str(), second[1].message.as_str()),
            ("True", "by AdmissionCheck a, b")
        );
        let broken = Report { fault: Some("no such thing".into()), ..used };
        let edited = ObjectMeta { generation: Some(2), ..ObjectMeta::default() };
        let third = broken.conditions(&edited, &second, at(4)).unwrap();
        assert_eq!((third[0].status.as_str(), third[0].observed_generation), ("False", Some(2)));
        assert_eq!(third[1].last_transition_time.0, at(3));
    }
}
