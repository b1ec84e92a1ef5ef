//! The life of one gang, as pure functions.
//!
//! Read in this order: `state` (the states of a gang) → `event` (what was observed) → `chart` (the statechart) →
//! `decide` (handles one event) → `observe` (turns a snapshot of the cluster into events) → `step` (both, once) →
//! `verdict` (what Kueue sees) and `explain` (what users see). `journal` is how a Workload stores its gang.
//!
//! Rule: nothing here uses a client, a clock, a runtime or a log. Time is an argument.

mod adoption;
pub mod begun_with;
mod chart;
pub mod claims;
pub mod consequences;
pub mod custody;
pub mod decide;
pub mod diagram;
pub mod event;
pub mod explain;
pub mod failure;
pub mod foreign_pods;
pub mod identity;
pub mod journal;
pub mod loss;
pub mod message;
pub mod notice;
pub mod observe;
pub mod observed;
pub mod open;
mod option_position;
mod option_retry;
pub mod phase;
pub mod planning;
mod reboot;
pub mod repair;
mod replacement;
pub mod request;
pub mod reservation;
pub mod slot;
pub mod snapshot;
pub mod state;
pub mod step;
pub mod stray;
pub mod terms;
pub mod trace;
pub mod unbound;
pub mod undeletable;
mod ungated_pods;
mod validating;
pub mod verdict;
pub mod waits;
mod wake;

pub use claims::{ClaimView, Health};
pub use decide::{Eviction, Rules, decide};
pub use event::{Effect, Event};
pub use explain::{Explanation, SlotView};
pub use failure::{Failure, FailureClass};
pub use identity::GangIdentity;
pub use journal::{Journal, Memory};
pub use observe::{Reading, observe};
pub use option_position::OptionPosition;
pub use reservation::Reservation;
pub use slot::{Attempt, SlotStatus};
pub use snapshot::{Freshness, Outlook, Refusal, Snapshot};
pub use state::{Nodes, State, StateName, Then};
pub use step::{JudgedBy, Moved, Step, step};
pub use terms::Terms;
pub use trace::{Span, TraceContext};
pub use unbound::{AdmittedPods, PodCheck, Stand, UnboundPods};
pub use waits::WaitsFor;
pub use wake::wake_at;
