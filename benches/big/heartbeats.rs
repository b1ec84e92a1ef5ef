//! Heartbeats of kubelets.

use crate::fill::Filler;
use anyhow::Result;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use setu_sim::api::kinds;
use std::time::{Duration, Instant};

/// How often a kubelet reports when nothing changes.
const PERIOD: Duration = Duration::from_mins(5);

/// Reports for one Node after the other, so that each is reported once in [`PERIOD`], until the span is over. Returns the number of
/// reports.
pub async fn send(filler: &Filler, span: Duration) -> Result<usize> {
    let nodes = filler.api(&kinds::NODE).list(&ListParams::default()).await?.items;
    let mut ticks = tokio::time::interval(PERIOD / u32::try_from(nodes.len().max(1))?);
    let (begun, mut sent) = (Instant::now(), 0);
    for node in nodes.iter().cycle() {
        ticks.tick().await;
        if begun.elapsed() > span {
            break;
        }
        let mut conditions = node.data["status"]["conditions"].clone();
        for condition in conditions.as_array_mut().into_iter().flatten() {
            condition["lastHeartbeatTime"] = json!(Timestamp::now());
        }
        filler.tell(&kinds::NODE, &node.name_any(), &json!({"conditions": conditions})).await?;
        sent += 1;
    }
    Ok(sent)
}
