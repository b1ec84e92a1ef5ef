//! Starts the JobSet and LeaderWorkerSet controllers outside the cluster. Their webhooks use the API server's
//! certificate, so that neither has to create one. The one rule: only the addresses of the webhooks differ from
//! the charts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, apply};

/// The kinds that are needed from a chart when the controller runs outside the cluster, as an administrator.
const TAKEN: [&str; 3] =
    ["CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The ports are those of the probes and the webhooks.
pub(crate) fn launch(
    program: Program,
    folder: &Path,
    identity: &Identity,
    [health, webhook]: [u16; 2],
) -> Result<ProgramCommand> {
    let name = program.name();
    let config = json!({
        "apiVersion": format!("config.{name}.x-k8s.io/v1alpha1"), "kind": "Configuration",
        "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": identity.serving},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": false},
        "clientConnection": {"qps": 500, "burst": 1000},
    });
    let path = folder.join(format!("{name}-config.yaml"));
    fs::write(&path, config.to_string()).with_context(|| format!("writing {}", path.display()))?;
    let arguments =
        [format!("--config={}", path.display()), format!("--kubeconfig={}", identity.kubeconfig.display())];
    Ok(ProgramCommand::new(program, arguments))
}

/// The CRDs and webhooks of both kinds. The API server must have created its certificate.
pub(crate) fn manifests(layout: &HarnessLayout, identity: &Identity, ports: Ports) -> Result<Vec<Value>> {
    let authority = authority(identity)?;
    let mut objects = Vec::new();
    for (program, [_, webhook]) in [(Program::JobSet, ports.jobset), (Program::LeaderWorkerSet, ports.lws)] {
        let path = layout.upstream().join(format!("{}.yaml", program.name()));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for mut object in apply::documents(&text)? {
            if TAKEN.iter().any(|kind| object.get("kind").is_some_and(|found| found == kind)) {
                point_at(&mut object, webhook, &authority);
                objects.push(object);
            }
        }
    }
    Ok(objects)
}

/// The CA of the API server's certificate, as a webhook has it.
pub(crate) fn authority(identity: &Identity) -> Result<Value> {
    let certificate = identity.certificate();
    let authority = fs::read(&certificate).with_context(|| format!("reading {}", certificate.display()))?;
    Ok(json!(ByteString(authority)))
}

/// Replaces every webhook's service with a URL, at any depth.
pub(crate) fn point_at(value: &mut Value, port: u16, authority: &Value) {
    match value {
        Value::Object(fields) => {
            let path = fields.get("service").and_then(|service| service.get("path")?.as_str());
            if let Some(path) = path {
                let url = format!("https://127.0.0.1:{port}{path}");
                fields.remove("service");
                fields.insert("url".to_owned(), url.into());
                fields.insert("caBundle".to_owned(), authority.clone());
            }
            fields.values_mut().for_each(|field| point_at(field, port, authority));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| point_at(item, port, authority)),
        _ => {}
    }
}

/// Fails unless the program's webhooks and Kueue's accept an object of the program's kind.
pub(crate) async fn taken(program: Program, client: &Client) -> Result<()> {
    let pod =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}]}});
    let metadata = json!({"name": "e2e-probe", "namespace": "default"});
    let probe = match program {
        Program::JobSet => json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata,
            "spec": {"replicatedJobs": [{"name": "probe", "template": {"spec": {"template": pod}}}]},
        }),
        Program::LeaderWorkerSet => json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata,
            "spec": {"leaderWorkerTemplate": {"workerTemplate": pod}},
        }),
        other => bail!("{} has no kind of jobs", other.name()),
    };
    apply::would_create(client, probe).await
}
