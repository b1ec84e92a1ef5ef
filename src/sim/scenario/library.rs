//! The built-in scenarios, by the names of their files in `examples/scenarios/`.
//!
//! `tests/scenarios.rs` compares the list with the folder.

use super::runs::{self, Run};
use anyhow::Result;

macro_rules! files {
    ($($name:literal,)+) => {
        [$(($name, include_str!(concat!("../../../examples/scenarios/", $name, ".yaml")))),+]
    };
}

/// Name and text of each file, sorted by name.
const FILES: &[(&str, &str)] = &files![
    "apart-by-host",
    "apart-by-zone",
    "budget",
    "budget-by-list-price",
    "buffer-time",
    "capacity-types",
    "check-added",
    "checks-by-flavor",
    "claim-stays",
    "cpu-job",
    "crowded",
    "crowded-by-tolerant",
    "device-class",
    "devices",
    "devices-by-template",
    "do-not-repair",
    "dry-run",
    "given-back",
    "gpu-job",
    "handed-back",
    "hold-over",
    "idle",
    "journal",
    "killed",
    "killed-in-shortage",
    "last-check",
    "late-daemon-set",
    "launch-timeout",
    "limit-by-devices",
    "limit-taken-meanwhile",
    "limit-too-small",
    "limits",
    "limits-of-others",
    "long-name",
    "managed-resources",
    "mended",
    "mended-in-its-tier",
    "metrics-say-out",
    "mixed-pool",
    "mixed-tiers",
    "never-comes",
    "next-pool",
    "node-lost",
    "node-lost-ignore",
    "node-lost-reject",
    "node-lost-yield",
    "not-admitted",
    "not-handed-back",
    "one-rack",
    "one-zone",
    "other-check",
    "outage",
    "packing",
    "packing-learnt",
    "packing-smaller",
    "parameters-broken",
    "parameters-changed",
    "parameters-late",
    "placement",
    "pod-group",
    "pod-sets-apart",
    "pods-unbound",
    "preferred-zone",
    "queue-budget",
    "queue-budget-by-list-price",
    "rack-out",
    "refused",
    "reservation-closes",
    "reservation-full",
    "reservation-half",
    "reservation-opens",
    "reservation-opens-later",
    "running",
    "runtime-class",
    "same-name-again",
    "shortage",
    "spot-out-in-a",
    "taken-away",
    "tier-refused",
    "tiers",
    "two-checks",
    "two-gangs",
    "usually",
    "volume-class",
    "volume-elsewhere",
    "volume-of-one-node",
    "volume-zone",
    "warm",
    "warm-other-queue",
    "zone-affinity",
    "zone-spread",
];

/// The names, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The runs of the scenario with this name, or the run with this id; empty if there is none.
///
/// Fails only if a built-in file is not a valid scenario.
pub fn find(name: &str) -> Result<Vec<Run>> {
    if let Some((stem, text)) = FILES.iter().find(|(stem, _)| *stem == name) {
        return runs::parse(stem, text);
    }
    let mut found = Vec::new();
    for (stem, text) in FILES.iter().filter(|(stem, _)| name.starts_with(stem)) {
        found.extend(runs::parse(stem, text)?.into_iter().filter(|run| run.id == name));
    }
    Ok(found)
}
