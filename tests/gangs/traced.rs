//! The spans that are sent when Setu is killed after each of its writes in turn, in the embedded cluster: none is
//! missing, and spans that are sent twice are identical.

use crate::train;
use crate::world::in_virtual_time;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use opentelemetry_sdk::trace::Sampler;
use serde_json::{Value, json};
use setu::api::{NodeClaim, Workload};
use setu::cluster::lease::Timing;
use setu::gang::trace::TraceSpan;
use setu::names;
use setu::sim::cluster::{Election, SimCluster, Start};
use setu::sim::scenario::{controller_name_of, objects};
use setu::telemetry::metrics;
use setu::telemetry::traces::Traces;
use setu_clock::Clock;
use setu_sim::api::kinds;
use setu_sim::faults::WriteFault;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The name of everything.
const ID: &str = "traced";
/// The time between two checks.
const BEAT: Duration = Duration::from_millis(250);

/// Runs a gang of two through a shortage to its end. `plan` sets a fault at one write, counted from 0. If Setu
/// dies of it, another replica takes over. Returns every span sent, in order, and the number of the first
/// replica's writes.
fn play(plan: Option<(usize, WriteFault)>) -> (Vec<TraceSpan>, usize) {
    play_with(plan, None, Heir::Starts(Duration::ZERO))
}

/// The successor of a replica that dies.
#[derive(Clone, Copy, PartialEq)]
enum Heir {
    /// A replica that starts this long afterwards.
    Starts(Duration),
    /// A standby replica that ran from the beginning.
    StandsBy,
}

/// The same, with leader election if one is given.
fn play_with(
    plan: Option<(usize, WriteFault)>,
    election: Option<Election>,
    heir: Heir,
) -> (Vec<TraceSpan>, usize) {
    in_virtual_time(async {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let policy = json!({
            "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy",
            "defaults": {"retry": {"inCheck": {"limit": 5, "base": "1s", "max": "2s"}}},
        });
        let policy = serde_json::from_value(policy).unwrap();
        let mut cluster = SimCluster::start(7, &clock, &controller_name_of(ID), policy);
        let (traces, mut sent) = Traces::channel(Sampler::AlwaysOn, 100_000);
        cluster.traces = traces;
        let client = stage(&cluster).await;
        let mut setu = cluster.start_setu(&Start { plan, election, ..Start::default() });
        let first = std::sync::Arc::clone(&setu.wire);
        tokio::time::sleep(BEAT).await;
        let other = Start { election, ..Start::default() };
        let mut stands_by = (heir == Heir::StandsBy).then(|| cluster.start_setu(&other));
        let jobs: Api<Job> = Api::namespaced(client.clone(), ID);
        jobs.create(&PostParams::default(), &serde_json::from_value(train::job(ID)).unwrap()).await.unwrap();
        let mut shortage_over = false;
        // Nothing more is reported about a Workload that is deleted while there is no leader.
        let mut led_by = Instant::now();
        for beat in 0.. {
            tokio::time::sleep(BEAT).await;
            if !cluster.deaths().is_empty() {
                let away = match heir {
                    Heir::Starts(after) => after,
                    Heir::StandsBy => Duration::ZERO,
                };
                tokio::time::sleep(away).await;
                setu = stands_by.take().unwrap_or_else(|| cluster.start_setu(&other));
                led_by = Instant::now() + away / 3;
            }
            let workloads =
                Api::<Workload>::namespaced(client.clone(), ID).list(&ListParams::default()).await.unwrap();
            let claims = Api::<NodeClaim>::all(client.clone()).list(&ListParams::default()).await.unwrap();
            if !shortage_over && workloads.items.iter().any(|w| headline(w).starts_with("BackingOff")) {
                weather(&client, &json!([])).await;
                shortage_over = true;
            }
            let is_over = |w: &Workload| w.is("Finished") && headline(w).starts_with("Released");
            if Instant::now() >= led_by && workloads.items.iter().any(is_over) {
                let _ = jobs.delete("train", &DeleteParams::background()).await;
            }
            if shortage_over && workloads.items.is_empty() && claims.items.is_empty() {
                break;
            }
            assert!(
                beat < 4_000,
                "it did not end: {:?}",
                workloads.items.iter().map(headline).collect::<Vec<_>>()
            );
        }
        assert_eq!(first.fired(), usize::from(plan.is_some()), "{plan:?}");
        let writes = first.written().len();
        drop(setu);
        let mut spans = Vec::new();
        while let Ok(span) = sent.try_recv() {
            spans.push(span);
        }
        (spans, writes)
    })
}

