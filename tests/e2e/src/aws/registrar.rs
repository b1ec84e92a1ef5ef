//! The machines: creates a Node for each running instance, as AL2023's kubelet registers it from the user data of the
//! launch template and a cloud controller completes it. Deletes the Nodes of instances that are gone. kwok simulates
//! the kubelet from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::moto::{Instance, MachineResources};
use super::proxy::ProxyShared;
use super::user_data::{self, NodeConfig};
use super::{GPU, REGION};

/// How often to compare instances and Nodes.
const INTERVAL: Duration = Duration::from_millis(300);
/// The part of a machine's memory that its kernel sees; Karpenter assumes 92.5 %.
const VISIBLE_PERCENT: u64 = 95;
/// The memory that the kubelet reserves, in MiB: a base, an amount per pod, and the eviction threshold.
const KEPT_MIB: [u64; 3] = [255, 11, 100];

/// When something happens after the launch of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comes {
    /// This long after it.
    After(Duration),
    /// Never.
    Never,
}

impl Comes {
    fn due(self, age: Duration) -> bool {
        matches!(self, Self::After(time) if age >= time)
    }
}

/// How machines behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineBehaviour {
    /// When the kubelet registers its Node.
    pub node: Comes,
    /// When the device plugins offer the devices.
    pub devices: Comes,
}

impl Default for MachineBehaviour {
    fn default() -> Self {
        let at_once = Comes::After(Duration::ZERO);
        Self { node: at_once, devices: at_once }
    }
}

pub(super) struct Registrar {
    shared: Arc<ProxyShared>,
    nodes: Api<Node>,
    types: BTreeMap<String, MachineResources>,
}

impl Registrar {
    pub(super) fn new(shared: Arc<ProxyShared>, client: Client) -> Self {
        Self { shared, nodes: Api::all(client), types: BTreeMap::new() }
    }

    /// Runs until it is aborted. Retries errors, and logs repeated ones only once.
    pub(super) async fn run(mut self) {
        let mut last_logged = String::new();
        loop {
            if let Err(error) = self.pass().await {
                let trouble = format!("{error:#}");
                if trouble != last_logged {
                    eprintln!("the registrar of the AWS stack: {trouble}");
                }
                last_logged = trouble;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn pass(&mut self) -> Result<()> {
        let instances = self.shared.moto.instances().await?;
        let nodes = self.nodes.list(&ListParams::default()).await.context("listing Nodes")?.items;
        let machines = self.shared.machines();
        for instance in &instances {
            // It is recorded once its CreateFleet is answered.
            let Some(launch) = self.shared.launch_of(&instance.id) else { continue };
            let age = launch.at.elapsed();
            match nodes.iter().find(|node| node.name_any() == instance.name) {
                None if machines.node.due(age) => {
                    let data = self.shared.user_data(&launch.template);
                    let data = data.with_context(|| format!("{} has no user data", launch.template))?;
                    self.register(instance, &user_data::read(&data)?).await?;
                }
                Some(node) if machines.devices.due(age) => {
                    self.offer_devices(instance, node, launch.efas).await?;
                }
                _ => {}
            }
        }
        let gone = nodes.iter().filter(|node| {
            let provider =
                node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
            provider.starts_with("aws://")
                && !instances.iter().any(|instance| instance.provider_id() == provider)
        });
        for node in gone {
            match self.nodes.delete(&node.name_any(), &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                done => drop(done.with_context(|| format!("deleting Node {}", node.name_any()))?),
            }
        }
        Ok(())
    }

    async fn register(&mut self, instance: &Instance, config: &NodeConfig) -> Result<()> {
        let machine = self.machine(&instance.instance_type).await?;
        let node = node(instance, config, &machine)?;
        let made = self.nodes.create(&PostParams::default(), &node).await;
        made.map(drop).with_context(|| format!("registering Node {}", instance.name))
    }

    async fn offer_devices(&mut self, instance: &Instance, node: &Node, efas: u64) -> Result<()> {
        let devices = devices(&self.machine(&instance.instance_type).await?, efas);
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        if devices.keys().all(|name| allocatable.is_some_and(|offered| offered.contains_key(*name))) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"status": {"capacity": devices, "allocatable": devices}}));
        let patched = self.nodes.patch_status(&instance.name, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("offering devices of Node {}", instance.name))
    }

