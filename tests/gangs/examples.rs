//! The user examples: every file parses, and each is applied to the embedded cluster unchanged and driven to its
//! end. `tests/e2e/tests/examples.rs` covers kinds that the embedded cluster does not serve.

use crate::world::in_virtual_time;
use serde::Deserialize as _;
use serde_json::{Value, json};
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::invariants::InvariantChecker;
use setu::sim::show::Spectator;
use setu_clock::Clock;
use setu_sim::api::{Preconditions, User, kinds};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// The number of checks that an example may take: half an hour.
const MOST_ROUNDS: usize = 7_200;

/// An example, and the expected end of its gangs.
struct Play {
    files: &'static [&'static str],
    weather: Value,
    gangs: Vec<(&'static str, End)>,
}

enum End {
    /// It runs on this many nodes with these labels, and finishes.
    Runs(usize, &'static [(&'static str, &'static str)]),
    /// It never gets a node, and its check's message contains these words.
    Waits(&'static str),
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let read = |d| Value::deserialize(d).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_yaml::Deserializer::from_str(&text).map(read).collect()
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Applies every object of a file, as an administrator.
fn apply(admin: &User, file: &str) {
    for object in documents(&folder().join(file)) {
        let (kind, name) = (text(&object, "/kind"), text(&object, "/metadata/name"));
        let kind =
            kinds::ALL.iter().find(|k| k.kind == kind).unwrap_or_else(|| panic!("{file}: no kind {kind}"));
        if let Err(refusal) = admin.create(kind, object.clone()) {
            panic!("{file}: {} {name}: {refusal}", kind.kind);
        }
    }
}

/// The observations of one gang so far.
#[derive(Default)]
struct Progress {
    finished: bool,
    /// The labels of its NodeClaims at admission.
    nodes: Vec<Value>,
    /// All messages of its check.
    messages: BTreeSet<String>,
}

fn observe(admin: &User, seen: &mut BTreeMap<String, Progress>) {
    let is = |w: &Value, kind: &str| {
        let conditions = w.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|c| text(c, "/type") == kind && text(c, "/status") == "True")
    };
    for workload in admin.list(&kinds::WORKLOAD) {
        let owner = text(&workload, "/metadata/ownerReferences/0/name");
        let group = text(&workload, "/metadata/annotations/kueue.x-k8s.io~1is-group-workload") == "true";
        let gang = if group { text(&workload, "/metadata/name") } else { owner };
        let seen = seen.entry(gang.to_owned()).or_default();
        seen.finished = is(&workload, "Finished");
        let checks = workload.pointer("/status/admissionChecks").and_then(Value::as_array);
        seen.messages.extend(checks.into_iter().flatten().map(|c| text(c, "/message").to_owned()));
        if is(&workload, "Admitted") && seen.nodes.is_empty() {
            let uid = text(&workload, "/metadata/uid");
            let label = |c: &Value| c.pointer("/metadata/labels").cloned().unwrap_or_default();
            let own = |labels: &Value| labels.get(names::WORKLOAD_UID) == Some(&json!(uid));
            seen.nodes = admin.list(&kinds::NODE_CLAIM).iter().map(|c| label(c)).filter(own).collect();
        }
    }
}

/// Whether the gang has reached its expected end.
fn has_ended(gang: &str, end: &End, seen: &Progress, spectator: &Spectator) -> bool {
    match end {
        End::Runs(nodes, labels) => {
            if seen.finished {
                assert_eq!(seen.nodes.len(), *nodes, "{gang} ran on {:?}", seen.nodes);
                for (node, (key, value)) in seen.nodes.iter().flat_map(|n| labels.iter().map(move |l| (n, l)))
                {
                    assert_eq!(node.get(*key), Some(&json!(value)), "a node of {gang} is {node}");
                }
            }
            seen.finished
        }
        End::Waits(words) => {
            let created = |g: &setu::sim::show::ShownGang| if g.job == gang { g.created } else { 0 };
            assert_eq!(spectator.gangs().iter().map(created).sum::<u32>(), 0, "{gang} got nodes");
            seen.messages.iter().any(|message| message.contains(words))
        }
    }
}

async fn play(play: &Play) {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let mut cluster = SimCluster::start(1, &clock, names::CONTROLLER_NAME, PolicyFile::default());
    let (checker, spectator) = (InvariantChecker::default(), Spectator::default());
    cluster.server.observe(Box::new(checker.clone()));
    cluster.server.observe(Box::new(spectator.clone()));
    let admin = cluster.server.user("admin");
    let weather = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
        "data": {"example": json!({"rules": play.weather}).to_string()},
    });
    admin.create(&kinds::CONFIG_MAP, weather).unwrap();
    play.files.iter().for_each(|file| apply(&admin, file));
    let _setu = cluster.start_setu(&Start::default());
    let mut seen = BTreeMap::new();
    for rounds in 0.. {
        observe(&admin, &mut seen);
        let open = |(gang, end): &&(&str, End)| {
            seen.get(*gang).is_none_or(|seen| !has_ended(gang, end, seen, &spectator))
        };
        let open: Vec<&str> = play.gangs.iter().filter(open).map(|(gang, _)| *gang).collect();
        if open.is_empty() {
            break;
        }
        let messages: Vec<_> = seen.iter().map(|(gang, seen)| (gang, &seen.messages)).collect();
        assert!(rounds < MOST_ROUNDS, "{:?}: {open:?} have not ended: {messages:#?}", play.files);
        tokio::time::sleep(INTERVAL).await;
    }
    for (kind, namespace, name) in jobs(&admin) {
        admin.delete(kind, &namespace, &name, Preconditions::default()).unwrap();
    }
    for rounds in 0.. {
        let claims = admin.list(&kinds::NODE_CLAIM);
        if claims.is_empty() && admin.list(&kinds::NODE).is_empty() {
            break;
        }
        assert!(rounds < MOST_ROUNDS, "{:?}: these are left: {claims:#?}", play.files);
        tokio::time::sleep(INTERVAL).await;
    }
    assert!(checker.violations().is_empty(), "{:?}", checker.violations());
}

