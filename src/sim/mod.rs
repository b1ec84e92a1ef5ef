//! The embedded cluster: an in-process API server, actors that simulate Kueue, Karpenter and the other
//! components, injected faults, and invariants that are checked after every write.
//!
//! The real controller runs against it unchanged. Time is tokio's, so a test with paused time simulates
//! hours in milliseconds. One seed determines all random choices.

pub mod actors;
pub mod api;
pub mod catalogue;
pub mod chance;
pub mod cluster;
pub mod denials;
pub mod drama;
pub mod embedded;
pub mod faults;
mod gated;
pub mod http;
pub mod invariants;
pub mod moves;
pub mod scenario;
pub mod show;
pub mod transport;
mod values;
pub mod weather;
pub mod wire;
