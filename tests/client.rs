//! The client that Setu runs with, over a real connection.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "client/refused.rs"]
mod refused;
#[path = "client/silent.rs"]
mod silent;

use std::time::Duration;

#[tokio::test]
async fn a_write_that_is_refused_for_now_is_an_answer_and_is_not_sent_again() {
    assert_eq!(refused::create().await, (1, 503));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_opened_again_within_70_seconds() {
    let opened = silent::watches(Duration::from_secs(140)).await;
    assert!(opened.len() >= 3, "{opened:?}");
    assert!(
        opened.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) <= Duration::from_secs(70)),
        "{opened:?}"
    );
}
