//! Journals forged by clients other than this Setu.

use super::Move;
use crate::names;
use serde_json::{Value, json};
use setu_sim::chance::Chance;
use setu_sim::values::annotation;
use std::sync::Arc;

/// Key of a newer version's journal that holds the journal it replaced.
const BEFORE: &str = "before";

/// Workloads whose journals a forger can read.
pub struct KnownJournals<'k> {
    /// Past states of Workloads.
    pub seen: &'k [Arc<Value>],
    /// Current Workloads.
    pub now: &'k [Arc<Value>],
}

/// The forged journal of a Workload; null to erase it.
pub fn journal(
    what: Move,
    all: &KnownJournals<'_>,
    workload: &Value,
    check: &str,
    chance: &mut Chance,
) -> Value {
    let key = names::journal_key(check);
    let own = annotation(workload, &key).to_owned();
    let with = |fields: Value| overwritten(&own, &fields);
    match what {
        Move::ForgeApproved => with(json!({"state": "Approved", "slots": 0, "attempt": 1})),
        Move::ForgeRollback => {
            with(json!({"state": "RollingBack", "then": "Rejected", "attempt": 4_000_000_000_u32}))
        }
        Move::ForgeSlots => with(json!({"slots": chance.pick(&[0, 1, 7, u32::MAX])})),
        Move::ForgeTrace => {
            let other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            let trace = if chance.happens(500) { other } else { "00-0-0-ff" };
            with(
                json!({"traceparent": trace, "trace": {"since": "1970-01-01T00:00:00Z", "seq": u64::MAX, "resumed": u64::MAX}}),
            )
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
        // The journal is a newer version's already, which writes it again unchanged.
        Move::NewerJournal if before(workload, check).is_some() => json!(own),
        Move::NewerJournal if !own.is_empty() => {
            json!(json!({"version": 99, "state": "Somewhere", BEFORE: own}).to_string())
        }
        _ => Value::Null,
    }
}

/// The journal with these fields set.
fn overwritten(journal: &str, fields: &Value) -> Value {
    let mut journal: Value = serde_json::from_str(journal).unwrap_or_default();
    if let (Some(journal), Some(fields)) = (journal.as_object_mut(), fields.as_object()) {
        journal.extend(fields.clone());
    }
    json!(journal.to_string())
}

/// The journal that a newer version replaced, if any. It is restored later, and the gang continues from there.
pub fn before(workload: &Value, check: &str) -> Option<Value> {
    let journal: Value = serde_json::from_str(annotation(workload, &names::journal_key(check))).ok()?;
    journal.get(BEFORE).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{AdmissionId, Journal};
    use jiff::Timestamp;

    #[test]
    fn a_forgery_changes_only_its_own_keys() {
        let mut own = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        own.memory.slots = 2;
        let own: Value = serde_json::from_str(&own.encode()).unwrap();
        let workload = json!({"metadata": {"annotations": {(names::journal_key("c")): own.to_string()}}});
        let all = KnownJournals { seen: &[], now: &[] };
        for (what, keys) in
            [(Move::ForgeSlots, &["slots"][..]), (Move::ForgeTrace, &["traceparent", "trace"])]
        {
            let changed: Vec<Value> = (0..20)
                .map(|seed| journal(what, &all, &workload, "c", &mut Chance::new(seed, "test")))
                .map(|forged| serde_json::from_str(forged.as_str().unwrap()).unwrap())
                .collect();
            let is_other = |forged: &Value| keys.iter().all(|key| forged[key] != own[key]);
            assert!(changed.iter().all(is_other), "{what:?}: {changed:?}");
            assert!(changed.iter().all(|forged| forged["state"] == own["state"]), "{what:?}: {changed:?}");
            assert!(changed.iter().any(|forged| *forged != changed[0]), "{what:?} is always the same");
            let read = |forged: &Value| {
                Journal::decode(&forged.to_string(), "u", Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH)
            };
            assert!(changed.iter().any(|forged| read(forged).is_ok()), "{what:?} is never read: {changed:?}");
        }
    }
}
