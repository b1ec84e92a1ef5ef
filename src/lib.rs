//! Setu: all the nodes of a gang or none.
//!
//! A Kueue AdmissionCheck controller. When quota is reserved for a Workload it creates Karpenter
//! NodeClaims for the whole gang at once, waits until every node can run its pods, and only then says
//! Ready; if anything fails it takes everything back.
//!
//! The way of the data, which is also the reading order:
//!
//! - [`names`], [`api`]: keys and slim types of the objects that are read;
//! - [`gang`], [`plan`], [`policy`]: pure decisions;
//! - [`effects`], [`controllers`], [`cluster`], [`telemetry`]: everything that touches the world;
//! - [`app`], [`cli`]: wiring, and what a user types.

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
