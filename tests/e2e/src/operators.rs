//! Starts the operators of frameworks outside the cluster: KubeRay, the training operator, the MPI operator, the trainer, the
//! AppWrapper controller and the Spark operator. The one rule: each runs as it is, with the definitions in its own module.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, apply, jobs, probe, spark};

/// Each operator with its Go module and the files and folders of its definitions.
pub(crate) const OPERATORS: [(Program, &str, &[&str]); 6] = [
    (Program::KubeRay, "github.com/ray-project/kuberay/ray-operator", &["config/crd/bases"]),
    (
        Program::TrainingOperator,
        "github.com/kubeflow/training-operator",
        &[
            "manifests/base/crds/kubeflow.org_jaxjobs.yaml",
            "manifests/base/crds/kubeflow.org_paddlejobs.yaml",
            "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
            "manifests/base/crds/kubeflow.org_tfjobs.yaml",
            "manifests/base/crds/kubeflow.org_xgboostjobs.yaml",
            "manifests/base/webhook/manifests.yaml",
        ],
    ),
    (Program::MpiOperator, "github.com/kubeflow/mpi-operator", &["manifests/base/kubeflow.org_mpijobs.yaml"]),
    (
        Program::Trainer,
        "github.com/kubeflow/trainer/v2",
        &[
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
            "manifests/base/webhook/manifests.yaml",
        ],
    ),
    (Program::AppWrapper, "github.com/project-codeflare/appwrapper", &["config/crd/bases"]),
    (
        Program::SparkOperator,
        "github.com/kubeflow/spark-operator/v2",
        &["config/crd/bases", "config/webhook/manifests.yaml"],
    ),
];

/// Kueue's integrations for the kinds that need these operators, and for Deployments and StatefulSets.
pub(crate) const INTEGRATIONS: [&str; 13] = [
    "deployment",
    "statefulset",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "kubeflow.org/paddlejob",
    "kubeflow.org/jaxjob",
    "kubeflow.org/mpijob",
    "trainer.kubeflow.org/trainjob",
    "workload.codeflare.dev/appwrapper",
    "sparkoperator.k8s.io/sparkapplication",
];

/// The feature gate of Kueue without which it does not take one of these.
pub(crate) const GATE: &str = "SparkApplicationIntegration=true";

/// The kinds of the training operator. The MPI operator has MPIJobs.
const TRAINING_KINDS: [&str; 5] = ["jaxjob", "paddlejob", "pytorchjob", "tfjob", "xgboostjob"];
/// The port on which the MPI operator says whether it leads. It cannot be changed.
pub(crate) const MPI_HEALTH: u16 = 8080;
/// Where the training operator reads its certificate. It cannot be changed.
const TRAINING_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
const TRAINING_NAMESPACE: &str = "kubeflow";
const TRAINING_SECRET: &str = "training-operator-webhook-cert";
const TRAINING_SERVICE: &str = "training-operator";
const TRAINING_WEBHOOKS: &str = "validator.training-operator.kubeflow.org";
const APP_WRAPPER_NAMESPACE: &str = "appwrapper-system";

/// The commands of all operators. The stack's folder gets their files.
pub(crate) fn launches(
    layout: &HarnessLayout,
    folder: &Path,
    identity: &Identity,
    ports: Ports,
) -> Result<[ProgramCommand; 7]> {
    let kubeconfig = identity.kubeconfig.display();
    let [health, dashboards] = ports.kuberay;
    let mut kuberay = ProgramCommand::new(
        Program::KubeRay,
        [
            format!("--kubeconfig={kubeconfig}"),
            format!("--health-probe-bind-address=127.0.0.1:{health}"),
            "--metrics-addr=0".to_owned(),
            "--enable-leader-election=false".to_owned(),
        ],
    );
    // Go does not use this proxy for loopback addresses, so only requests to the dashboards go through it.
    kuberay.environment.push(("HTTP_PROXY", format!("http://127.0.0.1:{dashboards}")));
    let [health, webhook] = ports.training_operator;
    let arguments = [
        format!("--kubeconfig={kubeconfig}"),
        format!("--health-probe-bind-address=127.0.0.1:{health}"),
        "--metrics-bind-address=0".to_owned(),
        format!("--webhook-server-port={webhook}"),
    ];
    // Leaves out its MPIJobs of version 1: it would wait two minutes for them, and then exit.
    let kinds = TRAINING_KINDS.map(|kind| format!("--enable-scheme={kind}"));
    let training = ProgramCommand::new(Program::TrainingOperator, arguments.into_iter().chain(kinds));
    let mpi = ProgramCommand::new(
        Program::MpiOperator,
        [format!("--kubeConfig={kubeconfig}"), "--lock-namespace=default".to_owned()],
    );
    let mut app_wrapper = ProgramCommand::new(Program::AppWrapper, [format!("--kubeconfig={kubeconfig}")]);
    app_wrapper.environment.push(("NAMESPACE", APP_WRAPPER_NAMESPACE.to_owned()));
    let trainer = trainer(folder, identity, ports)?;
    let [spark, spark_webhook] = spark::launches(layout, folder, identity, ports);
    Ok([kuberay, training, mpi, trainer, app_wrapper, spark, spark_webhook])
}

