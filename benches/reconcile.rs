//! Runs gangs in the embedded cluster on one core: how many get their nodes per second, and how long their whole
//! lives take. The server, Kueue, Karpenter and the machines share the core.
//!
//! `cargo bench --bench reconcile -- [GANGS] [NODES]`

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a tool that prints figures"
)]

mod gangs;

use gangs::{ID, in_state, make_world, policy, submit};
use setu::gang::StateName;
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::User;
use std::time::{Duration, Instant};

/// Waits until every gang is in a state. Returns how long that took.
async fn until(admin: &User, gangs: usize, state: StateName) -> Duration {
    let start = Instant::now();
    loop {
        if in_state(admin, state) == gangs {
            return start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_mins(10), "not all gangs are {state}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let gangs = numbers.first().copied().unwrap_or(300);
    let nodes = numbers.get(1).copied().unwrap_or(4);
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let most = 2 * gangs * nodes;
    let mut cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(ID), policy(most));
    let admin = cluster.server.user("admin");
    make_world(&admin, most);
    let setu = cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(5)).await;
    submit(&admin, gangs, nodes, "600s");
    let virtual_start = tokio::time::Instant::now();
    let took = until(&admin, gangs, StateName::Approved).await;
    println!(
        "{gangs} gangs of {nodes} nodes from submission to Approved in {took:.2?} on one core ({:.0?} of virtual time): \
         {:.0} gangs/s; {} writes of Setu",
        virtual_start.elapsed(),
        gangs as f64 / took.as_secs_f64(),
        setu.wire.written().len(),
    );
}
