//! Invariants of Workloads: their journals, and their verdicts.

use super::{Committed, admitted, attempts, decode, read_journal, verdicts};
use crate::api::Workload;
use crate::api::workload::{CheckState, PodSetUpdate, Verdict};
use crate::gang::statechart::journal::WRITE_LIMIT;
use crate::gang::{AdmissionId, GangIdentity, Journal, Reservation, StateName, statechart::diagram};
use crate::names;
use jiff::SignedDuration;
use kube::ResourceExt;
use setu_sim::api::Change;
use std::collections::{BTreeMap, BTreeSet};

/// A node must have been up at most this long before the commit of a Ready, if nothing delays a request: the
/// preceding call may take ten seconds.
const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(15);
/// Maximum length of a message in bytes.
const MESSAGE_LIMIT: usize = 1024;
/// Maximum writes by Setu of a Workload per attempt of its gang: twice the most in 1,200 random dramas.
const WRITES_PER_ATTEMPT: u64 = 300;
/// The same while several replicas act. If they remember different things, each undoes what the other writes.
const WRITES_OF_SEVERAL: u64 = 20_000;

/// The record of gangs.
#[derive(Default)]
pub struct GangsRecord {
    /// Whether several replicas act at the same time.
    pub several_act: bool,
    /// Number of writes by Setu to each Workload, by UID and attempt.
    writes: BTreeMap<(String, u32), u64>,
    /// The state of each gang, by UID of its Workload.
    states: BTreeMap<String, StateName>,
    lives: BTreeSet<String>,
    /// Workloads whose journal was written by another client.
    tampered: BTreeSet<String>,
    /// How often a gang went from one state to another, and why.
    steps: BTreeMap<(StateName, StateName, String), u64>,
    /// The number of changes by others when a gang last entered a state, by UID of its Workload.
    came: BTreeMap<String, BTreeMap<Visit, u64>>,
    /// The pod set updates of each attempt's first Ready.
    added: BTreeMap<Promise, Vec<PodSetUpdate>>,
}

/// A place that a gang may enter twice only if another client made a change: state, admission, attempt, generation.
type Visit = (StateName, AdmissionId, u32, u32);

/// The subject of a Ready: UID of the Workload, check, admission, attempt.
type Promise = (String, String, AdmissionId, u32);

impl GangsRecord {
    /// The states of all gangs, by UID of their Workload.
    pub fn states(&self) -> &BTreeMap<String, StateName> {
        &self.states
    }

    /// Whether another client has written the journal of a Workload.
    pub fn is_tampered(&self, uid: &str) -> bool {
        self.tampered.contains(uid)
    }

    /// How often a gang went from one state to another, and why.
    pub fn steps(&self) -> BTreeMap<(StateName, StateName, String), u64> {
        self.steps.clone()
    }

    /// Number of Workloads that have existed.
    pub fn lives(&self) -> u64 {
        self.lives.len() as u64
    }
}

/// A Workload was written. `committed` still has the state before.
pub fn changed(committed: &mut Committed, change: &Change) {
    let Some(after) = change.after.as_deref().and_then(decode) else {
        if let Some(before) = &change.before {
            committed.gangs_record.states.remove(setu_sim::values::uid(before));
        }
        return;
    };
    committed.gangs_record.lives.insert(after.uid().unwrap_or_default());
    let before = change.before.as_deref().and_then(decode);
    if let Some(before) = &before {
        attempts::workload_changed(committed, before, &after);
    }
    if &*change.by != names::SETU {
        let journals = |w: Option<&Workload>| -> Vec<String> {
            let all = w.into_iter().flat_map(ResourceExt::annotations);
            all.filter(|(k, _)| k.starts_with(names::JOURNAL_PREFIX)).map(|(_, v)| v.clone()).collect()
        };
        if before.is_some() && journals(before.as_ref()) != journals(Some(&after)) {
            committed.gangs_record.tampered.insert(after.uid().unwrap_or_default());
        }
        return;
    }
    count_write(committed, &after);
    for (key, text) in after.annotations() {
        if let Some(check) = key.strip_prefix(names::JOURNAL_PREFIX) {
            let old = before.as_ref().and_then(|b| b.annotations().get(key));
            if old != Some(text) {
                journal_written(committed, &after, check, old.map(String::as_str), text);
            }
        }
    }
    let Some(before) = before else { return };
    for entry in after.checks() {
        if let Some(old) = before.check(&entry.name).filter(|old| *old != entry) {
            entry_written(committed, &after, old, entry);
        }
    }
}

/// Setu has written a Workload, which counts for the attempt that its journal names.
fn count_write(committed: &mut Committed, workload: &Workload) {
    let uid = workload.uid().unwrap_or_default();
    let journals = workload.annotations().iter().filter(|(key, _)| key.starts_with(names::JOURNAL_PREFIX));
    let attempts = journals.filter_map(|(_, text)| Some(read_journal(text, &uid)?.memory.attempt));
    let attempt = attempts.max().unwrap_or_default();
    let record = &mut committed.gangs_record;
    let most = if record.several_act { WRITES_OF_SEVERAL } else { WRITES_PER_ATTEMPT };
    let writes = record.writes.entry((uid, attempt)).or_default();
    *writes += 1;
    if *writes == most + 1 {
        let what = format!("{} is written for the {writes}. time in attempt {attempt}", workload.name_any());
        committed.violated("bounded", what);
    }
}

