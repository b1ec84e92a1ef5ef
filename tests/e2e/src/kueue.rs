//! Runs Kueue outside the cluster with working webhooks: the API server reaches them on loopback, through an
//! ExternalName Service with the original name. The one rule: only the address of the webhooks differs from
//! the chart.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, KUEUE_NAMESPACE, apply, operators, probe, versions};

const WEBHOOK_SERVICE: &str = "kueue-webhook-service";
const CERTIFICATE_SECRET: &str = "kueue-webhook-server-cert";
/// The fields of the chart's configuration that set Kueue's rate and concurrency.
const PACE: [&str; 2] = ["clientConnection", "controller"];
/// Kinds that would run in the cluster, or need an API that is not served here.
const LEFT_OUT: [&str; 2] = ["Deployment", "APIService"];

/// Kueue with these integrations besides those of its configuration.
pub(crate) fn launch(
    layout: &HarnessLayout,
    folder: &Path,
    identity: &Identity,
    ports: Ports,
    integrations: &[&str],
) -> Result<ProgramCommand> {
    let template = layout.manifest("kueue-config.yaml");
    let text = fs::read_to_string(&template).with_context(|| format!("reading {}", template.display()))?;
    let mut config: Value = serde_yaml::from_str(&text).context("reading Kueue's configuration")?;
    let certificates = folder.join("kueue-certificates");
    fs::create_dir_all(&certificates).context("creating the folder of Kueue's certificates")?;
    if let Some(fields) = config.as_object_mut() {
        let health = format!("127.0.0.1:{}", ports.kueue_health);
        fields.insert("health".to_owned(), json!({"healthProbeBindAddress": health}));
        let webhook = json!({"host": "127.0.0.1", "port": ports.kueue_webhook, "certDir": certificates});
        fields.insert("webhook".to_owned(), webhook);
        let shipped = shipped_config(layout)?;
        for field in PACE {
            let value =
                shipped.get(field).with_context(|| format!("the chart's configuration has no {field}"))?;
            fields.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(frameworks) = config.pointer_mut("/integrations/frameworks").and_then(Value::as_array_mut) {
        frameworks.extend(integrations.iter().map(|name| json!(name)));
    }
    let path = folder.join("kueue-config.yaml");
    let text = serde_yaml::to_string(&config).context("writing Kueue's configuration as YAML")?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    // It is a separate extension API server, which nothing here could reach.
    let mut gates = vec!["VisibilityOnDemand=false"];
    // With it, Kueue evicts a Workload that is placed on hosts as soon as one is lost, before Setu can replace it:
    // docs/provisioning-requests.md says to switch it off.
    if versions::of(layout)?.replaces_nodes_later(layout)? {
        gates.push("TASFailedNodeReplacementFailFast=false");
    }
    if !integrations.is_empty() {
        gates.push(operators::GATE);
    }
    let arguments = [
        format!("--config={}", path.display()),
        format!("--kubeconfig={}", identity.kueue.display()),
        format!("--feature-gates={}", gates.join(",")),
    ];
    Ok(ProgramCommand::new(Program::Kueue, arguments))
}

/// The configuration in the chart.
fn shipped_config(layout: &HarnessLayout) -> Result<Value> {
    let objects = chart(layout)?;
    let text = objects.iter().find_map(|o| o.pointer("/data/controller_manager_config.yaml")?.as_str());
    serde_yaml::from_str(text.context("the chart has no configuration")?)
        .context("reading the chart's configuration")
}

/// The chart's objects, unchanged.
fn chart(layout: &HarnessLayout) -> Result<Vec<Value>> {
    let path = layout.upstream().join("kueue.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    apply::documents(&text)
}

/// The chart's objects with their webhooks redirected to loopback.
pub(crate) fn manifests(layout: &HarnessLayout, ports: Ports) -> Result<Vec<Value>> {
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KUEUE_NAMESPACE},
    })];
    for mut object in chart(layout)? {
        if LEFT_OUT.iter().any(|kind| object.get("kind").is_some_and(|found| found == kind)) {
            continue;
        }
        if object.pointer("/metadata/name").is_some_and(|name| name == WEBHOOK_SERVICE) {
            object = json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": WEBHOOK_SERVICE, "namespace": KUEUE_NAMESPACE},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            });
        }
        point_at(&mut object, ports.kueue_webhook);
        objects.push(object);
    }
    Ok(objects)
}

/// Sets the port in every reference to the webhook service, at any depth.
fn point_at(value: &mut Value, port: u16) {
    match value {
        Value::Object(fields) => {
            let refers = fields.get("name").is_some_and(|name| name == WEBHOOK_SERVICE);
            if refers && fields.contains_key("path") {
                fields.insert("port".to_owned(), port.into());
            }
            fields.values_mut().for_each(|field| point_at(field, port));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| point_at(item, port)),
        _ => {}
    }
}

/// Mounts the certificate that Kueue creates, as a kubelet would. Kueue waits for it.
pub(crate) async fn mount_certificate(client: &Client, folder: &Path) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), KUEUE_NAMESPACE);
    let files = probe::until("Kueue has made its certificate", Duration::from_mins(1), async || {
        let secret = secrets.get(CERTIFICATE_SECRET).await?;
        secret.data.filter(|data| data.contains_key("tls.crt")).context("the Secret is still empty")
    })
    .await?;
    for (name, content) in files {
        let path = folder.join("kueue-certificates").join(name);
        fs::write(&path, content.0).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Fails unless both the validating and the mutating webhooks of Kueue answer.
pub(crate) async fn webhooks_answer(client: &Client) -> Result<()> {
    let probes = [
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
            "metadata": {"name": "e2e-probe"},
        }),
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "e2e-probe", "namespace": "default"},
            "spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}],
            }}},
        }),
    ];
    for probe in probes {
        apply::would_create(client, probe).await?;
    }
    Ok(())
}
