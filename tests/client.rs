//! The client that Setu runs with, over a real connection.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "client/refused.rs"]
mod refused;
#[path = "client/silent.rs"]
mod silent;

use silent::Silence;
use std::time::Duration;

#[tokio::test]
async fn a_write_that_gets_a_503_is_not_retried() {
    assert_eq!(refused::create().await, (1, 503));
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_peer_falls_silent_is_opened_again_soon() {
    for (silence, most) in [(Silence::AfterHeaders, 70), (Silence::AtOnce, 75)] {
        let opened = silent::watches(silence, Duration::from_secs(2 * most + 10)).await;
        assert!(opened.len() >= 3, "{silence:?}: {opened:?}");
        let pauses = opened.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        assert!(pauses.max() <= Some(Duration::from_secs(most)), "{silence:?}: {opened:?}");
    }
}
