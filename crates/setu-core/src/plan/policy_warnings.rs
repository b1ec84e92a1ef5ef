//! Finds probable mistakes in a valid policy, most of them with the catalogue: limits that another limit undercuts, names without an
//! effect, shapes larger than their instance type or of an unknown type, absurd prices, and devices that every node would have.

mod money;

use super::catalogue;
use super::reservations::held;
use super::shape::DISK;
use crate::api::parameters::{Budget, NodeDevices, ProvisioningParametersSpec, StatedShape, Tier};
use crate::api::quantity::Amount;
use crate::policy::file::{Guards, PolicyFile};
use crate::policy::path::{Finding, Path};
use crate::policy::tree::Problem;
use crate::policy::{Policy, read};
use std::fmt;

/// All warnings for the text of a valid policy file, in its order.
pub fn of_text(text: &str) -> Vec<Problem> {
    read::located(text, of_file)
}

/// All warnings for valid ProvisioningParameters, each with its key.
pub fn of_parameters(spec: &ProvisioningParametersSpec) -> Vec<String> {
    let found = of_layer(&Path::default().key("spec"), spec, &Policy::default().overlaid(spec));
    found.into_iter().map(|(path, why)| format!("{path}: {why}")).collect()
}

fn of_file(file: &PolicyFile) -> Vec<Finding> {
    let defaults = Policy::default().overlaid(&file.defaults);
    let mut found = of_layer(&Path::default().key("defaults"), &file.defaults, &defaults);
    found.extend(too_many_at_once(&file.guards));
    for (name, spec) in &file.checks {
        let at = Path::default().key("checks").key(name);
        found.extend(of_layer(&at, spec, &defaults.clone().overlaid(spec)));
    }
    found
}

/// The warnings for one layer, with which `policy` is the result.
fn of_layer(at: &Path, spec: &ProvisioningParametersSpec, policy: &Policy) -> Vec<Finding> {
    let mut found = unreachable(at, spec, policy);
    found.extend(undercut(at, spec, policy));
    found.extend(unused_name(at, spec));
    found.extend(oversized_of(at, spec));
    found.extend(misspelt_of(at, spec));
    found.extend(absurd_of(at, spec));
    found.extend(everywhere_of(at, spec));
    found.extend(unplaced_of(at, spec));
    found
}

/// A shape that states more of a resource than pods can use on a node of its instance type.
pub struct Oversized<'s> {
    /// Its index among the shapes.
    index: usize,
    resource: &'s str,
    /// The problem.
    why: String,
}

impl fmt::Display for Oversized<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packing.shapes[{}].allocatable.{}: {}", self.index, self.resource, self.why)
    }
}

/// Each resource that a shape overstates.
pub fn oversized<'s>(shapes: impl IntoIterator<Item = &'s StatedShape>) -> Vec<Oversized<'s>> {
    let mut found = Vec::new();
    for (index, shape) in shapes.into_iter().enumerate() {
        let Some(known) = catalogue::find(&shape.instance_type) else { continue };
        for (resource, stated) in &shape.allocatable {
            // The NodeClass decides how large the disk of a node is.
            let known = known.shape.allocatable.get(resource).filter(|_| resource != DISK);
            let Some(known) = known.filter(|known| Amount::parse(&known.0) < Amount::parse(&stated.0)) else {
                continue;
            };
            let why = format!(
                "{} is more than the {} that pods can use on a node of type {}, so Karpenter may launch nothing for a full node",
                stated.0, known.0, shape.instance_type
            );
            found.push(Oversized { index, resource, why });
        }
    }
    found
}

/// The findings of [`oversized`] in a layer, with their paths.
fn oversized_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("packing").key("shapes");
    let found = oversized(spec.packing.iter().flat_map(|packing| packing.shapes.iter().flatten()));
    found.into_iter().map(|f| (at.index(f.index).key("allocatable").key(f.resource), f.why)).collect()
}

/// Prices and multipliers of a budget that are probably mistakes: the key under `gates.budget` and the reason, for users.
pub fn absurd_money(budget: &Budget) -> Vec<String> {
    let at = Path::default().key("gates").key("budget");
    money::absurd(&at, budget).into_iter().map(|(path, why)| format!("{path}: {why}")).collect()
}

/// The findings of [`absurd_money`] in a layer, with their paths.
fn absurd_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let budget = spec.gates.as_ref().and_then(|gates| gates.budget.as_ref());
    budget.map_or_else(Vec::new, |budget| money::absurd(&at.key("gates").key("budget"), budget))
}

/// Shapes of an instance type that is not in the catalogue, if others of its family are.
fn misspelt_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("packing").key("shapes");
    let shapes = spec.packing.iter().flat_map(|packing| packing.shapes.iter().flatten());
    let why = |(index, shape): (usize, &StatedShape)| {
        let why = money::misspelt(&shape.instance_type, "shape")?;
        Some((at.index(index).key("instanceType"), why))
    };
    shapes.enumerate().filter_map(why).collect()
}

