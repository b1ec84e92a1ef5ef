//! Invariants of attempts: how many there are, and that one that is taken back stays so.

use super::Sight;
use crate::api::Workload;
use crate::gang::reservation::Epoch;
use crate::gang::{Journal, StateName};
use crate::names;
use crate::sim::values::{annotation, created, label, name};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How long a request is on its way where nothing delays it.
const LATENCY: SignedDuration = SignedDuration::from_secs(1);

/// What may happen in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Attempts under one admission; any number if `None`.
    pub attempts: Option<usize>,
    /// How much longer than usual a request may be on its way.
    pub delay: SignedDuration,
}

/// UID of the Workload, the check, and the attempt.
type Place = (String, String, u32);

/// What is remembered of attempts.
#[derive(Default)]
pub struct Book {
    /// Attempts under one admission; any number if `None`.
    pub most: Option<usize>,
    /// When each attempt that is over was first known to be.
    over: BTreeMap<Place, Timestamp>,
    /// The attempts under each admission, by UID of the Workload and check.
    begun: BTreeMap<(String, String, Epoch), BTreeSet<u32>>,
}

/// Whether so much time has gone by since then that no request from before can still arrive.
fn is_long_ago(sight: &Sight, then: Timestamp) -> bool {
    then < sight.lateness.before(sight.now, sight.lateness.delay + LATENCY)
}

/// Setu has written a journal.
pub fn journal_written(
    sight: &mut Sight,
    workload: &Workload,
    check: &str,
    (old, new): (Option<&Journal>, &Journal),
) {
    let uid = workload.uid().unwrap_or_default();
    let tampered = sight.gangs_book.is_tampered(&uid);
    let (attempt, now) = (new.memory.attempt, sight.now);
    let place = (uid.clone(), check.to_owned(), attempt);
    let book = &mut sight.attempts_book;
    if new.state.wants_claims() {
        book.over.remove(&place);
        let begun = book.begun.entry((uid, check.to_owned(), new.memory.epoch.clone())).or_default();
        begun.insert(attempt);
        let many = begun.len();
        if book.most.is_some_and(|most| many > most) && !tampered {
            let what = format!("{} begins attempt {many} of one admission", workload.name_any());
            sight.violated("bounded", what);
        }
    } else {
        book.over.entry(place).or_insert(now);
    }
    let ended = old.is_some_and(|old| old.state.name() == StateName::RollingBack)
        && new.state.name() != StateName::RollingBack
        && !new.state.wants_claims();
    if ended && !tampered {
        rolled_back(sight, workload, check, attempt);
    }
}

/// A rollback has ended: nothing of its attempt is left but what was still on its way.
fn rolled_back(sight: &mut Sight, workload: &Workload, check: &str, attempt: u32) {
    let uid = workload.uid().unwrap_or_default();
    let left = sight.claims.values().find(|claim| {
        label(claim, names::WORKLOAD_UID) == uid
            && label(claim, names::ATTEMPT) == attempt.to_string()
            && annotation(claim, names::CHECK) == check
            && is_long_ago(sight, created(claim))
    });
    if let Some(left) = left.map(|claim| name(claim).to_owned()) {
        let what = format!("{} ends its rollback while {left} is there", workload.name_any());
        sight.violated("total-rollback", what);
    }
}

/// Setu has made a claim of an untampered gang.
pub fn created_under(sight: &mut Sight, claim: &Value) {
    let Ok(attempt) = label(claim, names::ATTEMPT).parse() else { return };
    let place =
        (label(claim, names::WORKLOAD_UID).to_owned(), annotation(claim, names::CHECK).to_owned(), attempt);
    if sight.attempts_book.over.get(&place).is_some_and(|then| is_long_ago(sight, *then)) {
        let what = format!("{} is created although attempt {attempt} is taken back", name(claim));
        sight.violated("total-rollback", what);
    }
}
