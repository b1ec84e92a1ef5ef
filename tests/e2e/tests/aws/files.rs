//! The scenarios from files: which ones run here, unchanged, and which do not.

use crate::play::{SETTLED, Stage, nodes_are_given_up, until_gone};
use crate::real::Real;
use crate::rights;
use ::setu::sim::scenario::{self, Run, ScenarioWorld};
use anyhow::{Context as _, Result, ensure};
use setu_e2e::aws::MachineBehaviour;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folders of the files.
const FOLDERS: [&str; 2] = ["../../examples/scenarios", "scenarios"];

/// The files that run here.
pub const PLAYED: &[&str] = &[
    "apart-by-host",
    "budget",
    "budget-by-list-price",
    "buffer-time",
    "capacity-types",
    "check-added",
    "checks-by-flavor",
    "competing",
    "competing-replaced",
    "competing-warm",
    "crowded",
    "crowded-by-tolerant",
    "device-class",
    "do-not-repair",
    "drifted",
    "dry-run",
    "elastic",
    "gpu-job",
    "handed-back",
    "hold-over",
    "idle",
    "jobset",
    "journal",
    "last-check",
    "late-daemon-set",
    "leader-worker-set",
    "limit-by-devices",
    "limit-taken-meanwhile",
    "limit-too-small",
    "limits",
    "long-name",
    "managed-resources",
    "maximum-execution-time",
    "mended",
    "metrics-say-out",
    "mixed-pool",
    "mixed-tiers",
    "multikueue-worker",
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
    "packing",
    "parameters-broken",
    "parameters-changed",
    "parameters-late",
    "partial",
    "placement",
    "pod-group",
    "pod-sets-apart",
    "pods-unbound",
    "prebuilt",
    "queue-budget",
    "queue-budget-by-list-price",
    "reclaimable",
    "refused",
    "reservation-closes",
    "running",
    "same-name-again",
    "shortage",
    "spot-out-in-a",
    "taken-away",
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
    "zone-spread",
];

/// Why a file, or one run of it, does not run here.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// It sets the status of the kwok provider's NodeClass. The AWS provider sets that status itself.
    NamesKwok,
    /// EC2 cannot have its weather: launches that hang forever or fail for a made-up reason, failed racks, a shortage in one
    /// NodePool only, Nodes with other sizes, reserved capacity without a reservation.
    Weather,
    /// It needs capacity that Karpenter considers unavailable. Karpenter does not call EC2 again for three minutes after a
    /// shortage, even if all or part of the capacity is back.
    Remembered,
    /// Another owner's NodeClaim is deleted before Karpenter counts its machine in the NodePool's status. Without a change of
    /// that status, Setu checks again only after a minute, and the scenario waits less.
    NotCounted,
    /// It stops or changes what all scenarios share: the API server, topology-aware scheduling.
    Shared,
    /// It needs one machine per pod, but pods share machines when Setu knows their size.
    SharedMachines,
    /// It runs once for each of Setu's writes; `kills.rs` does this here.
    Killed,
    /// It needs a newer Kubernetes than CI's set of versions has.
    Newer,
    /// It needs a driver that publishes devices as ResourceSlices.
    NoDriver,
    /// It waits for more than ten minutes, in which no machine takes part.
    Long,
}

/// The files that do not run here, and the skipped runs of those that do.
const NOT_PLAYED: &[(&str, Why)] = &[
    ("apart-by-zone", Why::Remembered),
    ("claim-stays", Why::Long),
    ("cpu-job", Why::SharedMachines),
    ("devices", Why::NoDriver),
    ("devices-by-template", Why::NoDriver),
    ("given-back", Why::Remembered),
    ("killed", Why::Killed),
    ("killed-in-shortage", Why::Remembered),
    ("launch-timeout", Why::Weather),
    ("limit-taken-meanwhile-ofthenexttier", Why::Weather),
    ("limits-of-others", Why::NotCounted),
    ("mended-in-its-tier", Why::SharedMachines),
    ("mended-nodeclassnotready", Why::NamesKwok),
    ("never-comes", Why::Weather),
    ("outage", Why::Shared),
    ("packing-learnt", Why::SharedMachines),
    ("packing-smaller", Why::Weather),
    ("pod-group-of-kubernetes", Why::Newer),
    ("preferred-zone", Why::Remembered),
    ("rack-out", Why::Weather),
    ("reservation-full", Why::Weather),
    ("reservation-half", Why::Weather),
    ("reservation-opens", Why::Weather),
    ("reservation-opens-later", Why::Weather),
    ("runtime-class", Why::Remembered),
    ("tier-refused", Why::Weather),
    ("tiers-type-out", Why::SharedMachines),
    ("topology", Why::Shared),
    ("zone-affinity", Why::Remembered),
];

/// Runs a scenario file. Checks that no instance and no launch template is left in the cloud, and that Karpenter's
/// documented policy allows all calls.
pub async fn file(stage: &Stage, name: &str) -> Result<()> {
    for run in runs(name)? {
        play(stage, &run).await.with_context(|| run.title.clone())?;
    }
    Ok(())
}

async fn play(stage: &Stage, run: &Run) -> Result<()> {
    // Otherwise it would remember the unavailable offerings of the previous run.
    stage.restart_karpenter().await?;
    let cloud = stage.stack.cloud()?;
    cloud.rules(Vec::new());
    cloud.reservations(Vec::new());
    cloud.machines(MachineBehaviour::default());
    // A failed scenario may have left some.
    let before = cloud.instances().await?;
    let since = cloud.calls().len();
    let mut real = Real::new(&stage.stack, &stage.shared, run)?;
    real.aws_type = Some("g5.4xlarge");
    let mut world = ScenarioWorld::new(real, run).await?;
    scenario::play(&mut world, run, None).await?;
    rights::suffice(cloud)?;
    until_gone(SETTLED, async || {
        let mut left = cloud.instances().await?;
        left.retain(|instance| !before.contains(instance));
        Ok(left)
    })
    .await?;
    nodes_are_given_up(&world, cloud, since).await
}

fn folders() -> [PathBuf; 2] {
    FOLDERS.map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}

fn all_runs(name: &str) -> Result<Vec<Run>> {
    let files = folders().map(|folder| folder.join(format!("{name}.yaml")));
    let file =
        files.iter().find(|file| file.is_file()).with_context(|| format!("there is no file {name}"))?;
    scenario::read_file(file)
}

/// The runs of a file that run here.
fn runs(name: &str) -> Result<Vec<Run>> {
    let mut runs = all_runs(name)?;
    runs.retain(|run| !NOT_PLAYED.iter().any(|(id, _)| run.id == *id));
    Ok(runs)
}

/// Checks that every file either runs or has a reason not to.
pub fn all_are_named() -> Result<()> {
    let mut there = BTreeSet::new();
    for folder in folders() {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                there.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
    }
    let named = PLAYED.iter().copied().chain(NOT_PLAYED.iter().map(|(name, _)| *name));
    let listed: Vec<&str> = named.collect();
    let named: BTreeSet<String> = listed.iter().map(|name| (*name).to_owned()).collect();
    for name in PLAYED {
        there.extend(all_runs(name)?.into_iter().map(|run| run.id).filter(|id| named.contains(id)));
    }
    ensure!(named.len() == listed.len(), "some file is listed twice");
    let apart: Vec<&String> = named.symmetric_difference(&there).collect();
    ensure!(apart.is_empty(), "only listed, or only there: {apart:?}");
    Ok(())
}
