//! Renders a plan: as tables, as JSON, or as NodeClaims for `kubectl`.

use super::admission::Admitted;
use crate::api::amount::{Currency, Money, Price};
use crate::api::pod::ResourceList;
use crate::cli::{CliError, printable};
use crate::plan::cost::Prices;
use crate::plan::devices;
use crate::plan::gates::GateReport;
use crate::plan::outcome::NO_TIER;
use crate::plan::passed_over::PassedOver;
use crate::plan::resources::{amount, is_accelerator, is_device, is_positive, shown};
use crate::plan::{Obstacle, OptionReport, Outcome, Plan, Slot};
use crate::words::few;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use tabled::builder::Builder;
use tabled::settings::{Padding, Style};

/// Everything that is shown of a plan.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    workload: String,
    check: String,
    cluster_queue: String,
    flavors: Vec<String>,
    /// Whether the flavors are a guess.
    flavors_are_guessed: bool,
    /// The outcome in one sentence.
    outcome: String,
    /// The outcome without the details that the table of options shows.
    #[serde(skip)]
    short_outcome: String,
    /// The obstacle, if any.
    #[serde(skip)]
    obstacle: Option<String>,
    /// Whether nodes would be created now.
    provisions: bool,
    slots: Vec<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_per_hour: Option<Price>,
    currency: Currency,
    /// Sources of the prices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prices_from: Vec<String>,
    gates: Vec<GateReport>,
    passed_over: Vec<PassedOver>,
    notes: Vec<String>,
    #[serde(rename = "ways")]
    options: Vec<OptionRow>,
}

/// Identical slots.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    first: u32,
    nodes: u32,
    node_pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_type: Option<String>,
    /// The possible instance types, if they are listed, cheapest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instance_types: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known_from: Option<String>,
    pods: Vec<String>,
    requests: ResourceList,
    /// Unrequested share of a node in percent, by resource.
    unused: BTreeMap<String, u32>,
    /// Maximum cost of a node, if every offering has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_per_hour: Option<Price>,
    /// Minimum cost of a node among the offerings with a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_cost_per_hour: Option<Price>,
    /// Maximum cost of a node among the offerings with a price, if some have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_cost_per_hour: Option<Price>,
}

/// One option for getting the nodes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OptionRow {
    name: String,
    chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
    summary: String,
    closed: Vec<String>,
}

impl View {
    /// Builds the view.
    pub fn new(admitted: &Admitted, prices: Prices<'_>, outcome: &Outcome, options: &[OptionReport]) -> Self {
        let plan = outcome.plan();
        let nearest = || options.iter().find(|w| w.plan.is_ok()).map_or(&[][..], |w| &w.reports);
        let is_chosen = |n: usize| plan.is_some_and(|p| usize::try_from(p.option_index) == Ok(n));
        Self {
            workload: admitted.title.clone(),
            check: admitted.check.clone(),
            cluster_queue: admitted.queue.metadata.name.clone().unwrap_or_default(),
            flavors: flavors(admitted),
            flavors_are_guessed: admitted.is_guess,
            outcome: in_words(outcome, |obstacle| &obstacle.message),
            // The table of options shows the obstacle of each option.
            short_outcome: in_words(outcome, |obstacle| {
                if options.len() > 1 && !obstacle.of_options.is_empty() { NO_TIER } else { &obstacle.message }
            }),
            obstacle: match outcome {
                Outcome::Wait(o) | Outcome::Refuse(o) | Outcome::Never(o) => Some(o.message.clone()),
                Outcome::Provision(_) | Outcome::NothingNeeded(_) => None,
            },
            provisions: plan.is_some(),
            slots: plan
                .map_or_else(Vec::new, |plan| plan.groups().iter().map(|g| Group::of(g, prices)).collect()),
            cost_per_hour: plan.and_then(|plan| plan.cost.known()),
            currency: prices.currency(),
            prices_from: plan.map_or_else(Vec::new, sources),
            gates: plan.map_or_else(|| nearest().to_vec(), |plan| plan.reports.to_vec()),
            passed_over: plan.map_or_else(|| of_options(options), |plan| plan.passed_over.to_vec()),
            notes: plan.map_or_else(Vec::new, notes),
            options: (0..).zip(options).map(|(n, option)| OptionRow::of(option, is_chosen(n))).collect(),
        }
    }

    /// Adds notes.
    pub fn add_notes(&mut self, notes: impl IntoIterator<Item = String>) {
        self.notes.extend(notes);
    }

