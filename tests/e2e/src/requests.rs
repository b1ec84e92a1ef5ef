//! ProvisioningRequests, with which Kueue's own provisioning check asks for capacity: their definition, and the objects
//! of such a check. The one rule: the kind is served before Kueue starts, because Kueue looks for it only then.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::core::GroupVersionKind;
use kube::discovery::oneshot;
use serde_json::{Value, json};

use crate::{HarnessLayout, apply, probe};

/// The Go module of the CRD, with the version that Kueue is built with.
const MODULE: &str = "k8s.io/autoscaler/cluster-autoscaler/apis";
const FILE: &str = "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml";
/// The controller that Kueue itself runs.
const CONTROLLER: &str = "kueue.x-k8s.io/provisioning-request";

/// Installs the CRD. Returns when ProvisioningRequests are served.
pub(crate) async fn install(layout: &HarnessLayout, client: &Client) -> Result<()> {
    apply::all(client, definition(layout)?).await?;
    let kind = GroupVersionKind::gvk("autoscaling.x-k8s.io", "v1", "ProvisioningRequest");
    probe::until("ProvisioningRequests are served", Duration::from_secs(30), async || {
        Ok(oneshot::pinned_kind(client, &kind).await.map(drop)?)
    })
    .await
}

fn definition(layout: &HarnessLayout) -> Result<Vec<Value>> {
    let mut go = Command::new("go");
    go.args(["list", "-m", "-f", "{{.Dir}}", MODULE])
        .current_dir(layout.module("kueue"))
        .env("GOWORK", "off");
    let output = go.output().context("starting go")?;
    ensure!(output.status.success(), "{go:?}: {}", String::from_utf8_lossy(&output.stderr));
    let folder = String::from_utf8(output.stdout).context("reading the folder of a Go module")?;
    let path = Path::new(folder.trim()).join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    apply::documents(&text)
}

/// A check that makes requests of this class, and its configuration, both with this name. `selector` is a node label and the key
/// of a `provisioningClassDetail`: pods select nodes by this label, with the value of that detail in the request's status.
pub fn check(name: &str, class: &str, selector: Option<(&str, &str)>) -> Vec<Value> {
    let spec = match selector {
        None => json!({"provisioningClassName": class}),
        Some((label, detail)) => {
            let selector = json!([{"key": label, "valueFromProvisioningClassDetail": detail}]);
            json!({"provisioningClassName": class, "podSetUpdates": {"nodeSelector": selector}})
        }
    };
    let parameters = json!({"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name});
    vec![
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ProvisioningRequestConfig",
            "metadata": {"name": name}, "spec": spec,
        }),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": name},
            "spec": {"controllerName": CONTROLLER, "parameters": parameters},
        }),
    ]
}
