//! Tests of the chart: its rendered output, and its life on the real control plane.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

mod admission;
mod commands;
mod helm;
mod hooks;
mod install;
mod readme;
#[path = "../scenarios/real.rs"]
mod real;
mod render;
#[path = "../scenarios/setu.rs"]
mod setu;
mod surroundings;
