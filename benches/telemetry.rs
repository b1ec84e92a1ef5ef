//! The cost of traces and metrics for the controller: it runs the same gangs with both and with neither, from
//! the submission of their Jobs until their nodes are given back.
//!
//! The controller is a process of its own, wired like `setu run`, so that its CPU time is separate from that of the
//! embedded cluster, which this process serves over HTTP. With telemetry it sends traces by OTLP over HTTP to a
//! collector in this process, and its metrics are scraped every 15 seconds, as by Prometheus. The order of the
//! rounds alternates, so that slow changes of the machine affect both alike.
//!
//! `cargo bench --bench telemetry -- [GANGS] [NODES] [ROUNDS]`; Linux only, because it reads /proc.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a tool that prints figures"
)]

mod gangs;
#[allow(dead_code, reason = "what another bench asks of a process")]
mod usage;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use gangs::{ID, in_state, make_world, policy, submit};
use setu::app::replica::Replica;
use setu::app::server;
use setu::cluster::client;
use setu::controllers::context::{ContextParts, Options};
use setu::gang::StateName;
use setu::sim::cluster::SimCluster;
use setu::sim::scenario;
use setu::telemetry::traces::{TraceSettings, start};
use setu::telemetry::{Telemetry, logs, metrics};
use setu_clock::Clock;
use setu_sim::http;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Environment variable of the controller process: the number of NodeClaims that its guards allow.
const MOST_CLAIMS: &str = "SETU_BENCH_MOST";
/// Environment variable with the address for its traces. Without it, it has neither traces nor metrics.
const COLLECTOR: &str = "SETU_BENCH_COLLECTOR";
/// The interval at which metrics are scraped and gauges set.
const SCRAPED_EVERY: Duration = Duration::from_secs(15);

/// Runs the controller until it is killed. Prints the address of its metrics first.
async fn controller(most: usize) {
    logs::init(logs::Format::Json, "info", None).unwrap();
    let collector = std::env::var(COLLECTOR).ok();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let handle = collector.is_some().then(|| metrics::install().unwrap());
    let exported = collector.map(|collector| {
        let settings =
            TraceSettings::read(Some(&collector), |name| std::env::var(name).ok()).unwrap().unwrap();
        start(&settings).unwrap()
    });
    let traces = exported.as_ref().map(|(traces, _)| traces.clone()).unwrap_or_default();
    let parts = ContextParts {
        client: client::connect(kube::Config::infer().await.unwrap()).unwrap(),
        clock: Clock::wall(),
        controller_name: scenario::controller_name_of(ID),
        options: Options::default(),
        policy: policy(most).into(),
        telemetry: Telemetry { instance: "bench".to_owned(), traces, events_on_job: false },
    };
    let replica = Replica::start(parts, None);
    let stop = CancellationToken::new();
    if let Some(handle) = handle {
        tokio::spawn(server::serve(listener, server::metrics(handle.clone()), stop.clone()));
        let context = replica.context();
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(SCRAPED_EVERY);
            loop {
                tick.tick().await;
                context.set_gauges();
                handle.run_upkeep();
            }
        });
    }
    replica.work(&stop).await;
}

/// The controller's process, seen from outside.
struct Process {
    child: Child,
    metrics: String,
}

impl Process {
    fn start(kubeconfig: &Path, most: usize, collector: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("KUBECONFIG", kubeconfig).env(MOST_CLAIMS, most.to_string()).env_remove(COLLECTOR);
        if let Some(collector) = collector {
            command.env(COLLECTOR, collector).env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
            // A large queue, so that every span is sent and counts towards the cost.
            command.env("OTEL_BSP_MAX_QUEUE_SIZE", "100000");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut metrics = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut metrics).unwrap();
        Self { child, metrics: metrics.trim().to_owned() }
    }

