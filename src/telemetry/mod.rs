//! What Setu says about itself: logs, metrics and Kubernetes Events.
//!
//! Rule: nothing here can fail an action; a broken exporter changes nothing else.

pub mod events;
pub mod logs;
pub mod metrics;
