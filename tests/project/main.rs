//! The repository itself: documents, generated files, layers, workflows and what a release holds.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod charts;
mod docs;
mod frameworks;
mod generated;
mod image;
mod k9s;
mod layering;
mod parameters;
mod policies;
mod prose;
mod release;
mod workflows;
