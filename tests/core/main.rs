//! The pure core: planning, packing, observing and the statechart, without a cluster.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod fuzz;
mod gang;
mod karpenter;
mod losses;
mod observe;
mod packing;
mod plans;
mod trace;
mod transitions;
mod values;
