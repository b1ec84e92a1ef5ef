//! How a plan is shown: tables for people, JSON for programs, NodeClaims for `kubectl`.

use super::admission::Admitted;
use crate::api::amount::{Currency, Money, Price};
use crate::api::pod::ResourceList;
use crate::cli::Failure;
use crate::names;
use crate::plan::cost::Prices;
use crate::plan::gates::Report;
use crate::plan::passed::PassedOver;
use crate::plan::resources::{amount, is_accelerator, is_device, is_positive, shown};
use crate::plan::{Obstacle, Outcome, Plan, Slot, Surveyed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tabled::builder::Builder;
use tabled::settings::{Padding, Style};

/// Everything that is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    workload: String,
    check: String,
    cluster_queue: String,
    flavors: Vec<String>,
    /// Whether the flavors are a guess.
    flavors_are_guessed: bool,
    /// What it comes to, in a sentence.
    outcome: String,
    /// Whether nodes would be created now.
    provisions: bool,
    slots: Vec<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_per_hour: Option<Price>,
    currency: Currency,
    gates: Vec<Report>,
    passed_over: Vec<PassedOver>,
    notes: Vec<String>,
    ways: Vec<Way>,
}

/// Slots that are alike.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    first: u32,
    nodes: u32,
    node_pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_type: Option<String>,
    /// The types that the nodes may be of, where they are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instance_types: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known_from: Option<String>,
    pods: Vec<String>,
    requests: ResourceList,
    /// Parts of a node that nobody asks for, in percent, by resource.
    unused: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_per_hour: Option<Price>,
}

/// One way to get the nodes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Way {
    name: String,
    chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
    summary: String,
    closed: Vec<String>,
}

