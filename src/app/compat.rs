//! Whether checks that name Kueue's own provisioning controller may be answered here.
//!
//! Rule: where ProvisioningRequests are served Kueue starts that controller itself, and two writers of one
//! entry would undo each other's verdicts for ever. So nothing starts there.

use super::AppError;
use crate::effects::call;
use crate::names;
use kube::Client;

/// Makes sure that Kueue does not answer these checks itself.
///
/// # Errors
/// [`AppError::Invalid`] where it does, [`AppError::Failed`] where that cannot be found out.
pub async fn refuse_two_writers(client: &Client) -> Result<(), AppError> {
    if serves_provisioning_requests(client).await? {
        return Err(AppError::Invalid(format!(
            "--tas-compat cannot be used in this cluster: it serves ProvisioningRequests, so Kueue answers checks of \
             {} itself, and two controllers would overwrite each other's verdicts. Remove the CRD \
             provisioningrequests.{} and restart Kueue, or leave the flag out",
            names::PROVISIONING_REQUEST,
            names::AUTOSCALING_GROUP
        )));
    }
    Ok(())
}

async fn serves_provisioning_requests(client: &Client) -> Result<bool, AppError> {
    let failed = |e: crate::error::Error| {
        AppError::Failed(format!(
            "cannot tell whether ProvisioningRequests are served, which --tas-compat needs: {e}"
        ))
    };
    let groups =
        call("listing API groups of", "the cluster", client.list_api_groups()).await.map_err(failed)?;
    let versions = groups.groups.into_iter().filter(|g| g.name == names::AUTOSCALING_GROUP);
    for version in versions.flat_map(|g| g.versions) {
        let version = version.group_version;
        let served = call("listing resources of", &version, client.list_api_group_resources(&version)).await;
        if served.map_err(failed)?.resources.iter().any(|r| r.kind == "ProvisioningRequest") {
            return Ok(true);
        }
    }
    Ok(false)
}
