//! A node with a real kubelet that starts containers. It runs with containerd, runc, CNI, kube-proxy and CoreDNS in namespaces of
//! their own (`node/node.sh`). The one rule: however the test ends, the node leaves nothing on the host. (If the test itself is
//! killed, empty control groups remain.)
//!
//! It needs root and the packages that `node/run.sh` installs. It also runs on cgroup v1, with swap, and where `oom_score_adj`
//! cannot be lowered.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, Stack, probe, programs};

/// The node's name.
pub const NAME: &str = "real";

/// The programs that it needs beside the built ones, and the Debian package of each.
const PACKAGES: [(&str, &str); 6] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
];

/// The addresses of both ends of the link between host and node. They come from the API server's port, so each stack has its own.
fn addresses(ports: Ports) -> [Ipv4Addr; 2] {
    let [high, low] = ports.api_server.to_be_bytes();
    [1, 2].map(|end| Ipv4Addr::new(10, high | 0x80, low, end))
}

/// The address of the API server as the node reaches it.
pub(crate) fn api_server_address(ports: Ports) -> Ipv4Addr {
    let [host, _] = addresses(ports);
    host
}

/// Fails unless this machine can run a node, with a sentence that says what is missing.
pub fn possible() -> Result<()> {
    let user = Command::new("id").arg("-u").output().context("asking who runs this")?;
    ensure!(user.stdout.trim_ascii() == b"0", "a node needs root: run `just e2e-node` as root");
    for (program, package) in PACKAGES {
        ensure!(programs::on_path(program).is_some(), "a node needs {program}: apt-get install {package}");
    }
    let namespaces = ["--fork", "--pid", "--mount-proc", "--mount", "--net", "--uts", "--ipc", "true"];
    let tried = Command::new("unshare").args(namespaces).output().context("starting unshare")?;
    let said = String::from_utf8_lossy(&tried.stderr);
    ensure!(tried.status.success(), "this machine makes no namespaces for a node: {}", said.trim());
    Ok(())
}

/// Writes the configuration of the node's programs.
pub(crate) fn launch(
    layout: &HarnessLayout,
    stack: &Path,
    identity: &Identity,
    ports: Ports,
) -> Result<ProgramCommand> {
    let folder = stack.join("node");
    fs::create_dir_all(folder.join("cni")).context("creating the node's folder")?;
    for (name, user) in
        [("kubelet", &identity.kubelet), ("proxy", &identity.proxy), ("dns", &identity.kubeconfig)]
    {
        point_at(user, &folder.join(format!("kubeconfig-{name}")), ports)?;
    }
    let [host, node] = addresses(ports).map(|address| address.to_string());
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    write("containerd.toml", containerd(&folder))?;
    write("cni/10-bridge.conflist", network().to_string())?;
    write("Corefile", corefile(&folder))?;
    write("kubelet.yaml", kubelet(&folder, &node).to_string())?;
    write("kube-proxy.yaml", proxy(&folder).to_string())?;
    let mut launch = ProgramCommand::new(
        Program::Node,
        [
            layout.node().join("node.sh").display().to_string(),
            folder.display().to_string(),
            layout.bin().display().to_string(),
            stack.join("logs").display().to_string(),
            format!("setu{}", ports.api_server),
            host,
            node,
        ],
    );
    launch.binary = "/bin/bash".into();
    Ok(launch)
}

/// Copies a kubeconfig with the address that the node reaches.
fn point_at(from: &Path, to: &Path, ports: Ports) -> Result<()> {
    let text = fs::read_to_string(from).with_context(|| format!("reading {}", from.display()))?;
    let text = text.replace("//127.0.0.1:", &format!("//{}:", api_server_address(ports)));
    fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}

fn containerd(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
oom_score = 0
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:e2e"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"#
    )
}

/// The pod network. Pod addresses are known only on the node; outgoing traffic gets the node's address.
fn network() -> Value {
    json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "dataDir": "/run/cni",
                "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

fn corefile(folder: &Path) -> String {
    let kubeconfig = folder.join("kubeconfig-dns");
    format!(
        ".:53 {{\n  errors\n  ready :8181\n  kubernetes cluster.local {{\n    kubeconfig {}\n  }}\n}}\n",
        kubeconfig.display()
    )
}

fn kubelet(folder: &Path, address: &str) -> Value {
    let socket = format!("unix://{}", folder.join("containerd.sock").display());
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": socket,
        "podLogsDir": folder.join("pods"),
        "clusterDNS": [address], "clusterDomain": "cluster.local", "resolvConf": "",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        // A machine that is not made for nodes may have swap or cgroup v1, and forbid much of what nodes need.
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0,
        "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "localStorageCapacityIsolation": false,
        "evictionHard": {"memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
    })
}

