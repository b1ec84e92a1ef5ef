//! Invariants that must hold after every write, whatever faults occur. They are checked on each change, in
//! commit order.
//!
//! | id | invariant |
//! |----|-----------|
//! | honest | Ready is written only when every node of the current attempt is up |
//! | one-per-slot | no two live claims for one slot, and never more than the gang has slots |
//! | lawful | every journal follows from the previous one by edges of the chart, numbered without a gap |
//! | ours | Setu deletes only claims that it made, and requests each delete with the UID as precondition |
//! | first-written | a claim is created only under a journal that names its attempt, and not deleted under a journal that wants it |
//! | total-rollback | no claim is made for an attempt that is being rolled back; a rollback ends only when no claim is left, except claims that could not be deleted for ten minutes |
//! | led | a pod of a gang that has nodes runs on one of them |
//! | bounded | no claim is created twice unless an answer may have been lost, and then a few times at most; a gang costs a bounded number of writes, and no more attempts per admission than the policy allows |
//! | stable | the pod set updates do not change while a check is Ready, nor from one Ready of an attempt to the next |
//! | verdict | a check is set to Retry or Rejected only if the journal says so for the current reservation and no claim is left; the verdict that a Workload was admitted on is not revoked while it is admitted |
//! | right-admission | a Ready is for the admission it is written for, and is revoked if Kueue admits another one on it |
//! | no-kill | Setu deletes no claim that an admitted gang runs on while its reservation holds, whatever the journal says by then |
//! | no-livelock | a gang does not enter the same state of the same attempt again while only Setu makes changes |
//! | small | a journal has at most 8 KiB, a message at most 1 KiB |
//! | alive | no replica ends unless it is stopped |
//! | same-queue | a warm node passes only to a gang of the LocalQueue that it was kept for |
//! | startable | Kueue can start the pods of every gang that is admitted: nothing that is added to them clashes |
//! | progress | once faults have ended, every Workload finishes or is deactivated |
//! | nothing-left | at the end, no claim and no node is left |

mod admitted;
mod attempts;
mod claims;
mod ends;
mod gangs;
mod lateness;
mod meant;
mod verdicts;

pub use attempts::Allowed;
pub use ends::End;

use crate::api::Workload;
use crate::gang::{Journal, StateName};
use crate::names;
use axum::body::Bytes;
use http::{Method, Request};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use setu_sim::api::{Caller, Change, Observer};
use setu_sim::values::{name, namespace, text, uid};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The time.
    pub at: Timestamp,
    /// The id of the invariant.
    pub invariant: &'static str,
    /// A description.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.at, self.invariant, self.what)
    }
}

/// The committed state of the cluster, and the violations found in it.
#[derive(Default)]
struct Committed {
    claims: BTreeMap<String, Arc<Value>>,
    nodes: BTreeMap<String, Arc<Value>>,
    /// By UID.
    workloads: BTreeMap<String, Arc<Value>>,
    admitted_record: admitted::AdmittedRecord,
    attempts_record: attempts::AttemptsRecord,
    claims_record: claims::ClaimsRecord,
    ends_record: ends::EndsRecord,
    gangs_record: gangs::GangsRecord,
    lateness: lateness::Lateness,
    violations: Vec<Violation>,
    log: Sha256,
    lines: Vec<String>,
    keep_lines: bool,
    /// Maximum number of creates of one claim.
    creates: u32,
    changes: u64,
    /// Number of changes made by clients other than Setu.
    moves_of_others: u64,
    now: Timestamp,
}

impl Committed {
    fn violated(&mut self, invariant: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { at: self.now, invariant, what: what.into() });
    }

    /// A Workload by UID, decoded like Setu decodes it.
    fn workload(&self, uid: &str) -> Option<Workload> {
        decode(self.workloads.get(uid)?)
    }
}

fn decode(object: &Value) -> Option<Workload> {
    Workload::deserialize(object).ok()
}

/// The journal in an annotation of the Workload with this UID, whatever its times are.
fn read_journal(text: &str, uid: &str) -> Option<Journal> {
    Journal::decode(text, uid, Timestamp::MIN, Timestamp::MAX).ok()
}

/// Checks the invariants of one run.
#[derive(Clone, Default)]
pub struct InvariantChecker(Arc<Mutex<Committed>>);

