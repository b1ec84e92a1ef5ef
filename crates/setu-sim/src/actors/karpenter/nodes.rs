//! The Node of a claim, from registration to termination, including initialization and consolidation.
//! The kubelet is simulated here too.

use super::{ClaimStage, Due, FINALIZER, Karpenter, POLL, delete, set_conditions, signed, weather};
use crate::actors::Stage;
use crate::api::{Preconditions, User, kinds};
use crate::values::{
    annotation, created, has_ended, is, list, map, name, set, since, text, uid, with_condition,
};
use jiff::SignedDuration;
use serde_json::{Value, json};
use setu_core::names;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Karpenter gives up on a registration after this long.
const REGISTRATION_LIMIT: SignedDuration = SignedDuration::from_mins(15);
/// An unprotected node is removed after it has been idle for this long.
const IDLE_LIMIT: Duration = Duration::from_secs(27);

/// The Node of a claim, if it has registered. Its name is not that of the claim.
pub(super) fn node_of(user: &User, claim: &Value) -> Option<Arc<Value>> {
    user.get(&kinds::NODE, "", text(claim, "/status/nodeName"))
}

impl Karpenter {
    pub(super) fn register(&self, user: &User, claim: &Value, stage: &mut Stage<Due>) {
        let now = stage.now();
        let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
        let Some(place) = self.live.get(name(claim)) else { return };
        if now.duration_since(created(claim)) > REGISTRATION_LIMIT {
            return delete(user, claim);
        }
        let waited = since(claim, "Launched").map_or(SignedDuration::MAX, |t| now.duration_since(t));
        if waited < signed(weather(user).registration_delay(place)) {
            return stage.after(POLL, key(ClaimStage::Register));
        }
        let node_name = format!("node-{}", name(claim));
        let mut labels = map(claim, "/metadata/labels");
        labels.insert("kubernetes.io/hostname".to_owned(), node_name.clone());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        labels.insert("kubernetes.io/arch".to_owned(), "amd64".to_owned());
        labels.insert("karpenter.sh/registered".to_owned(), "true".to_owned());
        let mut taints = list(claim, "/spec/taints").to_vec();
        taints.extend_from_slice(list(claim, "/spec/startupTaints"));
        taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": node_name, "labels": labels, "annotations": map(claim, "/metadata/annotations"),
                "ownerReferences": [{
                    "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name(claim), "uid": uid(claim),
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {"providerID": text(claim, "/status/providerID"), "taints": taints},
        });
        let _ = user.create(&kinds::NODE, node);
        let status = json!({"status": {
            "nodeName": node_name,
            "conditions": with_condition(claim, ("Registered", "True"), ("Registered", ""), now),
        }});
        let _ = user.merge_status(&kinds::NODE_CLAIM, "", name(claim), &status);
        stage.soon(200, 1_500, key(ClaimStage::Boot));
    }

    /// The kubelet: the Node becomes Ready and reports its resources.
    pub(super) fn boot(&self, user: &User, claim: &Value, stage: &mut Stage<Due>) {
        let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
        let (Some(place), Some(node)) = (self.live.get(name(claim)), node_of(user, claim)) else { return };
        let weather = weather(user);
        if weather.never_ready(place) {
            return stage.after(POLL, key(ClaimStage::Boot));
        }
        let all = map(claim, "/status/allocatable");
        let shown: BTreeMap<&String, String> = all
            .iter()
            .filter(|(r, _)| !weather.hides(place, r))
            .map(|(r, has)| (r, weather.shows(place, r).unwrap_or_else(|| has.clone())))
            .collect();
        let status = json!({"status": {
            "capacity": shown, "allocatable": shown,
            "conditions": with_condition(&node, ("Ready", "True"), ("KubeletReady", "kubelet is posting ready status"), stage.now()),
        }});
        let _ = user.merge_status(&kinds::NODE, "", name(&node), &status);
        let taints: Vec<&Value> = list(&node, "/spec/taints")
            .iter()
            .filter(|t| !text(t, "/key").starts_with("node.kubernetes.io/not-ready"))
            .collect();
        let _ = user.merge(&kinds::NODE, "", name(&node), &json!({"spec": {"taints": taints}}));
        if shown.len() < all.len() {
            stage.after(POLL, key(ClaimStage::Boot));
        }
        stage.soon(50, 500, key(ClaimStage::Initialize));
    }

    pub(super) fn terminate(&mut self, user: &User, claim: &Value) {
        if let Some(node) = node_of(user, claim) {
            drain(user, name(&node));
            let _ = user.delete(&kinds::NODE, "", name(&node), Preconditions::default());
        }
        self.live.remove(name(claim));
        let others: Vec<&Value> =
            list(claim, "/metadata/finalizers").iter().filter(|f| *f != FINALIZER).collect();
        let _ = user.merge(&kinds::NODE_CLAIM, "", name(claim), &json!({"metadata": {"finalizers": others}}));
    }
}

/// Deletes the pods that run on a Node.
fn drain(user: &User, node: &str) {
    let drained = |p: &&Arc<Value>| text(p, "/spec/nodeName") == node && !has_ended(p);
    for pod in user.list(&kinds::POD).iter().filter(drained) {
        let namespace = text(pod, "/metadata/namespace");
        let _ = user.delete(&kinds::POD, namespace, name(pod), Preconditions::default());
    }
}

/// Sets Initialized. Only a reboot unsets it.
pub(super) fn initialize(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = node_of(user, claim) else { return };
    let shown = map(&node, "/status/allocatable");
    let missing = map(claim, "/spec/resources/requests").keys().any(|r| !shown.contains_key(r));
    let startup = list(claim, "/spec/startupTaints");
    let tainted = list(&node, "/spec/taints")
        .iter()
        .any(|t| startup.iter().any(|s| text(s, "/key") == text(t, "/key")));
    if is(claim, "Initialized") || missing || tainted || !is(&node, "Ready") {
        return;
    }
    let _ = user.merge(
        &kinds::NODE,
        "",
        name(&node),
        &json!({"metadata": {"labels": {"karpenter.sh/initialized": "true"}}}),
    );
    let now = stage.now();
    let mut done = claim.clone();
    for kind in ["Initialized", "Ready"] {
        let conditions = with_condition(&done, (kind, "True"), (kind, ""), now);
        if let Some(status) = done.get_mut("status") {
            set(status, &["conditions"], json!(conditions));
        }
    }
    set_conditions(user, &kinds::NODE_CLAIM, claim, list(&done, "/status/conditions"));
    stage.after(IDLE_LIMIT, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Idle));
}

/// Consolidation: removes an unprotected node without running pods. Karpenter removes nothing while any claim
/// has no instance yet, because its view of the cluster is incomplete.
pub(super) fn idle(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = node_of(user, claim) else { return };
    let protected = annotation(&node, names::DO_NOT_DISRUPT) == "true";
    let runs = |p: &Arc<Value>| text(p, "/spec/nodeName") == name(&node) && !has_ended(p);
    let busy = user.list(&kinds::POD).iter().any(runs);
    let unknown = |c: &Arc<Value>| text(c, "/status/providerID").is_empty();
    let stalls = user.list(&kinds::NODE_CLAIM).iter().any(unknown);
    if protected || busy || stalls {
        stage.after(IDLE_LIMIT, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Idle));
    } else {
        delete(user, claim);
    }
}
