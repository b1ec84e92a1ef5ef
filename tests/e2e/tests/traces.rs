//! A real Jaeger shows a gang's complete trace although Setu was killed twice. A lost collector does not
//! affect gangs.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(missing_docs, dead_code, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::api::Workload;
use ::setu::gang::{Journal, StateName, TraceContext};
use ::setu::sim::scenario::{Run, Scenario, ScenarioWorld};
use kube::CustomResourceExt as _;
use real::{Real, Shared};
use serde_json::{Value, json};
use setu_e2e::{Program, Stack, StackOptions, apply};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The trace context that the Job was submitted with.
const SUBMITTED_IN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn world(stack: &Arc<Stack>) -> ScenarioWorld<Real> {
    let client = stack.client().unwrap();
    let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd()).unwrap();
    setu_e2e::apply::all(&client, vec![crd]).await.unwrap();
    let kinds = apply::kinds(&client).await.unwrap();
    let scenario: Scenario = serde_json::from_value(json!({
        "title": "traces", "weather": [{"launchDelay": "1s", "registrationDelay": "3s"}],
    }))
    .unwrap();
    let run = Run { title: scenario.title.clone(), id: "traces".into(), scenario };
    let shared = Shared { kinds: Arc::new(kinds), kubeconfig: Arc::from(stack.kubeconfig()) };
    ScenarioWorld::new(Real::new(stack, &shared, &run).unwrap(), &run).await.unwrap()
}

async fn submit(world: &ScenarioWorld<Real>, name: &str) {
    let requests = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"},
            "annotations": {"provreq.kueue.x-k8s.io/setu-traceparent": SUBMITTED_IN},
        },
        "spec": {
            "parallelism": 4, "completions": 4, "suspend": true,
            "template": {
                "metadata": {"annotations": {setu_e2e::RUN_FOR_ANNOTATION: "3s"}},
                "spec": {
                    "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "main", "image": "none",
                        "resources": {"requests": requests, "limits": {"nvidia.com/gpu": "1"}},
                    }],
                },
            },
        },
    });
    world.apply(job).await.unwrap();
}

/// Waits until the journal of a Job's gang meets a condition.
async fn until(
    world: &mut ScenarioWorld<Real>,
    job: &str,
    what: &str,
    wanted: impl Fn(&Journal) -> bool,
) -> (Workload, Journal) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let workload = world.workload(job).await.unwrap();
        if let Some(workload) = &workload
            && let Some(journal) = world.journal(workload).filter(|j| wanted(j))
        {
            return (workload.clone(), journal);
        }
        assert!(Instant::now() < deadline, "not {what}\n{}", world.theatre.setu.log_tail(25));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_in(state: StateName) -> impl Fn(&Journal) -> bool {
    move |journal| journal.state.name() == state
}

/// A span as Jaeger returns it.
#[derive(Debug)]
struct Shown {
    id: String,
    parent: Option<String>,
    name: String,
    /// Microseconds.
    start: i64,
    end: i64,
    instance: String,
    links: Vec<String>,
    tags: BTreeMap<String, Value>,
    events: usize,
}

fn tags(all: &Value) -> BTreeMap<String, Value> {
    let pair = |tag: &Value| (tag["key"].as_str().unwrap().to_owned(), tag["value"].clone());
    all.as_array().into_iter().flatten().map(pair).collect()
}

/// Queries Jaeger for a trace until it has its root span.
async fn trace(stack: &Stack, id: &str) -> Vec<Shown> {
    let [_, _, query] = stack.jaeger();
    let client = kube::Client::try_from(kube::Config::new(query.parse().unwrap())).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let request = http::Request::get(format!("/api/traces/{id}")).body(Vec::new()).unwrap();
        let answer = client.request_text(request).await;
        let text = answer.as_deref().unwrap_or("{}");
        let all: Value = serde_json::from_str(text).unwrap();
        let spans = shown(&all["data"][0]);
        if spans.iter().any(|s| s.name == "gang") {
            return spans;
        }
        assert!(Instant::now() < deadline, "no root in {answer:?}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn shown(trace: &Value) -> Vec<Shown> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let span = |span: &Value| {
        let references: Vec<&Value> = span["references"].as_array().into_iter().flatten().collect();
        let mut parent = references.iter().filter(|r| r["refType"] == "CHILD_OF");
        let links = references.iter().filter(|r| r["refType"] == "FOLLOWS_FROM");
        let start = span["startTime"].as_i64().unwrap();
        let process = &trace["processes"][text(&span["processID"])];
        Shown {
            id: text(&span["spanID"]),
            parent: parent.next().map(|r| text(&r["spanID"])),
            name: text(&span["operationName"]),
            start,
            end: start + span["duration"].as_i64().unwrap(),
            instance: text(&tags(&process["tags"])["service.instance.id"]),
            links: links.map(|r| text(&r["traceID"])).collect(),
            tags: tags(&span["tags"]),
            events: span["logs"].as_array().map_or(0, Vec::len),
        }
    };
    trace["spans"].as_array().into_iter().flatten().map(span).collect()
}

