//! The reconcilers, and what they share.
//!
//! `workload` drives gangs through their lives, `admission_check` reports whether a check works, `claims` checks that
//! every NodeClaim still has an owner, and `stray_nodes` that every Node has a claim. `queue` decides which object is
//! reconciled when, `context` holds shared state, `event_handlers` reacts to changes of objects, and `board` holds what
//! users are shown. `gang_state` holds what is kept about gangs, and `forget` drops it. `plan_kinds` lists the kinds that
//! plans are made from.

pub mod admission_check;
pub mod board;
mod causes;
mod claim_records;
pub mod claims;
pub mod context;
mod digests;
mod event_handlers;
mod finalizer;
mod forget;
mod gang;
mod gang_entry;
mod gang_state;
mod gauges;
mod inflight;
mod leadership;
mod meters;
mod mirrors;
mod money;
mod own_write;
pub mod parameters;
pub mod plan_kinds;
mod plan_objects;
mod plans;
mod pod_lists;
pub mod policies;
mod progress;
pub mod queue;
mod registry;
mod standalone;
pub mod storage;
pub mod stores;
pub mod stray_nodes;
pub mod summary;
mod waiting;
pub mod workload;
pub mod workload_store;

pub use context::Context;
