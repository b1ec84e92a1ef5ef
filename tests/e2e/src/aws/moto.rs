//! The mock of EC2, EKS, IAM, SSM and SQS: its command, its setup before Karpenter starts, and the stack's own
//! requests to it. These bypass the proxy, so they are not recorded and no faults apply to them.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use roxmltree::Node;
use serde_json::{Value, json};

use super::xml::{child, items, parsed, within};
use super::{CLUSTER, QUEUE, REGION};
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};

/// moto's default account.
const ACCOUNT: &str = "123456789012";
/// The number of zones of the cluster, which uses the first ones of the region.
const ZONES: usize = 3;

pub(crate) fn launch(ports: Ports) -> ProgramCommand {
    let [moto, _] = ports.cloud;
    let mut launch =
        ProgramCommand::new(Program::Moto, ["-H", "127.0.0.1", "-p", &moto.to_string()].map(str::to_owned));
    launch.binary = "moto/bin/moto_server".into();
    launch
}

/// An instance as the cloud reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its ID, `i-…`.
    pub id: String,
    /// Its type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// Its private DNS name, which is also the name of its Node.
    pub name: String,
}

impl Instance {
    /// The provider ID in its Node and its NodeClaim.
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }
}

/// The resources of one machine of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineResources {
    /// The architecture, as Kubernetes names it.
    pub arch: &'static str,
    pub cpus: u64,
    pub memory_mib: u64,
    pub gpus: u64,
    /// Neuron devices.
    pub neurons: u64,
    /// The cores of all Neuron devices.
    pub neuron_cores: u64,
}

/// A client for moto.
#[derive(Clone)]
pub(super) struct Moto {
    address: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Moto {
    pub(super) fn new(ports: Ports) -> Self {
        let [moto, _] = ports.cloud;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address: format!("127.0.0.1:{moto}"), client }
    }

