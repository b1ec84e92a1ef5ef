//! The pure core of Setu: what a gang is, which nodes it needs, and what comes next.
//!
//! A gang is a typed statechart ([`gang`]), stored in an annotation of its Workload. A plan ([`plan`]) has the NodeClaims that
//! it needs, or the obstacle. A policy ([`policy`]) tunes both. [`api`] has the objects that they read and write, and
//! [`names`] has the keys.
//!
//! Rule: nothing here uses a client, a runtime, a clock, a log or randomness, and none is a dependency. Time is an argument.
//! `planted` has the bugs that tests can switch on.

pub mod api;
pub mod digest;
pub mod gang;
mod listed;
pub mod names;
pub mod plan;
pub mod planted;
pub mod policy;
pub mod words;