impl InvariantChecker {
    /// A checker that also keeps every change as a line of text.
    pub fn with_lines() -> Self {
        let checker = Self::default();
        checker.lock().keep_lines = true;
        checker
    }

    fn lock(&self) -> MutexGuard<'_, Committed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how often one claim may be created. A replica that misses the answer to a create, or forgets it, and finds
    /// the claim gone, creates it again.
    pub fn allow_creates(&self, creates: u32) {
        self.lock().creates = creates;
    }

    /// Sets the other limits of this run.
    pub fn allow(&self, allowed: Allowed) {
        let mut committed = self.lock();
        committed.attempts_record.most = allowed.attempts;
        committed.gangs_record.several_act = allowed.several_act;
        committed.lateness.delay = allowed.delay;
    }

    /// A replica that was paused since then resumes with its old knowledge.
    pub fn woke(&self, since: Timestamp, now: Timestamp) {
        self.lock().lateness.woke(since, now);
    }

    /// Records that faults have ended.
    pub fn calm(&self, now: Timestamp) {
        self.lock().admitted_record.calm(now);
    }

    /// The violations so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Number of committed changes.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// A digest of all changes in order.
    pub fn digest(&self) -> String {
        use fmt::Write as _;
        self.lock().log.clone().finalize().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The states of all gangs.
    pub fn states(&self) -> Vec<StateName> {
        self.lock().gangs_record.states().values().copied().collect()
    }

    /// The states of all gangs, by UID of their Workload.
    pub fn states_by_workload(&self) -> BTreeMap<String, StateName> {
        self.lock().gangs_record.states().clone()
    }

    /// The state of the gang of this Workload, if it has one.
    pub fn state_of(&self, workload: &str) -> Option<StateName> {
        self.lock().gangs_record.states().get(workload).copied()
    }

    /// Number of Workloads that have existed.
    pub fn lives(&self) -> u64 {
        self.lock().gangs_record.lives()
    }

    /// Total lifetime in seconds of nodes that never ran a pod.
    pub fn wasted(&self) -> f64 {
        self.lock().claims_record.wasted()
    }

    /// Number of NodeClaims that Setu created.
    pub fn created(&self) -> u64 {
        self.lock().claims_record.created()
    }

    /// The outcome of each Job, by name.
    pub fn ends(&self) -> BTreeMap<String, End> {
        self.lock().ends_record.ends()
    }

    /// How often a gang went from one state to another, and why.
    pub fn steps(&self) -> BTreeMap<(StateName, StateName, String), u64> {
        self.lock().gangs_record.steps()
    }

    /// Every change as a line of text, if they are kept.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// Checks that no claim and no node of Setu's is left at the end.
    pub fn nothing_is_left(&self) {
        let mut committed = self.lock();
        let claims: Vec<String> = committed.claims.keys().cloned().collect();
        if !claims.is_empty() {
            committed.violated("nothing-left", format!("NodeClaims {claims:?} are left"));
        }
        let nodes: Vec<String> = committed.nodes.keys().cloned().collect();
        if !nodes.is_empty() {
            committed.violated("nothing-left", format!("Nodes {nodes:?} are left"));
        }
    }

    /// Records a violation that the run itself found.
    pub fn violated(&self, invariant: &'static str, at: Timestamp, what: impl Into<String>) {
        let mut committed = self.lock();
        committed.now = at;
        committed.violated(invariant, what);
    }
}

impl Observer for InvariantChecker {
    fn committed(&mut self, change: &Change) {
        let mut committed = self.lock();
        committed.now = change.at;
        committed.changes += 1;
        committed.moves_of_others += u64::from(&*change.by != names::SETU);
        let line = line(change);
        committed.log.update(line.as_bytes());
        if committed.keep_lines {
            committed.lines.push(line);
        }
        match change.kind.kind {
            "NodeClaim" => {
                claims::changed(&mut committed, change);
                keep(&mut committed.claims, change, name);
            }
            "Node" => {
                keep(&mut committed.nodes, change, name);
                claims::node_changed(&mut committed, change);
            }
            "Job" => ends::job_changed(&mut committed, change),
            "Pod" => claims::pod_changed(&mut committed, change),
            "Workload" => {
                gangs::changed(&mut committed, change);
                match change.after.as_deref().and_then(decode) {
                    Some(workload) => admitted::changed(&mut committed, &workload),
                    None => admitted::gone(&mut committed, change.before.as_deref().map_or("", uid)),
                }
                ends::workload_changed(&mut committed, change);
                keep(&mut committed.workloads, change, uid);
            }
            _ => {}
        }
        admitted::check_stale(&mut committed);
    }

