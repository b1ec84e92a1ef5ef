//! Setu: all the nodes of a gang or none.
//!
//! A Kueue AdmissionCheck controller. When quota is reserved for a Workload, it creates Karpenter NodeClaims for the
//! whole gang at once, waits until every node can run its pods, and only then reports Ready. If anything fails, it takes
//! everything back.
//!
//! The modules, in reading order and in the order of the data:
//!
//! - `setu-core`: keys and slim types of the objects that are read ([`names`], [`api`]), and the pure decisions
//!   ([`gang`], [`plan`], [`policy`]); [`planted`](mod@planted) holds the bugs that tests may switch on;
//! - `setu-clock`: the only source of time;
//! - the only error type: [`error`];
//! - logs, metrics and traces: [`telemetry`];
//! - client, watches, stores and the Leases: [`cluster`];
//! - every other write to the API server: [`effects`];
//! - the reconcilers that combine them: [`controllers`];
//! - wiring: [`app`];
//! - with the feature `demo`, for tests and `setu demo`: `setu-sim`, the embedded cluster, and `sim`, which plays Setu in it;
//! - the command line: [`cli`].

pub mod app;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod effects;
pub mod error;
#[cfg(feature = "demo")]
pub mod sim;
pub mod telemetry;

pub use setu_core::{api, gang, names, plan, planted, policy};
use setu_core::{digest, words};
