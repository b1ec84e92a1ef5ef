//! Checks what the types cannot: values that contradict each other or can never work.
//!
//! Every CEL rule of the CRD is here too, so that files and objects are checked the same way.

use super::decode::decode;
use super::file::{Guards, JobOverrides, PolicyFile};
use super::path::{Finding, Path};
use super::reserved;
use super::tree;
use super::whole::{self, LEAST_WAIT};
use super::{MOST_NODES, Policy};
use crate::api::duration::Span;
use crate::api::node_claim::Requirement;
use crate::api::parameters::{
    Backoff, CAPACITY_TYPES, Compat, Custody, Gates, NodeDevices, ProvisioningParametersSpec, Release, Tier,
};
use crate::api::pod::ResourceList;
use crate::api::quantity::Amount;
use crate::api::requirements::{self, Values};
use crate::names;
use std::ops::RangeInclusive;

/// Numbers that Karpenter accepts as `minValues` of a requirement.
const MIN_VALUES: RangeInclusive<i32> = 1..=50;

/// Why an operator cannot have as many values.
fn wrong_number(operator: &str, values: &[String]) -> Option<&'static str> {
    match operator {
        "In" | "NotIn" if values.is_empty() => Some("needs values"),
        "Exists" | "DoesNotExist" if !values.is_empty() => Some("takes no values"),
        _ => None,
    }
}

/// All problems of a file.
pub fn file(file: &PolicyFile) -> Vec<Finding> {
    let mut found = Findings::default();
    let root = Path::default();
    let defaults = Policy::default().overlaid(&file.defaults);
    let at_defaults = root.key("defaults");
    found.spec(&at_defaults, &file.defaults);
    found.whole(&at_defaults, &file.defaults, &defaults, &[]);
    let of_defaults = whole::faults(&defaults.clone().in_force());
    for (name, spec) in &file.checks {
        let at = root.key("checks").key(name);
        found.spec(&at, spec);
        found.whole(&at, spec, &defaults.clone().overlaid(spec), &of_defaults);
        let brings_its_own = |spec: &ProvisioningParametersSpec| {
            spec.retry.as_ref().is_some_and(|retry| retry.compat == Some(Compat::Setu))
        };
        let undone = spec.retry.as_ref().is_some_and(|retry| retry.compat == Some(Compat::None));
        match (brings_its_own(&file.defaults), brings_its_own(spec)) {
            (true, false) if !undone => found.brought_by_compat(&at, spec),
            (false, true) => found.brought_by_compat(&at_defaults, &file.defaults),
            _ => {}
        }
    }
    found.guards(&root.key("guards"), &file.guards);
    found.job_overrides(&root.key("jobOverrides"), &file.job_overrides);
    found.0
}