    /// Renders it as tables.
    pub fn table(&self) -> String {
        let guessed = if self.flavors_are_guessed { ", as Kueue would likely choose" } else { "" };
        let mut text = format!(
            "Workload  {}, check {}, ClusterQueue {}, flavors {}{guessed}\nOutcome   {}\n",
            self.workload,
            self.check,
            self.cluster_queue,
            self.flavors.join(" "),
            self.short_outcome
        );
        if !self.slots.is_empty() {
            let rows = self.slots.iter().map(|group| group.row(self.currency)).collect();
            text += &section(
                &["SLOTS", "NODEPOOL", "TYPE", "PODS ON EACH", "REQUESTS", "UNUSED", "PER HOUR"],
                rows,
            );
        }
        if !self.gates.is_empty() {
            let row = |r: &GateReport| [r.gate.to_string(), r.answer.to_string(), r.message.clone()].to_vec();
            text += &section(&["GATE", "ANSWER", "WHY"], self.gates.iter().map(row).collect());
        }
        if !self.passed_over.is_empty() {
            let row = |one: &PassedOver| [one.node_pool.clone(), one.reason.clone()].to_vec();
            text += &section(&["PASSED OVER", "WHY"], self.passed_over.iter().map(row).collect());
        }
        if self.options.len() > 1 {
            let rows = self.options.iter().map(|option| option.row(self.obstacle.as_ref())).collect();
            text += &section(&["", "TIER", "NODES", "IN THE WAY"], rows);
        }
        for note in &self.notes {
            // Writing to a String cannot fail.
            let _ = write!(text, "\nNote: {note}");
        }
        printable(&if self.notes.is_empty() { text } else { text + "\n" })
    }
}

/// The flavors that the pods are assigned, each once.
fn flavors(admitted: &Admitted) -> Vec<String> {
    let assignments = admitted.workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
    let flavors: BTreeSet<&String> = assignments.flat_map(|assignment| assignment.flavors.values()).collect();
    flavors.into_iter().cloned().collect()
}

/// An outcome in one sentence, with these words for its obstacle.
fn in_words<'o>(outcome: &'o Outcome, message: impl Fn(&'o Obstacle) -> &'o str) -> String {
    let of = |o: &'o Obstacle| format!("{}: {}", o.reason, message(o));
    match outcome {
        Outcome::Provision(plan) => plan.summary(),
        Outcome::NothingNeeded(why) => format!("no node is needed: {why}"),
        Outcome::Wait(o) => format!("would wait, {}", of(o)),
        Outcome::Refuse(o) => format!("would be refused, {}", of(o)),
        Outcome::Never(o) => format!("would be rejected, {}", of(o)),
    }
}

/// The notes of a plan, with the sources of its prices.
fn notes(plan: &Plan) -> Vec<String> {
    let facts = plan.facts.iter().chain(&plan.notes).cloned();
    let mut notes: Vec<String> = facts.chain(plan.cost.note()).collect();
    // A gate that compared these prices says so itself.
    let is_shown = plan.reports.iter().any(|report| report.tells_of_place);
    notes.extend(plan.cost.unplaced().filter(|_| !is_shown));
    let from = sources(plan).join(" and ");
    notes.extend((!from.is_empty()).then(|| format!("prices as known from {from}")));
    notes
}

/// Sources of a plan's prices, for display.
fn sources(plan: &Plan) -> Vec<String> {
    plan.cost.sources.iter().map(ToString::to_string).collect()
}

