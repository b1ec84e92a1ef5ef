//! The first gang of docs/eks.md, with the policy and the objects that the guide shows.

use crate::play::{Play, SETTLED, Stage};
use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::{Value, json};

const GUIDE: &str = include_str!("../../../../docs/eks.md");
const ID: &str = "guide";

/// The first gang of the guide gets its machines, and they go once its objects are deleted. Only the names of the check, of the
/// EC2NodeClass and of the namespace differ from the guide.
pub async fn first_gang(stage: &Stage) -> Result<()> {
    stage.selling("p5", async || act(stage).await).await
}

async fn act(stage: &Stage) -> Result<()> {
    let policy = documents(&block_with("Policy")?)?;
    let defaults = policy.first().map(|policy| policy["defaults"].clone()).unwrap_or_default();
    let mut play = Play::start(stage, ID, "p5.48xlarge", defaults).await?;
    let text = block_with("NodePool")?
        .replace("name: karpenter-provision", &format!("name: {}", play.world.id))
        .replace("kind: EC2NodeClass, name: gpu", &format!("kind: EC2NodeClass, name: {}", play.world.id))
        .replace("namespace: default", &format!("namespace: {}", play.world.id));
    let objects = documents(&text)?;
    for object in &objects {
        play.world.apply(object.clone()).await?;
    }
    play.steps(json!([
        {"until": {"job": "first", "admitted": true, "runningOnOwnNodes": 2, "claims": 2, "attempt": 1}},
    ]))
    .await?;
    play.audit(2).await?;
    for object in objects.iter().rev() {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
        play.world.delete(text("/kind"), text("/metadata/name")).await?;
    }
    play.until("no machine runs", SETTLED, async |play| Ok(play.instances().await?.is_empty())).await?;
    play.end().await
}

/// The first block of the guide with an object of this kind.
fn block_with(kind: &str) -> Result<String> {
    let mut blocks = GUIDE.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```\n").next());
    let found = blocks.find(|block| block.contains(&format!("\nkind: {kind}\n")));
    found.map(str::to_owned).with_context(|| format!("docs/eks.md shows no {kind}"))
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let all = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    all.collect::<Result<_, _>>().context("reading docs/eks.md")
}
