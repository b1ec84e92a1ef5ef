//! What works in a valid file, and is hardly meant: deadlines of phases that end after the gang's, and shapes larger
//! than their instance type.

use super::Policy;
use super::check::Finding;
use super::file::PolicyFile;
use super::tree::Path;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::plan::catalogue;
use crate::plan::quantity::Amount;

/// All of them, for a whole file.
pub fn warnings(file: &PolicyFile) -> Vec<Finding> {
    let defaults = Policy::default().overlaid(&file.defaults);
    let at = Path::default().key("defaults");
    let mut found = unreachable(&at, &file.defaults, &defaults);
    found.extend(oversized(&at, &file.defaults));
    for (name, spec) in &file.checks {
        let at = Path::default().key("checks").key(name);
        found.extend(unreachable(&at, spec, &defaults.clone().overlaid(spec)));
        found.extend(oversized(&at, spec));
    }
    found
}

/// Shapes that state more of a resource than a node of their instance type gives to pods.
fn oversized(at: &Path, spec: &ProvisioningParametersSpec) -> Vec<Finding> {
    let shapes = spec.packing.iter().flat_map(|packing| packing.shapes.iter().flatten()).enumerate();
    let at = at.key("packing").key("shapes");
    let mut found = Vec::new();
    for (index, shape) in shapes {
        let Some(known) = catalogue::find(&shape.instance_type) else { continue };
        for (resource, stated) in &shape.allocatable {
            // The disk of a node is as large as its NodeClass says.
            let known = known.shape.allocatable.get(resource).filter(|_| resource != "ephemeral-storage");
            let Some(known) = known.filter(|known| Amount::parse(&known.0) < Amount::parse(&stated.0)) else {
                continue;
            };
            let message = format!(
                "{} is more than the {} that pods can use on a {}, so Karpenter may launch nothing for a full node",
                stated.0, known.0, shape.instance_type
            );
            found.push((at.index(index).key("allocatable").key(resource), message));
        }
    }
    found
}

/// Deadlines of phases, stated or made so by this layer, that are longer than the gang's in `policy`.
fn unreachable(at: &Path, spec: &ProvisioningParametersSpec, policy: &Policy) -> Vec<Finding> {
    let Some(stated) = &spec.deadlines else { return Vec::new() };
    let (limits, gang) = (&policy.deadlines, policy.deadlines.gang);
    let phases = [
        ("launch", limits.launch, stated.launch),
        ("register", limits.register, stated.register),
        ("initialize", limits.initialize, stated.initialize),
    ];
    let at = at.key("deadlines");
    let longer = phases
        .into_iter()
        .filter(|(_, limit, own)| *limit > gang && (own.is_some() || stated.gang.is_some()));
    longer
        .map(|(key, limit, own)| match own {
            Some(_) => (
                at.key(key),
                format!("{limit} is longer than deadlines.gang, {gang}, which ends the attempt first"),
            ),
            None => (
                at.key("gang"),
                format!("{gang} is shorter than deadlines.{key}, {limit}, which never comes into play"),
            ),
        })
        .collect()
}