fn journal_written(
    committed: &mut Committed,
    workload: &Workload,
    check: &str,
    old: Option<&str>,
    text: &str,
) {
    let (name, uid) = (workload.name_any(), workload.uid().unwrap_or_default());
    if text.len() > WRITE_LIMIT {
        committed.violated("small", format!("the journal of {name} has {} bytes", text.len()));
    }
    let Some(new) = read_journal(text, &uid) else {
        committed
            .violated("lawful", format!("the journal of {name} under {check} cannot be read back: {text}"));
        return;
    };
    committed.gangs_record.states.insert(uid.clone(), new.state.name());
    let old = old.and_then(|old| read_journal(old, &uid));
    attempts::journal_written(committed, workload, check, (old.as_ref(), &new));
    for step in new.history.iter().filter(|s| s.seq > old.as_ref().map_or(0, |old| old.seq)) {
        let step = (step.from, step.to, step.reason.to_string());
        *committed.gangs_record.steps.entry(step).or_default() += 1;
    }
    let Some(old) = old else { return };
    if old.seq == u64::MAX {
        // Only a forger sets the maximum, and no step can follow it.
        return;
    }
    if old.seq != new.seq {
        came_again(committed, workload, &new);
    }
    let Some(fault) = off_the_chart(&new, (old.seq, old.state.name())) else { return };
    // A forged journal that is not credible counts as missing. Then the gang starts again.
    let tampered = committed.gangs_record.is_tampered(&uid);
    if !tampered || off_the_chart(&new, (0, StateName::Validating)).is_some() {
        committed.violated("lawful", format!("{name}: {fault}"));
    }
}

/// How the journal's steps after the given one leave the chart; `None` if they do not.
fn off_the_chart(new: &Journal, mut at: (u64, StateName)) -> Option<String> {
    let (edges, begins) = (diagram::edges(), at.0);
    for step in new.history.iter().filter(|step| step.seq > begins) {
        if step.seq != at.0 + 1 || step.from != at.1 || !edges.contains_key(&(step.from, step.to)) {
            return Some(format!("{at:?} is followed by {step:?}"));
        }
        at = (step.seq, step.to);
    }
    let is = (new.seq, new.state.name());
    (at != is).then(|| format!("the history leads to {at:?}, the journal says {is:?}"))
}

/// A gang entered a state. It must not do so again unless another client made a change in between.
fn came_again(committed: &mut Committed, workload: &Workload, journal: &Journal) {
    let memory = &journal.memory;
    let place = (journal.state.name(), memory.admission.clone(), memory.attempt, memory.generation);
    let moves = committed.moves_of_others;
    let came = committed.gangs_record.came.entry(workload.uid().unwrap_or_default()).or_default();
    if came.insert(place, moves) == Some(moves) {
        let what =
            format!("{} comes to {} again, and nobody moved", workload.name_any(), journal.state.name());
        committed.violated("no-livelock", what);
    }
}

fn entry_written(committed: &mut Committed, workload: &Workload, old: &CheckState, new: &CheckState) {
    let name = workload.name_any();
    if new.message.len() > MESSAGE_LIMIT {
        committed.violated("small", format!("the message of {name} has {} bytes", new.message.len()));
    }
    if old.state == Verdict::Ready
        && new.state == Verdict::Ready
        && old.pod_set_updates != new.pod_set_updates
    {
        committed.violated("stable", format!("what {name} is to add to its pods changed while Ready"));
    }
    let text = workload.annotations().get(&names::journal_key(&new.name));
    let journal = text.and_then(|text| read_journal(text, &workload.uid().unwrap_or_default()));
    verdicts::entry_written(committed, workload, journal.as_ref(), (old, new));
    if new.state != Verdict::Ready || old.state == Verdict::Ready {
        return;
    }
    admitted::ready_written(committed, workload, &new.name);
    let Some(journal) = journal else {
        committed.violated("honest", format!("{name} is reported Ready without a journal"));
        return;
    };
    updates_are_stable(committed, workload, &journal, new);
    match Reservation::of(workload, &new.name) {
        Reservation::Held { admission, .. } if admission == journal.memory.admission => {}
        other => {
            let of = &journal.memory.admission;
            committed.violated(
                "right-admission",
                format!("{name} is reported Ready for {of} while its reservation is {other:?}"),
            );
        }
    }
    if !journal.state.is_approved() {
        committed.violated("honest", format!("{name} is reported Ready in {}", journal.state.name()));
    }
    // A gang that is admitted already does not start because of this Ready: its check was only added again.
    if !workload.is_admitted() {
        nodes_are_up(committed, workload, &journal, &new.name);
    }
}

