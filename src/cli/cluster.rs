//! Cluster access of the read-only commands, and the objects that they read.
//!
//! Rule: only get, list and watch, and no request to the controller. Only Workloads are required;
//! a note reports what else may not be read.

use super::CliError;
use crate::api::resource_slice::ResourceSlice;
use crate::api::{
    AdmissionCheck, ClusterQueue, LocalQueue, Node, NodeClaim, Pod, ProvisioningParameters,
    ProvisioningRequest, Workload,
};
use crate::cluster::client;
use crate::cluster::decoded::Decoded;
use crate::cluster::watch::provider_of;
use crate::error::root_of;
use crate::gang::report::notice::VALIDATED;
use crate::gang::snapshot::resource_slices::NodeResourceSlices;
use crate::names;
use crate::plan::market::Market;
use crate::policy::Settings;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use setu_clock::Clock;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The role with the permissions that readers need.
pub const VIEWER: &str = "examples/rbac/setu-viewer.yaml";
/// Timeout of one list request.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Which cluster.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct Access {
    /// Kubeconfig file. Default: KUBECONFIG, then ~/.kube/config, then the pod's ServiceAccount.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// Which cluster, whose gangs.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct Connection {
    #[command(flatten)]
    access: Access,
    /// Namespace of the Workloads. Default: that of the context.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// `spec.controllerName` of the AdmissionChecks that are Setu's.
    #[arg(long, env = "SETU_CONTROLLER_NAME", default_value = names::CONTROLLER_NAME)]
    pub controller_name: String,
}

/// The namespaces to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One namespace.
    Namespace(String),
    /// All namespaces.
    Everywhere,
}

/// A connection to a cluster.
pub struct ClusterReader {
    /// The client of the API server.
    pub client: Client,
    /// The namespaces to read.
    pub scope: Scope,
    /// `spec.controllerName` of the checks that are Setu's.
    pub controller_name: String,
}

/// The objects that were read at one instant.
#[derive(Clone, Debug, Default)]
pub struct ClusterObjects {
    /// The instant.
    pub now: Timestamp,
    /// `spec.controllerName` of the checks that are Setu's.
    pub controller_name: String,
    /// Workloads of the scope, and the ProvisioningRequests of Setu's class as Workloads.
    pub workloads: Vec<Workload>,
    /// ProvisioningRequests of the scope, of any class; `None` if they may not be read.
    pub requests: Option<Vec<ProvisioningRequest>>,
    /// Every AdmissionCheck; `None` if they may not be read.
    pub checks: Option<Vec<AdmissionCheck>>,
    /// NodeClaims that Setu made; `None` if they may not be read.
    pub claims: Option<Vec<NodeClaim>>,
    /// Nodes that belong to gangs; `None` if they may not be read.
    pub nodes: Option<Vec<Node>>,
    /// ResourceSlices, if a NodeClaim records devices and they may be read.
    pub resource_slices: NodeResourceSlices,
    /// Unbound pods of the requested namespaces; `None` if they were not read.
    pub pods: Option<Vec<Pod>>,
    /// Events about accepted plans in the requested namespaces; empty if they may not be read.
    pub plans: Vec<Event>,
    /// LocalQueues of the scope; empty if they may not be read.
    pub local_queues: Vec<LocalQueue>,
    /// Every ClusterQueue; empty if they may not be read.
    pub cluster_queues: Vec<ClusterQueue>,
    /// Workloads of all namespaces, read if a Workload waits for quota that they may hold.
    pub elsewhere: Vec<Workload>,
    /// ProvisioningParameters of checks.
    pub parameters: Vec<ProvisioningParameters>,
    /// The controller's policy file, if it was named.
    pub settings: Option<Settings>,
    /// Karpenter's metrics, if they were named and could be read.
    pub market: Option<Arc<Market>>,
    /// Notes to the user about what could not be read.
    pub notes: Vec<String>,
}

impl ClusterObjects {
    /// Keeps only the NodeClaims made for Workloads of this namespace.
    pub fn keep_claims_of(&mut self, namespace: &str) {
        // Kept nodes name a LocalQueue instead of a Workload.
        let of = |claim: &NodeClaim| {
            let named = [names::WORKLOAD, names::WARM_QUEUE].map(|key| claim.annotation(key).split_once('/'));
            named.into_iter().flatten().next().map(|(ns, _)| ns == namespace)
        };
        if let Some(claims) = &mut self.claims {
            claims.retain(|claim| of(claim) == Some(true));
        }
    }
}