impl View {
    /// Puts together what is shown.
    pub fn new(admitted: &Admitted, prices: Prices<'_>, outcome: &Outcome, ways: &[Surveyed]) -> Self {
        let plan = match outcome {
            Outcome::Provision(plan) => Some(plan),
            _ => None,
        };
        let metadata = &admitted.workload.metadata;
        let mut flavors: Vec<String> = admitted
            .workload
            .admission()
            .into_iter()
            .flat_map(|a| &a.pod_set_assignments)
            .flat_map(|psa| psa.flavors.values().cloned())
            .collect();
        flavors.sort();
        flavors.dedup();
        let told = |o: &Obstacle| format!("{}: {}", o.reason, o.message);
        let nearest = || ways.iter().find(|w| w.plan.is_ok()).map_or(&[][..], |w| &w.reports);
        Self {
            workload: format!(
                "{}/{}",
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default()
            ),
            check: admitted.check.clone(),
            cluster_queue: admitted.queue.metadata.name.clone().unwrap_or_default(),
            flavors,
            flavors_are_guessed: admitted.is_guess,
            outcome: match outcome {
                Outcome::Provision(plan) => plan.summary(),
                Outcome::NothingNeeded(why) => format!("no node is needed: {why}"),
                Outcome::Wait(o) => format!("would wait, {}", told(o)),
                Outcome::Refuse(o) => format!("would be refused, {}", told(o)),
                Outcome::Never(o) => format!("would be rejected, {}", told(o)),
            },
            provisions: plan.is_some(),
            slots: plan
                .map_or_else(Vec::new, |plan| plan.groups().iter().map(|g| Group::of(g, prices)).collect()),
            cost_per_hour: plan.and_then(|plan| plan.cost.known()),
            currency: prices.currency(),
            gates: plan.map_or_else(|| nearest().to_vec(), |plan| plan.reports.to_vec()),
            passed_over: plan.map_or_else(|| of_ways(ways), |plan| plan.passed_over.to_vec()),
            notes: plan.map_or_else(Vec::new, |plan| plan.facts.iter().chain(&plan.notes).cloned().collect()),
            ways: ways
                .iter()
                .enumerate()
                .map(|(n, way)| Way::of(way, plan.is_some_and(|p| usize::try_from(p.choice) == Ok(n))))
                .collect(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// As tables.
    pub fn table(&self) -> String {
        let guessed = if self.flavors_are_guessed { ", as Kueue would likely choose" } else { "" };
        let mut text = format!(
            "Workload  {}, check {}, ClusterQueue {}, flavors {}{guessed}\nOutcome   {}\n",
            self.workload,
            self.check,
            self.cluster_queue,
            self.flavors.join(" "),
            self.outcome
        );
        if !self.slots.is_empty() {
            let rows = self.slots.iter().map(|group| group.row(self.currency)).collect();
            text += &section(
                &["SLOTS", "NODEPOOL", "TYPE", "PODS ON EACH", "REQUESTS", "UNUSED", "PER HOUR"],
                rows,
            );
        }
        if !self.gates.is_empty() {
            let row = |r: &Report| [r.gate.to_string(), r.answer.to_string(), r.message.clone()].to_vec();
            text += &section(&["GATE", "ANSWER", "WHY"], self.gates.iter().map(row).collect());
        }
        if !self.passed_over.is_empty() {
            let row = |one: &PassedOver| [one.node_pool.clone(), one.reason.clone()].to_vec();
            text += &section(&["PASSED OVER", "WHY"], self.passed_over.iter().map(row).collect());
        }
        if self.ways.len() > 1 {
            let rows = self.ways.iter().map(Way::row).collect();
            text += &section(&["", "TIER", "NODES", "IN THE WAY"], rows);
        }
        for note in &self.notes {
            // Writing to a String cannot fail.
            let _ = write!(text, "\nNote: {note}");
        }
        if self.notes.is_empty() { text } else { text + "\n" }
    }
}

/// NodePools that come into question for no way.
fn of_ways(ways: &[Surveyed]) -> Vec<PassedOver> {
    let mut all = Vec::new();
    PassedOver::add(&mut all, ways.iter().flat_map(|way| way.passed_over.iter().cloned()));
    all
}

fn section(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Builder::default();
    table.push_record(head.iter().map(ToString::to_string));
    for row in rows {
        table.push_record(row);
    }
    let mut table = table.build();
    table.with(Style::empty()).with(Padding::new(0, 2, 0, 0));
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    format!("\n{}\n", lines.join("\n"))
}

impl Group {
    fn of((slot, nodes): &(&Slot, u32), prices: Prices<'_>) -> Self {
        let requests = slot.template.spec.resources.requests.clone();
        let shape = slot.shape.as_ref();
        Self {
            first: slot.index,
            nodes: *nodes,
            node_pool: slot.node_pool.clone(),
            instance_type: shape.map(|s| s.instance_type.clone()),
            instance_types: listed_types(slot),
            known_from: shape.map(|s| s.source.to_string()),
            pods: slot.pods.iter().map(|share| format!("{}×{}", share.pods, share.pod_set)).collect(),
            unused: shape.map_or_else(BTreeMap::new, |s| unused(&requests, &s.allocatable)),
            requests,
            cost_per_hour: prices.dearest(&slot.template).ok(),
        }
    }

    fn row(&self, currency: Currency) -> Vec<String> {
        let last = self.first.saturating_add(self.nodes).saturating_sub(1);
        let slots = if self.nodes == 1 { last.to_string() } else { format!("{}-{last}", self.first) };
        let requests: Vec<String> = self
            .requests
            .keys()
            .filter(|key| *key != "pods")
            .map(|key| format!("{key} {}", shown(&self.requests, key)))
            .collect();
        let unused: Vec<String> = self.unused.iter().map(|(key, part)| format!("{key} {part}%")).collect();
        vec![
            slots,
            self.node_pool.clone(),
            self.instance_type.clone().unwrap_or_else(|| "as the provider picks".to_owned()),
            self.pods.join(" "),
            requests.join(", "),
            if unused.is_empty() { "unknown".to_owned() } else { unused.join(", ") },
            self.cost_per_hour
                .map_or_else(|| "unknown".to_owned(), |price| Money { price, currency }.to_string()),
        ]
    }
}

/// The instance types that a claim lists.
fn listed_types(slot: &Slot) -> Vec<String> {
    let asked = slot.template.spec.requirements.iter();
    asked
        .filter(|r| r.key == names::INSTANCE_TYPE && r.operator == "In")
        .flat_map(|r| r.values.clone())
        .collect()
}

/// The parts of a node that nobody asks for, in percent, but for the places for pods.
fn unused(requests: &ResourceList, allocatable: &ResourceList) -> BTreeMap<String, u32> {
    let part = |key: &String| {
        let (all, used) = (amount(allocatable, key).nanos(), amount(requests, key).nanos());
        u32::try_from((all - used).max(0).saturating_mul(100).checked_div(all).unwrap_or(0)).unwrap_or(0)
    };
    // Network devices that nobody asks for are no loss.
    let counts = |key: &String| {
        key != "pods" && (!is_device(key) || is_accelerator(key) || requests.contains_key(key))
    };
    let keys = allocatable.iter().filter(|(key, quantity)| counts(key) && is_positive(quantity));
    keys.map(|(key, _)| (key.clone(), part(key))).collect()
}

impl Way {
    fn of(way: &Surveyed, chosen: bool) -> Self {
        let name = if way.name.is_empty() { "the only one".to_owned() } else { way.name.clone() };
        let gated = way.reports.iter().filter(|r| r.is_closed()).map(|r| r.message.clone());
        match &way.plan {
            Ok(plan) => {
                let (nodes, summary) = (Some(plan.nodes()), plan.summary());
                Self { name, chosen, nodes, summary, closed: gated.collect() }
            }
            Err(o) => Self {
                name,
                chosen,
                nodes: None,
                summary: o.message.clone(),
                closed: vec![o.message.clone()],
            },
        }
    }

    fn row(&self) -> Vec<String> {
        let mark = if self.chosen { "*" } else { "" };
        let nodes = if self.nodes.is_some() { self.summary.clone() } else { "none".to_owned() };
        let closed = if self.closed.is_empty() { "nothing".to_owned() } else { self.closed.join("; ") };
        vec![mark.to_owned(), self.name.clone(), nodes, closed]
    }
}

/// The NodeClaims as YAML. Names and the gang's labels are given when they are created.
pub fn node_claims(plan: &Plan) -> Result<String, Failure> {
    let mut text = String::new();
    for slot in &plan.slots {
        let mut claim = (*slot.template).clone();
        claim.metadata.name = Some(format!("setu-plan-{}", slot.index));
        let yaml =
            serde_yaml::to_string(&claim).map_err(|e| Failure::Failed(format!("writing NodeClaims: {e}")))?;
        text.push_str("---\n");
        text.push_str(&yaml);
    }
    Ok(text)
}
