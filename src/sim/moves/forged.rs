//! Journals as others than this Setu write them.

use super::Move;
use crate::names;
use crate::sim::chance::Chance;
use crate::sim::values::annotation;
use serde_json::{Value, json};
use std::sync::Arc;

/// Where the journal is kept that a newer version has replaced.
const BEFORE: &str = "before";

/// What whoever forges a journal can look at.
pub struct Known<'k> {
    /// Workloads as they were before.
    pub seen: &'k [Arc<Value>],
    /// Workloads as they are.
    pub now: &'k [Arc<Value>],
}

/// What is written for a Workload's journal; null to erase it.
pub fn journal(what: Move, all: &Known<'_>, workload: &Value, check: &str, chance: &mut Chance) -> Value {
    let key = names::journal_key(check);
    let own = annotation(workload, &key).to_owned();
    let with = |state: Value| {
        let mut journal: Value = serde_json::from_str(&own).unwrap_or_default();
        if let (Some(journal), Some(state)) = (journal.as_object_mut(), state.as_object()) {
            journal.extend(state.clone());
        }
        json!(journal.to_string())
    };
    match what {
        Move::ForgeApproved => with(json!({"state": "Approved", "slots": 0, "attempt": 1})),
        Move::ForgeRollback => {
            with(json!({"state": "RollingBack", "then": "Rejected", "attempt": 4_000_000_000_u32}))
        }
        Move::ReplayJournal => {
            let journals: Vec<&str> =
                all.seen.iter().map(|w| annotation(w, &key)).filter(|j| !j.is_empty()).collect();
            chance.pick(&journals).map_or(Value::Null, |journal| json!(journal))
        }
        Move::ForgeTimes => {
            let time = if chance.happens(500) { "9999-12-30T00:00:00Z" } else { "1970-01-01T00:00:00Z" };
            with(json!({
                "seq": u64::MAX, "enteredAt": time, "until": time, "deadline": time, "notBefore": time,
            }))
        }
        Move::CopyJournal => {
            let other = chance.pick(all.now).map_or("", |w| annotation(w, &key));
            json!(other)
        }
        Move::GarbleJournal => json!(format!("{{\"version\":1,\"state\":{}", "[".repeat(500))),
        // It is a newer version's already, which writes it again as it is.
        Move::NewerJournal if before(workload, check).is_some() => json!(own),
        Move::NewerJournal if !own.is_empty() => {
            json!(json!({"version": 99, "state": "Somewhere", BEFORE: own}).to_string())
        }
        _ => Value::Null,
    }
}

/// The journal that a newer version replaced, where one did: it comes back and goes on from there.
pub fn before(workload: &Value, check: &str) -> Option<Value> {
    let journal: Value = serde_json::from_str(annotation(workload, &names::journal_key(check))).ok()?;
    journal.get(BEFORE).cloned()
}
