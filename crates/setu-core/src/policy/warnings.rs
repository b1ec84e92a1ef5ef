//! Finds probable mistakes in a valid file: limits of phases and tiers that exceed the gang's, shapes larger than their instance
//! type or of an unknown one, and absurd prices.

mod money;

use super::Policy;
use super::check::Finding;
use super::file::PolicyFile;
use super::tree::Path;
use crate::api::parameters::{Budget, ProvisioningParametersSpec, Shape};
use crate::plan::catalogue;
use crate::plan::quantity::Amount;
use crate::plan::shapes::DISK;
use std::fmt;

/// All warnings for a file.
pub fn warnings(file: &PolicyFile) -> Vec<Finding> {
    let defaults = Policy::default().overlaid(&file.defaults);
    let at = Path::default().key("defaults");
    let mut found = unreachable(&at, &file.defaults, &defaults);
    found.extend(oversized_of(&at, &file.defaults));
    found.extend(misspelt_of(&at, &file.defaults));
    found.extend(absurd_of(&at, &file.defaults));
    for (name, spec) in &file.checks {
        let at = Path::default().key("checks").key(name);
        found.extend(unreachable(&at, spec, &defaults.clone().overlaid(spec)));
        found.extend(oversized_of(&at, spec));
        found.extend(misspelt_of(&at, spec));
        found.extend(absurd_of(&at, spec));
    }
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
pub fn oversized<'s>(shapes: impl IntoIterator<Item = &'s Shape>) -> Vec<Oversized<'s>> {
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

/// The same, with their places in a layer.
fn oversized_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("packing").key("shapes");
    let found = oversized(spec.packing.iter().flat_map(|packing| packing.shapes.iter().flatten()));
    found.into_iter().map(|f| (at.index(f.index).key("allocatable").key(f.resource), f.why)).collect()
}

/// Prices and multipliers of a budget that are probably mistakes: the key under `gates.budget` and the reason, for users.
pub fn absurd_money(budget: &Budget) -> Vec<String> {
    let at = Path::default().key("gates").key("budget");
    money::absurd(&at, budget).into_iter().map(|(place, why)| format!("{place}: {why}")).collect()
}

/// The same, with their places in a layer.
fn absurd_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let budget = spec.gates.as_ref().and_then(|gates| gates.budget.as_ref());
    budget.map_or_else(Vec::new, |budget| money::absurd(&at.key("gates").key("budget"), budget))
}

/// Shapes of an instance type that is not in the catalogue, if others of its family are.
fn misspelt_of(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let at = at.key("packing").key("shapes");
    let shapes = spec.packing.iter().flat_map(|packing| packing.shapes.iter().flatten());
    let why = |(index, shape): (usize, &Shape)| {
        let why = money::misspelt(&shape.instance_type, "shape")?;
        Some((at.index(index).key("instanceType"), why))
    };
    shapes.enumerate().filter_map(why).collect()
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
