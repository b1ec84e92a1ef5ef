//! The embedded cluster: an API server in this process, actors that behave as Kueue, Karpenter and the
//! rest of a cluster do, faults, and invariants that are checked after every write.
//!
//! The real controller runs against it, unchanged. Time is tokio's, so a test that pauses it lives
//! hours in milliseconds, and one seed decides everything that chance decides.

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