impl Access {
    /// Connects. Also returns the namespace of the context.
    pub async fn connect(&self) -> Result<(Client, String), CliError> {
        let config = self.config().await.map_err(|e| {
            CliError::Invalid(format!(
                "cannot reach a cluster: {e}. Set KUBECONFIG or --kubeconfig to a kubeconfig file"
            ))
        })?;
        let namespace = config.default_namespace.clone();
        let client = client::connect(config)
            .map_err(|e| CliError::Invalid(format!("the kubeconfig cannot be used: {e}")))?;
        Ok((client, namespace))
    }

    async fn config(&self) -> Result<Config, String> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).map_err(|e| e.to_string())?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|e| e.to_string())
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|e| e.to_string()),
            (None, None) => Config::infer().await.map_err(|e| e.to_string()),
        }
    }
}

impl Connection {
    /// Connects to read the named namespace, or all namespaces if none was named.
    pub async fn connect_widely(&self) -> Result<ClusterReader, CliError> {
        self.connect(self.namespace.is_none()).await
    }

    /// Connects. `everywhere` asks for all namespaces instead of one.
    pub async fn connect(&self, everywhere: bool) -> Result<ClusterReader, CliError> {
        let (client, namespace) = self.connect_to_namespace().await?;
        let scope = if everywhere { Scope::Everywhere } else { Scope::Namespace(namespace) };
        Ok(ClusterReader { client, scope, controller_name: self.controller_name.clone() })
    }

    /// The namespace that the user named.
    pub fn named_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Connects. Also returns the named namespace, or that of the context.
    pub async fn connect_to_namespace(&self) -> Result<(Client, String), CliError> {
        let (client, of_context) = self.access.connect().await?;
        Ok((client, self.namespace.clone().unwrap_or(of_context)))
    }
}

impl Scope {
    /// The API of Workloads in this scope.
    pub fn workloads<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        match self {
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
            Self::Everywhere => Api::all(client.clone()),
        }
    }
}

impl ClusterReader {
    /// Reads everything.
    pub async fn read(&self) -> Result<ClusterObjects, CliError> {
        let all = ListParams::default();
        let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let of_gangs = ListParams::default().labels(names::GANG);
        let client = || self.client.clone();
        let (workloads, requests, checks, claims, nodes, parameters, local_queues, cluster_queues) = tokio::join!(
            list::<Workload>("workloads", self.scope.workloads(&self.client), &all),
            list::<ProvisioningRequest>("provisioningrequests", self.scope.workloads(&self.client), &all),
            list::<AdmissionCheck>("admissionchecks", Api::all(client()), &all),
            list::<NodeClaim>("nodeclaims", Api::all(client()), &ours),
            list::<Node>("nodes", Api::all(client()), &of_gangs),
            list::<ProvisioningParameters>("provisioningparameters", Api::all(client()), &all),
            list::<LocalQueue>("localqueues", self.scope.workloads(&self.client), &all),
            list::<ClusterQueue>("clusterqueues", Api::all(client()), &all),
        );
        let workloads = workloads.map_err(|error| CliError::Failed(error.to_string()))?;
        let mut objects = self.empty();
        objects.workloads = workloads;
        objects.checks = objects.or_note(checks);
        objects.claims = objects.or_note(claims);
        objects.nodes = objects.or_note(nodes);
        if objects.claims.iter().flatten().any(|claim| !claim.devices().is_empty()) {
            let slices = list::<ResourceSlice>("resourceslices", Api::all(client()), &all).await;
            objects.resource_slices =
                objects.or_note(slices).map_or(NodeResourceSlices::Unread, NodeResourceSlices::Read);
        }
        objects.requests = objects.requests_or_note(requests);
        objects.add_requests();
        // Without them, the deadlines of single phases are not shown. That needs no note.
        objects.parameters = parameters.unwrap_or_default();
        // Without them, the holders of the quota that a Workload waits for are not shown.
        objects.local_queues = local_queues.unwrap_or_default();
        objects.cluster_queues = cluster_queues.unwrap_or_default();
        Ok(objects)
    }

    /// Unbound pods of a namespace; `None` if they may not be read.
    pub async fn unbound_pods(&self, namespace: &str) -> Option<Vec<Pod>> {
        let api = Api::namespaced(self.client.clone(), namespace);
        list("pods", api, &ListParams::default().fields("spec.nodeName=").match_any()).await.ok()
    }

    /// Events about accepted plans in a namespace; empty if they may not be read.
    pub async fn plans(&self, namespace: &str) -> Vec<Event> {
        let api = Api::namespaced(self.client.clone(), namespace);
        let accepted = ListParams::default().fields(&format!("reason={VALIDATED}"));
        list("events", api, &accepted).await.unwrap_or_default()
    }

    /// No objects, at the current time.
    pub fn empty(&self) -> ClusterObjects {
        ClusterObjects {
            now: Clock::wall().now(),
            controller_name: self.controller_name.clone(),
            ..ClusterObjects::default()
        }
    }