fn headline(workload: &Workload) -> String {
    workload.annotations().get(&names::state_key(ID)).cloned().unwrap_or_default()
}

async fn stage(cluster: &SimCluster) -> Client {
    let admin = cluster.server.user("admin");
    for object in objects(ID, 10_000).unwrap() {
        let kind = kinds::ALL.iter().find(|k| object["kind"] == k.kind).unwrap();
        admin.create(kind, object).unwrap();
    }
    let client = cluster.client("admin");
    weather(&client, &json!([{"nodePool": ID, "capacity": 1}])).await;
    client
}

async fn weather(client: &Client, rules: &Value) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weather"},
        "data": {ID: json!({"rules": rules}).to_string()},
    });
    api.patch("weather", &PatchParams::apply("test").force(), &Patch::Apply(&body)).await.unwrap();
}

/// Describes what is wrong with the spans of one life.
fn flaw(sent: &[TraceSpan]) -> Option<String> {
    let mut spans: BTreeMap<([u8; 16], [u8; 8]), &TraceSpan> = BTreeMap::new();
    for span in sent {
        let before = spans.insert((span.trace, span.id), span);
        if let Some(before) = before.filter(|b| *b != span) {
            return Some(format!("sent twice, and not the same:\n{before:#?}\n{span:#?}"));
        }
    }
    let roots: Vec<&&TraceSpan> = spans.values().filter(|s| s.parent.is_none()).collect();
    let [root] = roots.as_slice() else { return Some(format!("{} roots", roots.len())) };
    let mut states: Vec<&&TraceSpan> = spans.values().filter(|s| s.parent == Some(root.id)).collect();
    states.sort_by_key(|s| (s.start, s.end));
    let names: Vec<&str> = states.iter().map(|s| s.name).collect();
    let bounds = (states.first().map(|s| s.start), states.last().map(|s| s.end));
    if bounds != (Some(root.start), Some(root.end)) {
        return Some(format!("the states {names:?} do not begin and end with the root"));
    }
    let gap = states.windows(2).find(|pair| pair[0].end != pair[1].start);
    if let Some(pair) = gap {
        return Some(format!("a gap between {} and {} in {names:?}", pair[0].name, pair[1].name));
    }
    let parents = spans.values().filter_map(|s| s.parent);
    let orphans = parents.filter(|parent| !spans.contains_key(&(root.trace, *parent))).count();
    (orphans > 0).then(|| format!("{orphans} spans have no parent"))
}

#[test]
fn a_trace_is_complete_after_a_kill_at_any_write_and_repeated_spans_are_identical() {
    let (sent, writes) = play(None);
    assert_eq!(flaw(&sent), None);
    assert!(writes > 15, "{writes} writes");
    let again = (0..writes).filter(|write| {
        let (sent, _) = play(Some((*write, WriteFault::CrashAfter)));
        assert_eq!(flaw(&sent), None, "killed after write {write}");
        let mut ids: Vec<_> = sent.iter().map(|s| s.id).collect();
        ids.sort_unstable();
        ids.windows(2).any(|pair| pair[0] == pair[1])
    });
    assert!(again.count() > 3, "a replica that takes over sends again what its predecessor may have kept");
}

#[test]
fn a_trace_is_complete_when_a_standby_replica_takes_over() {
    let election = Some(Election { timing: Timing::default(), shards: 1 });
    let (_, writes) = play_with(None, election, Heir::StandsBy);
    for write in (2..writes).step_by(3) {
        let (sent, _) = play_with(Some((write, WriteFault::CrashAfter)), election, Heir::StandsBy);
        assert_eq!(flaw(&sent), None, "killed after write {write}");
    }
}

