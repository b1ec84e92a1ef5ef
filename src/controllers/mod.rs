//! The reconcilers, and what they share.
//!
//! `workload` drives gangs through their lives, `admission_check` reports whether a check works, `claims` checks that
//! every NodeClaim still has an owner, and `orphan_nodes` that every Node has a claim. `queue` decides which object is
//! reconciled when, `context` holds shared state, `event_handlers` reacts to changes of objects, and `board` holds what
//! users are shown. `forget` drops what is kept about a gang. `ledger` records what gangs are about to take, and
//! `capacity_returns` what they have given back. `plan_kinds` lists the kinds that plans are made from.

pub mod admission_check;
mod basis;
pub mod board;
mod capacity_returns;
mod causes;
pub mod claims;
pub mod context;
mod digests;
mod event_handlers;
mod finalizer;
mod forget;
mod gang;
mod gang_entry;
mod gauges;
mod grounds;
mod inflight;
mod leadership;
mod ledger;
mod memory;
mod meters;
mod mirrors;
mod money;
pub mod orphan_nodes;
pub mod parameters;
pub mod plan_kinds;
mod plans;
pub mod policies;
mod progress;
pub mod queue;
mod registry;
mod remembered;
pub mod storage;
pub mod stores;
pub mod summary;
mod waiting;
pub mod workload;
pub mod workloads;

pub use context::Context;
