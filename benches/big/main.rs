//! The cost of a large cluster: 10,000 Workloads with pod templates of 4 KiB, half of them running gangs of four
//! nodes, so 20,000 NodeClaims and as many Nodes. `setu run` is a process of its own. Prints the time from a
//! restart to the first decision, memory, the CPU for a check of every gang's pods, and CPU when idle, without and with
//! the heartbeats of kubelets.
//!
//! `just bench-big [--real] [GANGS] [NODES] [WAITING]`: in the embedded API server, or in a real one. Linux only, because
//! it reads /proc. With WAITING this many gangs wait for the NodePool's limits, and are woken repeatedly while the
//! renewals of the Lease are measured.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a tool that prints figures"
)]

mod fill;
mod heartbeats;
mod model;
mod process;
mod server;
#[path = "../usage.rs"]
mod usage;
mod wave;

use anyhow::{Result, ensure};
use fill::Filler;
use futures::StreamExt as _;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use model::Model;
use process::Process;
use serde_json::json;
use server::Server;
use setu::gang::snapshot::unbound::BIND_WAIT;
use setu_sim::api::kinds::{self, ServedKind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ID: &str = "big";
/// How long CPU is measured once nothing happens.
const IDLE: Duration = Duration::from_mins(1);
/// How long to wait until the pods of every gang have been checked: all copies were admitted at the same instant.
const PODS_CHECKED: Duration = Duration::from_secs(BIND_WAIT.as_secs().unsigned_abs() + 10);
/// The time limit for the first decision, and until nothing happens.
const TIMEOUT: Duration = Duration::from_mins(3);

/// The times of writes to Workloads and NodeClaims, seen by watches of both.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<Instant>>>);

impl Writes {
    /// Watches from now on. kube ends a watch after 290 seconds; the measurement is shorter.
    async fn watch(filler: &Filler) -> Result<Self> {
        let writes = Self::default();
        for kind in [&kinds::WORKLOAD, &kinds::NODE_CLAIM] {
            let api = filler.api(kind);
            let now = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version;
            let events = api.watch(&WatchParams::default(), &now.unwrap_or_default()).await?;
            let book = Arc::clone(&writes.0);
            tokio::spawn(events.for_each(move |event| {
                if matches!(
                    event,
                    Ok(WatchEvent::Modified(_) | WatchEvent::Deleted(_) | WatchEvent::Added(_))
                ) {
                    book.lock().unwrap().push(Instant::now());
                }
                std::future::ready(())
            }));
        }
        Ok(writes)
    }

    fn first(&self) -> Option<Instant> {
        self.0.lock().unwrap().first().copied()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let gangs = numbers.first().copied().unwrap_or(5_000);
    let model = Model::new(ID, numbers.get(1).copied().unwrap_or(4)).await;
    let real = std::env::args().any(|a| a == "--real");
    let server = if real { Server::real().await? } else { Server::embedded().await? };
    let filler = Filler { client: server.client().await?, id: ID };
    let started = Instant::now();
    let waiting = numbers.get(2).copied().unwrap_or_default();
    filler.fill(&model, gangs, waiting).await?;
    let which = if real { "a real" } else { "the embedded" };
    println!("filled {which} API server in {:.0?}", started.elapsed());
    let process = measure(&server, &filler, &model).await?;
    if waiting > 0 {
        wave::measure(&filler, &process, model.held_by(gangs)).await?;
    }
    server.end();
    Ok(())
}

async fn measure(server: &Server, filler: &Filler, model: &Model) -> Result<Process> {
    // A gang is marked Finished while Setu is down, so that there is something to decide on start.
    let name = format!("{}-0", model.workload["metadata"]["name"].as_str().unwrap_or_default());
    let finished = json!({
        "type": "Finished", "status": "True", "reason": "Succeeded", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let mut status = model.workload["status"].clone();
    status["conditions"].as_array_mut().unwrap().push(finished);
    filler.tell(&kinds::WORKLOAD, &name, &json!({"conditions": status["conditions"]})).await?;

    let writes = Writes::watch(filler).await?;
    let start = Instant::now();
    let process = Process::start(&server.kubeconfig(), ID);
    let first = loop {
        if let Some(first) = writes.first() {
            break first;
        }
        ensure!(start.elapsed() < TIMEOUT, "nothing was decided");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    println!("start to first decision: {:.2?}", first - start);
    loop {
        let before = cpu(&process);
        tokio::time::sleep(Duration::from_secs(5)).await;
        if cpu(&process) - before < 0.3 || start.elapsed() > TIMEOUT {
            break;
        }
    }
    let (took, settled) = (start.elapsed(), cpu(&process));
    println!("settled after {took:.0?}, with {} writes and {settled:.1} CPU-seconds", writes.count());
    tokio::time::sleep(PODS_CHECKED.saturating_sub(took)).await;
    let rested = cpu(&process);
    println!("the first check of every gang's pods: {:.1} CPU-seconds", rested - settled);
    tokio::time::sleep(IDLE).await;
    let idle = (cpu(&process) - rested) / IDLE.as_secs_f64();
    println!(
        "{} Workloads, {} NodeClaims, {} Nodes: {:.0} MiB resident, {:.0} MiB at most; idle {:.2} % of a core",
        count(filler, &kinds::WORKLOAD).await?,
        count(filler, &kinds::NODE_CLAIM).await?,
        count(filler, &kinds::NODE).await?,
        usage::mib(process.id(), "VmRSS:"),
        usage::mib(process.id(), "VmHWM:"),
        idle * 100.0,
    );
    let before = cpu(&process);
    let sent = heartbeats::send(filler, IDLE).await?;
    let beating = (cpu(&process) - before) / IDLE.as_secs_f64();
    println!("with {sent} heartbeats of kubelets in {IDLE:.0?}: {:.2} % of a core", beating * 100.0);
    Ok(process)
}

/// CPU seconds of the process so far.
fn cpu(process: &Process) -> f64 {
    usage::cpu(process.id()).as_secs_f64()
}

/// The number of objects of a kind.
async fn count(filler: &Filler, kind: &ServedKind) -> Result<i64> {
    let page: kube::core::ObjectList<DynamicObject> =
        filler.api(kind).list(&ListParams::default().limit(1)).await?;
    let rest = page.metadata.remaining_item_count.unwrap_or_default();
    Ok(rest + i64::try_from(page.items.len())?)
}
