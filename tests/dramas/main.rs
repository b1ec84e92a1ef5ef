//! Plays the real controller in the embedded cluster, under all faults.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a test may panic and tell what it saw"
)]

mod fixed;
mod single;

use setu::sim::drama::{Drama, DramaOutcome, shrink};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Seeds of random dramas that are played twice.
const REPEATED: std::ops::Range<u64> = 0..25;
/// Seeds of the other random dramas; `SETU_SEEDS=from..to` overrides them. `just nightly` plays many more.
const SEEDS: std::ops::Range<u64> = 25..50;
/// Seeds of random dramas in which a gang's nodes may come from several tiers.
const MIXED: std::ops::Range<u64> = 300..325;

fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("SETU_SEEDS").ok();
    let chosen = chosen.as_deref().and_then(|text| text.split_once(".."));
    chosen.map_or(SEEDS, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

/// Applies a function to each item, on all cores. The results are in the order of the input.
fn each<I: Sync, T: Send>(all: &[I], does: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, T>> = Mutex::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some((index, one)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, all.get(i)?)))
                {
                    let came = does(one);
                    done.lock().unwrap().insert(index, came);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

fn describe(drama: &Drama, outcome: &DramaOutcome) -> String {
    let violations: Vec<String> = outcome.violations.iter().take(5).map(ToString::to_string).collect();
    format!("{}\nin the drama:\n{}", violations.join("\n"), serde_yaml::to_string(drama).unwrap())
}

#[test]
fn an_undisturbed_gang_runs_and_leaves_nothing_behind() {
    let outcome = Drama::quiet(4).play(true).unwrap();
    assert!(
        outcome.violations.is_empty(),
        "{}\n{}",
        describe(&Drama::quiet(4), &outcome),
        outcome.lines.concat()
    );
    println!("{} changes, {} writes of Setu", outcome.changes, outcome.writes);
}

#[test]
fn random_dramas_break_no_invariant_and_come_to_their_end() {
    let started = Instant::now();
    let seeds: Vec<u64> = seeds().collect();
    let played = each(&seeds, |seed| {
        let drama = Drama::of(*seed);
        let outcome = drama.play(false).unwrap();
        let failed = outcome.violations.first().map(|v| {
            println!("seed {seed}: {v}");
            describe(&drama, &outcome)
        });
        (outcome.lives, failed)
    });
    let lives: u64 = played.iter().map(|(lives, _)| lives).sum();
    let rate = lives as f64 / started.elapsed().as_secs_f64();
    println!("{lives} gangs lived in {:?}, {rate:.0} a second", started.elapsed());
    let failed: Vec<String> = played.into_iter().filter_map(|(_, failed)| failed).collect();
    assert!(failed.is_empty(), "{} dramas failed, the first: {}", failed.len(), failed[0]);
}

/// The drama of a seed, with one tier in each of two zones.
fn mixed(seed: u64) -> Drama {
    let mut drama = Drama::of(seed);
    let tier = |zone: &str| serde_json::json!({"name": zone, "zones": [zone]});
    let tiers = [tier("us-east-1a"), tier("us-east-1b")];
    let policy = drama.policy.as_object_mut().unwrap();
    policy.extend([("mixedTiers".to_owned(), true.into()), ("tiers".to_owned(), tiers.to_vec().into())]);
    drama
}

#[test]
fn gangs_with_mixed_tiers_break_no_invariant() {
    let seeds: Vec<u64> = MIXED.collect();
    let failed = each(&seeds, |seed| {
        let drama = mixed(*seed);
        let outcome = drama.play(false).unwrap();
        outcome.violations.first().map(|_| describe(&drama, &outcome))
    });
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} dramas failed, the first: {}", failed.len(), failed[0]);
}

#[test]
fn a_seed_reproduces_its_run_byte_for_byte_and_breaks_no_invariant() {
    let seeds: Vec<u64> = REPEATED.collect();
    let differences = each(&seeds, |seed| {
        let [first, second] = [(); 2].map(|()| Drama::of(*seed).play(true).unwrap());
        if !first.violations.is_empty() {
            return Some(describe(&Drama::of(*seed), &first));
        }
        let (one, other) = (first.lines, second.lines);
        assert!(!one.is_empty(), "seed {seed} left no log");
        let at = one.iter().zip(&other).position(|(one, other)| one != other);
        let at = at.or_else(|| (one.len() != other.len()).then_some(one.len().min(other.len())))?;
        Some(format!("seed {seed}, line {at}:\n{:?}\n{:?}", one.get(at), other.get(at)))
    });
    let differences: Vec<String> = differences.into_iter().flatten().collect();
    assert!(differences.is_empty(), "{} differ: {}", differences.len(), differences.join("\n"));
}

#[test]
fn every_drama_that_once_failed_succeeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds");
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(!files.is_empty());
    let failed = each(&files, |file| {
        let drama: Drama = serde_yaml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert!(drama.title.ends_with('.'), "{} does not say what it shows", file.display());
        let outcome = drama.play(false).unwrap();
        outcome.violations.first().map(|v| format!("{}: {v}", file.display()))
    });
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// `SETU_SEEDS=16..17 cargo test --test dramas -- --ignored --nocapture` shrinks a failing drama as far as
/// possible and shows every change in it.
#[test]
#[ignore = "for whoever looks into a seed"]
fn a_chosen_seed_is_shrunk_and_shown_in_full() {
    for seed in seeds() {
        let drama = shrink(&Drama::of(seed));
        let outcome = drama.play(true).unwrap();
        println!("{}{}", outcome.lines.concat(), describe(&drama, &outcome));
    }
}
