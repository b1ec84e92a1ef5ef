//! The life of one gang, as pure functions.
//!
//! Read in this order: `state` (the states of a gang) → `event` (what was observed) → `chart` (the statechart) →
//! `decide` (handles one event) → `observe` (turns a snapshot of the cluster into events) → `step` (both, once) →
//! `verdict` (what Kueue sees) and `explain` (what users see). `judgement` picks the policy of a step. `journal` is how a
//! Workload stores its gang, and `commit` says what its write requires and permits. `reconcile` is the order in which steps,
//! reads and writes follow each other. What a state observes is in
//! `validating`, `attempting` and `approved`; what a slot observes in `slot`, `health` and `loss`.
//!
//! Rule: nothing here uses a client, a clock, a runtime or a log. Time is an argument.

mod adoption;
pub mod approved;
mod attempting;
pub mod begun_with;
mod chart;
pub mod claims;
pub mod commit;
pub mod consequences;
pub mod custody;
pub mod decide;
pub mod diagram;
pub mod elastic_job;
pub mod event;
pub mod expectation;
pub mod explain;
pub mod failure;
pub mod finalizer;
pub mod foreign_pods;
pub mod health;
pub mod identity;
pub mod journal;
pub mod judgement;
pub mod ledger;
pub mod loss;
pub mod message;
pub mod new_claims;
pub mod notice;
mod observation;
mod observe;
pub mod observed;
pub mod opening;
mod option_position;
mod option_retry;
pub mod orphan_node;
pub mod others;
pub mod phase;
pub mod planning;
pub mod pod_list;
pub mod queueing;
mod reboot;
pub mod reconcile;
pub mod refused;
pub mod repair;
mod replacement;
pub mod request;
pub mod reservation;
pub mod resource_slices;
pub mod rules;
pub mod slot;
pub mod snapshot;
pub mod state;
pub mod step;
mod step_context;
pub mod stored;
pub mod terms;
pub mod trace;
pub mod transition;
pub mod unbound;
pub mod undeletable;
mod ungated_pods;
pub mod uninstall;
mod validating;
pub mod verdict;
pub mod waits;
pub mod wake;

pub use claims::ClaimView;
pub use commit::{Commit, Precondition};
pub use decide::decide;
pub use event::{Effect, Event};
pub use explain::{Explanation, SlotView};
pub use failure::{Failure, FailureClass};
pub use health::Health;
pub use identity::GangIdentity;
pub use journal::{Journal, Memory};
pub use judgement::Judgement;
pub use observation::Observation;
pub use observe::observe;
pub use option_position::OptionPosition;
pub use reservation::{AdmissionId, AdmissionPhase, Ending, Reservation};
pub use rules::{Eviction, Rules};
pub use slot::{Attempt, SlotStatus};
pub use snapshot::{Forecast, Freshness, Refusal, Snapshot, SnapshotParts};
pub use state::{Nodes, State, StateName, Then};
pub use step::{Moved, Step, step};
pub use terms::JudgedBy;
pub use trace::{TraceContext, TraceSpan};
pub use unbound::{AdmittedPods, JournalPosition, PodCheck, UnboundPods};
pub use waits::WaitsFor;
pub use wake::wake_at;
