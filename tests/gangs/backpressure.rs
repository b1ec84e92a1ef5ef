//! A gang of a thousand nodes does not hold up a gang of two, in the embedded cluster and virtual time.

use crate::world;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu::policy::PolicyFile;
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::{Change, Observer, User, kinds};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ID: &str = "limited";
const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy, \
    guards: {gangNodes: 2000, claimsInFlight: 9000, createsPerMinute: 9000}}";

/// When a Workload's quota was reserved, and when its claims were created.
type Life = (Option<Timestamp>, Vec<Timestamp>);

/// All lives, by Job name and UID.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<BTreeMap<String, Life>>>);

impl Observer for Times {
    fn committed(&mut self, change: &Change) {
        let Some(after) = &change.after else { return };
        let mut times = self.0.lock().unwrap();
        if change.kind.kind == "Workload" {
            let conditions = after["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let reserved = conditions.iter().any(|c| c["type"] == "QuotaReserved" && c["status"] == "True");
            let owner = after["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default();
            let uid = after["metadata"]["uid"].as_str().unwrap();
            if reserved {
                times.entry(format!("{owner}/{uid}")).or_default().0.get_or_insert(change.at);
            }
        }
        if change.kind.kind == "NodeClaim" && change.before.is_none() {
            let uid = after["metadata"]["labels"]["setu.kueue.x-k8s.io/workload-uid"].as_str().unwrap();
            let of = times.iter_mut().find(|(key, _)| key.ends_with(uid));
            of.unwrap().1.1.push(change.at);
        }
    }
}

impl Times {
    /// The time from a Job's reservation until all its claims existed.
    fn took(&self, job: &str, nodes: usize) -> Option<Duration> {
        let times = self.0.lock().unwrap();
        let (_, (reserved, claims)) = times.iter().find(|(key, _)| key.starts_with(&format!("{job}/")))?;
        let last = claims.iter().max().filter(|_| claims.len() == nodes)?;
        Duration::try_from(last.duration_since((*reserved)?)).ok()
    }

    /// The number of claims of a job.
    fn claims(&self, job: &str) -> usize {
        let times = self.0.lock().unwrap();
        let found = times.iter().find(|(key, _)| key.starts_with(&format!("{job}/")));
        found.map_or(0, |(_, (_, claims))| claims.len())
    }
}

fn submit(admin: &User, job: &str, queue: &str, nodes: usize) {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": job, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
            ]},
        }},
    });
    admin.create(&kinds::JOB, job).unwrap();
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let came = world::until(Duration::from_mins(2), Duration::from_millis(2), is).await;
    assert!(came, "{what} not within two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_gang_of_a_thousand_nodes_delays_a_gang_of_two_by_less_than_a_second() {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let policy = PolicyFile::parse(POLICY).unwrap();
    let mut cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(ID), policy);
    let times = Times::default();
    cluster.server.observe(Box::new(times.clone()));
    let admin = cluster.server.user("admin");
    let other = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"namespace": ID, "name": "other"}, "spec": {"clusterQueue": ID},
    });
    for mut object in scenario::objects(ID, 10_000).unwrap().into_iter().chain([other]) {
        // Enough of every resource for all gangs.
        raise(&mut object);
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    let setu = cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(5)).await;

    submit(&admin, "alone", "other", 2);
    until("a gang of two", || times.took("alone", 2).is_some()).await;
    for large in ["large-a", "large-b", "large-c"] {
        submit(&admin, large, "queue", 1_000);
    }
    until("the large gangs under way", || times.claims("large-a") > 50).await;
    submit(&admin, "small", "other", 2);
    submit(&admin, "fellow", "queue", 2);
    until("the small gangs", || ["small", "fellow"].iter().all(|job| times.took(job, 2).is_some())).await;
    let created = ["large-a", "large-b", "large-c"].map(|job| times.claims(job));
    assert!(created.iter().sum::<usize>() < 3_000, "the large gangs are not done: {created:?}");
    until("the large gangs", || ["large-a", "large-b", "large-c"].iter().all(|j| times.claims(j) == 1_000))
        .await;

    let [alone, small, fellow] = ["alone", "small", "fellow"].map(|job| times.took(job, 2).unwrap());
    println!(
        "a gang of two: alone {alone:?}, beside three of a thousand {small:?}, in their LocalQueue {fellow:?}"
    );
    for took in [small, fellow] {
        assert!(took < alone + Duration::from_secs(1), "{alone:?} {took:?}");
    }
    drop(setu);
}

/// Raises every nominal quota until it does not matter.
fn raise(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if key == "nominalQuota" && *field != json!(0) {
                    *field = json!("100000Gi");
                }
                raise(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(raise),
        _ => {}
    }
}
