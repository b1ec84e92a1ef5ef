//! The client that Setu runs with, over a real connection.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "client/refused.rs"]
mod refused;

#[tokio::test]
async fn a_write_that_is_refused_for_now_is_an_answer_and_is_not_sent_again() {
    assert_eq!(refused::create().await, (1, 503));
}
