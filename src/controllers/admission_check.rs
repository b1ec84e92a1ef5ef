//! Reports whether each of our AdmissionChecks works, and reads its parameters.

use super::context::Context;
use super::parameters;
use super::policies::Parameters;
use super::queue::Action;
use crate::api::admission_check::ParametersRef;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::api::{AdmissionCheck, RawParameters};
use crate::effects::active::Active;
use crate::effects::{active, call};
use crate::error::Error;
use crate::policy::whole;
use kube::{Api, ResourceExt};
use std::sync::Arc;
use std::time::Duration;

/// How often a check is reconciled without a change.
const SAFETY_NET: Duration = Duration::from_mins(10);

/// Reads the parameters of one check, wakes its Workloads and reports.
pub async fn reconcile(check: Arc<AdmissionCheck>, context: Arc<Context>) -> Result<Action, Error> {
    if !context.answers(&check) {
        return Ok(Action::await_change());
    }
    let found = refresh(&context, &check.name_any()).await?;
    let active = match &found {
        Ok(_) => Active {
            works: true,
            reason: "Active",
            message: "gangs are provisioned through Karpenter".to_owned(),
        },
        Err(why) => Active { works: false, reason: "BadParametersRef", message: why.clone() },
    };
    if !context.shards.first().leads() {
        return Ok(Action::await_change());
    }
    active::report(&context.client, &check, &active, context.now()).await?;
    Ok(Action::requeue(SAFETY_NET))
}

/// Reads a check and its parameters, which apply to its Workloads from now on. A fault in the parameters is the inner error.
/// A missing check has no parameters.
///
/// # Errors
/// The check or its parameters could not be read.
pub async fn refresh(context: &Context, name: &str) -> Result<Parameters, Error> {
    let read = async {
        let api: Api<AdmissionCheck> = Api::all(context.client.clone());
        let Some(check) = call("reading an AdmissionCheck", name, api.get_opt(name)).await? else {
            return Ok(Arc::new(Ok(None)));
        };
        let found = match &check.spec.parameters {
            None => Ok(None),
            Some(reference) => read(context, name, reference).await?,
        };
        // While there was no check of this name, its Workloads were not reconciled.
        if context.policies.set_parameters(name, &check.uid().unwrap_or_default(), found.clone()) {
            context.wake_all_of(name);
        }
        Ok(Arc::new(found))
    };
    context.parameters.read(name.to_owned(), read).await.map(Arc::unwrap_or_clone)
}

/// Reads a parameters object. A fault in it is the inner error, worded for the administrator.
async fn read(context: &Context, check: &str, reference: &ParametersRef) -> Result<Parameters, Error> {
    if let Some(fault) = reference.fault() {
        return Ok(Err(fault));
    }
    let api: Api<RawParameters> = Api::all(context.client.clone());
    let found = call("reading ProvisioningParameters", &reference.name, api.get_opt(&reference.name)).await?;
    Ok(match found {
        None => Err(format!(
            "ProvisioningParameters {} does not exist; create it (its CRD comes with Setu)",
            reference.name
        )),
        Some(object) => parameters::read(&object)
            .and_then(|spec| usable_with_the_file(context, check, spec))
            .map(Some)
            .map_err(|fault| format!("ProvisioningParameters {} cannot be used: {fault}", reference.name)),
    })
}

/// These parameters, unless they cannot work together with the policy file.
fn usable_with_the_file(
    context: &Context,
    name: &str,
    spec: ProvisioningParametersSpec,
) -> Result<ProvisioningParametersSpec, String> {
    let settings = context.policies.settings();
    whole::usable(&settings.policy(name, Some(&spec)))
        .map_err(|problem| format!("with the policy file beneath them, {problem}"))?;
    Ok(spec)
}
