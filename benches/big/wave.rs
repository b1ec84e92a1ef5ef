//! Whether the elector keeps its Lease while every waiting gang is reconciled repeatedly, and what a reconcile costs.

use crate::ID;
use crate::fill::Filler;
use crate::process::Process;
use crate::usage;
use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use setu_sim::api::kinds;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How often the NodePool's limits change. Each change wakes every gang that waits for them.
const CHANGES: usize = 60;
/// The time between two changes.
const EVERY: Duration = Duration::from_millis(500);

/// What a watch of the Lease has shown.
#[derive(Default)]
struct Seen {
    renewals: Vec<Timestamp>,
    holders: BTreeSet<String>,
}

/// Wakes all waiting gangs for half a minute, and prints how the Lease was renewed.
///
/// # Errors
/// If the API server or the metrics do not respond.
pub async fn measure(filler: &Filler, process: &Process, limit: usize) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(filler.client.clone(), ID);
    let lease = leases.get("setu").await.context("the Lease of setu run")?;
    let version = lease.resource_version().unwrap_or_default();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let book = Arc::clone(&seen);
    let watch = leases.watch(&WatchParams::default(), &version).await?.for_each(move |event| {
        if let Ok(WatchEvent::Modified(Lease { spec: Some(spec), .. })) = event {
            let mut book = book.lock().unwrap();
            book.renewals.extend(spec.renew_time.map(|t| t.0));
            book.holders.extend(spec.holder_identity);
        }
        std::future::ready(())
    });
    let watch = tokio::spawn(watch);
    let (mut asked, mut leading) = (0, 0);
    let before = (usage::cpu(process.id()).as_secs_f64(), reconciles(&page(process.metrics()).await?));
    for change in 0..CHANGES {
        // Never enough for one more gang.
        let limits = json!({"spec": {"limits": {"nvidia.com/gpu": (limit + change % 2).to_string()}}});
        filler.change(&kinds::NODE_POOL, ID, &limits).await?;
        tokio::time::sleep(EVERY).await;
        asked += 1;
        leading += usize::from(leads(&page(process.metrics()).await?));
    }
    let done = reconciles(&page(process.metrics()).await?) - before.1;
    let used = usage::cpu(process.id()).as_secs_f64() - before.0;
    watch.abort();
    let seen = seen.lock().unwrap();
    let gaps = seen.renewals.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64());
    println!(
        "{CHANGES} waves: {} renewals of the Lease, at most {:.1} s apart, by {} holder; setu_leader was 1 in {leading} of {asked} scrapes",
        seen.renewals.len(),
        gaps.fold(0.0, f64::max),
        seen.holders.len(),
    );
    println!("{done} reconciles of Workloads, {:.1} ms of CPU for each", used * 1000.0 / done);
    Ok(())
}

/// The process's metrics.
async fn page(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: setu\r\nConnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

/// Whether the metrics say that the process leads.
fn leads(page: &str) -> bool {
    page.lines().any(|line| line.starts_with("setu_leader") && line.ends_with(" 1"))
}

/// How many Workloads the process has reconciled.
fn reconciles(page: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with("setu_reconcile_duration_seconds_count"));
    let counts = lines.filter(|line| line.contains("\"workload\""));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