/// Reads the `spec` of ProvisioningParameters; on failure all its problems.
pub fn read_spec(spec: &serde_json::Value) -> Result<ProvisioningParametersSpec, Vec<Finding>> {
    let at = Path::default().key("spec");
    // JSON is YAML, so objects are read as strictly as files.
    let (root, problems) = tree::read(&spec.to_string());
    let mut found: Vec<Finding> = problems.into_iter().map(|p| (at.clone(), p.message)).collect();
    let mut root = root.ok_or_else(|| found.clone())?;
    let (read, problems) = decode::<ProvisioningParametersSpec>(&mut root);
    found.extend(problems.into_iter().map(|p| (at.join(&p.path), p.message)));
    let Some(read) = read else { return Err(found) };
    let mut findings = Findings(found);
    findings.spec(&at, &read);
    if findings.0.is_empty() { Ok(read) } else { Err(findings.0) }
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, at: &Path, message: impl Into<String>) {
        self.0.push((at.clone(), message.into()));
    }

    fn guards(&mut self, at: &Path, guards: &Guards) {
        self.some_node(&at.key("gangNodes"), guards.gang_nodes);
        if guards.gang_nodes.is_some_and(|most| most > MOST_NODES) {
            self.add(
                &at.key("gangNodes"),
                format!("is more than the {MOST_NODES} nodes that any gang can have"),
            );
        }
        self.some_node(&at.key("claimsInFlight"), guards.claims_in_flight);
        self.some_node(&at.key("createsPerMinute"), guards.creates_per_minute);
        let (at, queue) = (at.key("perLocalQueue"), &guards.per_local_queue);
        self.some_node(&at.key("nodes"), queue.nodes);
        self.some_node(&at.key("createsPerHour"), queue.creates_per_hour);
        if let Some(amounts) = &queue.max_resources {
            self.amounts(&at.key("maxResources"), amounts);
        }
    }

    fn job_overrides(&mut self, at: &Path, open: &JobOverrides) {
        self.positive(&at.key("maxWait").key("max"), open.max_wait.as_ref().map(|bounds| bounds.max));
        for (key, bounds) in [("capacityType", &open.capacity_type), ("zone", &open.zone)] {
            let Some(bounds) = bounds else { continue };
            let values = at.key(key).key("values");
            if bounds.values.is_empty() {
                self.add(&values, "lists nothing that may be asked for; name values, or take the key out");
            }
            for (index, value) in bounds.values.iter().enumerate().filter(|_| key == "capacityType") {
                self.capacity_type(&values.index(index), value);
            }
        }
    }

    fn spec(&mut self, at: &Path, spec: &ProvisioningParametersSpec) {
        if let Some(name) = &spec.node_pool_name {
            self.object_name(&at.key("nodePoolName"), name);
        }
        self.requirements(
            &at.key("nodeSelectorRequirements"),
            spec.node_selector_requirements.iter().flatten(),
        );
        self.tiers(&at.key("tiers"), spec.tiers.as_deref().unwrap_or_default());
        for (index, name) in spec.managed_resources.iter().flatten().enumerate() {
            if name.is_empty() || name.contains(char::is_whitespace) {
                let at = at.key("managedResources").index(index);
                self.add(&at, format!("{name:?} is not a resource such as nvidia.com/gpu"));
            }
        }
        self.shapes(at, spec);
        self.devices(&at.key("devices"), spec.devices.as_deref().unwrap_or_default());
        self.times(at, spec);
        let conditions = spec.readiness.iter().flat_map(|r| &r.node_conditions).flatten();
        for (index, condition) in conditions.enumerate() {
            let at = at.key("readiness").key("nodeConditions").index(index);
            if condition.kind.is_empty() {
                self.add(&at.key("type"), "is empty; write the type of a condition");
            }
            if !["True", "False", "Unknown"].contains(&condition.status.as_str()) {
                self.add(&at.key("status"), format!("{:?} is not True, False or Unknown", condition.status));
            }
        }
        for key in spec.readiness.iter().flat_map(|r| &r.node_labels).flatten().map(|(key, _)| key) {
            self.label_key(&at.key("readiness").key("nodeLabels").key(key), key);
        }
        if let Some(custody) = &spec.custody {
            self.custody(&at.key("custody"), custody);
        }
        if let Some(gates) = &spec.gates {
            self.gates(&at.key("gates"), gates);
        }
    }

    fn tiers(&mut self, at: &Path, tiers: &[Tier]) {
        for (index, tier) in tiers.iter().enumerate() {
            let at = at.index(index);
            if tier.name.is_empty() || !requirements::is_label_value(&tier.name) {
                let words = format!("{:?} is not a name of letters, digits, - and _", tier.name);
                self.add(&at.key("name"), words);
            }
            if tiers.iter().take(index).any(|t| t.name == tier.name) {
                self.add(&at.key("name"), format!("a second tier of the name {}", tier.name));
            }
            if let Some(name) = &tier.node_pool_name {
                self.object_name(&at.key("nodePoolName"), name);
            }
            self.requirements(&at.key("requirements"), tier.requirements.iter());
            self.positive(&at.key("launchTimeout"), tier.launch_timeout);
            self.0.extend(reserved::faults(tier).into_iter().map(|(path, text)| (at.join(&path), text)));
        }
    }

    fn requirements<'r>(&mut self, at: &Path, all: impl Iterator<Item = &'r Requirement>) {
        for (index, requirement) in all.enumerate() {
            let at = at.index(index);
            let Requirement { key, operator, values, min_values } = requirement;
            self.label_key(&at.key("key"), key);
            if key == names::CAPACITY_TYPE && operator == "In" {
                for (nth, value) in values.iter().enumerate() {
                    self.capacity_type(&at.key("values").index(nth), value);
                }
            }
            if requirements::is_reserved(requirements::normalized(key)) {
                self.add(
                    &at.key("key"),
                    format!("no NodeClaim may ask for {key}, which Karpenter sets itself"),
                );
            }
            let wrong = match operator.as_str() {
                "In" | "NotIn" | "Exists" | "DoesNotExist" => wrong_number(operator, values),
                "Gt" | "Lt" | "Gte" | "Lte" if values.len() != 1 => Some("needs one whole number"),
                _ if Values::read(operator, values, *min_values).is_none() => Some("needs one whole number"),
                _ => None,
            };
            if let Some(wrong) = wrong {
                self.add(&at, format!("operator {operator} {wrong}"));
            }
            if min_values.is_some_and(|least| !MIN_VALUES.contains(&least)) {
                let (least, most) = (MIN_VALUES.start(), MIN_VALUES.end());
                self.add(
                    &at.key("minValues"),
                    format!("must be from {least} to {most}, or Karpenter refuses the NodeClaim"),
                );
            }
            for (nth, value) in values.iter().enumerate().filter(|(_, v)| !requirements::is_label_value(v)) {
                self.add(&at.key("values").index(nth), format!("{value:?} cannot be the value of a label"));
            }
        }
    }

    fn shapes(&mut self, at: &Path, spec: &ProvisioningParametersSpec) {
        let shapes = spec.packing.iter().flat_map(|p| &p.shapes).flatten();
        for (index, shape) in shapes.enumerate() {
            let at = at.key("packing").key("shapes").index(index);
            if shape.instance_type.is_empty() {
                self.add(&at.key("instanceType"), "is empty; write one such as p5.48xlarge");
            }
            let at = at.key("allocatable");
            if shape.allocatable.is_empty() {
                self.add(&at, "lists nothing that the instance offers");
            }
            self.amounts(&at, &shape.allocatable);
        }
        if let Some(key) = spec.colocation.as_ref().and_then(|c| c.topology_key.as_ref()) {
            self.label_key(&at.key("colocation").key("topologyKey"), key);
        }
    }

    fn devices(&mut self, at: &Path, devices: &[NodeDevices]) {
        for (index, entry) in devices.iter().enumerate() {
            let at = at.index(index);
            self.object_name(&at.key("deviceClass"), &entry.device_class);
            self.object_name(&at.key("driver"), &entry.driver);
            if entry.per_node == 0 {
                self.add(&at.key("perNode"), "is 0; write how many devices of the class each node has");
            }
            if let Some(name) = entry.extended_resource.as_ref().filter(|name| !name.contains('/')) {
                self.add(
                    &at.key("extendedResource"),
                    format!("{name:?} is not an extended resource such as nvidia.com/gpu"),
                );
            }
            self.requirements(&at.key("requirements"), entry.requirements.iter());
        }
    }

    fn times(&mut self, at: &Path, spec: &ProvisioningParametersSpec) {
        let limits = spec.deadlines.clone().unwrap_or_default();
        for (key, span) in [
            ("launch", limits.launch),
            ("register", limits.register),
            ("initialize", limits.initialize),
            ("gang", limits.gang),
            ("admit", limits.admit),
        ] {
            self.positive(&at.key("deadlines").key(key), span);
        }
        let Some(retry) = &spec.retry else { return };
        let at_retry = at.key("retry");
        for (key, backoff) in [("inCheck", &retry.in_check), ("yield", &retry.yielding)] {
            if let Some(backoff) = backoff {
                self.backoff(&at_retry.key(key), backoff);
            }
        }
        if retry.compat == Some(Compat::Setu) {
            self.brought_by_compat(at, spec);
        }
    }

    /// Reports values that a layer states although `retry.compat: Setu`, in this layer or another one, sets them.
    fn brought_by_compat(&mut self, at: &Path, spec: &ProvisioningParametersSpec) {
        let at_retry = at.key("retry");
        let retry = spec.retry.clone().unwrap_or_default();
        for (stated, at) in [
            (retry.in_check.is_some(), at_retry.key("inCheck")),
            (retry.yielding.is_some(), at_retry.key("yield")),
            (retry.on_exhausted.is_some(), at_retry.key("onExhausted")),
            (spec.deadlines.is_some(), at.key("deadlines")),
        ] {
            if stated {
                self.add(&at, "cannot be combined with retry.compat: Setu; remove it");
            }
        }
    }

    fn backoff(&mut self, at: &Path, backoff: &Backoff) {
        if backoff.base.is_some_and(|base| base < LEAST_WAIT) {
            self.add(&at.key("base"), format!("is shorter than {LEAST_WAIT}, the least wait between tries"));
        }
        if let (Some(base), Some(max)) = (backoff.base, backoff.max)
            && max < base
        {
            self.add(&at.key("max"), format!("{max} is shorter than base, {base}"));
        }
    }

    /// Reports the problems that a layer causes in the whole policy, without those that existed before.
    fn whole(&mut self, at: &Path, spec: &ProvisioningParametersSpec, policy: &Policy, before: &[Finding]) {
        let written = serde_json::to_value(spec).unwrap_or_default();
        let faults = whole::faults(&policy.clone().in_force());
        for (path, message) in faults.into_iter().filter(|fault| !before.contains(fault)) {
            if written.pointer(&path.pointer()).is_some() {
                if !self.0.contains(&(at.join(&path), message.clone())) {
                    self.add(&at.join(&path), message);
                }
            } else {
                // The value is in another layer, but this one made it wrong.
                self.add(at, format!("{path} {message}"));
            }
        }
    }

    fn custody(&mut self, at: &Path, custody: &Custody) {
        self.positive(&at.key("holdLimit"), custody.hold_limit);
        let kept = custody.warm_for.is_some_and(|span| span != Span::default());
        if kept && custody.release.is_some_and(|r| r != Release::Warm) {
            self.add(&at.key("warmFor"), "needs release: Warm");
        }
    }

    fn gates(&mut self, at: &Path, gates: &Gates) {
        let namespaces = gates.placement.iter().flat_map(|p| &p.namespaces).flat_map(|n| &n.match_labels);
        for key in namespaces.flat_map(|labels| labels.keys()) {
            self.label_key(&at.key("placement").key("namespaces").key("matchLabels").key(key), key);
        }
        let namespaces = gates.placement.iter().flat_map(|p| &p.namespaces);
        let expressions = namespaces.flat_map(|n| n.match_expressions.iter().flatten());
        for (index, expression) in expressions.enumerate() {
            let at = at.key("placement").key("namespaces").key("matchExpressions").index(index);
            self.label_key(&at.key("key"), &expression.key);
            if let Some(wrong) =
                wrong_number(&expression.operator, expression.values.as_deref().unwrap_or_default())
            {
                self.add(&at, format!("operator {} {wrong}", expression.operator));
            }
        }
        let Some(budget) = &gates.budget else { return };
        let at = at.key("budget");
        self.some_node(&at.key("maxNodes"), budget.max_nodes);
        if let Some(amounts) = &budget.max_resources {
            self.amounts(&at.key("maxResources"), amounts);
        }
        for (instance, prices) in budget.prices.iter().flatten() {
            for capacity_type in prices.keys() {
                self.capacity_type(&at.key("prices").key(instance).key(capacity_type), capacity_type);
            }
        }
    }

    fn amounts(&mut self, at: &Path, amounts: &ResourceList) {
        for (name, amount) in amounts {
            if Amount::parse(&amount.0).is_none_or(|a| a < Amount::default()) {
                let words = format!("{:?} is not an amount such as 8, 1500m or 2000Gi", amount.0);
                self.add(&at.key(name), words);
            }
        }
    }

    fn capacity_type(&mut self, at: &Path, value: &str) {
        if !CAPACITY_TYPES.contains(&value) {
            let known = CAPACITY_TYPES.join(", ");
            self.add(at, format!("{value:?} is not a value of {}: {known}", names::CAPACITY_TYPE));
        }
    }

    fn label_key(&mut self, at: &Path, key: &str) {
        if !requirements::is_label_key(key) {
            self.add(at, format!("{key:?} is not a label key such as topology.kubernetes.io/zone"));
        }
    }

    fn object_name(&mut self, at: &Path, name: &str) {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        if name.is_empty() || name.len() > 253 || !name.chars().all(good) {
            self.add(at, format!("{name:?} is not a name of an object: lower case letters, digits, - and ."));
        }
    }

    fn some_node(&mut self, at: &Path, bound: Option<u32>) {
        if bound == Some(0) {
            self.add(at, "lets no gang have a node; write 1 or more");
        }
    }

    fn positive(&mut self, at: &Path, span: Option<Span>) {
        if span == Some(Span::default()) {
            self.add(at, "is zero; write one such as 90s");
        }
    }
}
