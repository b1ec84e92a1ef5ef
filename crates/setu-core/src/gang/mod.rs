//! The life of one gang, as pure functions.
//!
//! `snapshot` is what is known of the gang and its nodes at one instant. `step` turns it into events, and the `statechart`
//! handles each: the result is the next journal and its effects. `report` is what Kueue and users see of it, `workload` is
//! where the gang comes from, and `release` is how its nodes are given up. `identity` names the gang, `trace` has its spans, and
//! `ledger` is what gangs share.
//!
//! Rule: nothing here uses a client, a clock, a runtime or a log. Time is an argument.

pub mod identity;
pub mod ledger;
pub mod marks;
pub mod release;
pub mod report;
pub mod snapshot;
pub mod statechart;
pub mod step;
pub mod trace;
pub mod workload;

pub use identity::GangIdentity;
pub use report::explain::{Explanation, SlotView};
pub use snapshot::attempt::{Attempt, SlotStatus};
pub use snapshot::claims::ClaimView;
pub use snapshot::health::Health;
pub use snapshot::unbound::{AdmittedPods, JournalPosition, PodCheck, UnboundPods};
pub use snapshot::waits::WaitsFor;
pub use snapshot::{Forecast, Freshness, Refusal, Snapshot, SnapshotParts};
pub use statechart::attempt_terms::PolicySource;
pub use statechart::decide::decide;
pub use statechart::effective_policy::{CurrentPolicy, EffectivePolicy};
pub use statechart::event::{Effect, Event};
pub use statechart::failure::{Failure, FailureClass};
pub use statechart::journal::{Journal, Memory};
pub use statechart::option_position::OptionPosition;
pub use statechart::reservation::{AdmissionId, AdmissionPhase, Ending, Reservation};
pub use statechart::rules::{Eviction, Rules};
pub use statechart::state::{Nodes, State, StateName, Then};
pub use statechart::trace_context::TraceContext;
pub use step::commit::{Commit, Precondition};
pub use step::observation::Observation;
pub use step::observe::observe;
pub use step::wake::wake_at;
pub use step::{Moved, Step, step};
pub use trace::TraceSpan;