fn named<'a>(all: &'a [Shown], name: &str) -> Vec<&'a Shown> {
    all.iter().filter(|s| s.name == name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_has_every_state_once_and_no_gap_after_two_kills() {
    let stack =
        Arc::new(Stack::start(StackOptions { jaeger: true, ..StackOptions::default() }).await.unwrap());
    let mut world = world(&stack).await;
    let [grpc, https, _] = stack.jaeger();

    // Killed during the writes after the journal's: half of the NodeClaims exist.
    world.theatre.setu.environment =
        vec![("SETU_OTLP_ENDPOINT", grpc), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".into())];
    world.theatre.setu.start(Some(5)).unwrap();
    submit(&world, "train").await;
    let deadline = Instant::now() + TIMEOUT;
    let ended = loop {
        if let Some(status) = world.theatre.setu.ended().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "Setu did not kill itself\n{}", world.theatre.setu.log_tail(25));
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    assert_eq!(ended.signal(), Some(9));
    let (_, at_death) = until(&mut world, "train", "journalled", |_| true).await;
    assert_eq!(at_death.state.name(), StateName::Provisioning);

    // The second process continues there, uses the other protocol over TLS, and is killed once all claims exist.
    world.theatre.setu.environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", https),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".into()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", stack.authority().display().to_string()),
    ];
    world.theatre.setu.start(None).unwrap();
    until(&mut world, "train", "waiting", is_in(StateName::WaitingReady)).await;
    world.theatre.setu.kill();

    world.theatre.setu.environment.push(("SETU_TRACE_OWN", "all".into()));
    world.theatre.setu.start(None).unwrap();
    let (_, journal) = until(&mut world, "train", "released", is_in(StateName::Released)).await;
    let context: TraceContext = journal.trace_context();
    assert_eq!(context.to_string(), journal.traceparent);
    let id = journal.traceparent.split('-').nth(1).unwrap();
    let all = trace(&stack, id).await;
    check(&all, &journal);
    check_own(&own_of(&stack, id).await, id);

    world.theatre.setu.kill();
    world.theatre.setu.environment.pop();
    world.theatre.setu.start(None).unwrap();
    without_collector(&stack, &mut world).await;
    drop(world);
    Arc::into_inner(stack).unwrap().stop();
}

fn check(all: &[Shown], journal: &Journal) {
    let ids: BTreeSet<&str> = all.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids.len(), all.len(), "a span is shown twice: {all:#?}");
    let root = named(all, "gang")[0];
    assert_eq!(root.parent, None);
    assert_eq!(root.links, ["0af7651916cd43dd8448eb211c80319c"]);
    assert_eq!(root.tags["setu.workload"].as_str().map(|w| w.starts_with("job-train")), Some(true));

    let mut states: Vec<&Shown> = all.iter().filter(|s| s.parent.as_ref() == Some(&root.id)).collect();
    states.sort_by_key(|s| (s.start, s.end));
    let names: Vec<&str> = states.iter().map(|s| s.name.as_str()).collect();
    let expected = ["Validating", "Provisioning", "WaitingReady", "Approved", "RollingBack", "Released"];
    assert_eq!(names, expected, "{}", journal.encode());
    let ends: Vec<i64> = journal.history.iter().map(|s| s.at.as_microsecond()).collect();
    let mut from = journal.trace.since.as_microsecond();
    assert_eq!(root.start, from);
    for (state, step) in states.iter().zip(&journal.history) {
        let to = step.at.as_microsecond();
        assert_eq!(state.name, step.from.name());
        // Jaeger stores microseconds, so start and duration are both truncated.
        assert!(
            (state.start - from).abs() <= 1 && (state.end - to).abs() <= 2,
            "{state:?} is not {from} to {to}"
        );
        assert_eq!(state.instance, step.by);
        from = to;
    }
    assert!((root.end - ends[ends.len() - 1]).abs() <= 2);
    let instances: BTreeSet<&str> = states.iter().map(|s| s.instance.as_str()).collect();
    assert_eq!(instances.len(), 3, "each of the three processes did its part: {instances:?}");

    let waiting = states[2];
    assert_eq!(waiting.events, 1, "the verdict");
    let nodes = named(all, "NodeClaim");
    assert_eq!(nodes.len(), 4);
    for node in nodes {
        assert_eq!(node.parent.as_ref(), Some(&waiting.id));
        assert!(node.tags.contains_key("k8s.node.name"), "{node:?}");
        let mut phases: Vec<&Shown> = all.iter().filter(|s| s.parent.as_ref() == Some(&node.id)).collect();
        phases.sort_by_key(|s| (s.start, s.end));
        let names: BTreeSet<&str> = phases.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, BTreeSet::from(["launch", "register", "initialize"]));
        assert!(node.end - node.start >= 3_000_000, "the weather delays the Nodes by 3 s: {node:?}");
        assert!((phases[0].start - node.start).abs() <= 1 && (phases[2].end - node.end).abs() <= 2);
        for pair in phases.windows(2) {
            assert!((pair[0].end - pair[1].start).abs() <= 2, "{pair:?}");
        }
    }
    assert_eq!(all.len(), 1 + 6 + 4 + 12);
}