/// The submitted objects that still exist.
fn jobs(admin: &User) -> Vec<(&'static kinds::ServedKind, String, String)> {
    let key = |kind, o: &Value| {
        (kind, text(o, "/metadata/namespace").to_owned(), text(o, "/metadata/name").to_owned())
    };
    let jobs = admin.list(&kinds::JOB);
    let pods = admin.list(&kinds::POD);
    let alone = pods.iter().filter(|p| p.pointer("/metadata/ownerReferences").is_none());
    jobs.iter().map(|j| key(&kinds::JOB, j)).chain(alone.map(|p| key(&kinds::POD, p))).collect()
}

const ZONE_B: (&str, &str) = ("topology.kubernetes.io/zone", "us-east-1b");
const ON_DEMAND: (&str, &str) = ("karpenter.sh/capacity-type", "on-demand");
const GPU: (&str, &str) = ("node.kubernetes.io/instance-type", "g5.4xlarge");
const SETUP: [&str; 2] = ["setup/nodepools.yaml", "setup/queues.yaml"];

#[test]
fn every_example_ends_as_expected_in_the_embedded_cluster() {
    let on = |file| -> &'static [&'static str] { vec![SETUP[0], SETUP[1], file].leak() };
    let alone = |file| -> &'static [&'static str] { vec![file].leak() };
    let fair = json!([]);
    let plays = [
        (on("gang-of-four.yaml"), fair.clone(), vec![("gang-of-four", End::Runs(4, &[GPU, ON_DEMAND]))]),
        (
            on("cpu-gang.yaml"),
            fair.clone(),
            vec![("cpu-gang", End::Runs(3, &[("karpenter.sh/nodepool", "cpu")]))],
        ),
        (on("pod-group.yaml"), fair.clone(), vec![("ray", End::Runs(4, &[]))]),
        (
            alone("spot-then-on-demand.yaml"),
            json!([{"capacityType": "spot", "capacity": 1}]),
            vec![("spot-first", End::Runs(3, &[ON_DEMAND]))],
        ),
        (
            alone("one-zone.yaml"),
            json!([{"zone": "us-east-1a", "capacity": 1}]),
            vec![("one-zone", End::Runs(3, &[ZONE_B]))],
        ),
        (
            alone("budget-gate.yaml"),
            fair.clone(),
            vec![
                ("affordable", End::Runs(2, &[])),
                ("expensive", End::Waits("the gang takes 6.50 USD an hour, and gates.budget allows 5 USD")),
            ],
        ),
        (
            alone("compliance-gate.yaml"),
            fair.clone(),
            vec![
                ("cleared", End::Runs(2, &[ZONE_B])),
                (
                    "elsewhere",
                    End::Waits("does not have the labels that gates.placement.namespaces asks for"),
                ),
            ],
        ),
        (
            alone("warm-nodes.yaml"),
            fair.clone(),
            vec![("warm-first", End::Runs(2, &[GPU])), ("warm-second", End::Runs(2, &[GPU]))],
        ),
        (alone("jupyterhub.yaml"), fair, vec![("jupyter-user", End::Runs(1, &[GPU]))]),
    ];
    let mut played = BTreeSet::new();
    for (files, weather, gangs) in plays {
        played.extend(files.iter().copied());
        in_virtual_time(play(&Play { files, weather, gangs }));
    }
    let elsewhere = include_str!("../e2e/tests/examples.rs");
    for path in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if elsewhere.contains(&format!("(\"{name}\", ")) {
            continue;
        }
        let applicable = path.extension().is_some_and(|e| e == "yaml") && name != "policy.yaml";
        assert!(!applicable || played.contains(name), "{name} is not driven to its end");
    }
}