#[test]
fn a_trace_is_complete_after_minutes_without_a_leader() {
    let seconds = Duration::from_secs;
    let timing = Timing { lease: seconds(60), renew_deadline: seconds(40), retry: seconds(15) };
    let election = Some(Election { timing, shards: 1 });
    let (sent, writes) = play_with(None, election, Heir::Starts(Duration::ZERO));
    assert_eq!(flaw(&sent), None);
    for write in 0..writes {
        let after = Heir::Starts(Duration::from_mins(5));
        let (sent, _) = play_with(Some((write, WriteFault::CrashAfter)), election, after);
        assert_eq!(flaw(&sent), None, "killed after write {write}");
    }
}

#[test]
fn a_trace_is_complete_whichever_reply_is_lost() {
    let (whole, writes) = play(None);
    let counted = |sent: &[TraceSpan]| {
        let mut count = BTreeMap::<&str, usize>::new();
        for span in sent {
            *count.entry(span.name).or_default() += 1;
        }
        count
    };
    for fault in [WriteFault::ReplyLost, WriteFault::Timeout] {
        for write in 0..writes {
            let (sent, _) = play(Some((write, fault)));
            assert_eq!(flaw(&sent), None, "{fault} at write {write}");
            assert_eq!(counted(&sent), counted(&whole), "{fault} at write {write}");
        }
    }
}

#[test]
fn a_workload_deleted_during_a_rollback_leaves_no_gang_on_the_board_or_in_metrics() {
    let recorder = metrics::recorder().unwrap();
    let sent = ::metrics::with_local_recorder(&recorder, || {
        in_virtual_time(async {
            let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
            let policy = json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy"});
            let policy = serde_json::from_value(policy).unwrap();
            let mut cluster = SimCluster::start(7, &clock, &controller_name_of(ID), policy);
            let (traces, mut sent) = Traces::channel(Sampler::AlwaysOn, 100_000);
            cluster.traces = traces;
            let client = stage(&cluster).await;
            let setu = cluster.start_setu(&Start::default());
            let jobs: Api<Job> = Api::namespaced(client.clone(), ID);
            let job = serde_json::from_value(train::job(ID)).unwrap();
            jobs.create(&PostParams::default(), &job).await.unwrap();
            let workloads: Api<Workload> = Api::namespaced(client.clone(), ID);
            let name = loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                // Read from the server, before Setu gets the reply to its write.
                let all = cluster.server.user("admin").list(&kinds::WORKLOAD);
                let state = |w: &Value| w["metadata"]["annotations"][names::state_key(ID)].to_string();
                if let Some(found) = all.iter().find(|w| state(w).starts_with("\"RollingBack")) {
                    break found["metadata"]["name"].as_str().unwrap().to_owned();
                }
            };
            // The deletion of the NodeClaims is pending, and takes longer than the Workload's.
            setu.context.writes.pause(Duration::from_secs(5));
            jobs.delete("train", &DeleteParams::background()).await.unwrap();
            let free = json!({"metadata": {"finalizers": null}});
            let _ = workloads.patch(&name, &PatchParams::default(), &Patch::Merge(&free)).await;
            let _ = workloads.delete(&name, &DeleteParams::default()).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(workloads.get_opt(&name).await.unwrap().is_none());
            let claims = Api::<NodeClaim>::all(client.clone()).list(&ListParams::default()).await.unwrap();
            assert!(!claims.items.is_empty(), "they were to go after it");
            tokio::time::sleep(Duration::from_mins(1)).await;
            assert!(setu.context.board_snapshot().gangs.is_empty(), "the board shows what is gone");
            setu.context.set_gauges();
            let mut spans = Vec::new();
            while let Ok(span) = sent.try_recv() {
                spans.push(span);
            }
            spans
        })
    });
    let page = recorder.handle().render();
    let mut gauges = page.lines().filter(|line| line.starts_with("setu_gangs{"));
    assert!(gauges.all(|line| line.ends_with(" 0")), "{page}");
    assert!(page.contains("setu_gangs{"));
    assert_eq!(flaw(&sent), None);
}
