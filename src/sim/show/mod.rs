//! What a spectator sees of an embedded cluster: every gang with its state, its nodes and its cost.
//!
//! It is gathered from the changes that the API server commits, as anybody could who watches it.

mod acts;
pub mod pace;
pub mod play;

use super::api::{Change, Observer};
use super::values::{annotation, is, is_going, label, list, name, namespace, since, text, uid};
use crate::gang::{Journal, StateName};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far one node of a gang has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Asked for.
    Asked,
    /// Its instance runs.
    Launched,
    /// Its Node is there.
    Registered,
    /// Pods can run on it.
    Ready,
    /// It is given back.
    Going,
}

/// One gang.
#[derive(Clone, Debug, Default)]
pub struct Gang {
    /// `namespace/name` of its Workload.
    pub workload: String,
    /// Name of its Job, or of the Workload.
    pub job: String,
    /// Where it is, and since when; `None` before its quota is reserved.
    pub state: Option<(StateName, Timestamp)>,
    /// What Setu said of it last, in the line for people or in its check's message.
    pub said: String,
    /// The tier that its last attempt is of; empty before the first.
    pub tier: String,
    /// The tiers that its attempts were of, each named once, in the order in which it came to them.
    pub tiers: Vec<String>,
    /// Number of its attempt.
    pub attempt: u32,
    /// Nodes it needs.
    pub slots: u32,
    /// Its nodes, by name of their claim.
    pub nodes: BTreeMap<String, Phase>,
    /// Every state it was in, with the time it took, newest last.
    pub path: Vec<(StateName, SignedDuration)>,
    /// Nodes that were created for it.
    pub created: u32,
    /// Seconds of nodes on which no pod of it ran.
    pub wasted: f64,
    /// Writes that Setu made for it: to its Workload and its NodeClaims, and Events on the former.
    pub writes: u64,
    /// Whether its pods may run.
    pub admitted: bool,
    /// Whether it has run to its end.
    pub finished: bool,
    last_step: u64,
    /// Its check's message, as last seen.
    message: String,
}

#[derive(Default)]
struct Book {
    /// By UID of the Workload.
    gangs: BTreeMap<String, Gang>,
    used: BTreeSet<String>,
    leader: String,
    news: Vec<(Timestamp, String)>,
    now: Timestamp,
}

/// A spectator. Clones see the same.
#[derive(Clone, Default)]
pub struct Spectator(Arc<Mutex<Book>>);

impl Spectator {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every gang, in the order of their names.
    pub fn gangs(&self) -> Vec<Gang> {
        let mut gangs: Vec<Gang> = self.book().gangs.values().cloned().collect();
        gangs.sort_by(|a, b| a.workload.cmp(&b.workload));
        gangs
    }

    /// What happened since this was asked last, each with its time.
    pub fn news(&self) -> Vec<(Timestamp, String)> {
        std::mem::take(&mut self.book().news)
    }

