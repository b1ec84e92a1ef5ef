//! The API requests of an idle replica, counted in the embedded cluster in virtual time.

use crate::world;
use axum::body::Bytes;
use http::{Method, Request};
use serde_json::{Value, json};
use setu::cluster::lease::Timing;
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Election, Setu, Start};
use setu_sim::api::{Preconditions, User, kinds};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ID: &str = "load";
/// The time between two sweeps.
const SWEEP: Duration = Duration::from_mins(5);
/// The number of sweeps that are counted.
const SWEEPS: usize = 6;

/// The number of requests by verb and resource: `LIST nodeclaims`, `WATCH workloads`, `GET leases`, ….
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeMap<String, usize>>>);

impl Asked {
    /// Counts the requests of this replica from now on.
    fn of(setu: &Setu) -> Self {
        let asked = Self::default();
        let counted = asked.clone();
        setu.wire.on_request(Arc::new(move |request| counted.count(request)));
        asked
    }

    fn count(&self, request: &Request<Bytes>) {
        let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let rest = &parts[if parts[0] == "apis" { 3 } else { 2 }..];
        let rest = if rest[0] == "namespaces" && rest.len() > 2 { &rest[2..] } else { rest };
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let verb = match (request.method(), rest.len()) {
            (&Method::GET, _) if watches => "WATCH",
            (&Method::GET, 1) => "LIST",
            (method, _) => method.as_str(),
        };
        *self.0.lock().unwrap().entry(format!("{verb} {}", rest[0])).or_default() += 1;
    }

    /// The requests during this time.
    async fn within(&self, time: Duration) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().clear();
        tokio::time::sleep(time).await;
        self.0.lock().unwrap().clone()
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let came = world::until(Duration::from_mins(10), Duration::from_millis(10), holds).await;
    assert!(came, "not within ten minutes: {what}");
}

/// The number of Workloads with this condition.
fn workloads(admin: &User, condition: &str) -> usize {
    admin.list(&kinds::WORKLOAD).iter().filter(|workload| world::is(workload, condition)).count()
}

/// An elastic Job with this many nodes of a slice that is gone, and one node of the slice that replaced it.
async fn elastic(admin: &User, nodes: usize) {
    let mut job = world::job(ID, "elastic", nodes, None);
    // Kueue does not manage this Job: the test creates its Workloads.
    job["metadata"]["labels"] = json!({});
    let job = admin.create(&kinds::JOB, job).unwrap();
    admin.create(&kinds::WORKLOAD, world::slice(ID, &job, "first", nodes, None)).unwrap();
    until("the first slice is admitted", || workloads(admin, "Admitted") == 1).await;
    admin.create(&kinds::WORKLOAD, world::slice(ID, &job, "second", nodes + 1, Some("first"))).unwrap();
    until("the second has its quota", || workloads(admin, "QuotaReserved") == 2).await;
    let first = admin.get(&kinds::WORKLOAD, ID, "first").unwrap();
    let mut conditions = first["status"]["conditions"].as_array().unwrap().clone();
    conditions.push(json!({
        "type": "Finished", "status": "True", "reason": "WorkloadSliceReplaced", "message": "",
        "lastTransitionTime": first["status"]["conditions"][0]["lastTransitionTime"],
    }));
    let status = json!({"status": {"conditions": conditions}});
    admin.merge_status(&kinds::WORKLOAD, ID, "first", &status).unwrap();
    until("the second slice is admitted", || workloads(admin, "Admitted") == 2).await;
    let bare = json!({"metadata": {"finalizers": []}});
    admin.merge(&kinds::WORKLOAD, ID, "first", &bare).unwrap();
    admin.delete(&kinds::WORKLOAD, ID, "first", Preconditions::default()).unwrap();
}

