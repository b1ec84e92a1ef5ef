//! The CRDs of Kueue and Karpenter, for an API server without either controller.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{HarnessLayout, apply};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Installs the CRDs of Kueue and Karpenter, with only their storage versions and without webhooks. Returns when all
/// are served. The error names the CRD that is not served, or the file that cannot be read.
pub async fn install(client: &Client) -> Result<()> {
    let mut definitions = Vec::new();
    for file in ["kueue.yaml", "karpenter.yaml"] {
        let path = HarnessLayout::default().upstream().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let objects = apply::documents(&text)?;
        definitions.extend(objects.into_iter().filter(|object| object["kind"] == "CustomResourceDefinition"));
    }
    let mut paths = Vec::new();
    for definition in &mut definitions {
        let spec = &mut definition["spec"];
        spec["conversion"] = json!({"strategy": "None"});
        let versions = spec["versions"].as_array_mut().context("a CRD without versions")?;
        versions.retain(|version| version["storage"] == Value::Bool(true));
        let text = |pointer| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let version = text("/versions/0/name");
        paths.push(format!("/apis/{}/{version}/{}", text("/group"), text("/names/plural")));
    }
    apply::all(client, definitions).await?;
    let deadline = Instant::now() + TIMEOUT;
    for path in paths {
        while client.request_text(http::Request::get(&path).body(Vec::new())?).await.is_err() {
            ensure!(Instant::now() < deadline, "{path} is still not served");
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
