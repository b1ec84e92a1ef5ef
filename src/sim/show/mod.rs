//! A spectator's view of an embedded cluster: every gang with its state, its nodes and its cost.
//!
//! It is built only from the changes that the API server commits, as any client that watches could.

mod acts;
pub mod play;
pub mod speed;

use crate::gang::{Journal, StateName};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use setu_sim::api::{Change, Observer};
use setu_sim::values::{annotation, is, is_going, label, list, name, namespace, since, text, uid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The phase of one node of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhase {
    /// Requested.
    Asked,
    /// Its instance is running.
    Launched,
    /// Its Node exists.
    Registered,
    /// Pods can run on it.
    Ready,
    /// It is being deleted.
    Going,
}

/// One gang.
#[derive(Clone, Debug, Default)]
pub struct ShownGang {
    /// `namespace/name` of its Workload.
    pub workload: String,
    /// Name of its Job, or of the Workload.
    pub job: String,
    /// Its state, and since when; `None` before its quota is reserved.
    pub state: Option<(StateName, Timestamp)>,
    /// Setu's last message about it, from the state annotation or its check.
    pub said: String,
    /// The tier of its last attempt; empty before the first.
    pub tier: String,
    /// The distinct tiers of its attempts, in order of first use.
    pub tiers: Vec<String>,
    /// Its attempt.
    pub attempt: u32,
    /// Number of nodes it needs.
    pub slots: u32,
    /// Its nodes, by claim name.
    pub nodes: BTreeMap<String, NodePhase>,
    /// Every past state with its duration, newest last.
    pub path: Vec<(StateName, SignedDuration)>,
    /// Number of nodes created for it.
    pub created: u32,
    /// Total lifetime in seconds of nodes that never ran a pod.
    pub wasted: f64,
    /// Number of Setu's writes for it: to its Workload and NodeClaims, and Events on the Workload.
    pub writes: u64,
    /// Whether it is admitted.
    pub admitted: bool,
    /// Whether it has finished.
    pub finished: bool,
    last_step: u64,
    /// The last message seen on its check.
    message: String,
}

#[derive(Default)]
struct ShownCluster {
    /// By UID of the Workload.
    gangs: BTreeMap<String, ShownGang>,
    used: BTreeSet<String>,
    leader: String,
    announcements: Vec<(Timestamp, String)>,
    now: Timestamp,
}

/// A spectator, shared by clones.
#[derive(Clone, Default)]
pub struct Spectator(Arc<Mutex<ShownCluster>>);

impl Spectator {
    fn book(&self) -> MutexGuard<'_, ShownCluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All gangs, sorted by name.
    pub fn gangs(&self) -> Vec<ShownGang> {
        let mut gangs: Vec<ShownGang> = self.book().gangs.values().cloned().collect();
        gangs.sort_by(|a, b| a.workload.cmp(&b.workload));
        gangs
    }

    /// The events since the last call, each with its time.
    pub fn announcements(&self) -> Vec<(Timestamp, String)> {
        std::mem::take(&mut self.book().announcements)
    }

    /// Adds an announcement.
    pub fn announce(&self, at: Timestamp, text: impl Into<String>) {
        self.book().announcements.push((at, text.into()));
    }
}

impl Observer for Spectator {
    fn committed(&mut self, change: &Change) {
        let mut book = self.book();
        book.now = change.at;
        let by_setu = &*change.by == names::SETU;
        match (change.kind.kind, &change.after, &change.before) {
            ("Workload", Some(workload), _) => book.workload(workload, by_setu),
            ("NodeClaim", Some(claim), before) => book.claim(claim, before.is_none(), by_setu),
            ("NodeClaim", None, Some(claim)) => book.claim_gone(claim),
            ("Event", Some(event), _) if by_setu => {
                // Of a gang's objects, only the Workload has Events by Setu.
                if let Some(gang) = book.gangs.get_mut(text(event, "/regarding/uid")) {
                    gang.writes += 1;
                }
            }
            ("Lease", Some(lease), _) => book.lease(text(lease, "/spec/holderIdentity")),
            ("Pod", Some(pod), _) if text(pod, "/status/phase") == "Running" => {
                book.used.insert(text(pod, "/spec/nodeName").to_owned());
            }
            _ => {}
        }
    }
}

impl ShownCluster {
    fn workload(&mut self, workload: &Value, by_setu: bool) {
        let now = self.now;
        let gang = self.gangs.entry(uid(workload).to_owned()).or_default();
        gang.workload = format!("{}/{}", namespace(workload), name(workload));
        let owner = list(workload, "/metadata/ownerReferences").first().map_or("", |o| text(o, "/name"));
        if owner.is_empty() { name(workload) } else { owner }.clone_into(&mut gang.job);
        gang.writes += u64::from(by_setu);
        let was = (gang.admitted, gang.finished);
        gang.admitted = is(workload, "Admitted");
        gang.finished = is(workload, "Finished");
        let mut announcements = Vec::new();
        if gang.admitted && !was.0 {
            announcements.push((now, format!("{}: admitted by Kueue, its pods start", gang.job)));
        }
        if gang.finished && !was.1 {
            announcements.push((now, format!("{}: finished", gang.job)));
        }
        announcements.extend(gang.journal(workload, now));
        self.announcements.extend(announcements);
    }

    fn lease(&mut self, holder: &str) {
        if self.leader != holder && !holder.is_empty() {
            holder.clone_into(&mut self.leader);
            self.announcements.push((self.now, format!("{holder} leads")));
        }
    }

    fn claim(&mut self, claim: &Value, new: bool, by_setu: bool) {
        let Some(gang) = self.gangs.get_mut(label(claim, names::WORKLOAD_UID)) else { return };
        gang.created += u32::from(new);
        gang.writes += u64::from(by_setu);
        let phase = if is_going(claim) {
            NodePhase::Going
        } else if is(claim, "Initialized") {
            NodePhase::Ready
        } else if is(claim, "Registered") {
            NodePhase::Registered
        } else if is(claim, "Launched") {
            NodePhase::Launched
        } else {
            NodePhase::Asked
        };
        gang.nodes.insert(name(claim).to_owned(), phase);
    }

    fn claim_gone(&mut self, claim: &Value) {
        let now = self.now;
        let used = self.used.contains(text(claim, "/status/nodeName"));
        let Some(gang) = self.gangs.get_mut(label(claim, names::WORKLOAD_UID)) else { return };
        gang.nodes.remove(name(claim));
        if !used && is(claim, "Launched") {
            gang.wasted += since(claim, "Launched").map_or(0.0, |t| now.duration_since(t).as_secs_f64());
        }
    }
}

impl ShownGang {
    /// Updates the gang from its journal, and returns the announcements.
    fn journal(&mut self, workload: &Value, now: Timestamp) -> Vec<(Timestamp, String)> {
        let annotations = workload.pointer("/metadata/annotations").and_then(Value::as_object);
        let mut found = annotations.into_iter().flatten().filter_map(|(key, journal)| {
            let check = key.strip_prefix(names::JOURNAL_PREFIX)?;
            let journal =
                Journal::decode(journal.as_str()?, uid(workload), Timestamp::MIN, Timestamp::MAX).ok()?;
            Some((check.to_owned(), journal))
        });
        let Some((check, journal)) = found.next() else { return Vec::new() };
        self.read_message(workload, &check, journal.seq);
        (self.attempt, self.slots) = (journal.memory.attempt, journal.memory.slots);
        let mut announcements = Vec::new();
        for step in journal.history.iter().filter(|s| s.seq > self.last_step) {
            let (before, entered) = self.state.unwrap_or((step.from, step.at));
            self.path.push((before, step.at.duration_since(entered)));
            self.state = Some((step.to, step.at));
            let last_failure = journal.memory.last_failure.as_ref();
            // A gang that succeeded still has its last failure in the journal.
            let failure = last_failure.filter(|f| step.reason.to_string() == f.reason.to_string());
            let why = failure.map_or_else(|| step.reason.to_string(), ToString::to_string);
            let begins = step.to == StateName::Provisioning && !self.tier.is_empty();
            let tier = if begins {
                format!(", attempt {}, tier {}", step.attempt, self.tier)
            } else {
                String::new()
            };
            announcements.push((now, format!("{}: {} → {} ({why}){tier}", self.job, step.from, step.to)));
        }
        self.last_step = journal.seq;
        self.state.get_or_insert((journal.state.name(), journal.entered_at));
        announcements
    }

    /// Updates `said` from whatever changed: the state annotation, which is written with each step, or the message.
    fn read_message(&mut self, workload: &Value, check: &str, seq: u64) {
        if seq != self.last_step {
            let headline = annotation(workload, &names::state_key(check));
            headline.split_once(": ").map_or("", |(_, text)| text).clone_into(&mut self.said);
        }
        let entries = list(workload, "/status/admissionChecks");
        let message = entries.iter().find(|e| text(e, "/name") == check).map_or("", |e| text(e, "/message"));
        if message != self.message {
            message.clone_into(&mut self.message);
            message.clone_into(&mut self.said);
        }
        // The tier is parsed from the sentence, which names it only during an attempt of that tier, even if the policy names
        // none. The journal already names the next tier while the last attempt is still being rolled back.
        let tier = self.said.split_once(", tier ").map(|(_, rest)| rest.split(';').next().unwrap_or(rest));
        let Some(tier) = tier else { return };
        tier.clone_into(&mut self.tier);
        if !self.tiers.contains(&self.tier) {
            self.tiers.push(self.tier.clone());
        }
    }

    /// The number of ready nodes, as stated in `said` if it has a count.
    pub fn ready(&self) -> usize {
        let counted = self.said.split_once(" nodes ready").and_then(|(count, _)| count.split_once('/'));
        let said = counted.and_then(|(ready, _)| ready.parse().ok());
        said.unwrap_or_else(|| self.count(NodePhase::Ready))
    }

    /// The number of nodes that have reached at least this phase.
    pub fn count(&self, at_least: NodePhase) -> usize {
        let rank = |phase: NodePhase| match phase {
            NodePhase::Asked => 1,
            NodePhase::Launched => 2,
            NodePhase::Registered => 3,
            NodePhase::Ready => 4,
            NodePhase::Going => 0,
        };
        self.nodes.values().filter(|p| rank(**p) >= rank(at_least)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use setu_sim::api::kinds::{self, ServedKind};

    #[test]
    fn only_setus_writes_to_a_gangs_workload_claims_and_events_are_counted() {
        let mut spectator = Spectator::default();
        let mut commit = |kind: &'static ServedKind, by: &str, after: Value| {
            let (at, before, after) = (Timestamp::UNIX_EPOCH, None, Some(Arc::new(after)));
            spectator.committed(&Change {
                version: 1,
                at,
                kind,
                before,
                after,
                by: by.into(),
                subresource: None,
            });
        };
        let workload = json!({"metadata": {"namespace": "n", "name": "w", "uid": "u"}});
        commit(&kinds::WORKLOAD, "kueue", workload.clone());
        commit(&kinds::WORKLOAD, names::SETU, workload);
        commit(
            &kinds::NODE_CLAIM,
            names::SETU,
            json!({"metadata": {"name": "c", "labels": {(names::WORKLOAD_UID): "u"}}}),
        );
        commit(&kinds::EVENT, names::SETU, json!({"regarding": {"uid": "u"}}));
        commit(&kinds::EVENT, names::SETU, json!({"regarding": {"uid": "other"}}));
        commit(&kinds::EVENT, "kueue", json!({"regarding": {"uid": "u"}}));
        assert_eq!(spectator.gangs().iter().map(|g| g.writes).collect::<Vec<u64>>(), [3]);
    }
}
