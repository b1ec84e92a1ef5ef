//! Setu: all the nodes of a gang or none.
//!
//! A Kueue AdmissionCheck controller. When quota is reserved for a Workload it creates Karpenter
//! NodeClaims for the whole gang at once, waits until every node can run its pods, and only then says
//! Ready; if anything fails it takes everything back.
//!
//! The way of the data, which is also the reading order:
//!
//! - keys and slim types of the objects that are read: [`names`], [`api`]; beside them [`clock`], [`error`],
//!   `digest`, `words`, and [`planted`], the bugs that tests may switch on;
//! - pure decisions: [`gang`], [`plan`], [`policy`];
//! - logs, metrics and traces: [`telemetry`];
//! - client, watches, stores and the Leases: [`cluster`];
//! - every other write to the API server: [`effects`];
//! - the loops that bring them together: [`controllers`];
//! - wiring: [`app`];
//! - the embedded cluster, for tests and `setu demo`: [`sim`];
//! - what a user types: [`cli`].

pub mod api;
pub mod app;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod controllers;
mod digest;
pub mod effects;
pub mod error;
pub mod gang;
pub mod names;
pub mod plan;
pub mod planted;
pub mod policy;
pub mod sim;
pub mod telemetry;
mod words;
