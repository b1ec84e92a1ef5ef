//! Node reboots as in Karpenter 1.15: the claim and the Node stay, and `Initialized` is Unknown during the reboot.
//!
//! A Node is rebooted if it has the condition that Karpenter's kwok provider uses to request a reboot.

use super::nodes::node_of;
use super::{ClaimStage, Due, set_conditions};
use crate::actors::Stage;
use crate::api::{User, kinds};
use crate::values::{is, is_going, list, name, set, text, uid, with_condition};
use serde_json::{Value, json};
use std::time::Duration;

/// Node condition that requests a reboot.
pub const REQUIRED: &str = "KWOKRebootRequired";
/// Claim condition during a reboot, and the reason of `Initialized` meanwhile.
const REBOOTING: &str = "Rebooting";
const TAINT: &str = "karpenter.sh/rebooting";
/// How long a machine takes to reboot; Karpenter waits for 20 minutes.
pub const DURATION: Duration = Duration::from_mins(12);

/// Starts the reboot of a Node that requests one.
pub(super) fn node_seen(user: &User, node: &Value, stage: &mut Stage<Due>) {
    if !is(node, REQUIRED) {
        return;
    }
    let claims = user.list(&kinds::NODE_CLAIM);
    let claim = claims.iter().find(|claim| text(claim, "/status/nodeName") == name(node));
    if let Some(claim) = claim.filter(|c| !is_going(c) && !is(c, REBOOTING)) {
        stage.soon(100, 500, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Reboot));
    }
}

/// The machine goes down.
pub(super) fn begin(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = node_of(user, claim).filter(|_| !is(claim, REBOOTING)) else {
        return;
    };
    let mut taints = list(&node, "/spec/taints").to_vec();
    taints.push(json!({"key": TAINT, "effect": "NoSchedule"}));
    turn(user, &node, &taints, ("Unknown", "NodeStatusUnknown"), stage);
    let rebooting = [
        (REBOOTING, "True", "RebootIssued"),
        ("Initialized", "Unknown", REBOOTING),
        ("Ready", "Unknown", REBOOTING),
    ];
    set_claim_conditions(user, claim, &rebooting, stage);
    stage.after(DURATION, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Rebooted));
}

/// The machine is up again, and its claim must be initialized again.
pub(super) fn end(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = node_of(user, claim) else { return };
    let taints: Vec<Value> =
        list(&node, "/spec/taints").iter().filter(|t| text(t, "/key") != TAINT).cloned().collect();
    turn(user, &node, &taints, ("True", "KubeletReady"), stage);
    set_claim_conditions(user, claim, &[(REBOOTING, "False", "RebootSucceeded")], stage);
    stage.soon(50, 500, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Initialize));
}

/// Sets the Node's taints and readiness, and clears its request for a reboot.
fn turn(user: &User, node: &Value, taints: &[Value], ready: (&str, &str), stage: &Stage<Due>) {
    let mut shown = node.clone();
    for (kind, (status, reason)) in [("Ready", ready), (REQUIRED, ("False", "Rebooted"))] {
        let conditions = with_condition(&shown, (kind, status), (reason, ""), stage.now());
        set(&mut shown, &["status", "conditions"], json!(conditions));
    }
    set_conditions(user, &kinds::NODE, node, list(&shown, "/status/conditions"));
    // The Node may be gone by now.
    let _ = user.merge(&kinds::NODE, "", name(node), &json!({"spec": {"taints": taints}}));
}

/// Sets conditions of a claim, each given as type, status and reason.
fn set_claim_conditions(user: &User, claim: &Value, conditions: &[(&str, &str, &str)], stage: &Stage<Due>) {
    let mut changed = claim.clone();
    for (kind, status, reason) in conditions {
        let all = with_condition(&changed, (kind, status), (reason, ""), stage.now());
        set(&mut changed, &["status", "conditions"], json!(all));
    }
    set_conditions(user, &kinds::NODE_CLAIM, claim, list(&changed, "/status/conditions"));
}