/// Silent nodes of this Workload's gang without a NodeClaim.
fn silent_nodes(admin: &User, workload: &str, count: usize) {
    let uid = admin.get(&kinds::WORKLOAD, ID, workload).unwrap()["metadata"]["uid"].clone();
    let condition = json!({"type": "Ready", "status": "Unknown", "reason": "", "message": "", "lastTransitionTime": world::START});
    for node in (0..count).map(|node| format!("silent-{node}")) {
        let metadata = json!({
            "name": node,
            "labels": {
                names::MANAGED_BY: names::SETU, names::NODEPOOL: ID, names::GANG: "gang", names::WORKLOAD_UID: uid,
            },
            "annotations": {names::WORKLOAD: format!("{ID}/{workload}"), names::SLOT: "7"},
        });
        let object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": metadata,
            "spec": {"providerID": format!("cloud://{node}")},
        });
        admin.create(&kinds::NODE, object).unwrap();
        let status = json!({"status": {"conditions": [condition]}});
        admin.merge_status(&kinds::NODE, "", &node, &status).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_lists_of_a_sweep_do_not_grow_with_the_number_of_gangs_claims_and_nodes() {
    for [claims, gangs, nodes] in [[5, 2, 1], [40, 15, 10]] {
        let policy =
            "defaults: {custody: {holdLimit: 6h, pinning: SelectorAndTaint}, deadlines: {admit: 5h}}";
        let (mut cluster, admin) = world::cluster(ID, world::policy(policy));
        let setu = cluster.start_setu(&Start::default());
        let asked = Asked::of(&setu);
        elastic(&admin, claims).await;
        silent_nodes(&admin, "second", nodes);
        for gang in 0..gangs {
            admin.create(&kinds::JOB, world::job(ID, &format!("gang-{gang}"), 2, None)).unwrap();
        }
        let all = claims + 1 + gangs * 2;
        until("all claims are there", || admin.list(&kinds::NODE_CLAIM).len() == all).await;
        // Their nodes come up but they are not admitted, so the sweep checks each of their claims.
        cluster.stop_kueue(true);
        let is_up = |claim: &Arc<Value>| world::is(claim, "Initialized");
        until("all nodes are up", || admin.list(&kinds::NODE_CLAIM).iter().all(is_up)).await;
        tokio::time::sleep(SWEEP).await;
        let mut asked = asked.within(SWEEP * u32::try_from(SWEEPS).unwrap()).await;
        assert_eq!(workloads(&admin, "Admitted"), 1, "it is all still to be looked at");
        asked.retain(|what, _| !what.starts_with("WATCH"));
        // Claims of one namespace that are checked together share a list.
        let bounds = [
            ("GET nodes", nodes),
            ("GET workloads", claims + nodes),
            ("LIST nodeclaims", 1),
            ("LIST workloads", 8),
            ("GET admissionchecks", 1),
            // The check for unbound pods of the admitted gang.
            ("LIST pods", 1),
        ];
        assert_eq!(asked.len(), bounds.len(), "nothing else is asked: {asked:#?}");
        for (what, bound) in bounds {
            assert!((1..=bound * SWEEPS).contains(&asked[what]), "{what}: {asked:#?}");
        }
    }
}

/// The highest number of requests with this verb for one kind.
fn most(asked: &BTreeMap<String, usize>, verb: &str) -> usize {
    asked.iter().filter(|(what, _)| what.starts_with(verb)).map(|(_, count)| *count).max().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_idle_leader_sends_at_most_48_requests_a_minute_and_a_standby_18() {
    const MINUTES: usize = 60;
    let (mut cluster, admin) = world::cluster(ID, PolicyFile::default());
    let election = Some(Election { timing: Timing::default(), shards: 1 });
    let replicas = [(); 2].map(|()| cluster.start_setu(&Start { election, ..Start::default() }));
    let counts = replicas.each_ref().map(Asked::of);
    for gangs in [0, 5] {
        for gang in 0..gangs {
            admin.create(&kinds::JOB, world::job(ID, &format!("gang-{gang}"), 2, None)).unwrap();
        }
        until("all run", || workloads(&admin, "Admitted") == gangs).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        for (replica, asked) in replicas.iter().zip(&counts) {
            // One watch per minute for each of 17 kinds. A leader also renews its lease every two seconds.
            let bound = if replica.context.shards.any_led() { 48 } else { 18 };
            let mut asked = asked.within(Duration::from_hours(1)).await;
            let all: usize = asked.values().sum();
            assert!(all <= bound * MINUTES, "{gangs} gangs run: {asked:#?}");
            // A leader lists the unbound pods of each gang's namespace every ten minutes.
            let checks = asked.remove("LIST pods").unwrap_or_default();
            let gangs_led = if replica.context.shards.any_led() { gangs } else { 0 };
            assert!(
                (gangs_led * 5..=gangs_led * 7).contains(&checks),
                "{checks} lists of pods of {gangs_led} gangs"
            );
            assert!(most(&asked, "WATCH") <= MINUTES + 1 && most(&asked, "LIST") == 0, "{asked:#?}");
        }
        let led = replicas.iter().filter(|replica| replica.context.shards.any_led()).count();
        assert_eq!(led, 1);
    }
}