    /// Workloads of all namespaces; empty if they may not be read.
    pub async fn elsewhere(&self) -> Vec<Workload> {
        let everywhere = Scope::Everywhere.workloads(&self.client);
        list("workloads", everywhere, &ListParams::default()).await.unwrap_or_default()
    }
}

impl ClusterObjects {
    /// Most clusters serve no requests, and there nobody need be allowed to read them.
    fn requests_or_note(
        &mut self,
        read: Result<Vec<ProvisioningRequest>, ListError>,
    ) -> Option<Vec<ProvisioningRequest>> {
        let may_exist =
            self.checks.as_ref().is_none_or(|checks| checks.iter().any(AdmissionCheck::is_by_request));
        match read {
            Err(ListError::NotServed(..)) => Some(Vec::new()),
            Err(ListError::Forbidden(_)) if !may_exist => None,
            read => self.or_note(read),
        }
    }

    fn or_note<T>(&mut self, read: Result<Vec<T>, ListError>) -> Option<Vec<T>> {
        read.map_err(|error| self.notes.push(error.to_string())).ok()
    }
}

/// Why a list could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("{0} cannot be read: the API server does not serve them; install {1}")]
    NotServed(&'static str, &'static str),
    #[error("you may not list {0}; {viewer} has what is needed", viewer = VIEWER)]
    Forbidden(&'static str),
    #[error("the API server does not accept these credentials; look at the user of the kubeconfig's context")]
    Unauthorized,
    #[error("cannot read {0}: {1}")]
    Other(&'static str, String),
}

/// Everything of a kind that can be read.
pub(super) async fn list<K>(
    kind: &'static str,
    // An object that cannot be read must not hide the others.
    api: Api<Decoded<K>>,
    parameters: &ListParams,
) -> Result<Vec<K>, ListError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    // On the heap, because a command awaits several of these at once.
    let answer = Box::pin(tokio::time::timeout(ANSWER_LIMIT, api.list(parameters))).await;
    match answer {
        Ok(Ok(list)) => Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).collect()),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            404 => ListError::NotServed(kind, provider_of(kind)),
            403 => ListError::Forbidden(kind),
            401 => ListError::Unauthorized,
            _ => ListError::Other(kind, status.message.clone()),
        }),
        Ok(Err(error)) => Err(ListError::Other(kind, root_of(&error))),
        Err(_) => Err(ListError::Other(kind, format!("no answer within {ANSWER_LIMIT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The notes of a read in which requests get an answer with this code, and one check is of this controller.
    async fn notes(code: u16, controller: &str) -> Vec<String> {
        let check = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "c"},
            "spec": {"controllerName": controller},
        });
        let serve = move |request: http::Request<kube::client::Body>| {
            let items =
                if request.uri().path().ends_with("/admissionchecks") { json!([check]) } else { json!([]) };
            let refusal = json!({"kind": "Status", "code": code, "reason": "r", "message": "no"});
            let is_refused = request.uri().path().ends_with("/provisioningrequests");
            let list = json!({"kind": "List", "metadata": {}, "items": items});
            let (code, body) = if is_refused { (code, refusal) } else { (200, list) };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, tower::BoxError>(answer) }
        };
        let client = Client::new(tower::service_fn(serve), "default");
        let reader = ClusterReader { client, scope: Scope::Everywhere, controller_name: "setu".to_owned() };
        reader.read().await.unwrap().notes
    }

    #[tokio::test]
    async fn requests_that_may_not_be_read_are_noted_where_a_check_is_answered_by_them() {
        let kueue = names::PROVISIONING_REQUEST;
        let note = "you may not list provisioningrequests; examples/rbac/setu-viewer.yaml has what is needed";
        assert_eq!(notes(403, kueue).await, [note]);
        assert!(notes(403, "setu").await.is_empty());
        assert!(notes(404, kueue).await.is_empty(), "they are not served");
        assert_eq!(notes(500, "setu").await, ["cannot read provisioningrequests: no"]);
    }

    #[test]
    fn claims_of_other_namespaces_are_dropped() {
        let claim = |workload: &str| {
            serde_json::from_value::<NodeClaim>(serde_json::json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {"name": "claim", "annotations": {names::WORKLOAD: workload}},
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            }))
            .unwrap()
        };
        let claims = ["a/train", "ab/train", "b/a", ""].map(claim).to_vec();
        let mut objects = ClusterObjects { claims: Some(claims), ..ClusterObjects::default() };
        objects.keep_claims_of("a");
        let left: Vec<_> = objects.claims.iter().flatten().map(|c| c.annotation(names::WORKLOAD)).collect();
        assert_eq!(left, ["a/train"]);
    }
}
