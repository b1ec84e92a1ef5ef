//! Plays every scenario of `examples/scenarios/` in the embedded cluster. The same files are played on the real
//! control plane. `SETU_SCENARIO=part of a title` selects some.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and tell what it saw")]

use anyhow::{Context as _, Result};
use setu::policy::PolicyFile;
use setu::sim::cluster::SimCluster;
use setu::sim::embedded::EmbeddedTheatre;
use setu::sim::invariants::InvariantChecker;
use setu::sim::scenario::{self, Run, ScenarioWorld, Theatre as _};
use setu_clock::Clock;
use std::path::Path;
use std::time::Duration;

/// Plays one run in virtual time, optionally with a kill right after a write. Returns Setu's writes.
fn play(run: &Run, kill_after: Option<u64>) -> Result<u64> {
    acted(run, async |world| {
        let writes = scenario::play(world, run, kill_after).await?;
        let deaths = world.theatre.deaths;
        anyhow::ensure!(deaths == usize::from(kill_after.is_some()), "Setu was killed {deaths} times");
        Ok(writes)
    })
}

/// Runs `act` in the world of a run, in virtual time.
fn acted<T>(run: &Run, act: impl AsyncFnOnce(&mut ScenarioWorld<EmbeddedTheatre>) -> Result<T>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let policy: PolicyFile = serde_yaml::from_str(&scenario::policy(run, clock.now())?)?;
        let cluster = SimCluster::start(1, &clock, &scenario::controller_name(run), policy);
        let checker = InvariantChecker::default();
        cluster.server.observe(Box::new(checker.clone()));
        let mut world = ScenarioWorld::new(EmbeddedTheatre::new(cluster), run).await?;
        let done = act(&mut world).await?;
        let violations = checker.violations();
        anyhow::ensure!(violations.is_empty(), "{violations:?}");
        Ok(done)
    })
}

#[test]
fn every_scenario_comes_true_in_the_embedded_cluster() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/scenarios");
    let mut failed = Vec::new();
    let mut lives = 0;
    let chosen = std::env::var("SETU_SCENARIO").unwrap_or_default();
    for run in scenario::read(&folder).unwrap().into_iter().filter(|run| run.title.contains(&chosen)) {
        let played = play(&run, None);
        lives += 1;
        let kills = match &played {
            Ok(writes) if run.scenario.kill_after_each_write => *writes,
            _ => 0,
        };
        let is_killed = run.scenario.kill_after_each_write && played.is_ok();
        assert!(!is_killed || kills > 4, "{}: {kills} writes", run.title);
        failed.extend(played.err().map(|e| format!("{}: {e:#}", run.title)));
        for write in 1..=kills {
            lives += 1;
            let played = play(&run, Some(write)).with_context(|| format!("killed after write {write}"));
            failed.extend(played.err().map(|e| format!("{}: {e:#}", run.title)));
        }
    }
    println!("{lives} lives");
    assert!(lives > 0, "no title contains {chosen:?}");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_scenario_can_be_played_by_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.map(|file| file.trim_end_matches(".yaml").to_owned()).collect();
    files.sort();
    let names: Vec<&str> = scenario::names().collect();
    assert_eq!(names, files, "src/sim/scenario/library.rs has the list of what is compiled in");
    let ids: Vec<String> =
        scenario::names().flat_map(|name| scenario::find(name).unwrap()).map(|run| run.id).collect();
    for id in &ids {
        assert!(!scenario::find(id).unwrap().is_empty(), "{id}");
    }
    assert!(ids.len() > files.len() && scenario::find("nowhere").unwrap().is_empty());
}

#[test]
fn the_scenarios_for_the_real_control_plane_parse() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/scenarios");
    assert!(scenario::read(&folder).unwrap().len() > 8);
}

#[test]
fn the_list_for_the_aws_provider_names_every_scenario() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = std::fs::read_to_string(root.join("tests/e2e/tests/aws/files.rs")).unwrap();
    let folders = ["examples/scenarios", "tests/e2e/scenarios"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap().replace(".yaml", ""));
    let missing: Vec<String> = names.filter(|name| !list.contains(&format!("\"{name}\""))).collect();
    assert!(
        missing.is_empty(),
        "tests/e2e/tests/aws/files.rs says of none of these whether it is played: {missing:?}"
    );
}

