//! The AWS side of a stack: Karpenter's AWS provider in front of moto, which mocks EC2, EKS, IAM, SSM and SQS.
//! A proxy between the two injects the faults that a test wants ([`Ec2Rule`]) and records every call. A registrar creates
//! Nodes for instances. The one rule: Karpenter is unmodified, so it makes the same calls as it would to EC2.

mod fleet;
mod moto;
mod proxy;
mod registrar;
mod reservations;
mod rules;
mod user_data;
mod wire;
mod xml;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use kube::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::identity::Identity;
use crate::nodes::any_karpenter;
use crate::ports::{Ports, is_taken};
use crate::process::ProgramCommand;
pub use moto::Instance;
use moto::Moto;
pub(crate) use moto::launch as launch_moto;
use proxy::ProxyShared;
pub use proxy::{CallFault, FAMILIES, ProviderCall};
use registrar::Registrar;
pub use registrar::{Comes, MachineBehaviour};
pub use reservations::Ec2Reservation;
pub use rules::{Ec2Market, Ec2Rule, FleetRefusal, Offerings};
pub use wire::Form;

/// The name of the EKS cluster, the role and the instance profile, and the value of the subnet tag
/// `karpenter.sh/discovery`.
pub const CLUSTER: &str = "setu";
/// The region.
pub const REGION: &str = "us-east-1";
/// The queue from which Karpenter reads interruptions.
const QUEUE: &str = "setu-interruptions";
const GPU: &str = "nvidia.com/gpu";

/// An EC2NodeClass that works here.
const NODE_CLASS: &str = include_str!("../../manifests/aws/nodeclass.yaml");

/// Converts an object of a scenario from the kwok provider to the AWS provider, with this instance type for GPU
/// machines.
pub fn provided(object: &Value, instance_type: &str) -> Result<Value> {
    let text = object
        .to_string()
        .replace("karpenter.kwok.sh", "karpenter.k8s.aws")
        .replace("KWOKNodeClass", "EC2NodeClass")
        .replace("g5.4xlarge", instance_type);
    let mut object: Value = serde_json::from_str(&text).context("reading an object of the scenario")?;
    if object.get("kind").is_some_and(|kind| kind == "EC2NodeClass") {
        let class = serde_yaml::from_str::<Value>(NODE_CLASS).context("reading the NodeClass")?;
        for field in ["apiVersion", "spec"] {
            if let (Some(fields), Some(value)) = (object.as_object_mut(), class.get(field)) {
                fields.insert(field.to_owned(), value.clone());
            }
        }
    }
    Ok(object)
}

/// The command of Karpenter with the AWS provider.
pub(crate) fn karpenter(identity: &Identity, ports: Ports) -> ProgramCommand {
    let [_, proxy] = ports.cloud;
    let mut launch = any_karpenter(identity, ports);
    launch.binary = "karpenter-aws".into();
    launch.environment.extend([
        ("LOG_LEVEL", "debug".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{proxy}")),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_ACCESS_KEY_ID", "e2e".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "e2e".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("CLUSTER_NAME", CLUSTER.to_owned()),
        ("CLUSTER_ENDPOINT", format!("https://127.0.0.1:{}", ports.api_server)),
        ("INTERRUPTION_QUEUE", QUEUE.to_owned()),
        // moto has no price list.
        ("ISOLATED_VPC", "true".to_owned()),
    ]);
    launch
}

/// Listens on the port that Karpenter uses as its AWS endpoint.
pub(crate) async fn listen(ports: Ports) -> Result<TcpListener> {
    let [_, port] = ports.cloud;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.map_err(|_| anyhow!("{}", is_taken("the proxy before moto", port)))
}

/// Controls the cloud behind the provider. Dropping it stops the proxy and the registrar.
pub struct Cloud {
    shared: Arc<ProxyShared>,
    tasks: [AbortHandle; 2],
}

impl Cloud {
    /// Prepares moto, which must already answer, and starts the proxy and the registrar.
    pub(crate) async fn start(ports: Ports, listener: TcpListener, client: Client) -> Result<Self> {
        let moto = Moto::new(ports);
        moto.prepare().await.context("preparing moto")?;
        let shared = Arc::new(ProxyShared::new(moto));
        let proxy = tokio::spawn(proxy::serve(listener, Arc::clone(&shared)));
        let registrar = tokio::spawn(Registrar::new(Arc::clone(&shared), client).run());
        Ok(Self { shared, tasks: [proxy.abort_handle(), registrar.abort_handle()] })
    }

    /// Replaces the rules for faults.
    pub fn rules(&self, rules: Vec<Ec2Rule>) {
        self.shared.set_rules(rules);
    }

    /// Replaces the capacity reservations.
    pub fn reservations(&self, reservations: Vec<Ec2Reservation>) {
        self.shared.set_reservations(reservations);
    }

    /// Sets how machines behave from now on.
    pub fn machines(&self, machines: MachineBehaviour) {
        self.shared.set_machines(machines);
    }

    /// Also sells these families besides [`FAMILIES`]. Karpenter sees them after a restart.
    pub fn sell(&self, families: &[&'static str]) {
        self.shared.sell(families);
    }

    /// The provider's calls so far, in order.
    pub fn calls(&self) -> Vec<ProviderCall> {
        self.shared.calls()
    }

    /// The number of calls by service and action, named as in IAM policies.
    pub fn actions(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls() {
            *counts.entry(call.action).or_default() += 1;
        }
        counts
    }

    /// The running instances, as the cloud lists them.
    pub async fn instances(&self) -> Result<Vec<Instance>> {
        self.shared.moto.instances().await
    }

    /// The market of an instance, if it was launched through the proxy.
    pub fn market_of(&self, id: &str) -> Option<Ec2Market> {
        self.shared.launch_of(id).map(|launch| launch.market)
    }

    /// The ID of the capacity reservation that an instance was launched into.
    pub fn reservation_of(&self, id: &str) -> Option<String> {
        self.shared.launch_of(id)?.reservation
    }

    /// The names of the existing launch templates.
    pub async fn launch_templates(&self) -> Result<Vec<String>> {
        self.shared.moto.launch_templates().await
    }

    /// Terminates instances, as EC2 does when a machine fails.
    pub async fn end(&self, ids: &[&str]) -> Result<()> {
        self.shared.moto.terminate(ids).await
    }

    /// Sends the warning that EC2 will soon reclaim a spot instance.
    pub async fn interrupt(&self, id: &str) -> Result<()> {
        let now = k8s_openapi::jiff::Timestamp::now();
        let message = json!({
            "version": "0", "id": format!("interruption-of-{id}"), "source": "aws.ec2",
            "detail-type": "EC2 Spot Instance Interruption Warning", "time": now, "region": REGION,
            "detail": {"instance-id": id, "instance-action": "terminate"},
        });
        self.shared.moto.interrupt(&message).await
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