    fn asked(&mut self, caller: &Caller, request: &Request<Bytes>, at: Timestamp) {
        if &*caller.user != names::SETU || request.method() != Method::DELETE {
            return;
        }
        let Some((_, claim)) = request.uri().path().split_once("/nodeclaims") else { return };
        let options: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        if text(&options, "/preconditions/uid").is_empty() {
            let mut committed = self.lock();
            committed.now = at;
            committed
                .violated("ours", format!("NodeClaim {claim} is asked to be deleted, whatever its UID is"));
        }
    }
}

fn keep(all: &mut BTreeMap<String, Arc<Value>>, change: &Change, key: fn(&Value) -> &str) {
    if let Some(object) = &change.after {
        all.insert(key(object).to_owned(), Arc::clone(object));
    } else if let Some(object) = &change.before {
        all.remove(key(object));
    }
}

/// A change as one line of text.
fn line(change: &Change) -> String {
    let object = change.after.as_ref().or(change.before.as_ref());
    let verb = match (&change.before, &change.after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "changed",
    };
    let (namespace, name) = object.map_or(("", ""), |o| (namespace(o), name(o)));
    let status = change.subresource.unwrap_or_default();
    let checks = object.map_or(&[][..], |o| setu_sim::values::list(o, "/status/admissionChecks"));
    let verdicts: Vec<&str> = checks.iter().map(|c| text(c, "/state")).collect();
    let verdicts = verdicts.join(" ");
    let text = object.map_or_else(String::new, |o| crate::digest::digest(&[&o.to_string()], 8));
    format!(
        "{} {} {} {verb} {} {namespace}/{name} {status} {verdicts} {text}\n",
        change.version, change.at, change.by, change.kind.kind
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{AdmissionId, State};
    use serde_json::json;
    use setu_sim::api::kinds;

    /// A Workload with a journal that `make` has modified.
    pub(super) fn with_journal(make: impl FnOnce(&mut Journal)) -> Value {
        let mut journal = Journal::new("u", AdmissionId("e".to_owned()), Timestamp::UNIX_EPOCH, None);
        make(&mut journal);
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "namespace": "n", "name": "w", "uid": "u",
                "annotations": {(names::journal_key("c")): journal.encode()},
            },
            "spec": {"active": true},
        })
    }

    /// A Workload whose journal is in this state with this `seq`.
    fn workload(seq: u64, state: State) -> Arc<Value> {
        Arc::new(with_journal(|journal| (journal.seq, journal.state) = (seq, state)))
    }

    fn waiting() -> State {
        State::BackingOff { until: Timestamp::UNIX_EPOCH }
    }

    /// Whether a Workload that Setu moves through these states is a livelock. Another client makes a change after step `others`.
    fn livelocked(states: &[State], others: Option<usize>) -> bool {
        let mut checker = InvariantChecker::default();
        let mut before = None;
        for (seq, state) in (1..).zip(states) {
            let after = Some(workload(seq, state.clone()));
            let change = |by: &str, kind, before, after| Change {
                version: seq,
                at: Timestamp::UNIX_EPOCH,
                kind,
                before,
                after,
                by: by.into(),
                subresource: None,
            };
            checker.committed(&change(names::SETU, &kinds::WORKLOAD, before, after.clone()));
            if others.is_some_and(|others| others as u64 == seq) {
                let node = Arc::new(json!({"metadata": {"name": "n"}}));
                checker.committed(&change("kubelet", &kinds::NODE, None, Some(node)));
            }
            before = after;
        }
        checker.violations().iter().any(|v| v.invariant == "no-livelock")
    }

    #[test]
    fn a_gang_in_a_livelock_is_detected() {
        let round = [State::Validating, waiting(), State::Validating, waiting()];
        assert!(livelocked(&round, None), "not found");
        assert!(!livelocked(&round, Some(3)), "somebody moved in between");
        assert!(!livelocked(&[State::Validating, waiting(), State::Yielded], None));
    }
}
