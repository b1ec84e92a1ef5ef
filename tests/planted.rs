//! Known bugs that only the embedded cluster or a real connection reveals: it must find each one, and none without them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "client/refused.rs"]
mod refused;

use serde_json::json;
use setu::api::NodeClaim;
use setu::effects::claims;
use setu::planted::{Planted, plant};
use setu::policy::PolicyFile;
use setu::sim::cluster::SimCluster;
use setu::sim::drama::{Drama, GangRole, Scene};
use setu::sim::invariants::Violation;
use setu::sim::moves::Move;
use setu_clock::Clock;
use setu_sim::api::kinds;
use setu_sim::faults::Rates;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The violations in a drama, with or without a planted bug.
fn violations(drama: &Drama, bug: Option<Planted>) -> Vec<Violation> {
    plant(bug);
    let outcome = drama.play(false);
    plant(None);
    outcome.unwrap().violations
}

/// Checks that one of the dramas breaks the invariant with the bug, and that none breaks any without it.
fn found(dramas: impl Iterator<Item = Drama>, bug: Planted, invariant: &str) {
    let mut others = BTreeSet::new();
    for drama in dramas {
        assert_eq!(violations(&drama, None), [], "seed {}", drama.seed);
        let broken = violations(&drama, Some(bug));
        if broken.iter().any(|violation| violation.invariant == invariant) {
            return;
        }
        others.extend(broken.iter().map(ToString::to_string));
    }
    panic!("{bug:?} broke no {invariant}, but {others:?}");
}

#[test]
fn pods_that_are_not_directed_to_their_nodes_are_found() {
    let scenes = vec![(0, Scene::Move(Move::FreeNode))];
    let drama = Drama { scenes, chaos: 60_000, ..Drama::quiet(2) };
    found(std::iter::once(drama), Planted::SelectorMissing, "led");
}

#[test]
fn a_claim_that_is_swept_on_an_incomplete_cache_is_found() {
    let rates = Rates { lag: 20_000, ..Rates::default() };
    let dramas = (20..140).map(|seed| Drama {
        seed,
        replicas: vec![0, 0],
        rates: rates.clone(),
        chaos: 60_000,
        ..Drama::quiet(2)
    });
    found(dramas, Planted::SweepBeforeStores, "first-written");
}

/// Dramas of two gangs and two replicas with lagging caches, with capacity for only one of the gangs.
fn late_in_a_shortage() -> impl Iterator<Item = Drama> {
    let gangs = vec![GangRole { pods: 2, runs: 10, enters: 0 }, GangRole { pods: 2, runs: 10, enters: 2 }];
    let short = vec![(0, Scene::Weather(vec![json!({"capacity": 3})]))];
    let rates = Rates { lag: 20_000, ..Rates::default() };
    (20..80).map(move |seed| Drama {
        seed,
        gangs: gangs.clone(),
        replicas: vec![0, 0],
        rates: rates.clone(),
        scenes: short.clone(),
        chaos: 120_000,
        ..Drama::quiet(2)
    })
}

#[test]
fn a_delete_that_names_no_uid_is_found() {
    found(std::iter::once(Drama::quiet(2)), Planted::DeleteWithoutUid, "ours");
}

#[test]
fn a_claim_that_is_missing_from_the_journal_is_found() {
    found(std::iter::once(Drama::quiet(2)), Planted::CreateWithoutJournal, "first-written");
}

#[test]
fn acting_on_a_stale_journal_is_found() {
    found(late_in_a_shortage(), Planted::ActOnStaleJournal, "first-written");
}

#[test]
fn a_lost_race_that_is_acted_on_is_found() {
    found(late_in_a_shortage(), Planted::ActOnConflict, "first-written");
}

#[test]
fn a_retry_before_the_nodes_are_gone_is_found() {
    let short = vec![(0, Scene::Weather(vec![json!({"capacity": 1})]))];
    let mut drama = Drama { scenes: short, chaos: 60_000, ..Drama::quiet(2) };
    json_patch::merge(&mut drama.policy, &json!({"retry": {"inCheck": {"limit": 0}}}));
    found(std::iter::once(drama), Planted::VerdictBeforeCleanup, "verdict");
}

/// The identifiers that follow one of these words in the files of these folders.
fn named(folders: &[&str], before: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut all = BTreeSet::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for rest in before.iter().flat_map(|word| text.split(word).skip(1)) {
            all.insert(rest.chars().take_while(|c| c.is_alphanumeric()).collect());
        }
    }
    all
}

#[test]
fn every_known_bug_is_listed_and_has_a_test() {
    let listed: BTreeSet<String> = Planted::ALL.iter().map(|bug| format!("{bug:?}")).collect();
    assert_eq!(named(&["src"], &["planted!("]).difference(&listed).next(), None);
    let sought = named(
        &["tests/planted.rs", "tests/core/fuzz.rs", "tests/model/planted.rs"],
        &["Planted::", "_found: "],
    );
    assert_eq!(listed.difference(&sought).next(), None);
}

/// Whether Setu adopts a foreign claim that has the name it wants.
fn adopts_a_stranger() -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "setu-taken"},
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "none"},
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
            },
        });
        cluster.server.user("admin").create(&kinds::NODE_CLAIM, claim.clone()).unwrap();
        let mut claim: NodeClaim = serde_json::from_value(claim).unwrap();
        claim
            .metadata
            .labels
            .get_or_insert_default()
            .insert(setu::names::WORKLOAD_UID.to_owned(), "gang".to_owned());
        let created = claims::create(&cluster.client("setu"), vec![claim]).await;
        !created.claims.is_empty()
    })
}

#[test]
fn adopting_a_foreign_claim_is_found() {
    assert!(!adopts_a_stranger());
    plant(Some(Planted::AdoptStranger));
    assert!(adopts_a_stranger());
    plant(None);
}

#[tokio::test]
async fn a_client_that_repeats_a_write_is_found() {
    plant(Some(Planted::RetryInClient));
    let (requests, _) = refused::create().await;
    plant(None);
    assert!(requests > 1, "{requests} request");
}
