//! What must be true after every write, whatever goes wrong: checked on each change in the order in
//! which the API server commits them.
//!
//! | id | invariant |
//! |----|-----------|
//! | honest | Ready is written only when every node of the current attempt is up |
//! | one-per-slot | no two live claims for one slot, and never more than the gang has slots |
//! | lawful | every journal is reached from the one before by edges of the chart, numbered without a gap |
//! | ours | Setu deletes only claims that it made for the Workload they name, and asks for each by its UID |
//! | first-written | a claim is created only under a journal that names its attempt, and deleted under none that wants it |
//! | total-rollback | no claim is made for an attempt that is being taken back, and that ends only when none is left but those that cannot be deleted for ten minutes |
//! | led | a pod of a gang that has nodes runs on one of them |
//! | bounded | no claim is created twice but where an answer may have been lost, and then a few times; a gang costs a bounded number of writes, and no more attempts under one admission than the policy says |
//! | stable | what Kueue is told to add to the pods does not change while it says Ready, nor from one Ready of an attempt to the next |
//! | verdict | a gang is told Retry or Rejected only where its journal says so for the reservation that stands and no claim is left; what Kueue has admitted on is not taken back while that stands |
//! | right-admission | a Ready is of the admission it is written for, and is taken back if Kueue admits another on it |
//! | no-kill | no claim on which an admitted gang runs is deleted by Setu while its reservation stands, whatever the journal says by then |
//! | no-livelock | a gang does not come to the same state of the same attempt again while nothing but Setu moved |
//! | small | a journal has at most 8 KiB, a message at most 1 KiB |
//! | alive | no replica ends by itself |
//! | same-queue | a node that was kept passes only to a gang of the LocalQueue that it was kept for |
//! | progress | once faults have ended, every gang comes to its end |
//! | nothing-left | when all is over, no claim and no node is left |

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

use super::api::{Caller, Change, Observer};
use super::values::{name, namespace, text, uid};
use crate::api::Workload;
use crate::gang::StateName;
use crate::names;
use axum::body::Bytes;
use http::{Method, Request};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that must never be true was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Timestamp,
    /// Which invariant.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.at, self.invariant, self.what)
    }
}

/// The world as committed, and what was found wrong in it.
#[derive(Default)]
struct Committed {
    claims: BTreeMap<String, Arc<Value>>,
    nodes: BTreeMap<String, Arc<Value>>,
    /// By UID.
    workloads: BTreeMap<String, Arc<Value>>,
    admitted_book: admitted::Book,
    attempts_book: attempts::Book,
    claims_book: claims::Book,
    ends_book: ends::Book,
    gangs_book: gangs::Book,
    lateness: lateness::Lateness,
    violations: Vec<Violation>,
    log: Sha256,
    lines: Vec<String>,
    keep_lines: bool,
    /// How often one claim may be created.
    creates: u32,
    changes: u64,
    /// Changes that others than Setu made.
    moves_of_others: u64,
    now: Timestamp,
}

impl Committed {
    fn violated(&mut self, invariant: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { at: self.now, invariant, what: what.into() });
    }

    /// A Workload by UID, decoded as Setu decodes it.
    fn workload(&self, uid: &str) -> Option<Workload> {
        decode(self.workloads.get(uid)?)
    }
}

fn decode(object: &Value) -> Option<Workload> {
    Workload::deserialize(object).ok()
}

/// Watches over the invariants of one run.
#[derive(Clone, Default)]
pub struct Watchman(Arc<Mutex<Committed>>);

impl Watchman {
    /// A watchman who also keeps every change as a line of text.
    pub fn with_lines() -> Self {
        let watchman = Self::default();
        watchman.sight().keep_lines = true;
        watchman
    }

    fn sight(&self) -> MutexGuard<'_, Committed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows one claim to be created so often: whoever does not hear that a claim was made, or forgets
    /// it, and finds it gone, makes it again.
    pub fn allow_creates(&self, creates: u32) {
        self.sight().creates = creates;
    }

    /// What else may happen in this run.
    pub fn allow(&self, allowed: Allowed) {
        let mut sight = self.sight();
        sight.attempts_book.most = allowed.attempts;
        sight.lateness.delay = allowed.delay;
    }

    /// A replica that stood still since then goes on, with what it knew.
    pub fn woke(&self, since: Timestamp, now: Timestamp) {
        self.sight().lateness.woke(since, now);
    }

    /// From now on nothing goes wrong any more.
    pub fn calm(&self, now: Timestamp) {
        self.sight().admitted_book.calm(now);
    }

