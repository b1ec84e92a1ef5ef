//! The embedded cluster: an API server in this process, actors that stand for Kueue, Karpenter and the other
//! components, and injected faults.
//!
//! The controller runs against it unchanged; the code that runs it there is in the package `setu`. Time is tokio's, so a
//! test with paused time simulates hours in milliseconds. One seed determines all random choices.

pub mod actors;
pub mod api;
pub mod catalogue;
pub mod chance;
pub mod denials;
pub mod faults;
pub mod gated;
pub mod http;
pub mod transport;
pub mod values;
pub mod weather;
pub mod wire;
