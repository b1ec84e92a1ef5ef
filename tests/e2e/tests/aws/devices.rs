//! Gangs whose pods ask for devices that are not GPUs, or for more than GPUs.

use crate::attempts::TEMPLATE;
use crate::play::{Play, Stage};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use setu_e2e::aws::ProviderCall;
use std::collections::{BTreeMap, BTreeSet};

/// The number of machines of each gang.
const MACHINES: usize = 2;

const GPU: &str = "nvidia.com/gpu";
const EFA: &str = "vpc.amazonaws.com/efa";
const NEURON: &str = "aws.amazon.com/neuron";

/// The parameter of CreateLaunchTemplate with the type of the first network interface.
const INTERFACE: &str = "LaunchTemplateData.NetworkInterface.1.InterfaceType";

/// Pods that ask for a GPU and an EFA interface run on machines that are launched with one. A machine has EFA interfaces
/// only if its launch template asks for them.
pub async fn efa(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "efa", instance_type, json!({})).await?;
    runs_with(&mut play, &[GPU, EFA]).await?;
    let of = |call: &ProviderCall, key: &str| call.form.get(key).cloned();
    let used: BTreeSet<Option<String>> =
        play.calls("CreateFleet").iter().map(|call| of(call, TEMPLATE)).collect();
    // Karpenter also creates one to validate the EC2NodeClass.
    let mut templates = play.calls("CreateLaunchTemplate");
    templates.retain(|made| used.contains(&of(made, "LaunchTemplateName")));
    let interfaces: Vec<Option<String>> = templates.iter().map(|made| of(made, INTERFACE)).collect();
    ensure!(interfaces == [Some("efa".to_owned())], "the launch templates have {interfaces:?}");
    play.end().await
}

/// Pods that ask for a Neuron device run on machines of a family that only this scenario sells.
pub async fn neuron(stage: &Stage, family: &'static str, instance_type: &'static str) -> Result<()> {
    stage
        .selling(family, async || {
            let mut play = Play::start(stage, "neuron", instance_type, json!({})).await?;
            runs_with(&mut play, &[NEURON]).await?;
            play.end().await
        })
        .await
}

/// Checks that a gang whose pods ask for one of each of these devices runs in its first attempt, that its NodeClaims ask for
/// them, and that no other instance runs.
async fn runs_with(play: &mut Play<'_>, devices: &[&str]) -> Result<()> {
    let quota = json!({"spec": {"resourceGroups": [quota(devices)]}});
    play.steps(json!([
        {"patch": {"kind": "ClusterQueue", "name": "${id}", "patch": quota}},
        {"apply": [job(devices)]},
        {"until": {"job": "train", "admitted": true, "runningOnOwnNodes": MACHINES, "claims": MACHINES, "attempt": 1}},
    ]))
    .await?;
    for claim in play.world.claims().await? {
        let requests = &claim.spec.resources.requests;
        let asks = devices.iter().all(|device| requests.get(*device).is_some_and(|number| number.0 == "1"));
        ensure!(asks, "a NodeClaim asks for {requests:?}");
    }
    play.audit(MACHINES).await
}

/// Quota for pods with these devices.
fn quota(devices: &[&str]) -> Value {
    let covered: Vec<&str> = ["cpu", "memory"].into_iter().chain(devices.iter().copied()).collect();
    let of = |name: &&str| {
        let most = if *name == "memory" { "1000Gi" } else { "100" };
        json!({"name": name, "nominalQuota": most})
    };
    let resources: Vec<Value> = covered.iter().map(of).collect();
    json!({"coveredResources": covered, "flavors": [{"name": "${id}", "resources": resources}]})
}

/// A Job whose pods ask for one of each of these devices.
fn job(devices: &[&str]) -> Value {
    let limits: BTreeMap<&str, &str> = devices.iter().map(|device| (*device, "1")).collect();
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": MACHINES, "completions": MACHINES, "suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        }}},
    })
}
