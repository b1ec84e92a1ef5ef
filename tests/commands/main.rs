//! The output of the commands, and their errors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod cli;
mod plan;
mod views;
