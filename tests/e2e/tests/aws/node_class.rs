//! Gangs with an EC2NodeClass that is not ready.

use crate::play::{Play, Stage};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// moto's AL2023 image, as in the manifest.
const IMAGE: &str = "ami-0b301ce3ce347599c";

/// The message if Karpenter does not say in the NodePool what a NodeClass lacks.
const UNKNOWN: &str = "kubectl describe ec2nodeclass ${id} shows what it lacks";

/// The part that a NodeClass lacks.
#[derive(Clone, Copy, Debug)]
pub enum Lack {
    Subnet,
    Image,
    Role,
    Profile,
}

impl Lack {
    /// The broken fields, the correct fields, and the expected message.
    fn fields(self) -> (Value, Value, &'static str) {
        let subnets = |tag: &str| json!({"subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": tag}}]});
        let images = |term: Value| json!({"amiSelectorTerms": [term]});
        match self {
            Self::Subnet => (subnets("nowhere"), subnets("setu"), "SubnetsReady=False"),
            Self::Image => {
                (images(json!({"name": "nothing"})), images(json!({"id": IMAGE})), "AMIsReady=False")
            }
            Self::Role => (
                json!({"instanceProfile": null, "role": "nobody"}),
                json!({"instanceProfile": null, "role": "setu"}),
                UNKNOWN,
            ),
            Self::Profile => {
                let profile = |name: &str| json!({"instanceProfile": name});
                (profile("nobody"), profile("setu"), UNKNOWN)
            }
        }
    }
}

/// The message names the NodeClass and what it lacks, and nothing is bought. Once the NodeClass is fixed, the gang
/// continues.
pub async fn not_ready(stage: &Stage, lack: Lack, instance_type: &'static str) -> Result<()> {
    let id = format!("no-{lack:?}").to_lowercase();
    let mut play = Play::start(stage, &id, instance_type, json!({})).await?;
    let (broken, whole, condition) = lack.fields();
    play.steps(change(&broken)).await?;
    play.steps(json!([
        {"submit": {"name": "train", "pods": 2, "gpus": 1, "runFor": "3s"}},
        {"until": {"job": "train", "state": "Validating", "message": "NodeClassReady of EC2NodeClass ${id}: ", "claims": 0, "within": 60}},
        {"until": {"job": "train", "state": "Validating", "message": condition}},
        {"holds": {"job": "train", "claims": 0, "within": 3}},
    ]))
    .await?;
    ensure!(play.calls("CreateFleet").is_empty(), "something was bought");
    play.steps(change(&whole)).await?;
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0, "within": 120}}])).await?;
    play.end().await
}

fn change(fields: &Value) -> Value {
    json!([{"patch": {"kind": "EC2NodeClass", "name": "${id}", "patch": {"spec": fields}}}])
}
