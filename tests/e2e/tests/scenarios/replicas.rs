//! Several replicas of Setu in one world on the real control plane. Each is a process with the permissions
//! of a real installation.

use crate::real::{Real, Shared};
use crate::setu::Setu;
use ::setu::api::ProvisioningParameters;
use ::setu::sim::scenario::{self, Run, Scenario, ScenarioStep, ScenarioWorld, controller_name_of};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, CustomResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::{KUEUE_NAMESPACE, Stack, StackOptions, apply};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// The replicas and their world.
pub struct Replicas {
    pub world: ScenarioWorld<Real>,
    pub stack: Arc<Stack>,
    pub all: BTreeMap<&'static str, Setu>,
    kubeconfig: PathBuf,
    arguments: &'static [&'static str],
}

impl Replicas {
    /// Starts a world with this ID, in which nodes do not register, without replicas. Later ones get these arguments.
    pub async fn start(id: &str, arguments: &'static [&'static str]) -> Self {
        let provisioning_requests = arguments.contains(&"--provisioning-requests");
        let options = StackOptions { provisioning_requests, ..StackOptions::default() };
        let stack = Arc::new(Stack::start(options).await.unwrap());
        let client = stack.client().unwrap();
        let crd = serde_json::to_value(ProvisioningParameters::crd()).unwrap();
        apply::all(&client, vec![crd]).await.unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        apply::path(&client, &root.join("manifests/rbac.yaml")).await.unwrap();
        if provisioning_requests {
            let rights = root.join("examples/rbac/setu-provisioning-requests.yaml");
            apply::path(&client, &rights).await.unwrap();
        }
        let kinds = Arc::new(apply::kinds(&client).await.unwrap());
        let scenario = json!({"title": id, "weather": [{"registrationDelay": "1h"}]});
        let scenario: Scenario = serde_json::from_value(scenario).unwrap();
        let run = Run { title: id.into(), id: id.into(), scenario };
        let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
        let shared = Shared { kinds, kubeconfig: kubeconfig.clone().into() };
        let world = ScenarioWorld::new(Real::new(&stack, &shared, &run).unwrap(), &run).await.unwrap();
        Self { world, stack, all: BTreeMap::new(), kubeconfig, arguments }
    }

    /// Starts a replica on a host with this name.
    pub fn enter(&mut self, name: &'static str) {
        let folder = self.stack.folder().join(&self.world.id).join(name);
        let controller = controller_name_of(&self.world.id);
        let replica = Setu::new(&self.kubeconfig, &controller, POLICY, &folder).unwrap();
        let mut replica = replica.with(&["--leader-elect"]).with(self.arguments).on(name);
        replica.start(None).unwrap();
        self.all.insert(name, replica);
    }

    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.world.client.clone(), KUEUE_NAMESPACE)
    }

    /// The name of the replica that holds a lease; empty if it has no holder.
    pub async fn holder_of(&self, lease: &str) -> String {
        let lease = self.leases().get_opt(lease).await.unwrap_or_default();
        let holder = lease.and_then(|l| l.spec?.holder_identity).unwrap_or_default();
        holder.split('_').next().unwrap_or_default().to_owned()
    }

    /// The last lines of each replica's log.
    pub fn logs(&self) -> String {
        let tails = self.all.iter().map(|(name, r)| format!("--- {name}\n{}\n", r.log_tail(15)));
        tails.collect()
    }

    /// Runs one step of a scenario.
    pub async fn step(&mut self, step: Value) {
        let step: ScenarioStep = serde_json::from_value(step).unwrap();
        scenario::take(&mut self.world, &step).await.unwrap_or_else(|e| panic!("{e:#}\n{}", self.logs()));
    }

    /// The transitions in the logs, by Workload and number, with the replicas that committed them.
    pub fn committed(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for (name, replica) in &self.all {
            for line in replica.log().lines().filter(|l| l.contains("gang changed state")) {
                let field = |key: &str| {
                    let value = line.split(&format!("{key}=")).nth(1).unwrap_or_default();
                    value.split(' ').next().unwrap_or_default().to_owned()
                };
                all.entry((field("workload"), field("seq"))).or_default().push((*name).to_owned());
            }
        }
        all
    }

    /// Checks that no transition happened twice, every history is a valid path, and nothing is left behind.
    pub async fn left_nothing_and_did_nothing_twice(&mut self) {
        let committed = self.committed();
        assert!(!committed.is_empty(), "no log has a transition");
        for ((workload, seq), by) in committed {
            assert_eq!(by.len(), 1, "transition {seq} of {workload} was made by {by:?}");
        }
        assert!(!self.world.journals.is_empty(), "no journal was seen");
        scenario::paths_are_lawful(&self.world).unwrap();
        for journal in self.world.journals.values() {
            assert_eq!(journal.memory.attempt, 1);
        }
        scenario::nothing_is_left(&mut self.world).await.unwrap();
    }

    /// Stops the replicas, then the control plane.
    pub fn end(self) {
        let Self { world, stack, all, .. } = self;
        drop((world, all));
        if let Ok(stack) = Arc::try_unwrap(stack) {
            stack.stop();
        }
    }
}
