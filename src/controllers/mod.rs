//! The loops that turn watches into writes.
//!
//! `workload` takes gangs through their lives, `admission_check` reports whether a check works, and
//! `claims` asks of every NodeClaim whether somebody still wants it, and `strays` of every Node whether it has one. `queue`
//! decides who is reconciled when, `context` is what they share, `event_handlers` what follows when an object changes, and `board` what people
//! are shown of it. `forget` drops what is remembered of a gang. `ledger` is what gangs are about to take, and `capacity_returns` what they have given back. `plan_kinds`
//! is the list of the kinds that plans are made from.

pub mod admission_check;
mod basis;
pub mod board;
mod capacity_returns;
pub mod claims;
pub mod context;
mod event_handlers;
mod finalizer;
mod forget;
mod gang;
mod grounds;
mod inflight;
mod leadership;
mod ledger;
mod memory;
mod meters;
mod money;
mod others;
pub mod parameters;
pub mod plan_kinds;
mod plans;
pub mod policies;
mod progress;
pub mod queue;
mod refused;
mod registry;
pub mod storage;
pub mod strays;
pub mod summary;
mod waiting;
pub mod workload;
pub mod workloads;

pub use context::Context;
