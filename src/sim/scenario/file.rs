//! The format of a scenario file.
//!
//! Rule: strict. An unknown key is an error, so that a typo can never skip a check.

use super::conditions::{self, Expect, ObjectName};
use crate::api::duration::Span;
use crate::plan::market::AVAILABLE;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use setu_sim::values::{name, text};
use setu_sim::weather::WeatherRule;
use std::collections::BTreeMap;

/// One run: a title, a world, and steps in order.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// The promised behaviour, in one sentence.
    pub title: String,
    /// GPU quota.
    #[serde(default = "plenty")]
    pub gpus: u32,
    /// The Karpenter provider that it needs.
    #[serde(default)]
    pub provider: KarpenterProvider,
    /// The oldest versions that have what it needs, by `kubernetes`, `karpenter` and `kueue`.
    #[serde(default)]
    pub since: BTreeMap<String, String>,
    /// Additional arguments of `setu run` on the real control plane.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// `defaults` of the policy file.
    #[serde(default)]
    pub policy: Value,
    /// `guards` of the policy file.
    #[serde(default)]
    pub guards: Value,
    /// Weather at the start.
    #[serde(default, deserialize_with = "rules")]
    pub weather: Vec<Value>,
    /// Events and expectations, in order.
    #[serde(default)]
    pub steps: Vec<ScenarioStep>,
    /// Named alternatives. The scenario is run once for every combination.
    #[serde(default)]
    pub matrix: BTreeMap<String, BTreeMap<String, Vec<ScenarioStep>>>,
    /// Run it after all others, because it disturbs the whole cluster or is disturbed by changes of others.
    #[serde(default)]
    pub alone: bool,
    /// Run it once for each of Setu's writes, killing Setu right after that write.
    #[serde(default)]
    pub kill_after_each_write: bool,
}

/// A Karpenter provider.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum KarpenterProvider {
    /// Nodes without machines, of types that Setu does not know.
    #[default]
    Kwok,
    /// EC2, with types that Setu knows.
    Aws,
}

/// Weather rules as written; each must be valid.
fn rules<'de, D: Deserializer<'de>>(written: D) -> Result<Vec<Value>, D::Error> {
    let rules = Vec::<Value>::deserialize(written)?;
    for (index, rule) in rules.iter().enumerate() {
        WeatherRule::deserialize(rule)
            .map_err(|error| D::Error::custom(format!("rule {} of the weather: {error}", index + 1)))?;
    }
    Ok(rules)
}

fn queue() -> String {
    "queue".to_owned()
}

fn one_core() -> String {
    "1".to_owned()
}

fn plenty() -> u32 {
    100
}

/// One event or expectation.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ScenarioStep {
    /// A Job is submitted.
    Submit(Job),
    /// A group of plain pods is submitted.
    Group(PodGroup),
    /// Objects are applied.
    Apply(Vec<Value>),
    /// An object is deleted.
    Delete(ObjectName),
    /// An object is changed by a merge patch.
    Patch(MergePatch),
    /// The weather changes.
    #[serde(deserialize_with = "rules")]
    Weather(Vec<Value>),
    /// Karpenter's metrics page shows these offerings from now on, and Setu has read it.
    KarpenterSays(Vec<ListedOffering>),
    /// An AdmissionCheck without a controller becomes Active.
    Activate(String),
    /// The controller of another check sets its verdict on a Workload.
    Answer(CheckAnswer),
    /// Kueue evicts a Job for a reason that the scenario has not caused. The rest takes its usual course.
    Evict(KueueEviction),
    /// A user deletes one NodeClaim of this Job's gang.
    DeleteOneClaim(String),
    /// A foreign finalizer blocks the deletion of the NodeClaims of this Job's gang.
    KeepClaims(String),
    /// That finalizer is removed.
    LetClaimsGo(String),
    /// A user writes or erases the journal of a Workload.
    Annotate(Annotation),
    /// The scenario's NodeClass becomes ready or not.
    NodeClassReady(bool),
    /// Setu is stopped, started or killed.
    Setu(Power),
    /// The API server is stopped for this many seconds.
    ApiServerGone(u64),
    /// The steps of the alternative chosen on this axis of the matrix.
    Use(String),
    /// This becomes true.
    #[serde(deserialize_with = "conditions::until")]
    Until(Expect),
    /// This is true now and stays so for `within`.
    #[serde(deserialize_with = "conditions::holds")]
    Holds(Expect),
}

