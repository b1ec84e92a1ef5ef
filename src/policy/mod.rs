//! The policy that a gang is run by: built-in defaults, then the file, then the check's parameters.
//!
//! `file` reads and merges; this module holds the outcome, in which every value is present. Nothing
//! a tenant can write reaches it.

pub mod file;

use crate::api::duration::Span;
use crate::api::node_claim::Requirement;
use crate::api::parameters::{Backoff, Gate, OnExhausted, ParametersSpec, Pinning};

pub use file::{FileError, PolicyFile};

/// Every value that decides how a gang is provisioned.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// NodePool named by the administrator, if any.
    pub node_pool: Option<String>,
    /// Requirements added to every NodeClaim.
    pub requirements: Vec<Requirement>,
    /// How long every node must have been ready before the gang is.
    pub buffer_time: Span,
    /// Resources whose pod sets get nodes; empty means every pod set.
    pub managed_resources: Vec<String>,
    /// Bounds of each phase.
    pub deadlines: Limits,
    /// Tries with the quota held.
    pub in_check: Pace,
    /// Tries with the quota given back.
    pub yielding: Pace,
    /// What happens once both are used up.
    pub on_exhausted: OnExhausted,
    /// How pods find their nodes.
    pub pinning: Pinning,
    /// How long a hold on a node lasts at most.
    pub hold_limit: Span,
    /// NodePool limits.
    pub capacity_gate: Gate,
    /// NodeClass readiness.
    pub node_class_gate: Gate,
    /// Most nodes one gang may have.
    pub gang_nodes: u32,
}

/// Bounds of each phase of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Creation of a NodeClaim until Launched.
    pub launch: Span,
    /// Creation of a NodeClaim until Registered.
    pub register: Span,
    /// Creation of a NodeClaim until Initialized and ready.
    pub initialize: Span,
    /// One attempt, or one wait before it.
    pub gang: Span,
    /// Ready until admitted.
    pub admit: Span,
}

/// A bounded, doubling wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many times.
    pub limit: u32,
    /// First wait.
    pub base: Span,
    /// Longest wait.
    pub max: Span,
}

impl Pace {
    /// The wait before try number `nth`, counted from 1: `base`, doubled each time, at most `max`.
    pub fn wait(&self, nth: u32) -> Span {
        let factor = 2_u32.checked_pow(nth.saturating_sub(1).min(31)).unwrap_or(u32::MAX);
        Span(self.base.0.checked_mul(factor).unwrap_or(self.max.0).min(self.max.0))
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            node_pool: None,
            requirements: Vec::new(),
            buffer_time: Span::seconds(0),
            managed_resources: Vec::new(),
            deadlines: Limits {
                launch: Span::minutes(4),
                register: Span::minutes(8),
                initialize: Span::minutes(10),
                gang: Span::minutes(15),
                admit: Span::minutes(30),
            },
            in_check: Pace { limit: 5, base: Span::seconds(5), max: Span::seconds(80) },
            yielding: Pace { limit: 3, base: Span::minutes(1), max: Span::minutes(30) },
            on_exhausted: OnExhausted::Yield,
            pinning: Pinning::Auto,
            hold_limit: Span::minutes(24 * 60),
            capacity_gate: Gate::Enforce,
            node_class_gate: Gate::Enforce,
            gang_nodes: 256,
        }
    }
}

impl Policy {
    /// This policy with every value that `spec` states replaced by it.
    #[must_use]
    pub fn overlaid(mut self, spec: &ParametersSpec) -> Self {
        fn set<T: Clone>(value: &mut T, stated: Option<&T>) {
            if let Some(stated) = stated {
                *value = stated.clone();
            }
        }
        fn pace(value: &mut Pace, stated: Option<&Backoff>) {
            let Some(stated) = stated else { return };
            set(&mut value.limit, stated.limit.as_ref());
            set(&mut value.base, stated.base.as_ref());
            set(&mut value.max, stated.max.as_ref());
        }
        if spec.node_pool_name.is_some() {
            self.node_pool.clone_from(&spec.node_pool_name);
        }
        set(&mut self.requirements, spec.node_selector_requirements.as_ref());
        set(&mut self.managed_resources, spec.managed_resources.as_ref());
        set(&mut self.buffer_time, spec.strategy.as_ref().and_then(|s| s.buffer_time.as_ref()));
        if let Some(stated) = &spec.deadlines {
            set(&mut self.deadlines.launch, stated.launch.as_ref());
            set(&mut self.deadlines.register, stated.register.as_ref());
            set(&mut self.deadlines.initialize, stated.initialize.as_ref());
            set(&mut self.deadlines.gang, stated.gang.as_ref());
            set(&mut self.deadlines.admit, stated.admit.as_ref());
        }
        if let Some(stated) = &spec.retry {
            pace(&mut self.in_check, stated.in_check.as_ref());
            pace(&mut self.yielding, stated.yielding.as_ref());
            set(&mut self.on_exhausted, stated.on_exhausted.as_ref());
        }
        if let Some(stated) = &spec.custody {
            set(&mut self.pinning, stated.pinning.as_ref());
            set(&mut self.hold_limit, stated.hold_limit.as_ref());
        }
        if let Some(stated) = &spec.gates {
            set(&mut self.capacity_gate, stated.capacity.as_ref());
            set(&mut self.node_class_gate, stated.node_class.as_ref());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_maximum_and_never_overflows() {
        let pace = Policy::default().in_check;
        let waits: Vec<u64> = (1..=7).map(|n| pace.wait(n).0.as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 80, 80]);
        assert_eq!(pace.wait(u32::MAX), pace.max);
    }

    #[test]
    fn parameters_replace_only_what_they_state() {
        let spec: ParametersSpec = serde_yaml::from_str(
            "nodePoolName: gpu\nretry: {inCheck: {limit: 2}}\ndeadlines: {launch: 90s}\ncustody: {pinning: Selector}",
        )
        .unwrap();
        let policy = Policy::default().overlaid(&spec);
        let expected = Policy {
            node_pool: Some("gpu".into()),
            pinning: Pinning::Selector,
            in_check: Pace { limit: 2, ..Policy::default().in_check },
            deadlines: Limits { launch: Span::seconds(90), ..Policy::default().deadlines },
            ..Policy::default()
        };
        assert_eq!(policy, expected);
    }
}
