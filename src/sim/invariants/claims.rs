//! Invariants of NodeClaims: who creates and deletes them, how many there are, and under which journal.

use super::{Committed, attempts, decode, read_journal};
use crate::api::workload::Verdict;
use crate::gang::{Journal, Reservation};
use crate::names;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use setu_sim::api::Change;
use setu_sim::values::{self, annotation, is, is_going, label, list, name, noted, since, text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The record of claims.
#[derive(Default)]
pub struct ClaimsRecord {
    /// How often each claim was created, by name.
    created: BTreeMap<String, u32>,
    /// When each claim's node was last seen up.
    up: BTreeMap<String, Timestamp>,
    /// Claims that were taken over from another gang, by Workload UID, attempt and slot.
    taken_over: BTreeMap<[String; 3], String>,
    /// Claims whose create arrived after their slot had got a replacement.
    late: BTreeSet<String>,
    /// Nodes that have run a pod.
    used: BTreeSet<String>,
    /// Total lifetime in seconds of nodes that never ran a pod.
    wasted: f64,
}

impl ClaimsRecord {
    /// When this claim's node was last seen up.
    pub fn last_up(&self, claim: &str) -> Option<Timestamp> {
        self.up.get(claim).copied()
    }

    /// Name of the warm claim that took this place: Workload UID, attempt and slot.
    pub fn taken_over(&self, place: &[String; 3]) -> Option<&str> {
        self.taken_over.get(place).map(String::as_str)
    }

    /// Number of claims that Setu created.
    pub fn created(&self) -> u64 {
        self.created.values().map(|times| u64::from(*times)).sum()
    }

    /// Total lifetime in seconds of nodes that never ran a pod.
    pub fn wasted(&self) -> f64 {
        self.wasted
    }
}

/// The journal on the Workload that a claim was made for.
fn journal(committed: &Committed, claim: &Value) -> Option<Journal> {
    let workload = committed.workload(label(claim, names::WORKLOAD_UID))?;
    let check = annotation(claim, names::CHECK);
    let text = workload.metadata.annotations.as_ref()?.get(&names::journal_key(check))?;
    read_journal(text, workload.metadata.uid.as_deref().unwrap_or_default())
}

/// A NodeClaim was written. `committed` still has the state before.
pub fn changed(committed: &mut Committed, change: &Change) {
    let by_setu = &*change.by == names::SETU;
    match (&change.before, &change.after) {
        (None, Some(claim)) if by_setu => created(committed, claim),
        (Some(before), after) => {
            if after.is_none() && !committed.claims_record.used.contains(node_of(before)) {
                let launched = since(before, "Launched").filter(|_| is(before, "Launched"));
                committed.claims_record.wasted +=
                    launched.map_or(0.0, |t| committed.now.duration_since(t).as_secs_f64());
            }
            let begins = !is_going(before) && after.as_ref().is_none_or(|a| is_going(a));
            if by_setu && begins {
                deleted(committed, before);
            } else if by_setu && let Some(after) = after.as_ref().filter(|a| !is_going(a)) {
                patched(committed, before, after);
            }
            if let Some(after) = after {
                note_up(committed, after);
            }
        }
        _ => {}
    }
}

fn created(committed: &mut Committed, claim: &Value) {
    let name = name(claim).to_owned();
    // Erasing a journal also erases the count of attempts.
    let tampered = committed.gangs_record.is_tampered(label(claim, names::WORKLOAD_UID));
    let times = committed.claims_record.created.entry(name.clone()).or_default();
    *times += 1;
    if *times > committed.creates.max(1) && !tampered {
        let what = format!("{name} is created for the {times}. time");
        committed.violated("bounded", what);
    }
    let late = was_replaced(committed, claim);
    if late {
        committed.claims_record.late.insert(name.clone());
    } else if committed.claims.values().any(|other| is_live_in_same_slot(other, claim)) {
        committed.violated("one-per-slot", format!("{name} is a second claim for its slot"));
    }
    if !tampered {
        attempts::created_under(committed, claim);
    }
    match journal(committed, claim) {
        // The create was on its way when the Workload was deleted or its journal erased. The sweep deletes the claim.
        None if tampered || committed.workload(label(claim, names::WORKLOAD_UID)).is_none() => {}
        None => committed.violated("first-written", format!("{name} is created under no journal")),
        Some(journal) => {
            check_attempt(committed, claim, &journal);
            // Creates after the end of their attempt are checked above. With a tampered journal, a create may be on its
            // way when the slot count is reduced.
            if !late && !tampered {
                check_slots(committed, claim, &journal);
            }
        }
    }
}

fn is_live_in_same_slot(other: &Value, claim: &Value) -> bool {
    !is_going(other)
        && place(other) == place(claim)
        && annotation(other, names::CHECK) == annotation(claim, names::CHECK)
}

/// Checks that the journal names the attempt of a new claim.
fn check_attempt(committed: &mut Committed, claim: &Value, journal: &Journal) {
    let (attempt, stored) = (label(claim, names::ATTEMPT), journal.memory.attempt);
    let known = attempt.parse().is_ok_and(|attempt: u32| attempt <= stored);
    // The create was on its way when a tenant wrote a journal of an earlier attempt.
    let tampered = committed.gangs_record.is_tampered(label(claim, names::WORKLOAD_UID));
    let forgotten = tampered && committed.lateness.delay.is_positive();
    if !known && !forgotten {
        let name = name(claim);
        committed.violated(
            "first-written",
            format!("{name} of attempt {attempt} is created under a journal of attempt {stored}"),
        );
    }
}

/// Checks that a new claim of the current attempt does not exceed the slots of its gang.
fn check_slots(committed: &mut Committed, claim: &Value, journal: &Journal) {
    let attempt = label(claim, names::ATTEMPT);
    if !journal.state.wants_claims() || attempt != journal.memory.attempt.to_string() {
        return;
    }
    // A claim that arrived after its attempt is left to the sweep and does not count.
    let counts = |other: &Value| {
        let late = label(other, names::ATTEMPT) != attempt && committed.lateness.delay.is_positive();
        !is_going(other) && of_same_gang(other, claim) && !late
    };
    let live = committed.claims.values().filter(|other| counts(other)).count();
    let slots = usize::try_from(journal.memory.slots).unwrap_or(usize::MAX);
    if live >= slots {
        let name = name(claim);
        committed.violated("one-per-slot", format!("{name} is claim {} of a gang of {slots}", live + 1));
    }
}

/// Whether this delayed create was still on its way when its slot got a replacement. No precondition of the request
/// could have stopped it. The claim must be deleted later, or it is left over at the end.
fn was_replaced(committed: &Committed, claim: &Value) -> bool {
    let generation = |claim: &Value| noted(claim, names::GENERATION).parse().unwrap_or(0_u32);
    let in_its_place = |other: &Value| {
        of_same_gang(other, claim)
            && place(other)[1..] == place(claim)[1..]
            && generation(other) > generation(claim)
            && !attempts::is_long_ago(committed, values::created(other))
    };
    committed.lateness.delay.is_positive() && committed.claims.values().any(|other| in_its_place(other))
}

/// Workload UID, attempt and slot.
fn place(claim: &Value) -> [String; 3] {
    [label(claim, names::WORKLOAD_UID), label(claim, names::ATTEMPT), noted(claim, names::SLOT)]
        .map(str::to_owned)
}

fn of_same_gang(one: &Value, other: &Value) -> bool {
    label(one, names::GANG) == label(other, names::GANG)
}

fn deleted(committed: &mut Committed, claim: &Value) {
    let name = name(claim).to_owned();
    if label(claim, names::MANAGED_BY) != names::SETU {
        committed.violated("ours", format!("{name} is deleted, which Setu has not made"));
        return;
    }
    let (uid, check) = (label(claim, names::WORKLOAD_UID), annotation(claim, names::CHECK));
    let Some(workload) = committed.workload(uid) else { return };
    let tampered = committed.gangs_record.is_tampered(uid);
    let journal = journal(committed, claim);
    let approved = journal.as_ref().is_some_and(|j| j.state.is_approved());
    let leaving = workload.metadata.deletion_timestamp.is_some();
    // With any other verdict, Kueue knows that the pods lose their nodes.
    let is_ready = workload.check(check).is_none_or(|c| c.state == Verdict::Ready);
    let runs = committed.admitted_record.runs(uid, check).map(|attempt| attempt.to_string());
    let on_it = runs.as_deref() == Some(label(claim, names::ATTEMPT));
    // A tenant who forges a rollback in the journal harms only its own gang.
    let late = committed.claims_record.late.contains(&name);
    if on_it && !late && is_ready && !leaving && (approved || !tampered) {
        committed.violated("no-kill", format!("{name} is deleted while its gang runs"));
    }
    let Some(journal) = journal else { return };
    let current = label(claim, names::ATTEMPT) == journal.memory.attempt.to_string();
    let memory = &journal.memory;
    let latest = noted(claim, names::GENERATION).parse().unwrap_or(0) == memory.generation;
    let slot: Option<u32> = noted(claim, names::SLOT).parse().ok();
    let meant = current && latest && slot.is_some_and(|slot| slot < memory.slots);
    let held = match Reservation::of(&workload, check) {
        Reservation::Held { admission, .. } => admission == memory.admission,
        _ => false,
    };
    let until: Option<Timestamp> = annotation(claim, names::HOLD_UNTIL).parse().ok();
    let over = until.is_some_and(|until| until <= committed.now) && !workload.is_admitted();
    if meant && held && !over && !tampered && journal.state.wants_claims() {
        committed.violated("first-written", format!("{name} is deleted under a journal that wants it"));
    }
}

fn patched(committed: &mut Committed, before: &Value, after: &Value) {
    if label(before, names::MANAGED_BY) != names::SETU {
        committed.violated("ours", format!("{} is changed, which Setu has not made", name(before)));
    }
    let owner = label(after, names::WORKLOAD_UID);
    if owner.is_empty() || owner == label(before, names::WORKLOAD_UID) {
        return;
    }
    let queue = committed.workload(owner).map(|w| w.local_queue()).unwrap_or_default();
    if annotation(before, names::WARM_QUEUE) != queue {
        let what = format!("{} is taken over by {owner} of {queue}, for which it was not kept", name(before));
        committed.violated("same-queue", what);
    }
    committed.claims_record.taken_over.insert(place(after), name(after).to_owned());
}

/// A pod was written. A node that runs a pod is not wasted.
pub fn pod_changed(committed: &mut Committed, change: &Change) {
    let Some(pod) = &change.after else { return };
    if text(pod, "/status/phase") == "Running" {
        committed.claims_record.used.insert(text(pod, "/spec/nodeName").to_owned());
    }
    let node = |pod: &Value| text(pod, "/spec/nodeName").to_owned();
    let (before, after) = (change.before.as_deref().map(node).unwrap_or_default(), node(pod));
    if before.is_empty() && !after.is_empty() {
        bound(committed, pod, &after);
    }
}

/// A pod was bound. If its gang has nodes, it must be one of them.
fn bound(committed: &mut Committed, pod: &Value, node: &str) {
    let owners = |object: &Value| -> Vec<String> {
        list(object, "/metadata/ownerReferences").iter().map(|o| text(o, "/uid").to_owned()).collect()
    };
    let of = owners(pod);
    let owned = |workload: &&Arc<Value>| owners(workload).iter().any(|owner| of.contains(owner));
    let Some(workload) = committed.workloads.values().find(owned).and_then(|w| decode(w)) else { return };
    let uid = workload.uid().unwrap_or_default();
    let led = workload.checks().iter().filter(|entry| entry.state == Verdict::Ready).any(|entry| {
        let text = workload.annotations().get(&names::journal_key(&entry.name));
        let journal = text.and_then(|text| read_journal(text, &uid));
        journal.is_some_and(|j| j.state.holds_nodes())
    });
    let own = claim_of(committed, node).is_some_and(|claim| label(claim, names::WORKLOAD_UID) == uid);
    if led && !own && !committed.gangs_record.is_tampered(&uid) {
        committed.violated("led", format!("{} is bound to {node}, which is none of its gang's", name(pod)));
    }
}

/// Name of a claim's Node; empty before it has one.
fn node_of(claim: &Value) -> &str {
    text(claim, "/status/nodeName")
}

/// The claim of the Node with this name.
fn claim_of<'c>(committed: &'c Committed, node: &str) -> Option<&'c Arc<Value>> {
    committed.claims.values().find(|claim| node_of(claim) == node)
}

/// A Node was written. `committed` has the new state.
pub fn node_changed(committed: &mut Committed, change: &Change) {
    if let Some(node) = change.after.as_ref().or(change.before.as_ref())
        && let Some(claim) = claim_of(committed, name(node)).cloned()
    {
        note_up(committed, &claim);
    }
}

fn note_up(committed: &mut Committed, claim: &Value) {
    let node = committed.nodes.get(node_of(claim));
    let up =
        is(claim, "Initialized") && !is_going(claim) && node.is_some_and(|n| is(n, "Ready") && !is_going(n));
    let now = committed.now;
    if up {
        // It stays up until the next change of the claim or the Node.
        committed.claims_record.up.insert(name(claim).to_owned(), Timestamp::MAX);
    } else if let Some(last) = committed.claims_record.up.get_mut(name(claim)) {
        *last = (*last).min(now);
    }
}
