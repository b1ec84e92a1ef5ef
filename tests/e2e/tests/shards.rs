//! Three replicas and four shards on the real control plane: the replicas share the gangs, take over those of a
//! dead replica, and make each transition of each gang exactly once.

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
#[path = "scenarios/replicas.rs"]
mod replicas;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::cluster::lease::shard_of;
use k8s_openapi::api::rbac::v1::Role;
use kube::Api;
use kube::api::{Patch, PatchParams};
use replicas::Replicas;
use serde_json::json;
use setu_e2e::KUEUE_NAMESPACE;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const SHARDS: usize = 4;
const JOBS: usize = 8;

impl Replicas {
    /// Gives Setu permission for every shard's lease, as the chart does with controller.shards=4.
    async fn allow_shards(&self) {
        let names: Vec<String> = (0..SHARDS).map(|shard| format!("setu-{shard}")).collect();
        let roles: Api<Role> = Api::namespaced(self.world.client.clone(), KUEUE_NAMESPACE);
        let patch = json!([{"op": "replace", "path": "/rules/1/resourceNames", "value": names}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
        roles.patch("setu-leader-election", &PatchParams::default(), &patch).await.unwrap();
    }

    /// The holder of each shard.
    async fn holders(&self) -> Vec<String> {
        let mut holders = Vec::new();
        for shard in 0..SHARDS {
            holders.push(self.holder_of(&format!("setu-{shard}")).await);
        }
        holders
    }

    async fn shared_as(&self, shares: &[usize], limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let holders = self.holders().await;
            let held = |name: &&str| holders.iter().filter(|h| h == name).count();
            let mut all: Vec<usize> = self.all.keys().map(held).filter(|n| *n > 0).collect();
            all.sort_unstable();
            if all == shares {
                return start.elapsed();
            }
            assert!(start.elapsed() < limit, "{holders:?} after {limit:?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_gangs_and_take_over_those_of_a_killed_one() {
    let mut play = Replicas::start("shards", &["--shards", "4"]).await;
    play.allow_shards().await;
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
    let name = *play.all.keys().find(|name| **name == killed).unwrap();
    play.all.get_mut(name).unwrap().kill();
    play.step(json!({"submit": {"name": "orphan", "pods": 1, "gpus": 1, "runFor": "1s"}})).await;
    println!("after a kill two share after {:?}", play.shared_as(&[2, 2], Duration::from_secs(25)).await);
    play.step(json!({"weather": []})).await;
    for job in (0..JOBS).map(|job| format!("job-{job}")).chain(["orphan".to_owned()]) {
        let released = json!({"job": job, "finished": true, "state": "Released", "claims": 0, "within": 180});
        play.step(json!({"until": released})).await;
    }

    play.left_nothing_and_did_nothing_twice().await;
    play.end();
}