/// Entries of devices that require nothing of the nodes.
fn everywhere_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("devices");
    let entries = spec.devices.iter().flatten().enumerate();
    let without = entries.filter(|(_, entry)| entry.requirements.is_empty());
    let why = |(index, entry): (usize, &NodeDevices)| {
        let why = format!(
            "has no requirements, so every node counts as having {} devices of DeviceClass {}; list the instance types that have \
             them under requirements",
            entry.per_node, entry.device_class
        );
        (at.index(index), why)
    };
    without.map(why).collect()
}

/// Tiers of several reservations of which Setu does not know whether Karpenter uses them together.
fn unplaced_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("tiers");
    let tiers = spec.tiers.iter().flatten().enumerate().filter(|(_, tier)| held::is_unsure(tier));
    let why = |(index, _): (usize, &Tier)| {
        let why = "Karpenter launches all nodes that may use several reservations of one type and zone into the same one; \
                   state instanceType and zone of each, so that Setu divides the nodes among them";
        (at.index(index).key("reservations"), why.to_owned())
    };
    tiers.map(why).collect()
}

/// A hold that ends an attempt before the gang's deadline does.
fn undercut(at: &Path, spec: &ProvisioningParametersSpec, policy: &Policy) -> Option<Finding> {
    let (hold, gang) = (policy.hold_limit, policy.deadlines.gang);
    spec.custody.as_ref()?.hold_limit.filter(|own| *own < gang)?;
    let why = format!("{hold} is shorter than deadlines.gang, {gang}, so it ends the attempt first");
    Some((at.key("custody").key("holdLimit"), why))
}

/// A NodePool that is named beside tiers, which ignore it.
fn unused_name(at: &Path, spec: &ProvisioningParametersSpec) -> Option<Finding> {
    let (name, tiers) = (spec.node_pool_name.as_ref()?, spec.tiers.as_ref()?);
    let why = format!("has no effect beside tiers: name {name} in the tiers that are to use it");
    (!tiers.is_empty()).then(|| (at.key("nodePoolName"), why))
}

/// A size of gangs that the guard on NodeClaims in flight never lets through.
fn too_many_at_once(guards: &Guards) -> Option<Finding> {
    let (nodes, claims) = (guards.gang_nodes?, guards.claims_in_flight());
    let why = format!(
        "{nodes} is more than guards.claimsInFlight, {claims}: a gang of more than {claims} nodes is refused, whatever this says"
    );
    (nodes > claims).then(|| (Path::default().key("guards").key("gangNodes"), why))
}

