//! Reports on each ProvisioningParameters whether it is valid and which checks use it.

use super::context::Context;
use super::queue::Action;
use crate::api::RawParameters;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::effects::parameters::{self, Report};
use crate::error::Error;
use crate::policy::{check, path};
use kube::ResourceExt;
use std::sync::Arc;
use std::time::Duration;

/// How soon to reconcile again while the checks are not listed yet.
const CATCH_UP: Duration = Duration::from_millis(500);

/// The spec of parameters, or what is wrong with it, worded for the administrator.
pub fn read(parameters: &RawParameters) -> Result<ProvisioningParametersSpec, String> {
    check::read_spec(&parameters.spec).map_err(|found| path::in_words(&found))
}

/// Sorted names of the checks that use these parameters, of all controllers, so that two Setus report the same.
pub fn used_by(context: &Context, name: &str) -> Vec<String> {
    let checks = context.stores.checks.state();
    let mut users: Vec<String> =
        checks.iter().filter(|c| c.parameters_name() == Some(name)).map(|c| c.name_any()).collect();
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