    /// Forwards a request to moto unchanged.
    pub(super) async fn pass(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() =
            format!("http://{}{path}", self.address).parse().context("making moto's address")?;
        let answer = self.client.request(request).await.context("asking moto, which plays EC2")?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.context("reading moto's answer")?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    /// Calls an action with the query protocol; the answer is XML.
    pub(super) async fn query(&self, service: &str, action: &str, fields: &[(&str, &str)]) -> Result<String> {
        let about = [("Action", action), ("Version", version(service))];
        let form =
            form_urlencoded::Serializer::new(String::new()).extend_pairs(about.iter().chain(fields)).finish();
        let request = Request::post("/").header("content-type", "application/x-www-form-urlencoded");
        self.ask(service, request, form).await.with_context(|| format!("{service}:{action}"))
    }

    /// Calls SQS; the answer is JSON.
    async fn sqs(&self, action: &str, body: &Value) -> Result<Value> {
        let request = Request::post("/").header("x-amz-target", format!("AmazonSQS.{action}"));
        let request = request.header("content-type", "application/x-amz-json-1.0");
        let reply =
            self.ask("sqs", request, body.to_string()).await.with_context(|| format!("sqs:{action}"))?;
        serde_json::from_str(&reply).with_context(|| format!("reading the answer to sqs:{action}"))
    }

    async fn ask(&self, service: &str, request: http::request::Builder, body: String) -> Result<String> {
        let scope = format!("AWS4-HMAC-SHA256 Credential=e2e/20260101/{REGION}/{service}/aws4_request");
        let request =
            request.header("authorization", scope).body(Full::from(body)).context("making a request")?;
        let answer = self.pass(request).await?;
        let reply = String::from_utf8_lossy(answer.body()).into_owned();
        ensure!(answer.status().is_success(), "moto answers {}: {reply}", answer.status());
        Ok(reply)
    }

    /// Creates what Karpenter needs when it starts: tagged subnets, an instance profile with its role, an EKS cluster and
    /// an interruption queue.
    pub(super) async fn prepare(&self) -> Result<()> {
        let subnets = self.query("ec2", "DescribeSubnets", &[]).await?;
        let mut subnets =
            items(&parsed(&subnets)?, "subnetSet", |s| (child(s, "availabilityZone"), child(s, "subnetId")));
        subnets.sort();
        let subnets: Vec<String> = subnets.into_iter().map(|(_, id)| id).take(ZONES).collect();
        ensure!(subnets.len() == ZONES, "moto has only {} subnets", subnets.len());
        for id in &subnets {
            let tag = [
                ("ResourceId.1", id.as_str()),
                ("Tag.1.Key", "karpenter.sh/discovery"),
                ("Tag.1.Value", CLUSTER),
            ];
            self.query("ec2", "CreateTags", &tag).await?;
        }
        let trusts = json!({"Version": "2012-10-17", "Statement": []}).to_string();
        let role = [("RoleName", CLUSTER), ("AssumeRolePolicyDocument", &trusts)];
        self.query("iam", "CreateRole", &role).await?;
        self.query("iam", "CreateInstanceProfile", &[("InstanceProfileName", CLUSTER)]).await?;
        let both = [("InstanceProfileName", CLUSTER), ("RoleName", CLUSTER)];
        self.query("iam", "AddRoleToInstanceProfile", &both).await?;
        let cluster = json!({
            "name": CLUSTER, "roleArn": format!("arn:aws:iam::{ACCOUNT}:role/{CLUSTER}"),
            "resourcesVpcConfig": {"subnetIds": subnets},
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.0.0.0/24"},
        });
        let request = Request::post("/clusters").header("content-type", "application/json");
        self.ask("eks", request, cluster.to_string()).await.context("eks:CreateCluster")?;
        self.sqs("CreateQueue", &json!({"QueueName": QUEUE})).await?;
        Ok(())
    }

    /// The running and pending instances.
    pub(super) async fn instances(&self) -> Result<Vec<Instance>> {
        let states = [
            ("Filter.1.Name", "instance-state-name"),
            ("Filter.1.Value.1", "running"),
            ("Filter.1.Value.2", "pending"),
        ];
        let reply = self.query("ec2", "DescribeInstances", &states).await?;
        Ok(items(&parsed(&reply)?, "instancesSet", |i| Instance {
            id: child(i, "instanceId"),
            instance_type: child(i, "instanceType"),
            zone: within(i, "placement").map(|p| child(p, "availabilityZone")).unwrap_or_default(),
            name: child(i, "privateDnsName"),
        }))
    }

    /// The names of the launch templates that Karpenter created.
    pub(super) async fn launch_templates(&self) -> Result<Vec<String>> {
        let reply = self.query("ec2", "DescribeLaunchTemplates", &[]).await?;
        Ok(items(&parsed(&reply)?, "launchTemplates", |t| child(t, "launchTemplateName")))
    }

    /// The names of the instance profiles.
    pub(super) async fn instance_profiles(&self) -> Result<Vec<String>> {
        let reply = self.query("iam", "ListInstanceProfiles", &[]).await?;
        let document = parsed(&reply)?;
        let members = document.descendants().filter(|node| node.has_tag_name("InstanceProfileName"));
        Ok(members.filter_map(|name| name.text().map(str::to_owned)).collect())
    }

    /// Terminates instances, as EC2 does when a machine fails.
    pub(super) async fn terminate(&self, ids: &[&str]) -> Result<()> {
        let keys: Vec<String> = (1..=ids.len()).map(|n| format!("InstanceId.{n}")).collect();
        let fields: Vec<(&str, &str)> = keys.iter().map(String::as_str).zip(ids.iter().copied()).collect();
        self.query("ec2", "TerminateInstances", &fields).await.map(drop)
    }

    /// Sends a message to the interruption queue.
    pub(super) async fn interrupt(&self, message: &Value) -> Result<()> {
        let queue = self.sqs("GetQueueUrl", &json!({"QueueName": QUEUE})).await?;
        let body = json!({"QueueUrl": queue.get("QueueUrl"), "MessageBody": message.to_string()});
        self.sqs("SendMessage", &body).await.map(drop)
    }

    /// The resources of a machine of this type.
    pub(super) async fn machine(&self, instance_type: &str) -> Result<MachineResources> {
        let reply = self.query("ec2", "DescribeInstanceTypes", &[("InstanceType.1", instance_type)]).await?;
        let document = parsed(&reply)?;
        let number = |tag: &str| -> Result<u64> {
            let found = document.descendants().find(|n| n.has_tag_name(tag)).and_then(|n| n.text());
            found
                .with_context(|| format!("{instance_type} has no {tag}"))?
                .parse()
                .context("reading a number")
        };
        let gpus = items(&document, "gpus", count);
        let neurons = items(&document, "neuronDevices", |device| {
            (count(device), count(device) * within(device, "coreInfo").map_or(0, count))
        });
        let arm = items(&document, "supportedArchitectures", |arch| arch.text() == Some("arm64"));
        Ok(MachineResources {
            arch: if arm.contains(&true) { "arm64" } else { "amd64" },
            cpus: number("defaultVCpus")?,
            memory_mib: number("sizeInMiB")?,
            gpus: gpus.into_iter().sum(),
            neurons: neurons.iter().map(|(devices, _)| devices).sum(),
            neuron_cores: neurons.iter().map(|(_, cores)| cores).sum(),
        })
    }
}

/// The `count` in an element; 0 if there is none.
fn count(of: Node) -> u64 {
    child(of, "count").parse().unwrap_or_default()
}

/// The API version of a service.
fn version(service: &str) -> &'static str {
    match service {
        "iam" => "2010-05-08",
        _ => "2016-11-15",
    }
}