    /// What was found wrong so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.sight().violations.clone()
    }

    /// How many changes were committed.
    pub fn changes(&self) -> u64 {
        self.sight().changes
    }

    /// A digest of every change in its order.
    pub fn digest(&self) -> String {
        use fmt::Write as _;
        self.sight().log.clone().finalize().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Where the gangs are that are under way.
    pub fn states(&self) -> Vec<StateName> {
        self.sight().gangs_book.states().values().copied().collect()
    }

    /// The same by UID of their Workloads.
    pub fn states_by_workload(&self) -> BTreeMap<String, StateName> {
        self.sight().gangs_book.states().clone()
    }

    /// Where the gang of this Workload is, if it is under way.
    pub fn state_of(&self, workload: &str) -> Option<StateName> {
        self.sight().gangs_book.states().get(workload).copied()
    }

    /// How many Workloads there have been.
    pub fn lives(&self) -> u64 {
        self.sight().gangs_book.lives()
    }

    /// Seconds that nodes existed on which no pod ever ran.
    pub fn wasted(&self) -> f64 {
        self.sight().claims_book.wasted()
    }

    /// How many NodeClaims Setu created.
    pub fn created(&self) -> u64 {
        self.sight().claims_book.created()
    }

    /// What became of each Job, by its name.
    pub fn ends(&self) -> BTreeMap<String, End> {
        self.sight().ends_book.ends()
    }

    /// How often a gang went from one state to another, and why.
    pub fn steps(&self) -> BTreeMap<(StateName, StateName, String), u64> {
        self.sight().gangs_book.steps()
    }

    /// Every change as a line of text, if they are kept.
    pub fn lines(&self) -> Vec<String> {
        self.sight().lines.clone()
    }

    /// Checks what must be true when all is over: no claim and no node of Setu's is left.
    pub fn nothing_is_left(&self) {
        let mut sight = self.sight();
        let claims: Vec<String> = sight.claims.keys().cloned().collect();
        if !claims.is_empty() {
            sight.violated("nothing-left", format!("NodeClaims {claims:?} are left"));
        }
        let nodes: Vec<String> = sight.nodes.keys().cloned().collect();
        if !nodes.is_empty() {
            sight.violated("nothing-left", format!("Nodes {nodes:?} are left"));
        }
    }

    /// Notes something that the run itself found wrong.
    pub fn violated(&self, invariant: &'static str, at: Timestamp, what: impl Into<String>) {
        let mut sight = self.sight();
        sight.now = at;
        sight.violated(invariant, what);
    }
}

impl Observer for Watchman {
    fn committed(&mut self, change: &Change) {
        let mut sight = self.sight();
        sight.now = change.at;
        sight.changes += 1;
        sight.moves_of_others += u64::from(&*change.by != names::SETU);
        let line = line(change);
        sight.log.update(line.as_bytes());
        if sight.keep_lines {
            sight.lines.push(line);
        }
        match change.kind.kind {
            "NodeClaim" => {
                claims::changed(&mut sight, change);
                keep(&mut sight.claims, change, name);
            }
            "Node" => {
                keep(&mut sight.nodes, change, name);
                claims::node_changed(&mut sight, change);
            }
            "Job" => ends::job_changed(&mut sight, change),
            "Pod" => claims::pod_changed(&mut sight, change),
            "Workload" => {
                gangs::changed(&mut sight, change);
                match change.after.as_deref().and_then(decode) {
                    Some(workload) => admitted::changed(&mut sight, &workload),
                    None => admitted::gone(&mut sight, change.before.as_deref().map_or("", uid)),
                }
                ends::workload_changed(&mut sight, change);
                keep(&mut sight.workloads, change, uid);
            }
            _ => {}
        }
        admitted::check_stale(&mut sight);
    }

    fn asked(&mut self, caller: &Caller, request: &Request<Bytes>, at: Timestamp) {
        if &*caller.user != names::SETU || request.method() != Method::DELETE {
            return;
        }
        let Some((_, claim)) = request.uri().path().split_once("/nodeclaims") else { return };
        let options: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        if text(&options, "/preconditions/uid").is_empty() {
            let mut sight = self.sight();
            sight.now = at;
            sight.violated("ours", format!("NodeClaim {claim} is asked to be deleted, whatever its UID is"));
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

/// A change as one line: everything but what the change does not decide.
fn line(change: &Change) -> String {
    let object = change.after.as_ref().or(change.before.as_ref());
    let verb = match (&change.before, &change.after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "changed",
    };
    let (namespace, name) = object.map_or(("", ""), |o| (namespace(o), name(o)));
    let status = change.subresource.unwrap_or_default();
    let checks = object.map_or(&[][..], |o| super::values::list(o, "/status/admissionChecks"));
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
    use crate::gang::reservation::AdmissionId;
    use crate::gang::{Journal, State};
    use crate::sim::api::kinds;
    use serde_json::json;

    /// A Workload with the journal of its gang, as this makes it.
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

    /// A Workload whose journal has come to this state as its `seq`th.
    fn workload(seq: u64, state: State) -> Arc<Value> {
        Arc::new(with_journal(|journal| (journal.seq, journal.state) = (seq, state)))
    }

    fn waiting() -> State {
        State::BackingOff { until: Timestamp::UNIX_EPOCH }
    }

    /// Has a Workload go through these states, each written by Setu, and somebody else move after `others`.
    fn livelocked(states: &[State], others: Option<usize>) -> bool {
        let mut watchman = Watchman::default();
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
            watchman.committed(&change(names::SETU, &kinds::WORKLOAD, before, after.clone()));
            if others.is_some_and(|others| others as u64 == seq) {
                let node = Arc::new(json!({"metadata": {"name": "n"}}));
                watchman.committed(&change("kubelet", &kinds::NODE, None, Some(node)));
            }
            before = after;
        }
        watchman.violations().iter().any(|v| v.invariant == "no-livelock")
    }

    #[test]
    fn a_gang_that_goes_round_by_itself_is_found() {
        let round = [State::Validating, waiting(), State::Validating, waiting()];
        assert!(livelocked(&round, None), "not found");
        assert!(!livelocked(&round, Some(3)), "somebody moved in between");
        assert!(!livelocked(&[State::Validating, waiting(), State::Yielded], None));
    }
}
