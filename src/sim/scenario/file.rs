//! The format of a scenario file.
//!
//! Rule: strict. A key that is not known is an error, so that a check can never be skipped by a typo.

use crate::api::duration::Span;
use crate::api::workload::Verdict;
use crate::gang::{FailureClass, StateName};
use crate::plan::market::AVAILABLE;
use crate::sim::values::{name, text};
use crate::sim::weather::Rule;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// One run: a title, a world, and steps in their order.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// A sentence: what is promised.
    pub title: String,
    /// Quota of GPUs.
    #[serde(default = "plenty")]
    pub gpus: u32,
    /// Karpenter's provider that it needs.
    #[serde(default)]
    pub provider: Provider,
    /// More arguments of `setu run`, on the real control plane.
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
    /// What happens, and what must be true meanwhile.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Named alternatives: the scenario is run once for every combination.
    #[serde(default)]
    pub matrix: BTreeMap<String, BTreeMap<String, Vec<Step>>>,
    /// It disturbs the whole cluster, or is disturbed by what others change there, so it runs after all others.
    #[serde(default)]
    pub alone: bool,
    /// Run it once for each of Setu's writes, killing Setu right after that write.
    #[serde(default)]
    pub kill_after_each_write: bool,
}

/// A provider of Karpenter.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Provider {
    /// Nodes without machines, of types whose sizes Setu does not know.
    #[default]
    Kwok,
    /// EC2, whose types Setu knows.
    Aws,
}

/// Rules of the weather, as they were written; each must be one that the cloud understands.
fn rules<'de, D: Deserializer<'de>>(written: D) -> Result<Vec<Value>, D::Error> {
    let rules = Vec::<Value>::deserialize(written)?;
    for (index, rule) in rules.iter().enumerate() {
        Rule::deserialize(rule)
            .map_err(|error| D::Error::custom(format!("rule {} of the weather: {error}", index + 1)))?;
    }
    Ok(rules)
}

fn queue() -> String {
    "queue".to_owned()
}

fn plenty() -> u32 {
    100
}

/// One thing that happens or must become true.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// A Job is submitted.
    Submit(Job),
    /// A group of plain pods is submitted.
    Group(Group),
    /// Objects are applied.
    Apply(Vec<Value>),
    /// An object is deleted.
    Delete(Target),
    /// An object is changed by a merge patch.
    Patch(Change),
    /// The weather changes.
    #[serde(deserialize_with = "rules")]
    Weather(Vec<Value>),
    /// Karpenter's metrics page says this of offerings from now on, and Setu has read it.
    KarpenterSays(Vec<Offering>),
    /// An AdmissionCheck of nobody's becomes Active.
    Activate(String),
    /// The controller of another check says what comes of a Workload.
    Answer(Answer),
    /// Kueue evicts a Job for a reason that has no cause here, and all else takes its course.
    Evict(Eviction),
    /// Somebody deletes one NodeClaim of this Job's gang.
    DeleteOneClaim(String),
    /// Somebody's finalizer keeps the NodeClaims of this Job's gang from going.
    KeepClaims(String),
    /// That finalizer is taken off.
    LetClaimsGo(String),
    /// Somebody writes the journal of a Workload, or erases it.
    Annotate(Annotation),
    /// The scenario's NodeClass becomes ready or not.
    NodeClassReady(bool),
    /// Setu is stopped, started or killed.
    Setu(Power),
    /// The API server is stopped for this many seconds.
    ApiServerGone(u64),
    /// The steps of the chosen alternative on this axis of the matrix.
    Use(String),
    /// This becomes true.
    Until(Expect),
    /// This is true now and stays so for `within`.
    Holds(Expect),
}

impl Step {
    /// The step for people: what it is and what it is about.
    pub fn told(&self) -> String {
        let named = |o: &Value| format!("{} {}", text(o, "/kind"), name(o));
        let about = |expect: &Expect| expect.job.clone().unwrap_or_default();
        let told = match self {
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
        told.trim_end().to_owned()
    }
}

/// What Karpenter's metrics say of an offering.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offering {
    /// The instance type.
    pub instance_type: String,
    /// The zone.
    pub zone: String,
    /// The capacity type.
    pub capacity_type: String,
    /// Whether it may be had, as far as Karpenter knows.
    pub available: bool,
}