fn proxy(folder: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": folder.join("kubeconfig-proxy")},
        "hostnameOverride": NAME, "mode": "iptables", "clusterCIDR": "10.244.0.0/24", "oomScoreAdj": 0,
        // 0 leaves these as they are: they belong to the host, and a namespace cannot set them.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
}

/// Fails unless the node is Ready, and its DNS and services work.
pub(crate) async fn ready(client: Client, ports: Ports) -> Result<()> {
    let [_, address] = addresses(ports);
    probe::answers(&format!("http://{address}:8181"), "/ready").await?;
    probe::answers(&format!("http://{address}:10256"), "/healthz").await?;
    let node = Api::<Node>::all(client).get(NAME).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let condition = condition.context("the node has no condition Ready yet")?;
    ensure!(condition.status == "True", "the node is not Ready: {}", condition.message.unwrap_or_default());
    Ok(())
}

/// Forwards the node's connections to the API server, which listens only on loopback. Ends when aborted.
pub(crate) async fn forward(ports: Ports) -> Result<JoinHandle<()>> {
    let address = (api_server_address(ports), ports.api_server);
    let listener = probe::until("the node's link is up", Duration::from_secs(10), async || {
        TcpListener::bind(address).await.context("listening on the link to the node")
    })
    .await?;
    Ok(tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                // While the API server is stopped, the connection just ends.
                if let Ok(mut to) = TcpStream::connect((Ipv4Addr::LOCALHOST, ports.api_server)).await {
                    let _ = copy_bidirectional(&mut from, &mut to).await;
                }
            });
        }
    }))
}

/// Removes the control groups of the containers, which outlive their namespaces. The node's process must have been killed.
pub(crate) fn remove_control_groups(stack: &Path) {
    let containers = stack.join("node/containerd-state/io.containerd.runtime.v2.task/k8s.io");
    let subfolders = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let root = Path::new("/sys/fs/cgroup");
    // In version 1 each controller has a folder.
    let parents: Vec<PathBuf> =
        subfolders(root).into_iter().chain([root.to_owned()]).map(|folder| folder.join("k8s.io")).collect();
    for container in subfolders(&containers) {
        for parent in &parents {
            let group = parent.join(container.file_name().unwrap_or_default());
            // Its processes may take a moment to end.
            for _ in 0..20 {
                if !group.exists() || fs::remove_dir(&group).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Packs the images of pause and curl.
pub(crate) fn pack_images(layout: &HarnessLayout, stack: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.arg(layout.node().join("images.py")).arg(layout.bin().join("pause")).arg(stack.join("node"));
    let packed = python.status().context("starting python3, which packs the node's images")?;
    ensure!(packed.success(), "packing the node's images: {packed}");
    Ok(())
}

impl Stack {
    /// Loads an OCI archive into the node.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        self.ctr(&["images", "import", &archive.display().to_string()]).map(drop)
    }

    /// Gives an image in the node another name.
    pub fn name_image(&self, name: &str, other: &str) -> Result<()> {
        self.ctr(&["images", "tag", "--force", name, other]).map(drop)
    }

    /// The node's image with this name, as its digest.
    pub fn image_digest(&self, name: &str) -> Result<String> {
        let listed = self.ctr(&["images", "list", &format!("name=={name}")])?;
        let digest = listed.split_whitespace().find(|word| word.starts_with("sha256:"));
        digest.map(str::to_owned).with_context(|| format!("the node has no image {name}:\n{listed}"))
    }

    /// The host's process ID of a container. `container` is the container's ID in a pod's status.
    pub fn container_process(&self, container: &str) -> Result<u32> {
        let id = container.trim_start_matches("containerd://");
        for entry in fs::read_dir("/proc").context("reading /proc")?.flatten() {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            // The process's IDs on the host, in the node and in the container, where the first process has 1.
            let first = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
            if read("cgroup").contains(id) && read("status").lines().any(first) {
                return entry.file_name().to_string_lossy().parse().context("reading a process's id");
            }
        }
        bail!("container {id} does not run")
    }

    /// Runs containerd's client.
    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.folder().join("node/containerd.sock");
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(arguments);
        let output = ctr.output().context("starting ctr")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{ctr:?}: {said}");
        String::from_utf8(output.stdout).context("reading what ctr says")
    }

    /// The logs of this pod's container that are still there.
    pub fn pod_logs(&self, namespace: &str, pod: &str, container: &str) -> Result<String> {
        let folder = self.folder().join("node/pods");
        let mut logs = String::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?.flatten()
        {
            if !entry.file_name().to_string_lossy().starts_with(&format!("{namespace}_{pod}_")) {
                continue;
            }
            let mut files: Vec<PathBuf> = fs::read_dir(entry.path().join(container))
                .into_iter()
                .flatten()
                .filter_map(|file| file.ok().map(|file| file.path()))
                .collect();
            files.sort();
            for file in files {
                logs.push_str(&fs::read_to_string(&file).unwrap_or_default());
            }
        }
        Ok(logs)
    }
}
