//! The Spark operator, and Spark's drivers. Spark creates its executors from within the driver, whose container does not run here: so
//! a driver that runs by its status gets a process beside the cluster, as a kubelet would start one. The one rule: that process is
//! Spark's own, with the properties and the template that `spark-submit` gave the driver. Only the application is another.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, apply, programs};

const NAMESPACE: &str = "spark-operator";
const SERVICE: &str = "spark-operator-webhook-svc";
const WEBHOOKS: &str = "spark-operator-webhook";
/// The binary of both of its programs.
const BINARY: &str = "spark-operator";
/// The webhook that gives Spark's pods what their application says, and the label of these pods.
const POD_WEBHOOK: &str = "mutate-pod.sparkoperator.k8s.io";
const LAUNCHED: &str = "sparkoperator.k8s.io/launched-by-spark-operator";
/// Where `spark-submit` has mounted the properties of a driver, and the template of its executors.
const PROPERTIES: &str = "opt/spark/conf/spark.properties";
const TEMPLATE: &str = "opt/spark/pod-template/pod-spec-template.yml";
/// The application: a server of Spark's that waits for clients.
const APPLICATION: &str = "org.apache.spark.sql.connect.service.SparkConnectServer";
/// Runs the rest of the arguments, and ends that process once standard input ends: with the harness at the latest.
const UNTIL_INPUT_ENDS: &str = r#""$@" & driver=$!; read -r _; kill "$driver"; wait "$driver""#;
/// How often to look for drivers.
const INTERVAL: Duration = Duration::from_millis(500);

/// The folder of Spark's distribution.
pub(crate) fn home(layout: &HarnessLayout) -> PathBuf {
    layout.bin().join("spark")
}

/// Takes Spark's distribution out of the archive that PyPI has of it, with the version and hash in its list.
pub(crate) fn install(layout: &HarnessLayout) -> Result<()> {
    let java = process::Command::new("java").arg("-version").stderr(Stdio::null()).status();
    ensure!(
        java.is_ok_and(|status| status.success()),
        "Java is missing: the Spark operator runs `spark-submit`, install a runtime of Java 17 or later and put it on the PATH"
    );
    let (home, taken) = (home(layout), layout.bin().join("pyspark"));
    for folder in [&home, &taken].into_iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).with_context(|| format!("deleting {}", folder.display()))?;
    }
    let python = process::Command::new("python3").args(["-m", "venv"]).arg(&taken).status();
    ensure!(
        python.is_ok_and(|status| status.success()),
        "making a virtual environment for pip: install Python 3.11 or later with its module venv"
    );
    let mut pip = process::Command::new(taken.join("bin/pip"));
    pip.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    pip.arg("--requirement").arg(layout.module(BINARY).join("spark.txt")).arg("--dest").arg(&taken);
    programs::run(&mut pip)
        .context("pip, which takes Spark from PyPI or from PIP_INDEX_URL, says above what it lacks")?;
    fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
    for entry in fs::read_dir(&taken).with_context(|| format!("reading {}", taken.display()))? {
        let archive = entry.context("reading what pip took")?.path();
        let Some(name) = archive.file_name().and_then(|name| name.to_str()?.strip_suffix(".tar.gz")) else {
            continue;
        };
        let mut tar = process::Command::new("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(&home).arg("--strip-components=2");
        programs::run(tar.args(["bin", "jars"].map(|folder| format!("{name}/deps/{folder}"))))?;
    }
    fs::remove_dir_all(&taken).with_context(|| format!("deleting {}", taken.display()))
}

