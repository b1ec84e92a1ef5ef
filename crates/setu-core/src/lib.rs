//! The pure core of Setu: what a gang is, which nodes it needs, and what comes next.
//!
//! A gang is a typed statechart ([`gang`]), kept in an annotation of its Workload. A plan ([`plan`]) says which NodeClaims it
//! needs, or what is in the way. A policy ([`policy`]) tunes both. The objects that they read and write are in [`api`],
//! keys in [`names`].
//!
//! Rule: nothing here knows a client, a runtime, a clock, a log or chance; none is among the dependencies. Time comes in as a
//! value. `planted` holds the bugs that tests may switch on.

pub mod api;
pub mod digest;
pub mod gang;
pub mod names;
pub mod plan;
pub mod planted;
pub mod policy;
pub mod words;
