//! Reports on each ProvisioningParameters whether it is valid and which checks use it.

use super::context::Context;
use super::queue::Action;
use crate::api::RawParameters;
use crate::api::admission_check::ParametersRef;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::effects::parameters::{self, Report};
use crate::error::Error;
use crate::names;
use crate::policy::{check, path};
use kube::ResourceExt;
use std::sync::Arc;
use std::time::Duration;

/// How soon to reconcile again while the checks are not listed yet.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Whether a reference names an object of our kind.
pub fn is_ours(reference: &ParametersRef) -> bool {
    (reference.api_group.as_str(), reference.kind.as_str()) == (names::API_GROUP, names::PARAMETERS_KIND)
}

/// The spec of parameters, or what is wrong with it, worded for the administrator.
pub fn read(parameters: &RawParameters) -> Result<ProvisioningParametersSpec, String> {
    check::read_spec(&parameters.spec).map_err(|found| path::in_words(&found))
}

/// Sorted names of the checks that use these parameters, of all controllers, so that two Setus report the same.
pub fn used_by(context: &Context, name: &str) -> Vec<String> {
    let checks = context.stores.checks.state();
    let named = |reference: &ParametersRef| is_ours(reference) && reference.name == name;
    let mut users: Vec<String> = checks
        .iter()
        .filter(|c| c.spec.parameters.as_ref().is_some_and(named))
        .map(|c| c.name_any())
        .collect();
    users.sort();
    users
}

/// Reconciles one object and reports on it.
pub async fn reconcile(object: Arc<RawParameters>, context: Arc<Context>) -> Result<Action, Error> {
    if !context.shards.first().leads() {
        return Ok(Action::await_change());
    }
    if !context.first_lists.missing().is_empty() {
        // It is not known yet which checks exist.
        return Ok(Action::requeue(CATCH_UP));
    }
    let report = Report { fault: read(&object).err(), checks: used_by(&context, &object.name_any()) };
    parameters::report(&context.client, &object.metadata, object.conditions(), &report, context.now())
        .await?;
    Ok(Action::await_change())
}
