//! How Karpenter's metrics page is followed, from a page that is served over HTTP.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use setu::app::market::follow;
use setu::clock::Clock;
use setu::cluster::page::Page;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Cluster, Start};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two reads.
const PERIOD: Duration = Duration::from_mins(1);

/// A page that says what stands in it, and how often it was asked for.
#[derive(Clone, Default)]
struct Served {
    page: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Served {
    /// Serves it; an empty one is an error of the server.
    fn start(&self) -> Page {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let page = served.page.lock().unwrap().clone();
                let status = if page.is_empty() { "500 Internal Server Error" } else { "200 OK" };
                let length = page.len();
                let head =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
                let _ = stream.write_all((head + &page).as_bytes());
                served.asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        Page::at(&format!("http://{address}/metrics")).unwrap()
    }

    fn says(&self, available: Option<u8>) {
        let line = |value| {
            format!(
                "karpenter_cloudprovider_instance_type_offering_available{{instance_type=\"p5.48xlarge\",zone=\"us-east-1a\",\
                 capacity_type=\"spot\"}} {value}\n"
            )
        };
        *self.page.lock().unwrap() = available.map(line).unwrap_or_default();
    }
}

/// The next read, or later ones, come at once.
async fn a_minute_passes() {
    tokio::time::pause();
    tokio::time::advance(PERIOD).await;
    tokio::time::resume();
}

#[tokio::test]
async fn what_the_page_said_counts_on_while_it_cannot_be_read_and_until_it_says_otherwise() {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let mut cluster = Cluster::start(1, &clock, "setu", PolicyFile::default());
    let setu = cluster.start_setu(&Start::default());
    let served = Served::default();
    let stop = CancellationToken::new();
    let following = tokio::spawn(follow(served.start(), Arc::clone(&setu.context), stop.clone()));
    let short = || !setu.context.capacity().shortages.is_empty();
    for (read, available, expected) in
        [(1, None, false), (2, Some(0), true), (3, None, true), (4, Some(1), false)]
    {
        served.says(available);
        if read > 1 {
            a_minute_passes().await;
        }
        for _ in 0..500 {
            if served.asked.load(Ordering::SeqCst) == read && short() == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // What is read is taken over a moment after it was asked for.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((served.asked.load(Ordering::SeqCst), short()), (read, expected), "{available:?}");
    }
    stop.cancel();
    following.await.unwrap();
}
