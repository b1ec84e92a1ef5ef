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
    (
        Program::AppWrapper,
        "github.com/project-codeflare/appwrapper",
        &["config/crd/bases", "config/webhook/manifests.yaml"],
    ),
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
/// The port of the AppWrapper controller's webhooks. It cannot be changed.
pub(crate) const APP_WRAPPER_WEBHOOK: u16 = 9443;
/// The AppWrapper controller's folder for temporary files, below which it reads its certificate. The training operator has another.
const APP_WRAPPER_TEMPORARY: &str = "/tmp/appwrapper";
const APP_WRAPPER_CERTIFICATES: &str = "/tmp/appwrapper/k8s-webhook-server/serving-certs";
const APP_WRAPPER_NAMESPACE: &str = "appwrapper-system";
/// The prefix that its kustomization puts before each name.
const APP_WRAPPER_PREFIX: &str = "appwrapper";
const APP_WRAPPER_SECRET: &str = "appwrapper-webhook-server-cert";
const APP_WRAPPER_SERVICE: &str = "appwrapper-webhook-service";

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
    app_wrapper.environment.push(("TMPDIR", APP_WRAPPER_TEMPORARY.to_owned()));
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

/// The configuration that the AppWrapper controller reads at its start. Its webhooks check who may create what an AppWrapper
/// contains; Kueue's webhook suspends it.
fn app_wrapper_config(ports: Ports) -> Value {
    let config = json!({
        "certManagement": {"certificateDir": APP_WRAPPER_CERTIFICATES},
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
    ];
    objects.extend(surroundings(TRAINING_NAMESPACE, TRAINING_SECRET, TRAINING_SERVICE));
    objects.extend(surroundings(APP_WRAPPER_NAMESPACE, APP_WRAPPER_SECRET, APP_WRAPPER_SERVICE));
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
                Program::TrainingOperator => {
                    let service = (TRAINING_NAMESPACE, TRAINING_SERVICE, webhook);
                    as_deployed(&mut object, |_| TRAINING_WEBHOOKS.to_owned(), service);
                }
                Program::AppWrapper => {
                    let service = (APP_WRAPPER_NAMESPACE, APP_WRAPPER_SERVICE, APP_WRAPPER_WEBHOOK);
                    as_deployed(&mut object, |name| format!("{APP_WRAPPER_PREFIX}-{name}"), service);
                }
                _ => {}
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

/// The Secret in which an operator puts the certificate that it makes, still empty, and the Service of its webhooks, on loopback.
fn surroundings(namespace: &str, secret: &str, service: &str) -> [Value; 2] {
    [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": namespace}}),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": service, "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
    ]
}

/// Does what an operator's kustomization does to its webhooks, and sets the port. Other objects stay as they are.
fn as_deployed(
    object: &mut Value,
    named: impl Fn(&str) -> String,
    (namespace, service, port): (&str, &str, u16),
) {
    let Some(webhooks) = object.get_mut("webhooks").and_then(Value::as_array_mut) else { return };
    for reference in
        webhooks.iter_mut().filter_map(|w| w.pointer_mut("/clientConfig/service")?.as_object_mut())
    {
        reference.insert("name".to_owned(), json!(service));
        reference.insert("namespace".to_owned(), json!(namespace));
        reference.insert("port".to_owned(), json!(port));
    }
    if let Some(name) = object.pointer_mut("/metadata/name") {
        *name = json!(named(name.as_str().unwrap_or_default()));
    }
}

/// Mounts the certificates that the training operator and the AppWrapper controller make. Both operators are started at the same
/// time, and wait for them.
pub(crate) async fn mount_certificate(client: &Client) -> Result<()> {
    mount(client, (TRAINING_NAMESPACE, TRAINING_SECRET), TRAINING_CERTIFICATES).await?;
    mount(client, (APP_WRAPPER_NAMESPACE, APP_WRAPPER_SECRET), APP_WRAPPER_CERTIFICATES).await
}

/// Writes a Secret with a certificate into this folder, as a kubelet would.
async fn mount(client: &Client, (namespace, name): (&str, &str), folder: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let what = format!("{namespace}/{name} has a certificate");
    let files = probe::until(&what, Duration::from_mins(1), async || {
        let secret = secrets.get(name).await?;
        secret.data.filter(|data| data.contains_key("tls.crt")).context("the Secret is still empty")
    })
    .await?;
    let folder = Path::new(folder);
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for (file, content) in files {
        let path = folder.join(file);
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
