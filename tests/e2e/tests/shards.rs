//! Three replicas and four shards on the real control plane: they share the gangs, a dead one's are taken
//! over, and each transition of each gang happens exactly once.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::cluster::lease::shard_of;
use ::setu::sim::scenario::{self, Run, Scenario, Step, World, controller_name_of};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Patch, PatchParams};
use kube::{Api, CustomResourceExt as _};
use real::{Real, Shared};
use serde_json::{Value, json};
use setu::Setu;
use setu_e2e::{KUEUE_NAMESPACE, Options, Stack, apply};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ID: &str = "shards";
const SHARDS: usize = 4;
const JOBS: usize = 8;

struct Play {
    world: World<Real>,
    stack: Arc<Stack>,
    kubeconfig: PathBuf,
    replicas: BTreeMap<&'static str, Setu>,
}

impl Play {
    async fn start() -> Self {
        let stack = Arc::new(Stack::start(Options::default()).await.unwrap());
        let client = stack.client().unwrap();
        let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd()).unwrap();
        apply::all(&client, vec![crd]).await.unwrap();
        let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/rbac.yaml");
        apply::path(&client, &rights).await.unwrap();
        // As the chart writes it with controller.shards=4.
        let names: Vec<String> = (0..SHARDS).map(|shard| format!("setu-{shard}")).collect();
        let roles: Api<Role> = Api::namespaced(client.clone(), KUEUE_NAMESPACE);
        let patch = json!([{"op": "replace", "path": "/rules/1/resourceNames", "value": names}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
        roles.patch("setu-leader-election", &PatchParams::default(), &patch).await.unwrap();
        let kinds = Arc::new(apply::kinds(&client).await.unwrap());
        let scenario = json!({"title": ID, "weather": [{"registrationDelay": "1h"}]});
        let run = Run {
            title: ID.into(),
            id: ID.into(),
            scenario: serde_json::from_value::<Scenario>(scenario).unwrap(),
        };
        let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
        let shared = Shared { kinds, kubeconfig: kubeconfig.clone().into() };
        let world = World::new(Real::new(&stack, &shared, &run).unwrap(), &run).await.unwrap();
        Self { world, stack, kubeconfig, replicas: BTreeMap::new() }
    }

    fn enter(&mut self, name: &'static str) {
        let folder = self.stack.folder().join(ID).join(name);
        let policy = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";
        let mut replica = Setu::new(&self.kubeconfig, &controller_name_of(ID), policy, &folder)
            .unwrap()
            .with(&["--leader-elect", "--shards", "4"])
            .on(name);
        replica.start(None).unwrap();
        self.replicas.insert(name, replica);
    }

    /// Who holds each shard.
    async fn holders(&self) -> Vec<String> {
        let leases: Api<Lease> = Api::namespaced(self.world.client.clone(), KUEUE_NAMESPACE);
        let mut holders = Vec::new();
        for shard in 0..SHARDS {
            let lease = leases.get_opt(&format!("setu-{shard}")).await.unwrap_or_default();
            let holder = lease.and_then(|l| l.spec?.holder_identity).unwrap_or_default();
            holders.push(holder.split('_').next().unwrap_or_default().to_owned());
        }
        holders
    }

    async fn shared_as(&self, shares: &[usize], limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let holders = self.holders().await;
            let held = |name: &&str| holders.iter().filter(|h| h == name).count();
            let mut all: Vec<usize> = self.replicas.keys().map(held).filter(|n| *n > 0).collect();
            all.sort_unstable();
            if all == shares {
                return start.elapsed();
            }
            assert!(start.elapsed() < limit, "{holders:?} after {limit:?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn logs(&self) -> String {
        let tails: Vec<String> =
            self.replicas.iter().map(|(name, r)| format!("--- {name}\n{}", r.log_tail(15))).collect();
        tails.join("\n")
    }

    async fn step(&mut self, step: Value) {
        let step: Step = serde_json::from_value(step).unwrap();
        scenario::take(&mut self.world, &step).await.unwrap_or_else(|e| panic!("{e:#}\n{}", self.logs()));
    }

    /// Who moved each gang on, by its Workload and the number of the transition.
    fn committed(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for (name, replica) in &self.replicas {
            for line in replica.log().lines().filter(|l| l.contains("a gang moved on")) {
                let field = |key: &str| {
                    let value = line.split(&format!("{key}=")).nth(1).unwrap_or_default();
                    value.split(' ').next().unwrap_or_default().to_owned()
                };
                all.entry((field("workload"), field("seq"))).or_default().push((*name).to_owned());
            }
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_gangs_and_a_killed_ones_are_carried_on_without_a_step_made_twice() {
    let mut play = Play::start().await;
    play.enter("a");
    play.shared_as(&[SHARDS], Duration::from_secs(20)).await;
    for name in ["b", "c"] {
        play.enter(name);
    }
    println!("three replicas share after {:?}", play.shared_as(&[1, 1, 2], Duration::from_secs(30)).await);

    for job in 0..JOBS {
        play.step(json!({"submit": {"name": format!("job-{job}"), "pods": 1, "gpus": 1, "runFor": "1s"}}))
            .await;
    }
    for job in 0..JOBS {
        play.step(json!({"until": {"job": format!("job-{job}"), "state": "WaitingReady", "claims": 1}}))
            .await;
    }
    let holders = play.holders().await;
    let workers: BTreeSet<String> = play.committed().into_values().flatten().collect();
    let expected: BTreeSet<String> =
        play.world.journals.keys().map(|uid| holders[shard_of(uid, SHARDS)].clone()).collect();
    assert_eq!(workers, expected);

    let killed = holders[0].clone();
    let name = *play.replicas.keys().find(|name| **name == killed).unwrap();
    play.replicas.get_mut(name).unwrap().kill();
    play.step(json!({"submit": {"name": "orphan", "pods": 1, "gpus": 1, "runFor": "1s"}})).await;
    println!("after a kill two share after {:?}", play.shared_as(&[2, 2], Duration::from_secs(25)).await);
    play.step(json!({"weather": []})).await;
    for job in (0..JOBS).map(|job| format!("job-{job}")).chain(["orphan".to_owned()]) {
        let released = json!({"job": job, "finished": true, "state": "Released", "claims": 0, "within": 180});
        play.step(json!({"until": released})).await;
    }

    for ((workload, seq), by) in play.committed() {
        assert_eq!(by.len(), 1, "transition {seq} of {workload} was made by {by:?}");
    }
    scenario::paths_are_lawful(&play.world).unwrap();
    for journal in play.world.journals.values() {
        assert_eq!(journal.memory.attempt, 1);
    }
    scenario::nothing_is_left(&mut play.world).await.unwrap();
    let Play { world, stack, replicas, .. } = play;
    drop((world, replicas));
    if let Ok(stack) = Arc::try_unwrap(stack) {
        stack.stop();
    }
}