/// The NodePools that the options passed over.
fn of_options(options: &[OptionReport]) -> Vec<PassedOver> {
    let mut all = Vec::new();
    PassedOver::add(&mut all, options.iter().flat_map(|option| option.passed_over.iter().cloned()));
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
        let mut requests = slot.template.needs().into_owned();
        requests.extend(devices::amounts(&slot.template.devices()));
        let shape = slot.shape.as_ref();
        let spread = prices.spread(&slot.template);
        Self {
            first: slot.index,
            nodes: *nodes,
            node_pool: slot.node_pool.clone(),
            instance_type: shape.map(|s| s.instance_type.clone()),
            instance_types: prices.by_price(&slot.template).into_iter().map(|(name, _)| name).collect(),
            known_from: shape.map(|s| s.source.to_string()),
            pods: slot.pods.iter().map(|share| format!("{}×{}", share.pods, share.pod_set)).collect(),
            unused: shape.map_or_else(BTreeMap::new, |s| unused(&requests, &s.allocatable)),
            requests,
            cost_per_hour: spread.dearest(),
            known_cost_per_hour: spread
                .known
                .filter(|_| !spread.missing.is_empty())
                .map(|(_, highest)| highest),
            least_cost_per_hour: prices.least(&slot.template),
        }
    }

    fn row(&self, currency: Currency) -> Vec<String> {
        let last = self.first.saturating_add(self.nodes).saturating_sub(1);
        let slots = if self.nodes == 1 { last.to_string() } else { format!("{}-{last}", self.first) };
        let requests: Vec<String> = self
            .requests
            .keys()
            .filter(|key| *key != "pods")
            .map(|key| format!("{} {}", short(key), shown(&self.requests, key)))
            .collect();
        let unused: Vec<String> =
            self.unused.iter().map(|(key, part)| format!("{} {part}%", short(key))).collect();
        vec![
            slots,
            self.node_pool.clone(),
            self.types(),
            self.pods.join(" "),
            requests.join(", "),
            if unused.is_empty() { "unknown".to_owned() } else { unused.join(", ") },
            self.money(currency),
        ]
    }

    /// The cost of a node, for display.
    fn money(&self, currency: Currency) -> String {
        let Some(price) = self.cost_per_hour.or(self.known_cost_per_hour) else {
            return "unknown".to_owned();
        };
        let most = Money { price, currency };
        let known = match self.least_cost_per_hour {
            Some(least) if least < price => format!("{least} to {most}"),
            _ => most.to_string(),
        };
        if self.cost_per_hour.is_some() { known } else { known + ", or unknown" }
    }

    /// The possible instance types, for display.
    fn types(&self) -> String {
        match &self.instance_type {
            None => "as the provider picks".to_owned(),
            Some(one) => {
                let names =
                    std::iter::once(one).chain(self.instance_types.iter().filter(|name| *name != one));
                few(names.map(String::as_str))
            }
        }
    }
}

/// A resource as the table names it: devices of a DeviceClass by the name of the class.
fn short(resource: &str) -> &str {
    devices::class_of(resource).unwrap_or(resource)
}

/// Unrequested share of a node in percent, by resource, without `pods`.
fn unused(requests: &ResourceList, allocatable: &ResourceList) -> BTreeMap<String, u32> {
    let part = |key: &String| {
        let (all, used) = (amount(allocatable, key).nanos(), amount(requests, key).nanos());
        u32::try_from((all - used).max(0).saturating_mul(100).checked_div(all).unwrap_or(0)).unwrap_or(0)
    };
    // Unrequested network devices are no loss.
    let counts = |key: &String| {
        key != "pods" && (!is_device(key) || is_accelerator(key) || requests.contains_key(key))
    };
    let keys = allocatable.iter().filter(|(key, quantity)| counts(key) && is_positive(quantity));
    keys.map(|(key, _)| (key.clone(), part(key))).collect()
}

impl OptionRow {
    fn of(option: &OptionReport, chosen: bool) -> Self {
        let name = if option.name.is_empty() { "the only one".to_owned() } else { option.name.clone() };
        let gated = option.reports.iter().filter(|r| r.is_closed()).map(|r| r.message.clone());
        let gated = gated.chain(option.shortage.clone());
        match &option.plan {
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

    /// Its row in the table, without an obstacle that was shown already.
    fn row(&self, above: Option<&String>) -> Vec<String> {
        let mark = if self.chosen { "*" } else { "" };
        let nodes = if self.nodes.is_some() { self.summary.clone() } else { "none".to_owned() };
        let closed = match self.closed.as_slice() {
            [] => "nothing".to_owned(),
            [why] if above == Some(why) => "as above".to_owned(),
            several => several.join("; "),
        };
        vec![mark.to_owned(), self.name.clone(), nodes, closed]
    }
}

/// The NodeClaims as YAML. Real names and gang labels are set at creation.
pub fn node_claims(plan: &Plan) -> Result<String, CliError> {
    let mut text = String::new();
    for slot in &plan.slots {
        let mut claim = (*slot.template).clone();
        claim.metadata.name = Some(format!("setu-plan-{}", slot.index));
        let yaml = serde_yaml::to_string(&claim)
            .map_err(|e| CliError::Failed(format!("writing NodeClaims: {e}")))?;
        text.push_str("---\n");
        text.push_str(&yaml);
    }
    Ok(text)
}
