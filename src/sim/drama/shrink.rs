//! Shrinks a failing drama.

use super::Drama;
use setu_sim::faults::Rates;

/// Removes parts of a drama as long as it still violates the same invariant first.
pub fn shrink(drama: &Drama) -> Drama {
    let broken = |d: &Drama| d.play(false).ok()?.violations.first().map(|violation| violation.invariant);
    let Some(first) = broken(drama) else { return drama.clone() };
    let fails = |d: &Drama| broken(d) == Some(first);
    let mut best = drama.clone();
    let mut smaller = true;
    while smaller {
        smaller = false;
        for candidate in candidates(&best) {
            if fails(&candidate) {
                best = candidate;
                smaller = true;
                break;
            }
        }
    }
    best
}

fn candidates(drama: &Drama) -> Vec<Drama> {
    let mut all = Vec::new();
    let mut without = |change: &dyn Fn(&mut Drama)| {
        let mut candidate = drama.clone();
        change(&mut candidate);
        if candidate != *drama {
            all.push(candidate);
        }
    };
    without(&|d| d.rates = Rates::default());
    without(&|d| d.replicas = vec![0]);
    without(&|d| d.replicas.iter_mut().for_each(|skew| *skew = 0));
    for fault in drama.rates.writes.keys() {
        without(&|d| {
            d.rates.writes.remove(fault);
        });
    }
    for index in 0..drama.rates.reads.len() {
        without(&|d| {
            d.rates.reads.remove(index);
        });
    }
    for index in 0..drama.gangs.len() {
        without(&|d| {
            d.gangs.remove(index);
        });
    }
    for index in 0..drama.scenes.len() {
        without(&|d| {
            d.scenes.remove(index);
        });
    }
    all
}
