//! The Events that a gang's owner gets in the embedded cluster, and their objects.

use crate::train;
use crate::world::in_virtual_time;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu::cluster::lease::Timing;
use setu::names;
use setu::plan::market::Market;
use setu::sim::cluster::{Election, SimCluster, Start};
use setu::sim::scenario::{controller_name_of, objects};
use setu_clock::Clock;
use setu_sim::api::kinds;
use setu_sim::faults::WriteFault;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The name of everything.
const ID: &str = "workload-events";
/// The time between two checks.
const BEAT: Duration = Duration::from_millis(250);

/// Events as reason and note, by the kind and name of their object.
type Reported = BTreeMap<String, BTreeSet<(String, String)>>;

/// A cluster with the default policy.
fn cluster() -> SimCluster {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
    let policy = json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy"});
    SimCluster::start(7, &clock, &controller_name_of(ID), serde_json::from_value(policy).unwrap())
}

/// Runs a gang of two to its end. Returns the Events that Setu wrote.
fn reported(events_on_job: bool, more: &[Value]) -> Reported {
    lead(&Start { events_on_job, ..Start::default() }, more, None).0
}

/// The same with these start options and Karpenter metrics page. If the replica dies, another one starts.
/// Also returns the number of the first replica's writes.
fn lead(start: &Start, more: &[Value], page: Option<&str>) -> (Reported, usize) {
    in_virtual_time(async {
        let mut cluster = cluster();
        let admin = cluster.server.user("admin");
        let weather = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"}});
        for object in objects(ID, 100)
            .unwrap()
            .into_iter()
            .chain([weather])
            .chain(more.to_vec())
            .chain([train::job(ID)])
        {
            let kind = kinds::ALL.iter().find(|k| object["kind"] == k.kind).unwrap();
            admin.create(kind, object).unwrap();
        }
        let mut setu = cluster.start_setu(start);
        if let Some(page) = page {
            setu.context.take_market(Market::read(page, setu.context.now()).unwrap());
        }
        let first = std::sync::Arc::clone(&setu.wire);
        let text = |event: &Value, at: &str| {
            event.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let reported = || {
            let mut reported = Reported::new();
            for event in admin.list(&kinds::EVENT) {
                if text(&event, "/reportingController") != names::CONTROLLER_NAME {
                    continue;
                }
                let (kind, name) = (text(&event, "/regarding/kind"), text(&event, "/regarding/name"));
                let on = if kind == "Job" { format!("{kind}/{name}") } else { kind };
                reported.entry(on).or_default().insert((text(&event, "/reason"), text(&event, "/note")));
            }
            reported
        };
        let is_over = || reported().values().flatten().any(|(reason, _)| reason == "GangReleased");
        for _ in 0..4_000 {
            if is_over() {
                break;
            }
            tokio::time::sleep(BEAT).await;
            if !cluster.deaths().is_empty() {
                setu = cluster.start_setu(&Start::default());
            }
        }
        assert!(is_over(), "the gang's end was not reported: {:?}", reported());
        // Events that are being published in the background are included.
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(setu);
        assert_eq!(first.fired(), usize::from(start.plan.is_some()), "{:?}", start.plan);
        (reported(), first.written().len())
    })
}

#[test]
fn events_on_the_job_match_those_on_its_workload_and_are_optional() {
    let asked = reported(true, &[]);
    let (job, workload) = (&asked["Job/train"], &asked["Workload"]);
    assert_eq!(job, workload);
    let reasons: BTreeSet<&str> = job.iter().map(|(reason, _)| reason.as_str()).collect();
    for reason in ["GangValidated", "GangProvisioning", "GangWaiting", "GangReady", "GangReleased"] {
        assert!(reasons.contains(reason), "{reason} is not among {reasons:?}");
    }
    for (reason, words) in workload {
        let has_next = [". Next: ", ", then ", "next attempt"].iter().any(|next| words.contains(next));
        assert!(has_next, "{reason} does not say what comes next: {words}");
    }
    let unasked = reported(false, &[]);
    assert_eq!(unasked.keys().collect::<Vec<_>>(), ["Workload"]);
    assert_eq!(&unasked["Workload"], workload);
}

#[test]
fn every_step_is_reported_after_a_kill_or_a_lost_reply_at_any_write() {
    let reasons = |reported: &Reported| -> BTreeSet<String> {
        reported["Workload"].iter().map(|(reason, _)| reason.clone()).collect()
    };
    let (whole, writes) = lead(&Start::default(), &[], None);
    assert!(writes > 10, "{writes} writes");
    for fault in [WriteFault::CrashAfter, WriteFault::ReplyLost] {
        for write in 0..writes {
            let (reported, _) = lead(&Start { plan: Some((write, fault)), ..Start::default() }, &[], None);
            assert_eq!(reasons(&reported), reasons(&whole), "{fault} at write {write}");
        }
    }
}

#[test]
fn a_replica_that_takes_over_still_reports_how_long_nodes_usually_take() {
    reports_how_long_nodes_take(false);
}

#[test]
fn a_standby_replica_that_takes_over_still_reports_how_long_nodes_usually_take() {
    reports_how_long_nodes_take(true);
}

/// Runs one gang with one replica and another gang with the next, which ran from the beginning if it `stood_by`.
fn reports_how_long_nodes_take(stood_by: bool) {
    in_virtual_time(async {
        let mut cluster = cluster();
        let admin = cluster.server.user("admin");
        let weather = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"}});
        let job = |name: &str| {
            let mut job = train::job(ID);
            job["metadata"]["name"] = json!(name);
            job["spec"]["template"]["metadata"]["annotations"]["e2e.setu/run-for"] = json!("10h");
            job
        };
        for object in objects(ID, 100).unwrap().into_iter().chain([weather, job("first")]) {
            let kind = kinds::ALL.iter().find(|k| object["kind"] == k.kind).unwrap();
            admin.create(kind, object).unwrap();
        }
        let words = || -> Vec<String> {
            let annotation = |w: &Value| w["metadata"]["annotations"][names::state_key(ID)].to_string();
            admin.list(&kinds::WORKLOAD).iter().map(|w| annotation(w)).collect()
        };
        let election = Election { timing: Timing::default(), shards: 1 };
        let start = Start { election: stood_by.then_some(election), ..Start::default() };
        let first = cluster.start_setu(&start);
        tokio::time::sleep(BEAT).await;
        let second = stood_by.then(|| cluster.start_setu(&start));
        while words().iter().filter(|w| w.starts_with("\"Approved")).count() < 1 {
            tokio::time::sleep(BEAT).await;
        }
        drop(first);
        let setu = second.unwrap_or_else(|| cluster.start_setu(&start));
        admin.create(&kinds::JOB, job("second")).unwrap();
        let mut estimated = false;
        while words().iter().filter(|w| w.starts_with("\"Approved")).count() < 2 {
            tokio::time::sleep(BEAT).await;
            estimated |= admin.list(&kinds::WORKLOAD).iter().any(|w| w.to_string().contains("usually"));
        }
        drop(setu);
        assert!(estimated, "nobody said how long it usually takes");
    });
}

/// The notes of the Events with this reason on the Workload.
fn notes_on_the_workload<'t>(events: &'t Reported, reason: &str) -> Vec<&'t str> {
    let those = events["Workload"].iter().filter(|(of, _)| of == reason);
    those.map(|(_, note)| note.as_str()).collect()
}

