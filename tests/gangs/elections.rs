//! Elections: when a replica takes part, and how it renews its Leases while a reconcile computes.

use crate::world;
use http::Method;
use setu::app::replica;
use setu::cluster::lease::Timing;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Election, Start};
use setu_sim::api::kinds;
use setu_sim::denials::Denial;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ID: &str = "elections";
const TIMING: Timing = Timing {
    lease: Duration::from_secs(2),
    renew_deadline: Duration::from_millis(1_600),
    retry: Duration::from_millis(200),
};
/// How long a reconcile computes.
const COMPUTING: Duration = Duration::from_secs(4);

async fn until(what: &str, holds: impl FnMut() -> bool) {
    let came = world::until(Duration::from_secs(30), Duration::from_millis(20), holds).await;
    assert!(came, "not within 30 s: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconcile_that_computes_for_longer_than_the_lease_duration_loses_no_lease() {
    let (mut cluster, admin) = world::cluster(ID, PolicyFile::default());
    let election = Some(Election { timing: TIMING, shards: 1 });
    let elections_on = Some(replica::election_runtime().unwrap());
    let setu = cluster.start_setu(&Start { election, elections_on, ..Start::default() });
    let leads = || setu.context.shards.any_led();
    until("it leads", leads).await;
    let (begun, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&done));
    setu.wire.on_request(Arc::new(move |asked| {
        let creates = asked.method() == Method::POST && asked.uri().path().ends_with("/nodeclaims");
        if creates && !begins.swap(true, Ordering::SeqCst) {
            // Like a computation, this blocks the thread.
            std::thread::sleep(COMPUTING);
            ends.store(true, Ordering::SeqCst);
        }
    }));
    admin.create(&kinds::JOB, world::job(ID, "gang", 2, None)).unwrap();
    until("a reconcile computes", || begun.load(Ordering::SeqCst)).await;
    let renewals = || {
        let leases = admin.list(&kinds::LEASE);
        leases.iter().map(|lease| lease["spec"]["renewTime"].clone()).collect::<Vec<_>>()
    };
    let (before, since) = (renewals(), Instant::now());
    while !done.load(Ordering::SeqCst) {
        assert!(leads(), "the lease was lost after {:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(since.elapsed() > TIMING.lease, "it computed for {:?} only", since.elapsed());
    assert_ne!(renewals(), before, "nobody renewed it");
    until("the gang has its NodeClaims", || admin.list(&kinds::NODE_CLAIM).len() == 2).await;
    assert!(leads());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_list_everything_takes_no_lease() {
    let (mut cluster, admin) = world::cluster("unready", PolicyFile::default());
    cluster.denials.begin(Denial::DeviceClasses);
    let election = Some(Election { timing: Timing::default(), shards: 1 });
    let setu = cluster.start_setu(&Start { election, ..Start::default() });
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(admin.list(&kinds::LEASE).is_empty() && !setu.context.shards.any_led());
    cluster.denials.end();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(setu.context.shards.any_led(), "another replica could have led until now");
}