/// The trainer, whose webhooks use the API server's certificate.
fn trainer(folder: &Path, identity: &Identity, ports: Ports) -> Result<ProgramCommand> {
    let [health, webhook] = ports.trainer;
    let config = json!({
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
        "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
        "webhook": {"host": "127.0.0.1", "port": webhook},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": false},
        "certManagement": {"enable": false},
    });
    let path = folder.join("trainer-config.yaml");
    fs::write(&path, config.to_string()).with_context(|| format!("writing {}", path.display()))?;
    // It reads its certificate in the folder for temporary files, where the training operator has another.
    let temporary = folder.join("trainer");
    let certificates = temporary.join("k8s-webhook-server");
    fs::create_dir_all(&certificates).with_context(|| format!("creating {}", certificates.display()))?;
    symlink(&identity.serving, certificates.join("serving-certs")).context("linking the certificate")?;
    let kubeconfig = identity.kubeconfig.display();
    let arguments = [format!("--config={}", path.display()), format!("--kubeconfig={kubeconfig}")];
    let mut trainer = ProgramCommand::new(Program::Trainer, arguments);
    trainer.environment.push(("TMPDIR", temporary.display().to_string()));
    Ok(trainer)
}

/// What the AppWrapper controller reads at its start. Its webhooks, which need a certificate of their own, check who may create what
/// an AppWrapper contains; Kueue's webhook suspends it.
fn app_wrapper_config(ports: Ports) -> Value {
    let config = json!({
        "webhooksEnabled": false,
        "controllerManager": {
            "health": {"bindAddress": format!("127.0.0.1:{}", ports.app_wrapper)},
            "metrics": {"bindAddress": "0"},
        },
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "appwrapper-operator-config", "namespace": APP_WRAPPER_NAMESPACE},
        "data": {"config.yaml": config.to_string()},
    })
}

/// The definitions of all operators' kinds, with their webhooks on loopback.
pub(crate) fn manifests(layout: &HarnessLayout, identity: &Identity, ports: Ports) -> Result<Vec<Value>> {
    let authority = jobs::authority(identity)?;
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP_WRAPPER_NAMESPACE}}),
        app_wrapper_config(ports),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TRAINING_NAMESPACE}}),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": TRAINING_SECRET, "namespace": TRAINING_NAMESPACE},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": TRAINING_SERVICE, "namespace": TRAINING_NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
    ];
    objects.extend(spark::surroundings());
    let [_, webhook] = ports.training_operator;
    let [_, _, spark_webhook] = ports.spark_operator;
    for (program, _, _) in OPERATORS {
        let path = layout.upstream().join(format!("{}.yaml", program.name()));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for mut object in apply::documents(&text)? {
            match program {
                Program::Trainer => jobs::point_at(&mut object, ports.trainer[1], &authority),
                Program::SparkOperator => spark::as_deployed(&mut object, spark_webhook),
                Program::TrainingOperator
                    if object.get("kind").is_some_and(|kind| kind == "ValidatingWebhookConfiguration") =>
                {
                    named_as_deployed(&mut object, webhook);
                }
                _ => {}
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Does what the operator's kustomization does, and sets the port.
fn named_as_deployed(object: &mut Value, port: u16) {
    let name = json!(TRAINING_WEBHOOKS);
    object.pointer_mut("/metadata/name").into_iter().for_each(|found| *found = name.clone());
    let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
    for service in
        webhooks.into_iter().flatten().filter_map(|w| w.pointer_mut("/clientConfig/service")?.as_object_mut())
    {
        service.insert("name".to_owned(), json!(TRAINING_SERVICE));
        service.insert("namespace".to_owned(), json!(TRAINING_NAMESPACE));
        service.insert("port".to_owned(), json!(port));
    }
}

/// Mounts the certificate that the training operator makes, as a kubelet would. The operator waits for it.
pub(crate) async fn mount_certificate(client: &Client) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), TRAINING_NAMESPACE);
    let what = "the training operator has made its certificate";
    let files = probe::until(what, Duration::from_mins(1), async || {
        let secret = secrets.get(TRAINING_SECRET).await?;
        secret.data.filter(|data| data.contains_key("tls.crt")).context("the Secret is still empty")
    })
    .await?;
    let folder = Path::new(TRAINING_CERTIFICATES);
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, content) in files {
        let path = folder.join(name);
        fs::write(&path, content.0).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Stands in for the dashboards of Ray's head pods, whose containers do not run: reports every job as succeeded. KubeRay accepts this
/// once the pod that submitted the job has ended. The server ends with the task.
pub(crate) async fn serve_dashboards(ports: Ports) -> Result<JoinHandle<()>> {
    let [_, port] = ports.kuberay;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.context("listening for Ray's dashboards")?;
    Ok(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that went away asks again.
            tokio::spawn(async move { answer(stream).await.ok() });
        }
    }))
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    let mut lines = BufReader::new(&mut stream).lines();
    while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    let body = json!({"status": "SUCCEEDED", "stopped": true}).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await.context("closing a connection")
}