/// Ready was set, perhaps again. The nodes of the attempt are the same, so the pods must be directed there in the same
/// way. Another attempt may pin differently. After the loss of a journal, the earlier updates are unknown.
fn updates_are_stable(committed: &mut Committed, workload: &Workload, journal: &Journal, entry: &CheckState) {
    let uid = workload.uid().unwrap_or_default();
    let promise = (uid.clone(), entry.name.clone(), journal.memory.admission.clone(), journal.memory.attempt);
    let record = &mut committed.gangs_record;
    let first = record.added.entry(promise).or_insert_with(|| entry.pod_set_updates.clone());
    if *first != entry.pod_set_updates && !record.tampered.contains(&uid) {
        let what = format!("what {} is to add to its pods changed between two Readys", workload.name_any());
        committed.violated("stable", what);
    }
}

fn nodes_are_up(committed: &mut Committed, workload: &Workload, journal: &Journal, check: &str) {
    let identity = GangIdentity::of(workload, check);
    let known = committed.lateness.before(committed.now, ON_ITS_WAY.max(committed.lateness.delay));
    for slot in 0..journal.memory.slots {
        let memory = &journal.memory;
        let names = (0..=memory.generation).map(|g| identity.replacement_name(memory.attempt, g, slot));
        let place = [identity.uid.clone(), memory.attempt.to_string(), slot.to_string()];
        let record = &committed.claims_record;
        let taken_over = record.taken_over(&place).and_then(|name| record.last_up(name));
        let last = names.filter_map(|name| record.last_up(&name)).max().max(taken_over);
        let claim = identity.claim_name(memory.attempt, slot);
        if last.is_none_or(|last| last < known) {
            let what = format!(
                "{} is reported Ready while the node of {claim} is not up (last: {last:?})",
                identity.workload
            );
            committed.violated("honest", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Nodes, State};
    use crate::sim::invariants::InvariantChecker;
    use crate::sim::invariants::tests::with_journal;
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use setu_sim::api::{Observer as _, kinds};
    use std::sync::Arc;

    /// A Workload in this attempt whose check has this state and directs its pods to these nodes.
    fn in_state(attempt: u32, state: &str, nodes: &str) -> Arc<Value> {
        let updates = json!([{"name": "main", "nodeSelector": {"gang": nodes}}]);
        let mut workload = with_journal(|journal| {
            (journal.state, journal.memory.attempt) = (State::Approved { nodes: Nodes::Held }, attempt);
        });
        workload["status"] = json!({"admissionChecks": [{
            "name": "c", "state": state, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "podSetUpdates": if state == "Ready" { updates } else { json!([]) },
        }]});
        Arc::new(workload)
    }

    /// Whether this sequence of check states written by Setu violates `stable`.
    fn changes(steps: &[(u32, &str, &str)]) -> bool {
        let mut checker = InvariantChecker::default();
        let mut before = Some(in_state(1, "Pending", ""));
        for (version, (attempt, state, nodes)) in (1..).zip(steps) {
            let after = Some(in_state(*attempt, state, nodes));
            checker.committed(&Change {
                version,
                at: Timestamp::UNIX_EPOCH,
                kind: &kinds::WORKLOAD,
                before,
                after: after.clone(),
                by: names::SETU.into(),
                subresource: None,
            });
            before = after;
        }
        checker.violations().iter().any(|v| v.invariant == "stable")
    }

    /// Whether Setu writes a Workload too often if it does so this many times in each of these attempts.
    fn too_many(writes: &[(u32, u64)]) -> bool {
        let mut checker = InvariantChecker::default();
        for (attempt, times) in writes {
            for version in 0..*times {
                let workload = in_state(*attempt, "Pending", "");
                checker.committed(&Change {
                    version,
                    at: Timestamp::UNIX_EPOCH,
                    kind: &kinds::WORKLOAD,
                    before: Some(Arc::clone(&workload)),
                    after: Some(workload),
                    by: names::SETU.into(),
                    subresource: None,
                });
            }
        }
        checker.violations().iter().any(|v| v.invariant == "bounded")
    }

    #[test]
    fn the_writes_of_each_attempt_are_counted() {
        let most = WRITES_PER_ATTEMPT;
        assert!(!too_many(&[(1, most), (2, most)]));
        assert!(too_many(&[(1, 1), (2, most + 1)]));
    }

    #[test]
    fn the_pod_set_updates_of_an_attempt_must_not_change_even_via_pending() {
        assert!(changes(&[(1, "Ready", "a"), (1, "Ready", "b")]));
        assert!(changes(&[(1, "Ready", "a"), (1, "Pending", ""), (1, "Ready", "b")]));
        assert!(!changes(&[(1, "Ready", "a"), (1, "Pending", ""), (1, "Ready", "a")]));
        assert!(!changes(&[(1, "Ready", "a"), (1, "Pending", ""), (2, "Ready", "b")]), "nodes of their own");
    }
}