    async fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(&self.metrics).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A collector that accepts everything and counts bytes. Returns its address.
async fn collector(received: Arc<AtomicU64>) -> String {
    let take = move |body: Bytes| {
        received.fetch_add(body.len() as u64, Ordering::Relaxed);
        async {}
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/v1/traces", post(take));
    tokio::spawn(server::serve(listener, routes, CancellationToken::new()));
    format!("http://{address}")
}

/// What one round used and sent.
struct Round {
    cpu: Duration,
    wall: Duration,
    sent: u64,
    /// The slowest response of `/metrics` during the round.
    scrape: Duration,
}

/// Runs the gangs in a new cluster.
async fn round(gangs: usize, nodes: usize, is_observed: bool) -> Round {
    let most = 2 * gangs * nodes;
    let cluster = SimCluster::start(7, &Clock::wall(), &scenario::controller_name_of(ID), policy(most));
    let admin = cluster.server.user("admin");
    make_world(&admin, most);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = std::env::temp_dir().join(format!("setu-telemetry-{}.json", std::process::id()));
    std::fs::write(&kubeconfig, http::kubeconfig(listener.local_addr().unwrap())).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(http::serve(cluster.server.clone(), listener, stop.clone()));
    let received = Arc::new(AtomicU64::new(0));
    let collector = collector(Arc::clone(&received)).await;
    let process = Process::start(&kubeconfig, most, is_observed.then_some(collector.as_str()));
    tokio::time::sleep(Duration::from_secs(3)).await;

    let (started, before) = (Instant::now(), usage::cpu(process.child.id()));
    submit(&admin, gangs, nodes, "5s");
    let (mut scraped, mut scrape) = (Instant::now(), Duration::ZERO);
    loop {
        let released = in_state(&admin, StateName::Released);
        if released == gangs {
            break;
        }
        assert!(started.elapsed() < Duration::from_mins(15), "{released} of {gangs} are released");
        tokio::time::sleep(Duration::from_secs(1)).await;
        if is_observed && scraped.elapsed() >= SCRAPED_EVERY {
            scraped = Instant::now();
            process.scrape().await;
            scrape = scrape.max(scraped.elapsed());
        }
    }
    let wall = started.elapsed();
    // The last Events and spans take some seconds to be sent.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let cpu = usage::cpu(process.child.id()).saturating_sub(before);
    if is_observed {
        let page = process.scrape().await;
        let lost: Vec<&str> =
            page.lines().filter(|l| l.starts_with("setu_trace_export_failures_total")).collect();
        assert!(!lost.is_empty() && lost.iter().all(|l| l.ends_with(" 0")), "{lost:?}");
    }
    stop.cancel();
    let _ = std::fs::remove_file(kubeconfig);
    Round { cpu, wall, sent: received.load(Ordering::Relaxed), scrape }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    let middle = of.len() / 2;
    if of.len().is_multiple_of(2) { f64::midpoint(of[middle - 1], of[middle]) } else { of[middle] }
}

fn main() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(most) = std::env::var(MOST_CLAIMS) {
        return runtime().block_on(controller(most.parse().unwrap()));
    }
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let gangs = numbers.first().copied().unwrap_or(1_000);
    let nodes = numbers.get(1).copied().unwrap_or(4);
    let rounds = numbers.get(2).copied().unwrap_or(5);
    println!("{gangs} gangs of {nodes} nodes; CPU seconds of the controller's process");
    println!(
        "| round | without | with | difference | traces, KiB | longest scrape, ms | took, s | load of the machine |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut withouts, mut withs, mut differences) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=rounds {
        // Each round has its own runtime, so that nothing of the last cluster remains.
        let once = |is_observed| runtime().block_on(round(gangs, nodes, is_observed));
        let (without, with) = if number.is_multiple_of(2) {
            let with = once(true);
            (once(false), with)
        } else {
            (once(false), once(true))
        };
        let (a, b) = (without.cpu.as_secs_f64(), with.cpu.as_secs_f64());
        let difference = 100.0 * (b - a) / a;
        println!(
            "| {number} | {a:.2} | {b:.2} | {difference:+.1} % | {} | {:.0} | {:.0}, {:.0} | {} |",
            with.sent / 1024,
            1e3 * with.scrape.as_secs_f64(),
            without.wall.as_secs_f64(),
            with.wall.as_secs_f64(),
            load(),
        );
        withouts.push(a);
        withs.push(b);
        differences.push(difference);
    }
    let (least, most) =
        differences.iter().fold((f64::MAX, f64::MIN), |(least, most), d| (d.min(least), d.max(most)));
    let (a, b) = (median(withouts), median(withs));
    println!(
        "medians: {a:.2} s without, {b:.2} s with, {:+.1} %; of the rounds' differences {:+.1} %, from {least:+.1} % to {most:+.1} %",
        100.0 * (b - a) / a,
        median(differences),
    );
}
