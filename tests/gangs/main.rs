//! Gangs in the embedded cluster.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod agreement;
mod alike;
mod backpressure;
mod clashes;
mod elections;
mod endings;
mod events;
mod examples;
mod gates;
mod kept;
mod load;
mod market;
mod nodes;
mod page;
mod prices;
mod reboots;
mod reconciles;
mod refused;
mod refused_writes;
mod requests;
mod rights;
mod shards;
mod silences;
mod standalone;
mod stray_nodes;
mod swaps;
mod traced;
mod train;
mod uninstall;
mod unserved;
mod upgrade;
mod waits;
mod world;
