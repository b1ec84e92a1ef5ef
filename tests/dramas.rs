//! The real controller in the embedded cluster, under everything that can go wrong.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a test may panic and tell what it saw"
)]

use setu::sim::drama::{Drama, Outcome};
use setu::sim::faults::Fault;
use std::time::Instant;

/// Random dramas that are played; `SETU_SEEDS=from..to` chooses others.
const SEEDS: std::ops::Range<u64> = 0..16;

fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("SETU_SEEDS").ok();
    let chosen = chosen.as_deref().and_then(|text| text.split_once(".."));
    chosen.map_or(SEEDS, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

fn told(drama: &Drama, outcome: &Outcome) -> String {
    let violations: Vec<String> = outcome.violations.iter().take(5).map(ToString::to_string).collect();
    format!("{}\nin the drama:\n{}", violations.join("\n"), serde_yaml::to_string(drama).unwrap())
}

#[test]
fn a_gang_that_nothing_happens_to_runs_and_leaves_nothing() {
    let outcome = Drama::quiet(4).play(true).unwrap();
    assert!(
        outcome.violations.is_empty(),
        "{}\n{}",
        told(&Drama::quiet(4), &outcome),
        outcome.lines.concat()
    );
    println!("{} changes, {} writes of Setu", outcome.changes, outcome.writes);
}

#[test]
fn whatever_happens_to_any_one_write_nothing_is_lost_and_nothing_is_left() {
    let reference = Drama::quiet(2).play(false).unwrap();
    let mut failed = Vec::new();
    for write in 0..reference.writes {
        for fault in Fault::ALL {
            let drama = Drama { plan: Some((write, fault)), ..Drama::quiet(2) };
            let outcome = drama.play(false).unwrap();
            if !outcome.violations.is_empty() {
                failed.push(format!("write {write}, {fault}: {}", outcome.violations.first().unwrap()));
            }
        }
    }
    println!("{} writes × {} faults", reference.writes, Fault::ALL.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn random_dramas_break_no_invariant_and_come_to_their_end() {
    let started = Instant::now();
    let (mut lives, mut failed) = (0, Vec::new());
    for seed in seeds() {
        let drama = Drama::of(seed);
        let outcome = drama.play(false).unwrap();
        lives += outcome.lives;
        if !outcome.violations.is_empty() {
            println!("seed {seed}: {}", outcome.violations.first().unwrap());
            failed.push((seed, told(&drama, &outcome)));
        }
    }
    let rate = lives as f64 / started.elapsed().as_secs_f64();
    println!("{lives} gangs lived in {:?}, {rate:.0} a second", started.elapsed());
    assert!(
        failed.is_empty(),
        "{} dramas failed, the first with seed {}: {}",
        failed.len(),
        failed[0].0,
        failed[0].1
    );
}
