//! Whether this controller may answer checks that name Kueue's own provisioning controller.
//!
//! Rule: where ProvisioningRequests are served, Kueue starts that controller itself. Two writers of one entry would
//! overwrite each other's verdicts forever, so Setu does not start there.

use super::AppError;
use crate::effects::call;
use crate::names;
use kube::Client;

/// Makes sure that Kueue does not answer these checks itself.
///
/// # Errors
/// [`AppError::Invalid`] if it does, [`AppError::Failed`] if that cannot be found out.
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
            "cannot tell whether ProvisioningRequests are served, which --tas-compat needs: {}",
            e.in_full()
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    /// The result for a cluster that gives these answers, one after the other.
    async fn asked(answers: Vec<(u16, Value)>) -> Result<(), AppError> {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let served = tokio::spawn(async move {
            for (code, answer) in answers {
                let Some((_, send)) = handle.next_request().await else { return };
                let body = Body::from(answer.to_string().into_bytes());
                send.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        let answer = refuse_two_writers(&Client::new(service, "default")).await;
        served.abort();
        answer
    }

    fn groups(names: &[&str]) -> (u16, Value) {
        let version = |g: &&str| json!({"groupVersion": format!("{g}/v1"), "version": "v1"});
        let group = |g: &&str| json!({"name": g, "versions": [version(g)], "preferredVersion": version(g)});
        (200, json!({"kind": "APIGroupList", "groups": names.iter().map(group).collect::<Vec<_>>()}))
    }

    fn resources(kinds: &[&str]) -> (u16, Value) {
        let resource = |kind: &&str| json!({"name": kind.to_lowercase(), "singularName": "", "namespaced": true, "kind": kind, "verbs": []});
        let all: Vec<Value> = kinds.iter().map(resource).collect();
        (200, json!({"kind": "APIResourceList", "groupVersion": "autoscaling.x-k8s.io/v1", "resources": all}))
    }

    #[tokio::test]
    async fn it_is_refused_where_kueue_would_answer_the_same_checks() {
        assert!(asked(vec![groups(&["kueue.x-k8s.io"])]).await.is_ok());
        // The group has other kinds too.
        let buffers = vec![groups(&["autoscaling.x-k8s.io"]), resources(&["CapacityBuffer"])];
        assert!(asked(buffers).await.is_ok());
        let both =
            vec![groups(&["autoscaling.x-k8s.io"]), resources(&["CapacityBuffer", "ProvisioningRequest"])];
        let refused = asked(both).await.unwrap_err();
        assert!(matches!(&refused, AppError::Invalid(why) if why.contains("two controllers")), "{refused}");
        let broken =
            asked(vec![(500, json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no"}))]);
        assert!(matches!(broken.await, Err(AppError::Failed(_))));
    }
}