#[test]
fn the_owner_is_informed_of_the_drawbacks_of_a_plan() {
    let agent = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": "kube-system", "name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}]},
        }},
    });
    let events = reported(false, &[agent]);
    let drawbacks = notes_on_the_workload(&events, "PlanHasDrawback");
    assert_eq!(drawbacks.len(), 1, "{events:?}");
    assert!(drawbacks[0].contains("kube-system/agent"), "{drawbacks:?}");
}

#[test]
fn the_owner_is_informed_which_node_pools_were_passed_over() {
    let tainted = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "tainted"},
        "spec": {"template": {"metadata": {"labels": {"pool": ID}}, "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID},
            "requirements": [],
            "taints": [{"key": "example.com/reserved", "effect": "NoSchedule"}],
        }}},
    });
    let events = reported(false, &[tainted]);
    let validated = notes_on_the_workload(&events, "GangValidated");
    assert_eq!(validated.len(), 1, "{events:?}");
    assert!(
        validated[0].contains("passed over: tainted (") && validated[0].contains("example.com/reserved"),
        "{validated:?}"
    );
}

#[test]
fn the_owner_is_informed_what_is_out_of_capacity_by_karpenters_metrics() {
    let spot = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "spot"},
        "spec": {"weight": 9, "template": {"metadata": {"labels": {"pool": ID}}, "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID},
            "requirements": [
                {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5.4xlarge"]},
                {"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot"]},
            ],
        }}},
    });
    let page = "karpenter_cloudprovider_instance_type_offering_available{instance_type=\"g5.4xlarge\",\
                capacity_type=\"spot\",zone=\"us-east-1a\"} 0\n\
                karpenter_cloudprovider_instance_type_offering_available{instance_type=\"g5.4xlarge\",\
                capacity_type=\"on-demand\",zone=\"us-east-1a\"} 1";
    let (events, _) = lead(&Start::default(), &[spot], Some(page));
    let validated = notes_on_the_workload(&events, "GangValidated");
    let words =
        "passed over: spot (out of capacity by Karpenter's metrics: g5.4xlarge (spot capacity in any zone))";
    assert!(validated.len() == 1 && validated[0].contains(words), "{events:?}");
}
