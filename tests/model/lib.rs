//! Explores one gang of two slots, two replicas, and everything that can go wrong between two writes. The
//! search is breadth first and bounded; `SETU_MODEL=whole` removes the bound.
//!
//! `core` runs the real code on small values, `world` is everything but Setu, `replica` makes a replica's
//! requests in order, `explore` is the search. Each test explores one mix of faults and prints how far it
//! got; `SETU_MODEL=large` explores larger mixes, as far as memory and time allow.

#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::needless_pass_by_value,
    clippy::range_plus_one,
    clippy::trivially_copy_pass_by_ref,
    clippy::unused_self,
    missing_docs,
    reason = "the shape of the explored world goes before"
)]

mod core;
mod explore;
mod planted;
mod replica;
mod world;

use explore::explore;
use world::MoveBudget;

/// The budget that every mix starts from.
fn quiet() -> MoveBudget {
    MoveBudget { reservations: 1, ..MoveBudget::default() }
}

/// The step limit of one exploration, to keep `cargo test` short.
const STEPS: usize = 250_000;

/// Whether `SETU_MODEL` is one of these values.
fn model_is(any: &[&str]) -> bool {
    std::env::var("SETU_MODEL").is_ok_and(|asked| any.contains(&asked.as_str()))
}

/// How often a second kind of fault may occur as well.
fn more() -> u8 {
    u8::from(model_is(&["large"]))
}

fn holds(title: &str, budget: MoveBudget) {
    let limit = (!model_is(&["whole", "large"])).then_some(STEPS);
    let found = explore(title, budget, None, limit);
    assert!(found.violations.is_empty(), "{title}: {}", found.violations.join("\n"));
    assert_eq!(found.stuck, None, "{title}: from here nothing settles any more");
}

#[test]
fn a_crash_breaks_nothing() {
    holds("crash", MoveBudget { crashes: 1, lost: more(), losses: more(), ..quiet() });
    if more() > 0 {
        holds("crash, old cache, lost message", MoveBudget { crashes: 1, stale: 1, lost: 1, ..quiet() });
    }
}

#[test]
fn a_lost_request_or_reply_breaks_nothing() {
    holds("lost message", MoveBudget { lost: 1, losses: more(), ..quiet() });
}

#[test]
fn a_lost_node_breaks_nothing() {
    holds("lost node", MoveBudget { losses: 1 + more(), ..quiet() });
}

#[test]
fn an_old_cache_breaks_nothing() {
    holds("old cache", MoveBudget { stale: 1, crashes: more(), losses: more(), ..quiet() });
}

#[test]
fn parameters_that_cannot_be_read_break_nothing() {
    holds("parameters unread", MoveBudget { unread: 1, losses: 1, crashes: more(), ..quiet() });
}

#[test]
fn an_eviction_breaks_nothing() {
    holds("eviction", MoveBudget { evictions: 1, reservations: 1 + more(), stale: more(), ..quiet() });
}

#[test]
fn quota_that_comes_and_goes_breaks_nothing() {
    holds("quota lost and back", MoveBudget { quota_losses: 1, reservations: 2, crashes: more(), ..quiet() });
}

#[test]
fn a_check_that_comes_and_goes_breaks_nothing() {
    holds("check off and on", MoveBudget { delistings: 1, losses: more(), ..quiet() });
}

#[test]
fn a_tenant_that_deletes_the_journal_breaks_nothing() {
    holds("journal erased", MoveBudget { erasures: 1, lost: more(), ..quiet() });
}

#[test]
fn a_tenant_that_deletes_the_workload_breaks_nothing() {
    holds("Workload deleted", MoveBudget { deletions: 1, crashes: more(), ..quiet() });
}

#[test]
fn a_plan_that_fails_breaks_nothing() {
    holds("plan fails", MoveBudget { plan_failures: 1, losses: more(), ..quiet() });
    if more() > 0 {
        holds("plan fails, old cache", MoveBudget { plan_failures: 1, stale: 1, ..quiet() });
    }
}
