//! The mock of EC2, EKS, IAM, SSM and SQS: how it is started, what is made in it before Karpenter starts, and how
//! the stack asks it past the proxy, so that the stack's own questions count as nobody's calls and meet no fault.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::xml::{child, items, parsed, within};
use super::{CLUSTER, QUEUE, REGION};
use crate::ports::Ports;
use crate::process::{Launch, Program};

/// The account that moto plays where nobody signs in.
const ACCOUNT: &str = "123456789012";
/// How many zones the cluster has: the first ones of the region.
const ZONES: usize = 3;

pub(crate) fn launch(ports: Ports) -> Launch {
    let [moto, _] = ports.cloud;
    let mut launch =
        Launch::new(Program::Moto, ["-H", "127.0.0.1", "-p", &moto.to_string()].map(str::to_owned));
    "moto/bin/moto_server".clone_into(&mut launch.binary);
    launch
}

/// An instance as the cloud knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its id, `i-…`.
    pub id: String,
    /// Its type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// Its private name, which its Node has too.
    pub name: String,
}

impl Instance {
    /// As its Node and its NodeClaim name it.
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }
}

/// What one machine of a type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// As Kubernetes names it.
    pub arch: &'static str,
    pub cpus: u64,
    pub memory_mib: u64,
    pub gpus: u64,
}

/// The way to moto.
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

    /// Passes a request on as it is, but for where it goes.
    pub(super) async fn pass(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() =
            format!("http://{}{path}", self.address).parse().context("making moto's address")?;
        let answer = self.client.request(request).await.context("asking moto, which plays EC2")?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.context("reading moto's answer")?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    /// Asks in the query form; the answer is XML.
    pub(super) async fn query(&self, service: &str, action: &str, fields: &[(&str, &str)]) -> Result<String> {
        let about = [("Action", action), ("Version", version(service))];
        let form =
            form_urlencoded::Serializer::new(String::new()).extend_pairs(about.iter().chain(fields)).finish();
        let request = Request::post("/").header("content-type", "application/x-www-form-urlencoded");
        self.ask(service, request, form).await.with_context(|| format!("{service}:{action}"))
    }

    /// Asks SQS; the answer is JSON.
    async fn sqs(&self, action: &str, body: &Value) -> Result<Value> {
        let request = Request::post("/").header("x-amz-target", format!("AmazonSQS.{action}"));
        let request = request.header("content-type", "application/x-amz-json-1.0");
        let said =
            self.ask("sqs", request, body.to_string()).await.with_context(|| format!("sqs:{action}"))?;
        serde_json::from_str(&said).with_context(|| format!("reading the answer to sqs:{action}"))
    }

    async fn ask(&self, service: &str, request: http::request::Builder, body: String) -> Result<String> {
        let scope = format!("AWS4-HMAC-SHA256 Credential=e2e/20260101/{REGION}/{service}/aws4_request");
        let request =
            request.header("authorization", scope).body(Full::from(body)).context("making a request")?;
        let answer = self.pass(request).await?;
        let said = String::from_utf8_lossy(answer.body()).into_owned();
        ensure!(answer.status().is_success(), "moto answers {}: {said}", answer.status());
        Ok(said)
    }

    /// Makes what has to be there before Karpenter starts: tagged subnets, an instance profile with its role, an EKS
    /// cluster and a queue of interruptions.
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

    /// The instances that run or are about to.
    pub(super) async fn instances(&self) -> Result<Vec<Instance>> {
        let states = [
            ("Filter.1.Name", "instance-state-name"),
            ("Filter.1.Value.1", "running"),
            ("Filter.1.Value.2", "pending"),
        ];
        let said = self.query("ec2", "DescribeInstances", &states).await?;
        Ok(items(&parsed(&said)?, "instancesSet", |i| Instance {
            id: child(i, "instanceId"),
            instance_type: child(i, "instanceType"),
            zone: within(i, "placement").map(|p| child(p, "availabilityZone")).unwrap_or_default(),
            name: child(i, "privateDnsName"),
        }))
    }

    /// The names of the launch templates that Karpenter made.
    pub(super) async fn launch_templates(&self) -> Result<Vec<String>> {
        let said = self.query("ec2", "DescribeLaunchTemplates", &[]).await?;
        Ok(items(&parsed(&said)?, "launchTemplates", |t| child(t, "launchTemplateName")))
    }

    /// The names of the instance profiles.
    pub(super) async fn instance_profiles(&self) -> Result<Vec<String>> {
        let said = self.query("iam", "ListInstanceProfiles", &[]).await?;
        let document = parsed(&said)?;
        let members = document.descendants().filter(|node| node.has_tag_name("InstanceProfileName"));
        Ok(members.filter_map(|name| name.text().map(str::to_owned)).collect())
    }

    /// Ends instances, as EC2 does where a machine fails.
    pub(super) async fn terminate(&self, ids: &[&str]) -> Result<()> {
        let keys: Vec<String> = (1..=ids.len()).map(|n| format!("InstanceId.{n}")).collect();
        let fields: Vec<(&str, &str)> = keys.iter().map(String::as_str).zip(ids.iter().copied()).collect();
        self.query("ec2", "TerminateInstances", &fields).await.map(drop)
    }

    /// Puts a message into the queue of interruptions.
    pub(super) async fn interrupt(&self, message: &Value) -> Result<()> {
        let queue = self.sqs("GetQueueUrl", &json!({"QueueName": QUEUE})).await?;
        let body = json!({"QueueUrl": queue.get("QueueUrl"), "MessageBody": message.to_string()});
        self.sqs("SendMessage", &body).await.map(drop)
    }

    /// What a machine of this type has.
    pub(super) async fn machine(&self, instance_type: &str) -> Result<Machine> {
        let said = self.query("ec2", "DescribeInstanceTypes", &[("InstanceType.1", instance_type)]).await?;
        let document = parsed(&said)?;
        let number = |tag: &str| -> Result<u64> {
            let found = document.descendants().find(|n| n.has_tag_name(tag)).and_then(|n| n.text());
            found
                .with_context(|| format!("{instance_type} has no {tag}"))?
                .parse()
                .context("reading a number")
        };
        let gpus = items(&document, "gpus", |gpu| child(gpu, "count").parse::<u64>().unwrap_or_default());
        let arm = items(&document, "supportedArchitectures", |arch| arch.text() == Some("arm64"));
        Ok(Machine {
            arch: if arm.contains(&true) { "arm64" } else { "amd64" },
            cpus: number("defaultVCpus")?,
            memory_mib: number("sizeInMiB")?,
            gpus: gpus.into_iter().sum(),
        })
    }
}

/// The version of a service's query form.
fn version(service: &str) -> &'static str {
    match service {
        "iam" => "2010-05-08",
        _ => "2016-11-15",
    }
}