impl Offering {
    /// Its line on Karpenter's metrics page.
    pub fn line(&self) -> String {
        let Self { instance_type, zone, capacity_type, available } = self;
        format!(
            "{AVAILABLE}{{instance_type=\"{instance_type}\",zone=\"{zone}\",capacity_type=\"{capacity_type}\"}} {}\n",
            u8::from(*available)
        )
    }
}

/// What is done to Setu.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Power {
    /// Setu starts.
    Start,
    /// Setu dies as in a power failure.
    Kill,
}

/// A Job in the scenario's queue.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// How many pods run at the same time.
    pub pods: u32,
    /// GPUs of each pod.
    #[serde(default)]
    pub gpus: u32,
    /// How long each pod runs; for ever if absent.
    pub run_for: Option<Span>,
    /// How many of its pods may be lost before it fails.
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
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its kinds of pods.
    pub roles: Vec<Role>,
    /// How long each pod runs; for ever if absent.
    pub run_for: Option<Span>,
}

/// Like pods of a group.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Role {
    /// Part of the pods' names.
    pub name: String,
    /// How many.
    pub pods: u32,
    /// GPUs of each.
    #[serde(default)]
    pub gpus: u32,
}

/// What another check says.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// The Job.
    pub name: String,
    /// The check.
    pub check: String,
    /// Its verdict: `Ready`, `Retry` or `Rejected`.
    pub verdict: String,
}

/// An eviction that somebody else than Setu causes.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Eviction {
    /// The Job.
    pub name: String,
    /// Kueue's reason for it, such as `NodeFailures`.
    pub reason: String,
}

/// A journal as somebody else writes it.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Annotation {
    /// The Job.
    pub name: String,
    /// The annotation's new value; absent to erase it.
    pub journal: Option<String>,
}

/// An object by kind and name, in the scenario's namespace if its kind has one.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A merge patch. The name of a Workload is that of its Job.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The merge patch.
    pub patch: Value,
}

/// What must be true, all of it together.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Seconds it may take, or must last.
    #[serde(default = "two_minutes")]
    pub within: u64,
    /// The Job or pod group the next lines are about.
    pub job: Option<String>,
    /// State of its gang.
    pub state: Option<StateName>,
    /// Verdict in its check.
    pub verdict: Option<Verdict>,
    /// Words in the check's message.
    pub message: Option<String>,
    /// Class of the last failure.
    pub failure: Option<FailureClass>,
    /// States its gang has been in, in this order, others between them allowed.
    pub went_through: Option<Vec<StateName>>,
    /// Whether it holds quota.
    pub reserved: Option<bool>,
    /// Whether it is admitted.
    pub admitted: Option<bool>,
    /// Whether it has finished.
    pub finished: Option<bool>,
    /// Pods that run.
    pub running: Option<usize>,
    /// Pods that run, each on a node of this gang's own, one node a pod; the node of a NodeClaim that is being
    /// deleted is not one of them.
    pub running_on_own_nodes: Option<usize>,
    /// NodeClaims of this gang.
    pub claims: Option<usize>,
    /// Number of its gang's current or last attempt.
    pub attempt: Option<u32>,
    /// How many NodeClaims of this gang there are of each capacity type.
    pub capacity_types: Option<BTreeMap<String, usize>>,
    /// NodeClaims of this gang whose machine has a GPU.
    pub gpu_nodes: Option<usize>,
    /// Annotations that every NodeClaim of this gang has, or has not.
    pub annotations: Option<BTreeMap<String, Option<String>>>,
    /// Label key of which every NodeClaim of this gang requires one and the same value, and every Node has it.
    pub together: Option<String>,
    /// Pods of others that run on the nodes of this gang.
    pub strangers: Option<usize>,
    /// Reason of an Event on its Workload.
    pub event: Option<String>,
    /// NodeClaims of the whole scenario.
    pub all_claims: Option<usize>,
    /// Nodes of the scenario's NodePools, whosever they are.
    pub nodes: Option<usize>,
    /// An object that is not there any more.
    pub gone: Option<Target>,
    /// Status and reason of the check's Active condition.
    pub active: Option<String>,
}

fn two_minutes() -> u64 {
    120
}
