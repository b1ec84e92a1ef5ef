//! A spectator's view of an embedded cluster: every gang with its state, its nodes and its cost.
//!
//! It is built only from the changes that the API server commits, as any client that watches could.

mod acts;
pub mod play;
pub mod speed;

use crate::api::NodeClaim;
use crate::gang::snapshot::observed::shared_capacity_type;
use crate::gang::{Journal, State, StateName};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use setu_sim::api::{Change, Observer};
use setu_sim::values::{annotation, is, label, list, name, namespace, since, text, uid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Number of nodes it needs.
    pub slots: u32,
    /// Its NodeClaims, by name.
    pub claims: BTreeMap<String, Arc<NodeClaim>>,
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
        if let Ok(decoded) = NodeClaim::deserialize(claim) {
            gang.claims.insert(name(claim).to_owned(), Arc::new(decoded));
        }
    }

    fn claim_gone(&mut self, claim: &Value) {
        let now = self.now;
        let used = self.used.contains(text(claim, "/status/nodeName"));
        let Some(gang) = self.gangs.get_mut(label(claim, names::WORKLOAD_UID)) else { return };
        gang.claims.remove(name(claim));
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
        self.read_tier(&journal);
        self.slots = journal.memory.slots;
        let mut announcements = Vec::new();
        for step in journal.history.iter().filter(|s| s.seq > self.last_step) {
            let (before, entered) = self.state.unwrap_or((step.from, step.at));
            self.path.push((before, step.at.duration_since(entered)));
            self.state = Some((step.to, step.at));
            let why = journal.failure_of(step).map_or_else(|| step.reason.to_string(), ToString::to_string);
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
    }

    /// Updates the tier during an attempt: the policy's name for it, or the capacity type of its claims. The journal already names
    /// the next tier while the last attempt is still being rolled back.
    fn read_tier(&mut self, journal: &Journal) {
        if !matches!(journal.state, State::Provisioning | State::WaitingReady) {
            return;
        }
        let attempt = journal.memory.attempt.to_string();
        let claims = self.claims.values().map(|claim| &**claim);
        let claims = claims.filter(|claim| claim.label(names::ATTEMPT) == attempt);
        let tier = journal.memory.tier_name.as_deref().or_else(|| shared_capacity_type(claims));
        let Some(tier) = tier.map(str::to_owned) else { return };
        if !self.tiers.contains(&tier) {
            self.tiers.push(tier.clone());
        }
        self.tier = tier;
    }

    /// The number of ready nodes.
    pub fn ready(&self) -> usize {
        let is_ready = |claim: &&Arc<NodeClaim>| claim.is_initialized() && !claim.is_deleting();
        self.claims.values().filter(is_ready).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{AdmissionId, Then};
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

    #[test]
    fn the_tier_is_that_of_the_attempt_by_the_policys_name_or_by_the_capacity_type_of_its_claims() {
        let claim = |attempt: &str, capacity_type: &str| -> Arc<NodeClaim> {
            let labels = json!({(names::ATTEMPT): attempt, (names::CAPACITY_TYPE): capacity_type});
            let class = json!({"group": "", "kind": "", "name": ""});
            let claim = json!({"metadata": {"labels": labels}, "spec": {"nodeClassRef": class}});
            Arc::new(serde_json::from_value(claim).unwrap())
        };
        let claims = [("a", claim("1", "spot")), ("b", claim("2", "on-demand"))];
        let claims = claims.map(|(name, claim)| (name.to_owned(), claim)).into();
        let mut gang = ShownGang { claims, ..ShownGang::default() };
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        let mut tier = |state: State, attempt: u32, name: Option<&str>| {
            (journal.state, journal.memory.attempt) = (state, attempt);
            journal.name_tier(name);
            gang.read_tier(&journal);
            gang.tier.clone()
        };
        assert_eq!(tier(State::WaitingReady, 1, None), "spot");
        assert_eq!(tier(State::RollingBack { then: Then::BackingOff }, 1, Some("next")), "spot");
        assert_eq!(tier(State::WaitingReady, 2, None), "on-demand");
        assert_eq!(tier(State::Provisioning, 3, Some("next")), "next");
        assert_eq!(gang.tiers, ["spot", "on-demand", "next"]);
    }
}