    async fn machine(&mut self, instance_type: &str) -> Result<MachineResources> {
        if let Some(known) = self.types.get(instance_type) {
            return Ok(known.clone());
        }
        let machine = self.shared.moto.machine(instance_type).await?;
        self.types.insert(instance_type.to_owned(), machine.clone());
        Ok(machine)
    }
}

/// The devices that the plugins of a machine offer: those of its type, and the EFA interfaces that it was launched with.
fn devices(machine: &MachineResources, efas: u64) -> BTreeMap<&'static str, String> {
    let counts = [
        (GPU, machine.gpus),
        ("aws.amazon.com/neuron", machine.neurons),
        ("aws.amazon.com/neuroncore", machine.neuron_cores),
        ("vpc.amazonaws.com/efa", efas),
    ];
    let offered = counts.into_iter().filter(|(_, count)| *count > 0);
    offered.map(|(name, count)| (name, count.to_string())).collect()
}

/// The Node as its kubelet registers it, without devices.
fn node(instance: &Instance, config: &NodeConfig, machine: &MachineResources) -> Result<Node> {
    let mut labels = config.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", instance.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", machine.arch),
        ("node.kubernetes.io/instance-type", &instance.instance_type),
        ("topology.kubernetes.io/region", REGION),
        ("topology.kubernetes.io/zone", &instance.zone),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": instance.name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"providerID": instance.provider_id(), "taints": config.taints},
        "status": amounts(machine, config.max_pods),
    }))
    .context("making a Node")
}

fn amounts(machine: &MachineResources, max_pods: u64) -> Value {
    let [base, each_pod, eviction] = KEPT_MIB;
    let memory = machine.memory_mib * VISIBLE_PERCENT / 100;
    let of = |millis: u64, mib: u64| {
        json!({
            "cpu": format!("{millis}m"), "memory": format!("{mib}Mi"), "pods": max_pods.to_string(),
            "ephemeral-storage": "20Gi",
        })
    };
    json!({
        "capacity": of(machine.cpus * 1000, memory),
        "allocatable": of(
            machine.cpus * 1000 - kept_cpu(machine.cpus),
            memory.saturating_sub(base + each_pod * max_pods + eviction),
        ),
    })
}

/// The CPU that the kubelet reserves, in millicores: 6 % of the first core, 1 % of the second, 0.5 % of the next two
/// and 0.25 % of all others.
fn kept_cpu(cpus: u64) -> u64 {
    let shares = [(1, 600), (1, 100), (2, 50), (u64::MAX, 25)];
    let mut left = cpus;
    let mut tenths = 0;
    for (at_most, share) in shares {
        let taken = left.min(at_most);
        tenths += taken * share;
        left -= taken;
    }
    tenths / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MachineResources =
        MachineResources { arch: "amd64", cpus: 4, memory_mib: 16384, gpus: 0, neurons: 0, neuron_cores: 0 };

    #[test]
    fn a_machine_offers_the_devices_of_its_type_and_its_efa_interfaces() {
        let is = |machine: &MachineResources, efas, expected: &[(&str, &str)]| {
            let offered = devices(machine, efas);
            let offered: Vec<(&str, &str)> =
                offered.iter().map(|(name, count)| (*name, count.as_str())).collect();
            assert_eq!(offered, expected);
        };
        is(&MACHINE, 0, &[]);
        let with_gpu = MachineResources { gpus: 1, ..MACHINE };
        is(&with_gpu, 2, &[("nvidia.com/gpu", "1"), ("vpc.amazonaws.com/efa", "2")]);
        let with_neuron = MachineResources { neurons: 16, neuron_cores: 32, ..MACHINE };
        is(&with_neuron, 0, &[("aws.amazon.com/neuron", "16"), ("aws.amazon.com/neuroncore", "32")]);
    }

    #[test]
    fn a_machine_reserves_what_nodeadm_reserves() {
        assert_eq!([1, 2, 4, 16].map(kept_cpu), [60, 70, 80, 110]);
        let amounts = amounts(&MACHINE, 58);
        assert_eq!(amounts["allocatable"]["cpu"], "3920m");
        assert_eq!(amounts["capacity"]["memory"], "15564Mi");
        assert_eq!(amounts["allocatable"]["memory"], "14571Mi");
    }
}