/// The commands of the operator and of its webhooks, which make their certificate themselves.
pub(crate) fn launches(
    layout: &HarnessLayout,
    folder: &Path,
    identity: &Identity,
    ports: Ports,
) -> [ProgramCommand; 2] {
    let kubeconfig = identity.kubeconfig.display();
    let [health, webhook_health, webhook] = ports.spark_operator;
    let probes = |port: u16| format!("--health-probe-bind-address=127.0.0.1:{port}");
    let arguments =
        ["controller".to_owned(), "start".to_owned(), format!("--kubeconfig={kubeconfig}"), probes(health)];
    let mut operator = ProgramCommand::new(Program::SparkOperator, arguments);
    // For `spark-submit`, which it runs.
    operator.environment = vec![
        ("SPARK_HOME", home(layout).display().to_string()),
        ("KUBECONFIG", kubeconfig.to_string()),
        ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
        ("KUBERNETES_SERVICE_PORT", ports.api_server.to_string()),
    ];
    let arguments = [
        "webhook".to_owned(),
        "start".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        probes(webhook_health),
        format!("--webhook-port={webhook}"),
        format!("--webhook-cert-dir={}", folder.join("spark-certificates").display()),
        format!("--webhook-secret-namespace={NAMESPACE}"),
        format!("--webhook-svc-name={SERVICE}"),
        format!("--webhook-svc-namespace={NAMESPACE}"),
        format!("--mutating-webhook-name={WEBHOOKS}"),
        format!("--validating-webhook-name={WEBHOOKS}"),
    ];
    let mut webhooks = ProgramCommand::new(Program::SparkWebhook, arguments);
    webhooks.binary = BINARY.into();
    [operator, webhooks]
}

/// The objects that the operator needs besides its definitions.
pub(crate) fn surroundings() -> [Value; 2] {
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
    ]
}

/// Does what the operator's kustomization does to its webhooks, and sets the port.
pub(crate) fn as_deployed(object: &mut Value, port: u16) {
    let Some(webhooks) = object.get_mut("webhooks").and_then(Value::as_array_mut) else { return };
    for webhook in webhooks {
        if webhook.get("name").is_some_and(|name| name == POD_WEBHOOK) {
            put(webhook, "objectSelector", json!({"matchLabels": {LAUNCHED: "true"}}));
        }
        if let Some(service) = webhook.pointer_mut("/clientConfig/service") {
            put(service, "name", json!(SERVICE));
            put(service, "namespace", json!(NAMESPACE));
            put(service, "port", json!(port));
        }
    }
    object.pointer_mut("/metadata/name").into_iter().for_each(|name| *name = json!(WEBHOOKS));
}

fn put(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

/// Fails unless the operator's webhooks and Kueue's accept a `SparkApplication`.
pub(crate) async fn taken(client: &Client) -> Result<()> {
    let probe = json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": {"name": "e2e-probe", "namespace": "default"},
        "spec": {
            "type": "Scala", "mode": "cluster", "sparkVersion": "4.0.4", "mainApplicationFile": "local:///probe.jar",
            "driver": {}, "executor": {},
        },
    });
    apply::would_create(client, probe).await
}

/// Stands in for the kubelets of Spark's drivers. The processes end with the task.
pub(crate) fn serve_drivers(
    layout: &HarnessLayout,
    folder: &Path,
    identity: &Identity,
    client: Client,
    ports: Ports,
) -> JoinHandle<()> {
    let drivers = SparkDrivers {
        submit: home(layout).join("bin/spark-submit"),
        folder: folder.join("spark-drivers"),
        log: folder.join("logs/spark-driver.log"),
        kubeconfig: identity.kubeconfig.clone(),
        api_server: format!("https://127.0.0.1:{}", ports.api_server),
        client,
        running: BTreeMap::new(),
    };
    tokio::spawn(drivers.run())
}

struct SparkDrivers {
    submit: PathBuf,
    /// A folder for the files of each driver.
    folder: PathBuf,
    log: PathBuf,
    kubeconfig: PathBuf,
    api_server: String,
    client: Client,
    /// The process of each driver, by the UID of its pod. A process that is dropped ends, because its standard input does.
    running: BTreeMap<String, Child>,
}

