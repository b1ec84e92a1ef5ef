//! The statechart of a gang: its states, what may happen to it, and what happens then.
//!
//! Read in this order: `state` → `event` (what was observed, and what to do about it) → `chart` (the edges) → `decide`
//! (handles one event). `journal` is how a Workload stores its gang. `effective_policy` and `attempt_terms` pick the policy that a
//! gang is judged by, and `diagram` draws the chart from the code.

pub mod attempt_terms;
mod chart;
pub mod decide;
pub mod diagram;
pub mod effective_policy;
pub mod event;
pub mod failure;
pub mod journal;
pub mod option_position;
pub mod reservation;
pub mod rules;
pub mod state;
mod step_context;
pub mod trace_context;
pub mod transition;