impl ScenarioStep {
    /// The step for display: its kind and its object.
    pub fn description(&self) -> String {
        let named = |o: &Value| format!("{} {}", text(o, "/kind"), name(o));
        let about = |expect: &Expect| expect.job.clone().unwrap_or_default();
        let line = match self {
            Self::Submit(job) => format!("submit {}", job.name),
            Self::Group(group) => format!("group {}", group.name),
            Self::Apply(all) => {
                format!("apply {}", all.iter().map(named).collect::<Vec<String>>().join(", "))
            }
            Self::Delete(target) => format!("delete {} {}", target.kind, target.name),
            Self::Patch(change) => format!("patch {} {}", change.kind, change.name),
            Self::Weather(_) => "weather".to_owned(),
            Self::KarpenterSays(_) => "karpenterSays".to_owned(),
            Self::Activate(check) => format!("activate {check}"),
            Self::DeleteOneClaim(job) => format!("deleteOneClaim {job}"),
            Self::KeepClaims(job) => format!("keepClaims {job}"),
            Self::LetClaimsGo(job) => format!("letClaimsGo {job}"),
            Self::Answer(answer) => format!("answer {} {}", answer.check, answer.verdict),
            Self::Evict(eviction) => format!("evict {} {}", eviction.name, eviction.reason),
            Self::Annotate(annotation) => format!("annotate {}", annotation.name),
            Self::NodeClassReady(ready) => format!("nodeClassReady {ready}"),
            Self::Setu(Power::Start) => "setu start".to_owned(),
            Self::Setu(Power::Kill) => "setu kill".to_owned(),
            Self::ApiServerGone(seconds) => format!("apiServerGone {seconds}"),
            Self::Use(axis) => format!("use {axis}"),
            Self::Until(expect) => format!("until {}", about(expect)),
            Self::Holds(expect) => format!("holds {}", about(expect)),
        };
        line.trim_end().to_owned()
    }
}

/// An offering in Karpenter's metrics.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListedOffering {
    /// The instance type.
    pub instance_type: String,
    /// The zone.
    pub zone: String,
    /// The capacity type.
    pub capacity_type: String,
    /// Whether Karpenter considers it available.
    pub available: bool,
}

impl ListedOffering {
    /// Its line on Karpenter's metrics page.
    pub fn line(&self) -> String {
        let Self { instance_type, zone, capacity_type, available } = self;
        format!(
            "{AVAILABLE}{{instance_type=\"{instance_type}\",zone=\"{zone}\",capacity_type=\"{capacity_type}\"}} {}\n",
            u8::from(*available)
        )
    }
}

/// An action on Setu.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Power {
    /// Setu starts.
    Start,
    /// Setu is killed, like by a power failure.
    Kill,
}

/// A Job in the scenario's queue.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Number of pods that run at the same time.
    pub pods: u32,
    /// GPUs per pod.
    #[serde(default)]
    pub gpus: u32,
    /// How long each pod runs; forever if absent.
    pub run_for: Option<Span>,
    /// Number of pods that may be lost before it fails.
    #[serde(default)]
    pub restarts: u32,
    /// Its LocalQueue.
    #[serde(default = "queue")]
    pub queue: String,
    /// Whether it may preempt others.
    #[serde(default)]
    pub high_priority: bool,
    /// Annotations of its pods.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Node selector of its pods.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
}

/// A group of plain pods.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodGroup {
    /// Its name.
    pub name: String,
    /// Its kinds of pods.
    pub roles: Vec<PodRole>,
    /// How long each pod runs; forever if absent.
    pub run_for: Option<Span>,
}

/// Identical pods of a group.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodRole {
    /// Part of the pods' names.
    pub name: String,
    /// Their number.
    pub pods: u32,
    /// CPU per pod.
    #[serde(default = "one_core")]
    pub cpu: String,
    /// GPUs per pod.
    #[serde(default)]
    pub gpus: u32,
}

/// The verdict of another check.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckAnswer {
    /// The Job.
    pub name: String,
    /// The check.
    pub check: String,
    /// Its verdict: `Ready`, `Retry`, `Rejected` or `Pending`.
    pub verdict: String,
    /// Additions that it makes to the pods of each pod set.
    #[serde(default)]
    pub pod_set_updates: Vec<Value>,
}

/// An eviction that Setu does not cause.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KueueEviction {
    /// The Job.
    pub name: String,
    /// Kueue's reason for it, such as `NodeFailures`.
    pub reason: String,
}

/// A journal written by a user.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Annotation {
    /// The Job.
    pub name: String,
    /// The annotation's new value; absent to erase it.
    pub journal: Option<String>,
}

/// A merge patch. A Workload is named by its Job.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MergePatch {
    /// Kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The merge patch.
    pub patch: Value,
}