/// The reconciles of a gang that Jaeger finds by the id of the gang's trace, once one of them made the verdict.
async fn own_of(stack: &Stack, gang: &str) -> Vec<Vec<Shown>> {
    let [_, _, query] = stack.jaeger();
    let client = kube::Client::try_from(kube::Config::new(query.parse().unwrap())).unwrap();
    let tags = format!("%7B%22setu.gang.trace_id%22%3A%22{gang}%22%7D");
    let path = format!("/api/traces?service=setu&operation=reconcile&limit=100&tags={tags}");
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let answer = client.request_text(http::Request::get(&path).body(Vec::new()).unwrap()).await;
        let all: Value = serde_json::from_str(answer.as_deref().unwrap_or("{}")).unwrap();
        let reconciles: Vec<_> = all["data"].as_array().into_iter().flatten().map(shown).collect();
        if reconciles.iter().any(|spans| !named(spans, "writing the verdict of Workload").is_empty()) {
            return reconciles;
        }
        assert!(Instant::now() < deadline, "no reconcile with a verdict among {reconciles:#?}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn check_own(reconciles: &[Vec<Shown>], gang: &str) {
    for spans in reconciles {
        let root = named(spans, "reconcile")[0];
        assert_eq!((root.parent.as_ref(), &root.tags["setu.controller"]), (None, &json!("workload")));
        assert_eq!(root.links, [gang]);
        let ids: BTreeSet<&String> = spans.iter().map(|span| &span.id).collect();
        for span in spans.iter().filter(|span| span.id != root.id) {
            assert!(span.parent.as_ref().is_some_and(|parent| ids.contains(parent)), "{span:?}");
            assert!(span.start >= root.start && span.end <= root.end + 2, "{span:?} is not within {root:?}");
        }
    }
    let all: BTreeSet<&str> = reconciles.iter().flatten().map(|span| span.name.as_str()).collect();
    for name in ["quorum read", "plan", "wait for a permit", "wait for the ledger"] {
        assert!(all.contains(name), "{name} is not among {all:?}");
    }
}

/// Without the collector a gang runs as before; one log line and a metric report it.
async fn without_collector(stack: &Stack, world: &mut ScenarioWorld<Real>) {
    stack.stop_program(Program::Jaeger).await.unwrap();
    submit(world, "unseen").await;
    until(world, "unseen", "released", is_in(StateName::Released)).await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let metrics = world.theatre.setu.get("metrics", "/metrics").unwrap();
        let failed = metrics
            .lines()
            .find(|l| l.starts_with("setu_trace_export_failures_total{reason=\"export_failed\"}"));
        if failed.is_some_and(|line| !line.ends_with(" 0")) {
            break;
        }
        assert!(Instant::now() < deadline, "no failure was counted");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let complaints = world.theatre.setu.log_tail(10_000).matches("spans do not reach the collector").count();
    assert_eq!(complaints, 1);
}
