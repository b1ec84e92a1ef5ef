//! Changes that a tenant makes while Setu is away, and that Setu finds when it is back.

use crate::forging::{annotation, with};
use crate::stage::{PODS, Stage, TENANT, job};
use kube::ResourceExt as _;
use kube::api::{Api, PatchParams};
use serde_json::json;
use setu::api::{NodeClaim, Workload};
use setu::names;
use setu_e2e::apply;

/// A10, A24: while Setu is away, one Workload is deleted, and the journal of another is forged.
pub async fn while_setu_is_away(stage: &mut Stage) {
    for name in ["stays", "goes"] {
        apply::one(&stage.tenant, job(TENANT, name)).await.unwrap();
        stage.play.step(json!({"until": {"job": name, "state": "WaitingReady", "claims": PODS}})).await;
    }
    let mut setu = stage.play.all.remove("setu").unwrap();
    setu.signal("TERM").unwrap();
    stage.until("Setu has ended", async |_| setu.ended().unwrap().is_some()).await;

    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "goes"}})).await;
    stage.until("its Workload is gone", async |s| s.workload(TENANT, "goes").await.is_none()).await;
    let stays = stage.workload(TENANT, "stays").await.unwrap();
    let key = names::journal_key(TENANT);
    let forged = with(&stays.annotations()[&key], &json!({"state": "Approved", "slots": 0}));
    let workloads: Api<Workload> = Api::namespaced(stage.writer.clone(), TENANT);
    let patch = annotation(&key, Some(&forged));
    workloads.patch(&stays.name_any(), &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(stage.claims(TENANT).await.len(), 2 * PODS, "somebody else took the nodes away");

    stage.play.enter("setu");
    let uid = stays.uid().unwrap();
    let is_of_stays = |claim: &NodeClaim| claim.label(names::WORKLOAD_UID) == uid;
    stage
        .until("the nodes of the Workload that is gone go too", async |s| {
            let claims = s.claims(TENANT).await;
            !claims.is_empty() && claims.iter().all(is_of_stays)
        })
        .await;
    stage.nobody_is_harmed("what was done while Setu was away").await;
    let stays = stage.workload(TENANT, "stays").await.unwrap();
    assert!(!stays.is("Admitted"), "it is admitted without nodes: {:?}", stays.status);
    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "stays"}})).await;
    stage.until("the tenant's nodes are gone", async |s| s.claims(TENANT).await.is_empty()).await;
}
