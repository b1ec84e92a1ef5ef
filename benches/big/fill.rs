//! Copies the model gang as often as requested, over HTTP, into any API server.

use crate::model::Model;
use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use setu::api::Workload;
use setu::gang::identity::gang_id;
use setu::gang::{AdmissionId, Journal};
use setu::names;
use setu::sim::scenario;
use setu_e2e::apply;
use setu_sim::api::kinds::{self, ServedKind};

/// The number of gangs copied concurrently.
const AT_ONCE: usize = 16;
/// Metadata that a copy must not share.
const OWN: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences"];

/// The target of the copies.
pub struct Filler {
    pub client: Client,
    pub id: &'static str,
}

impl Filler {
    /// All objects of a kind, in the world's namespace if the kind is namespaced.
    pub fn api(&self, kind: &ServedKind) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            api_version: kind.api_version(),
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
        };
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), self.id, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// Creates the objects that gangs depend on, `gangs` running gangs, and as many that wait: `waiting` of them have
    /// quota and wait for the NodePool's limits, the others wait for quota.
    pub async fn fill(&self, model: &Model, gangs: usize, waiting: usize) -> Result<()> {
        apply::all(&self.client, scenario::objects(self.id, 1_000_000)?).await?;
        for (kind, object) in &model.others {
            if let Some(status) = object.get("status") {
                self.tell(kind, meta(object, "name"), status).await?;
            }
        }
        if waiting > 0 {
            let limits = json!({"spec": {"limits": {"nvidia.com/gpu": model.held_by(gangs).to_string()}}});
            self.change(&kinds::NODE_POOL, self.id, &limits).await?;
        }
        let all = stream::iter(0..gangs).map(|index| self.gang(model, index, index < waiting));
        all.buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    async fn gang(&self, model: &Model, index: usize, reserves: bool) -> Result<()> {
        let uid = meta(&model.workload, "uid");
        let name = meta(&model.workload, "name");
        let new_name = format!("{name}-{index}");
        let made = self.copy(&kinds::WORKLOAD, &model.workload, &[(name, &new_name)]).await?;
        let new_uid = meta(&made, "uid").to_owned();
        let (gang, new_gang) = (gang_id(uid, self.id), gang_id(&new_uid, self.id));
        let journal_key = names::journal_key(self.id);
        let journal = model.workload["metadata"]["annotations"][&journal_key].as_str().unwrap_or_default();
        let text = journal.replace(uid, &new_uid).replace(&gang, &new_gang).replace(name, &new_name);
        let text = text.replace(&self.epoch_of(&model.workload)?, &self.epoch_of(&made)?);
        let made_at: Timestamp = meta(&made, "creationTimestamp").parse()?;
        // Encode it for this gang, trace ids included, or Setu would rewrite it.
        let journal = Journal::decode(&text, &new_uid, made_at, Timestamp::now())?;
        let patch = json!({"metadata": {"annotations": {journal_key.as_str(): journal.encode()}}});
        let workloads = self.api(&kinds::WORKLOAD);
        workloads.patch(&new_name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        for (slot, claim) in model.claims.iter().enumerate() {
            let claim_name = meta(claim, "name");
            let node_name = claim["status"]["nodeName"].as_str().unwrap_or_default();
            let node = model.nodes.iter().find(|n| n["metadata"]["name"] == node_name);
            // The Node has the name of its claim.
            let new_claim = format!("setu-big-{index}-{slot}");
            let replaced = [
                (uid, new_uid.as_str()),
                (gang.as_str(), new_gang.as_str()),
                (claim_name, new_claim.as_str()),
                (name, new_name.as_str()),
            ];
            self.copy(&kinds::NODE_CLAIM, claim, &replaced).await?;
            self.node(node.context("a claim without its Node")?, &replaced).await?;
        }
        let mut waiting = model.workload.clone();
        waiting["metadata"]["annotations"] = json!({});
        if reserves {
            let status = &mut waiting["status"];
            status["conditions"]
                .as_array_mut()
                .context("conditions")?
                .retain(|c| c["type"] == "QuotaReserved");
            status["admissionChecks"][0]["state"] = "Pending".into();
        } else {
            waiting.as_object_mut().and_then(|waiting| waiting.remove("status"));
        }
        self.copy(&kinds::WORKLOAD, &waiting, &[(name, &format!("waiting-{index}"))]).await?;
        Ok(())
    }

    async fn node(&self, node: &Value, replaced: &[(&str, &str)]) -> Result<()> {
        let wanted = changed(node, replaced)?;
        let made = self.copy(&kinds::NODE, node, replaced).await?;
        if made["spec"]["taints"] != wanted["spec"]["taints"] {
            // A real API server adds a taint to each new Node, which its node controller would remove.
            let taints = Patch::Merge(json!({"spec": {"taints": wanted["spec"]["taints"]}}));
            let name = meta(&made, "name");
            self.api(&kinds::NODE).patch(name, &PatchParams::default(), &taints).await?;
        }
        Ok(())
    }

    /// Creates a copy of the object with text replaced, and sets its status.
    async fn copy(&self, kind: &ServedKind, model: &Value, replaced: &[(&str, &str)]) -> Result<Value> {
        let mut object = changed(model, replaced)?;
        let status = object.as_object_mut().and_then(|object| object.remove("status"));
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|key, _| !OWN.contains(&key.as_str()));
        }
        let name = meta(&object, "name").to_owned();
        let object: DynamicObject = serde_json::from_value(object)?;
        let made = self.api(kind).create(&PostParams::default(), &object).await;
        let made = made.with_context(|| format!("creating {} {name}", kind.kind))?;
        match status {
            Some(status) => self.tell(kind, &name, &status).await,
            None => Ok(serde_json::to_value(made)?),
        }
    }

    /// Sets an object's status. Returns the object.
    pub async fn tell(&self, kind: &ServedKind, name: &str, status: &Value) -> Result<Value> {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        Ok(serde_json::to_value(patched.with_context(|| format!("the status of {} {name}", kind.kind))?)?)
    }

    /// Merges this into an object.
    pub async fn change(&self, kind: &ServedKind, name: &str, change: &Value) -> Result<()> {
        let changed = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        changed.with_context(|| format!("changing {} {name}", kind.kind))?;
        Ok(())
    }

    /// The identity of a Workload's admission, as its journal has it.
    fn epoch_of(&self, workload: &Value) -> Result<String> {
        let workload: Workload = serde_json::from_value(workload.clone())?;
        Ok(AdmissionId::of(&workload, self.id).0)
    }
}

/// A field of an object's metadata; empty if it has none.
fn meta<'o>(object: &'o Value, field: &str) -> &'o str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// An object with text replaced.
fn changed(model: &Value, replaced: &[(&str, &str)]) -> Result<Value> {
    let text = replaced.iter().fold(model.to_string(), |text, (from, to)| text.replace(from, to));
    Ok(serde_json::from_str(&text)?)
}