impl SparkDrivers {
    /// Runs until it is aborted. Retries errors, and logs repeated ones only once.
    async fn run(mut self) {
        let mut last_logged = String::new();
        loop {
            if let Err(error) = self.pass().await {
                let trouble = format!("{error:#}");
                if trouble != last_logged {
                    eprintln!("the drivers of Spark: {trouble}");
                }
                last_logged = trouble;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Ends the processes of drivers that no longer run, and starts those of others.
    async fn pass(&mut self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let drivers = ListParams::default().labels(&format!("spark-role=driver,{LAUNCHED}=true"));
        let drivers = pods.list(&drivers).await.context("listing the drivers")?.items;
        let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
        let drivers: BTreeMap<String, Pod> =
            drivers.into_iter().filter(runs).filter_map(|pod| Some((pod.uid()?, pod))).collect();
        self.running.retain(|uid, _| drivers.contains_key(uid));
        for (uid, pod) in drivers {
            if !self.running.contains_key(&uid) {
                let folder = self.folder.join(&uid);
                self.mount(&pod, &folder)
                    .await
                    .with_context(|| format!("mounting the files of {}", pod.name_any()))?;
                self.running.insert(uid, self.start(&folder)?);
            }
        }
        Ok(())
    }

    /// Writes the ConfigMaps of a driver below this folder, where its container would have them below `/`.
    async fn mount(&self, pod: &Pod, folder: &Path) -> Result<()> {
        let spec = pod.spec.as_ref().context("the pod has no spec")?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mounts = spec.containers.iter().flat_map(|c| c.volume_mounts.iter().flatten());
        for mount in mounts {
            let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
            let Some(source) = volume.and_then(|volume| volume.config_map.as_ref()) else { continue };
            let map =
                maps.get(&source.name).await.with_context(|| format!("reading ConfigMap {}", source.name))?;
            let target = folder.join(mount.mount_path.trim_start_matches('/'));
            fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
            for (key, text) in map.data.unwrap_or_default() {
                let path = target.join(path_of(source, &key));
                fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Starts a driver with the files in this folder.
    fn start(&self, folder: &Path) -> Result<Child> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("opening {}", self.log.display()))?;
        // On loopback, at ports that are free, and as a client of this API server.
        let settings = [
            ("spark.driver.host", "127.0.0.1".to_owned()),
            ("spark.driver.bindAddress", "127.0.0.1".to_owned()),
            ("spark.driver.port", "0".to_owned()),
            ("spark.driver.blockManager.port", "0".to_owned()),
            ("spark.driver.memory", "1g".to_owned()),
            ("spark.ui.enabled", "false".to_owned()),
            // Its file is in the image.
            ("spark.jars", String::new()),
            ("spark.connect.grpc.binding.port", "0".to_owned()),
            ("spark.kubernetes.driver.master", self.api_server.clone()),
            ("spark.kubernetes.executor.podTemplateFile", folder.join(TEMPLATE).display().to_string()),
        ];
        let mut command = Command::new("sh");
        command.args(["-c", UNTIL_INPUT_ENDS, "sh"]).arg(&self.submit);
        command.args(["--deploy-mode", "client", "--class", APPLICATION, "--properties-file"]);
        command.arg(folder.join(PROPERTIES));
        command.args(
            settings.into_iter().flat_map(|(key, value)| ["--conf".to_owned(), format!("{key}={value}")]),
        );
        command.arg("spark-internal").current_dir(folder).env("KUBECONFIG", &self.kubeconfig);
        command.stdin(Stdio::piped()).stderr(log.try_clone().context("sharing the log file")?).stdout(log);
        command.process_group(0).spawn().context("starting a driver of Spark")
    }
}

/// The name of the file that a key of a ConfigMap becomes.
fn path_of<'k>(source: &'k ConfigMapVolumeSource, key: &'k str) -> &'k str {
    let items = source.items.iter().flatten();
    items.filter(|item| item.key == key).map(|item| item.path.as_str()).next().unwrap_or(key)
}
