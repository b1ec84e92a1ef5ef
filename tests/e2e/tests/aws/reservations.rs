//! Gangs whose nodes come from capacity reservations.

use crate::play::{Play, Stage};
use anyhow::{Result, ensure};
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use setu_e2e::aws::{CapacityReservation, Instance};
use std::time::Duration;

/// Karpenter looks for reservations once a minute.
const FOUND: Duration = Duration::from_secs(90);

/// A gang is launched into a reservation that has room for all of it, and one that finds room for half is on demand as a
/// whole.
pub async fn half(stage: &Stage, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-setu1";
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let policy = json!({"tiers": [
        {"name": "reserved", "nodePoolName": "${id}", "reservations": [{"id": ID, "instanceType": instance_type, "nodes": 4}]},
        {"name": "bought", "nodePoolName": "${id}", "requirements": on_demand},
    ]});
    let mut play = Play::start(stage, "reserved", instance_type, policy).await?;
    let (id, zone) = (ID.to_owned(), "us-east-1a".to_owned());
    play.cloud.reservations(vec![CapacityReservation {
        id,
        instance_type: instance_type.to_owned(),
        zone,
        nodes: 4,
    }]);
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["reserved", "on-demand"]},
    ]);
    play.steps(json!([
        {"patch": {"kind": "EC2NodeClass", "name": "${id}", "patch": {"spec": {"capacityReservationSelectorTerms": [{"id": ID}]}}}},
        {"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}},
    ]))
    .await?;
    play.until("the EC2NodeClass has found the reservation", FOUND, async |play| {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.k8s.aws", "v1", "EC2NodeClass"));
        let classes: Api<DynamicObject> = Api::all_with(play.world.client.clone(), &kind);
        let class = classes.get(&play.world.id).await?;
        Ok(class.data.pointer("/status/capacityReservations/0/id").is_some_and(|found| found == ID))
    })
    .await?;
    play.submit("first", 2, None).await?;
    play.steps(json!([{"until": {"job": "first", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1, "capacityTypes": {"reserved": 2}}}])).await?;
    let reserved = |instance: &&Instance| play.cloud.reservation_of(&instance.id).as_deref() == Some(ID);
    ensure!(play.instances().await?.iter().filter(reserved).count() == 2, "some is not in the reservation");
    play.submit("second", 4, None).await?;
    play.steps(json!([
        {"until": {"job": "second", "event": "PlanHasDrawback"}},
        {"until": {"job": "second", "admitted": true, "runningOnOwnNodes": 4, "attempt": 1, "capacityTypes": {"on-demand": 4}}},
    ]))
    .await?;
    play.audit(6).await?;
    let reserved = |instance: &&Instance| play.cloud.reservation_of(&instance.id).as_deref() == Some(ID);
    ensure!(play.instances().await?.iter().filter(reserved).count() == 2, "others are in the reservation");
    play.end().await
}