/// Limits of phases and tiers that are longer than the gang's in `policy`, because of this layer.
fn unreachable(at: &Path, spec: &ProvisioningParametersSpec, policy: &Policy) -> Vec<Finding> {
    let stated = spec.deadlines.clone().unwrap_or_default();
    let (limits, gang) = (&policy.deadlines, policy.deadlines.gang);
    let deadlines = at.key("deadlines");
    let phases = [
        ("launch", limits.launch, stated.launch),
        ("register", limits.register, stated.register),
        ("initialize", limits.initialize, stated.initialize),
    ]
    .map(|(key, limit, own)| (deadlines.key(key), format!("deadlines.{key}"), limit, own.is_some()));
    let tiers = policy.tiers.iter().enumerate().filter_map(|(index, tier)| {
        let place = at.key("tiers").index(index).key("launchTimeout");
        Some((place, format!("tiers[{index}].launchTimeout"), tier.launch_timeout?, spec.tiers.is_some()))
    });
    let longer = phases
        .into_iter()
        .chain(tiers)
        .filter(|(_, _, limit, is_own)| *limit > gang && (*is_own || stated.gang.is_some()));
    longer
        .map(|(place, name, limit, is_own)| {
            if is_own {
                let message =
                    format!("{limit} is longer than deadlines.gang, {gang}, which ends the attempt first");
                return (place, message);
            }
            let message = format!("{gang} is shorter than {name}, {limit}, which never comes into play");
            (deadlines.key("gang"), message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";

    #[test]
    fn a_value_that_another_one_makes_ineffective_is_a_warning() {
        let warnings = |body: &str| {
            let text = format!("{HEAD}{body}");
            PolicyFile::parse(&text).unwrap();
            of_text(&text).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let hold = warnings("defaults:\n  custody: {holdLimit: 10m}\n");
        let words = "4:13: defaults.custody.holdLimit: 10m is shorter than deadlines.gang, 15m, so it ends the attempt first";
        assert_eq!(hold, words);
        assert_eq!(
            warnings("defaults: {custody: {holdLimit: 10m}, deadlines: {gang: 9m}}\n")
                .matches("holdLimit")
                .count(),
            0
        );
        let tiers = "defaults:\n  nodePoolName: gpu\n  tiers: [{name: a}]\n";
        assert!(
            warnings(tiers).contains("has no effect beside tiers: name gpu in the tiers that are to use it")
        );
        assert!(
            warnings("guards: {gangNodes: 1001}\n").contains("1001 is more than guards.claimsInFlight, 1000")
        );
        assert_eq!(warnings("guards: {gangNodes: 1001, claimsInFlight: 1001}\n"), "");
    }

    #[test]
    fn a_phase_limit_longer_than_the_gangs_is_a_warning() {
        let warnings = |body: &str| {
            let found = of_text(&format!("{HEAD}{body}"));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let long = "defaults:\n  deadlines: {launch: 30m}\n";
        PolicyFile::parse(&format!("{HEAD}{long}")).unwrap();
        assert_eq!(
            warnings(long),
            [
                "4:15: defaults.deadlines.launch: 30m is longer than deadlines.gang, 15m, which ends the attempt first"
            ]
        );
        let short = "defaults: {deadlines: {register: 8m}}\nchecks:\n  c:\n    deadlines: {gang: 9m}\n";
        assert_eq!(
            warnings(short),
            [
                "6:17: checks.c.deadlines.gang: 9m is shorter than deadlines.initialize, 10m, which never comes into play"
            ]
        );
        let tier = "defaults:\n  tiers:\n  - {name: a, nodePoolName: g, launchTimeout: 15m}\n  - {name: b, nodePoolName: g, launchTimeout: 16m}\n";
        assert_eq!(
            warnings(tier),
            [
                "6:32: defaults.tiers[1].launchTimeout: 16m is longer than deadlines.gang, 15m, which ends the attempt first"
            ]
        );
        let short = "defaults:\n  deadlines: {gang: 30m}\n  tiers: [{name: a, nodePoolName: g, launchTimeout: 16m}]\nchecks:\n  c:\n    deadlines: {gang: 15m}\n";
        assert_eq!(
            warnings(short),
            [
                "8:17: checks.c.deadlines.gang: 15m is shorter than tiers[0].launchTimeout, 16m, which never comes into play"
            ]
        );
        let none = warnings(
            "defaults: {deadlines: {launch: 5m, initialize: 15m}}\nchecks: {c: {custody: {pinning: Auto}}}\n",
        );
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn devices_without_requirements_are_a_warning() {
        let entry = |more: &str| {
            let entry = format!("{{deviceClass: gpu.nvidia.com, driver: gpu.nvidia.com, perNode: 8{more}}}");
            of_text(&format!("{HEAD}defaults: {{devices: [{entry}]}}\n"))
        };
        let [found] = entry("").try_into().unwrap();
        assert!(
            found.message.starts_with("has no requirements, so every node counts as having 8"),
            "{found}"
        );
        assert_eq!(found.path.to_string(), "defaults.devices[0]");
        assert_eq!(entry(", requirements: [{key: node.kubernetes.io/instance-type, operator: Exists}]"), []);
    }

    #[test]
    fn several_reservations_of_unknown_type_or_zone_are_a_warning() {
        let of = |second: &str| {
            let first = "{id: cr-1, nodes: 2, instanceType: p5.48xlarge, zone: a}";
            let tier = format!("{{name: t, nodePoolName: g, reservations: [{first}{second}]}}");
            of_text(&format!("{HEAD}defaults: {{tiers: [{tier}]}}\n"))
        };
        let [found] = of(", {id: cr-2, nodes: 2, instanceType: p5.48xlarge}").try_into().unwrap();
        assert!(found.message.contains("state instanceType and zone of each"), "{found}");
        assert_eq!(found.path.to_string(), "defaults.tiers[0].reservations");
        assert_eq!(of(", {id: cr-2, nodes: 2, instanceType: p5.48xlarge, zone: a}"), []);
        assert_eq!(of(", {id: cr-2, nodes: 2, instanceType: p4d.24xlarge}"), [], "of different types");
        assert_eq!(of(""), []);
    }

    #[test]
    fn a_shape_larger_than_its_instance_type_is_a_warning() {
        let shape = |memory: &str| {
            let allocatable = format!("allocatable: {{memory: {memory}, nvidia.com/gpu: 8}}");
            format!(
                "{HEAD}defaults: {{packing: {{shapes: [{{instanceType: p5.48xlarge, {allocatable}}}]}}}}\n"
            )
        };
        let [found] = of_text(&shape("2000Gi")).try_into().unwrap();
        assert!(found.message.starts_with("2000Gi is more than the 1938410Mi that pods can use"), "{found}");
        assert_eq!(found.path.to_string(), "defaults.packing.shapes[0].allocatable.memory");
        assert_eq!(of_text(&shape("1800Gi")), []);
    }
}