#[test]
fn every_yaml_file_of_the_examples_parses() {
    let mut folders = vec![folder()];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                let documents = documents(&path);
                assert!(documents.iter().all(Value::is_object), "{}", path.display());
                if text(&documents[0], "/kind") == "Policy" {
                    PolicyFile::read(&path).unwrap();
                }
                read += 1;
            }
        }
    }
    assert!(read > 30, "{read} files");
}

#[test]
fn the_notebook_profile_matches_the_pod_and_waits_long_enough_for_its_node() {
    let path = folder().join("jupyterhub.yaml");
    let file = std::fs::read_to_string(&path).unwrap();
    let block: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    let values: Value = serde_yaml::from_str(&block.join("\n")).unwrap();
    let profile = values.pointer("/singleuser/profileList/0/kubespawner_override").unwrap();
    let all = documents(&path);
    let of = |kind: &str| all.iter().find(|d| text(d, "/kind") == kind).unwrap();
    let contains = |whole: Option<&Value>, part: &str| {
        let part = profile.get(part).and_then(Value::as_object).unwrap();
        !part.is_empty() && part.iter().all(|(key, value)| whole.and_then(|w| w.get(key)) == Some(value))
    };
    let pod = of("Pod");
    assert!(contains(pod.pointer("/metadata/labels"), "extra_labels"), "{profile}");
    assert!(
        contains(pod.pointer("/spec/containers/0/resources/limits"), "extra_resource_limits"),
        "{profile}"
    );
    let queue = text(profile, "/extra_labels/kueue.x-k8s.io~1queue-name");
    assert_eq!(queue, text(of("LocalQueue"), "/metadata/name"));
    let deadline: setu::api::duration::Span =
        serde_json::from_value(of("ProvisioningParameters").pointer("/spec/deadlines/gang").unwrap().clone())
            .unwrap();
    let start_timeout = profile.get("start_timeout").and_then(Value::as_i64).unwrap();
    assert!(start_timeout > deadline.signed().as_secs(), "the hub gives up before Setu does");
}
