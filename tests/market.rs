//! How Karpenter's metrics page is followed, from a page that is served over HTTP.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "gangs/page.rs"]
mod page;

use page::Served;
use setu::app::market::follow;
use setu::clock::Clock;
use setu::cluster::page::Page;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Cluster, Start};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two reads.
const PERIOD: Duration = Duration::from_mins(1);

/// The page where this much is told of one offering; an empty one where nothing is.
fn page_of(available: Option<u8>) -> String {
    let line = |value| {
        format!(
            "karpenter_cloudprovider_instance_type_offering_available{{instance_type=\"p5.48xlarge\",zone=\"us-east-1a\",\
             capacity_type=\"spot\"}} {value}\n"
        )
    };
    available.map(line).unwrap_or_default()
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
    let page = Page::at(&served.start()).unwrap();
    let stop = CancellationToken::new();
    let following = tokio::spawn(follow(page, Arc::clone(&setu.context), stop.clone()));
    let short = || !setu.context.capacity().shortages.is_empty();
    for (read, available, expected) in
        [(1, None, false), (2, Some(0), true), (3, None, true), (4, Some(1), false)]
    {
        served.says(page_of(available));
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
