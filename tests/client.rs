//! The client that Setu runs with, over a real connection.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "client/refused.rs"]
mod refused;
#[path = "client/silent.rs"]
mod silent;

use std::time::Duration;

#[tokio::test]
async fn a_write_that_gets_a_503_is_not_retried() {
    assert_eq!(refused::create().await, (1, 503));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_reopened_within_70_seconds() {
    let opened = silent::watches(Duration::from_secs(140)).await;
    assert!(opened.len() >= 3, "{opened:?}");
    assert!(
        opened.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) <= Duration::from_secs(70)),
        "{opened:?}"
    );
}