    /// Tells something to whoever watches.
    pub fn announce(&self, at: Timestamp, text: impl Into<String>) {
        self.book().news.push((at, text.into()));
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
                // Of what is a gang's, only its Workload has Events of Setu.
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

impl Book {
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
        let mut news = Vec::new();
        if gang.admitted && !was.0 {
            news.push((now, format!("{}: admitted by Kueue, its pods start", gang.job)));
        }
        if gang.finished && !was.1 {
            news.push((now, format!("{}: finished", gang.job)));
        }
        news.extend(gang.journal(workload, now));
        self.news.extend(news);
    }

    fn lease(&mut self, holder: &str) {
        if self.leader != holder && !holder.is_empty() {
            holder.clone_into(&mut self.leader);
            self.news.push((self.now, format!("{holder} leads")));
        }
    }

    fn claim(&mut self, claim: &Value, new: bool, by_setu: bool) {
        let Some(gang) = self.gangs.get_mut(label(claim, names::WORKLOAD_UID)) else { return };
        gang.created += u32::from(new);
        gang.writes += u64::from(by_setu);
        let phase = if is_going(claim) {
            Phase::Going
        } else if is(claim, "Initialized") {
            Phase::Ready
        } else if is(claim, "Registered") {
            Phase::Registered
        } else if is(claim, "Launched") {
            Phase::Launched
        } else {
            Phase::Asked
        };
        gang.nodes.insert(name(claim).to_owned(), phase);
    }

    fn claim_gone(&mut self, claim: &Value) {
        let now = self.now;
        let used = self.used.contains(name(claim));
        let Some(gang) = self.gangs.get_mut(label(claim, names::WORKLOAD_UID)) else { return };
        gang.nodes.remove(name(claim));
        if !used && is(claim, "Launched") {
            gang.wasted += since(claim, "Launched").map_or(0.0, |t| now.duration_since(t).as_secs_f64());
        }
    }
}

impl Gang {
    /// Takes in what the journal says, and returns what is new.
    fn journal(&mut self, workload: &Value, now: Timestamp) -> Vec<(Timestamp, String)> {
        let annotations = workload.pointer("/metadata/annotations").and_then(Value::as_object);
        let mut found = annotations.into_iter().flatten().filter_map(|(key, journal)| {
            let check = key.strip_prefix(names::JOURNAL_PREFIX)?;
            let journal =
                Journal::decode(journal.as_str()?, uid(workload), Timestamp::MIN, Timestamp::MAX).ok()?;
            Some((check.to_owned(), journal))
        });
        let Some((check, journal)) = found.next() else { return Vec::new() };
        self.hear(workload, &check, journal.seq);
        (self.attempt, self.slots) = (journal.memory.attempt, journal.memory.slots);
        let mut news = Vec::new();
        for step in journal.history.iter().filter(|s| s.seq > self.last_step) {
            let (before, entered) = self.state.unwrap_or((step.from, step.at));
            self.path.push((before, step.at.duration_since(entered)));
            self.state = Some((step.to, step.at));
            let told = journal.memory.last_failure.as_ref();
            // A gang that has ended well still remembers what failed before.
            let failure = told.filter(|f| step.reason.to_string() == f.reason.to_string());
            let why = failure.map_or_else(|| step.reason.to_string(), ToString::to_string);
            let begins = step.to == StateName::Provisioning && !self.tier.is_empty();
            let tier = if begins {
                format!(", attempt {}, tier {}", step.attempt, self.tier)
            } else {
                String::new()
            };
            news.push((now, format!("{}: {} → {} ({why}){tier}", self.job, step.from, step.to)));
        }
        self.last_step = journal.seq;
        self.state.get_or_insert((journal.state.name(), journal.entered_at));
        news
    }

    /// Takes in what is newer, the line for people that is written with each step, or the message.
    fn hear(&mut self, workload: &Value, check: &str, seq: u64) {
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
        // From the sentence, which has it only while an attempt is of it and also where the policy names none: the
        // journal names the next tier while the last attempt is still being taken back.
        let tier = self.said.split_once(", tier ").map(|(_, rest)| rest.split(';').next().unwrap_or(rest));
        let Some(tier) = tier else { return };
        tier.clone_into(&mut self.tier);
        if !self.tiers.contains(&self.tier) {
            self.tiers.push(self.tier.clone());
        }
    }

    /// How many of its nodes are ready, by the same count as in what was said.
    pub fn ready(&self) -> usize {
        let counted = self.said.split_once(" nodes ready").and_then(|(count, _)| count.split_once('/'));
        let said = counted.and_then(|(ready, _)| ready.parse().ok());
        said.unwrap_or_else(|| self.count(Phase::Ready))
    }

    /// How many of its nodes have come at least so far.
    pub fn count(&self, at_least: Phase) -> usize {
        let rank = |phase: Phase| match phase {
            Phase::Asked => 1,
            Phase::Launched => 2,
            Phase::Registered => 3,
            Phase::Ready => 4,
            Phase::Going => 0,
        };
        self.nodes.values().filter(|p| rank(**p) >= rank(at_least)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::api::kinds::{self, Kind};
    use serde_json::json;

    #[test]
    fn the_writes_of_a_gang_are_those_of_setu_to_its_workload_and_claims_and_its_events() {
        let mut spectator = Spectator::default();
        let mut commit = |kind: &'static Kind, by: &str, after: Value| {
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
