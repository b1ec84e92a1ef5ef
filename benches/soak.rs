//! Plays many random dramas on all cores. Prints how many gangs per second live, and what happened to them.
//!
//! `cargo bench --bench soak -- N [FROM]` plays the seeds FROM..FROM+N. A failing drama is shrunk and printed, ready
//! to be kept under `tests/seeds/`. With `every-pair` it also fails if some fault hit no gang in one of its
//! states.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a tool that prints figures"
)]

use indicatif::{ProgressBar, ProgressStyle};
use setu::gang::StateName;
use setu::sim::drama::{Drama, coverage, gaps, shrink};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn main() {
    let strict = std::env::args().any(|a| a == "every-pair");
    let numbers: Vec<u64> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let count = numbers.first().copied().unwrap_or(1_000);
    let from = numbers.get(1).copied().unwrap_or(1_000_000);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} dramas, {msg}").unwrap();
    let bar = ProgressBar::new(count).with_style(style);
    let (next, lives) = (AtomicU64::new(0), AtomicU64::new(0));
    let met: Mutex<BTreeMap<(StateName, String), u64>> = Mutex::default();
    let failed: Mutex<BTreeMap<u64, String>> = Mutex::default();
    // Wasted node-seconds by seed.
    let wasted: Mutex<BTreeMap<u64, f64>> = Mutex::default();
    let started = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let outcome = Drama::of(from + index).play(false).unwrap();
                    let so_far = lives.fetch_add(outcome.lives, Ordering::Relaxed) + outcome.lives;
                    wasted.lock().unwrap().insert(from + index, outcome.wasted);
                    for (pair, times) in outcome.met {
                        *met.lock().unwrap().entry(pair).or_default() += times;
                    }
                    if let Some(violation) = outcome.violations.first() {
                        failed.lock().unwrap().insert(from + index, violation.to_string());
                    }
                    let rate = so_far as f64 / started.elapsed().as_secs_f64();
                    bar.set_message(format!("{rate:.0} gangs/s"));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (lives, took) = (lives.into_inner(), started.elapsed());
    let rate = lives as f64 / took.as_secs_f64();
    println!(
        "{count} dramas, {lives} gangs in {took:.1?} on {cores} cores: {rate:.0} gangs/s, {:.0} a minute and core",
        rate * 60.0 / cores as f64
    );
    let wasted = wasted.into_inner().unwrap();
    let total: f64 = wasted.values().sum();
    if let Some((seed, most)) = wasted.iter().max_by(|a, b| a.1.total_cmp(b.1)) {
        println!(
            "node-seconds that served nobody: {total:.0}, {:.0} a gang; most in one drama, of seed {seed}: {most:.0}",
            total / lives as f64
        );
    }
    let met = met.into_inner().unwrap();
    println!("{}", coverage(&met));
    let never: Vec<String> = gaps(&met).iter().map(|(state, fault)| format!("{fault} in {state}")).collect();
    if !never.is_empty() {
        println!("never met: {}", never.join(", "));
    }
    let failed = failed.into_inner().unwrap();
    for (seed, violation) in &failed {
        println!("seed {seed} failed: {violation}");
    }
    if let Some(seed) = failed.keys().next() {
        println!("the first, made small:");
        println!("{}", serde_yaml::to_string(&shrink(&Drama::of(*seed))).unwrap());
        std::process::exit(1);
    }
    if strict && !never.is_empty() {
        std::process::exit(1);
    }
}