#[test]
fn an_expectation_that_would_be_true_of_anything_is_refused() {
    for (step, words) in [
        ("until: {admitted: true}", "not about which one"),
        ("holds: {claims: 2, nodes: 2}", "not about which one"),
        ("until: {within: 5}", "it expects nothing"),
        ("holds: {job: train, admitted: true, within: 0}", "anything holds for 0 seconds"),
    ] {
        let error = scenario::parse("empty", &format!("title: Empty\nsteps:\n- {step}")).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{step}: {error:#}");
    }
}

const LEFT: &str = "
title: A NodeClaim of a second NodePool is left
steps:
- apply:
  - apiVersion: karpenter.sh/v1
    kind: NodePool
    metadata: {name: left-in-another-pool}
    spec: {template: {spec: {
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: left}, requirements: []}}}
  - apiVersion: karpenter.sh/v1
    kind: NodeClaim
    metadata:
      name: left-over
      labels: {karpenter.sh/nodepool: left-in-another-pool}
      annotations: {karpenter.sh/do-not-disrupt: 'true'}
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: left}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
";

#[test]
fn what_is_left_in_any_node_pool_of_a_scenario_is_found() {
    let run = scenario::parse("left", LEFT).unwrap().remove(0);
    let error = format!("{:#}", play(&run, None).unwrap_err());
    let words = "left over: NodeClaims {\"left-over\"}, Nodes [\"";
    assert!(error.contains(words), "{error}");
}

const PODS_NOT_READY: &str = "
title: Pods that do not all run in time are evicted, and the next admission begins with whole nodes
policy: {custody: {onNodeLost: Ignore}}
steps:
- submit: {name: train, pods: 2, gpus: 1, restarts: 9}
- until: {job: train, admitted: true, runningOnOwnNodes: 2, attempt: 1}
- deleteOneClaim: train
- until: {job: train, state: Approved, admitted: true, running: 1, claims: 1}
- holds: {job: train, state: Approved, admitted: true, running: 1, claims: 1, within: 20}
- until: {job: train, admitted: true, runningOnOwnNodes: 2, attempt: 2, claims: 2, nodes: 2}
";

/// Kueue's default time to wait for pods, which is too long for a test in real time.
const PODS_READY_LIMIT: Duration = Duration::from_mins(30);

#[test]
fn a_gang_whose_pods_are_not_ready_in_time_starts_again() {
    let run = scenario::parse("pods-not-ready", PODS_NOT_READY).unwrap().remove(0);
    acted(&run, async |world| {
        world.theatre.start_setu(None)?;
        let (last, first) = run.scenario.steps.split_last().unwrap();
        for step in first {
            scenario::take(world, step).await?;
        }
        tokio::time::sleep(PODS_READY_LIMIT).await;
        scenario::take(world, last).await?;
        scenario::nothing_is_left(world).await
    })
    .unwrap();
}

const WARM: &str = "
title: A node passes from gang to gang
policy: {custody: {release: Warm, warmFor: 30s}}
steps:
- submit: {name: first, pods: 1, gpus: 1, runFor: 1s}
- until: {job: first, state: Released, allClaims: 0, nodes: 1}
- submit: {name: second, pods: 1, gpus: 1, runFor: 1s}
- until: {job: second, finished: true, state: Released, nodes: 1}
";

#[test]
fn a_node_passes_to_the_next_gang_despite_a_crash_after_any_write() {
    let run = scenario::parse("warm", WARM).unwrap().remove(0);
    let writes = play(&run, None).unwrap();
    let played = (1..=writes).map(|write| (write, play(&run, Some(write))));
    let failed: Vec<String> = played
        .filter_map(|(write, played)| Some(format!("after write {write}: {:#}", played.err()?)))
        .collect();
    assert!(writes > 12 && failed.is_empty(), "{writes} writes\n{}", failed.join("\n"));
}
