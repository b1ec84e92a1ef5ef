//! Setu in the embedded cluster of `setu-sim`: scenarios, dramas, the demo, and invariants that are checked after every
//! write.

pub mod cluster;
pub mod drama;
pub mod embedded;
pub mod invariants;
pub mod moves;
pub mod scenario;
pub mod show;
