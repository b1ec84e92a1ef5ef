//! What a gang is judged by: the current policy, that of its attempt, or the terms in its journal.
//!
//! Rule: while the parameters cannot be read, a gang in flight is judged by its terms. Without terms, nothing that
//! depends on a policy is decided.

use super::journal::Journal;
use super::policy_source::{PolicySource, confirmed_terms};
use crate::api::NodeClaim;
use crate::names;
use crate::plan::Obstacle;
use crate::policy::terms::without_timeouts;
use crate::policy::{Policy, ResolvedDeadlines};
use std::sync::Arc;

/// The policy that a gang is judged by, and how far it is known.
#[derive(Clone, Debug)]
pub struct EffectivePolicy {
    /// The policy, with the launch timeout of the attempt's tier and what its topology demands of nodes.
    pub policy: Arc<Policy>,
    /// The policy without these.
    pub without_tier: Arc<Policy>,
    /// Why the parameters cannot be read.
    pub fault: Option<Obstacle>,
    has_terms: bool,
}

impl EffectivePolicy {
    /// By the current policy. With a `fault`, it is not the policy that the parameters state. An attempt in flight is judged
    /// by the terms in its journal, if these claims confirm them.
    pub fn of(
        journal: &Journal,
        claims: &[Arc<NodeClaim>],
        current: Policy,
        fault: Option<Obstacle>,
    ) -> Self {
        let is_in_flight = journal.state.is_in_flight();
        let terms = confirmed_terms(journal, claims).filter(|_| is_in_flight);
        let without_tier = Arc::new(match terms {
            Some(terms) => terms.over(current, journal.memory.option.tier),
            None if is_in_flight && fault.is_some() => without_timeouts(current),
            None => current,
        });
        Self { policy: for_tier(journal, &without_tier), without_tier, fault, has_terms: terms.is_some() }
    }

    /// By the policy that its attempt began with.
    pub fn of_attempt(journal: &Journal, policy: Arc<Policy>) -> Self {
        Self { policy: for_tier(journal, &policy), without_tier: policy, fault: None, has_terms: false }
    }

    /// Also requires the gang's label and each topology level's label on every node. Kueue places pods only there.
    #[must_use]
    pub fn with_topology(mut self, gang: &str, levels: Vec<String>) -> Self {
        if levels.is_empty() {
            return self;
        }
        let labels = &mut Arc::make_mut(&mut self.policy).readiness.node_labels;
        labels.insert(names::GANG.to_owned(), gang.to_owned());
        for level in levels {
            // Any value will do.
            labels.entry(level).or_default();
        }
        self
    }

    /// What the gang is judged by.
    pub fn source(&self) -> PolicySource<'_> {
        match self.fault {
            None => PolicySource::Policy(&self.without_tier),
            Some(_) if self.has_terms => PolicySource::Terms,
            Some(_) => PolicySource::Unknown,
        }
    }
}

/// The policy of an attempt in flight, with the launch timeout of its tier.
fn for_tier(journal: &Journal, policy: &Arc<Policy>) -> Arc<Policy> {
    let tier = usize::try_from(journal.memory.option.tier).ok().and_then(|tier| policy.tiers.get(tier));
    let launch = tier.and_then(|tier| tier.launch_timeout).filter(|_| journal.state.is_in_flight());
    let Some(launch) = launch.filter(|launch| *launch != policy.deadlines.launch) else {
        return Arc::clone(policy);
    };
    let deadlines = ResolvedDeadlines { launch, ..policy.deadlines };
    Arc::new(Policy { deadlines, ..(**policy).clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::duration::Span;
    use crate::api::parameters::Tier;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::gang::statechart::state::State;
    use crate::plan::ObstacleReason;
    use crate::policy::terms::Terms;
    use jiff::Timestamp;
    use serde_json::json;

    fn journal(state: State) -> Journal {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        journal.state = state;
        journal
    }

    fn buffered(minutes: u64) -> Policy {
        Policy { buffer_time: Span::minutes(minutes), ..Policy::default() }
    }

    fn fault() -> Obstacle {
        Obstacle::new(ObstacleReason::NoPolicy, "unread")
    }

    #[test]
    fn an_attempt_without_readable_parameters_is_judged_by_confirmed_terms_alone() {
        let terms = Terms::of(&buffered(3), 0).unwrap();
        let claim: Arc<NodeClaim> = Arc::new(serde_json::from_value(json!({
            "metadata": {
                "name": "c", "labels": {(names::ATTEMPT): "0"}, "annotations": {(names::TERMS): terms.digest()},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap());
        let mut flies = journal(State::WaitingReady);
        flies.memory.terms = Some(terms);
        let by_terms = EffectivePolicy::of(&flies, std::slice::from_ref(&claim), buffered(1), Some(fault()));
        assert!(matches!(by_terms.source(), PolicySource::Terms));
        assert_eq!(by_terms.policy.buffer_time, Span::minutes(3));
        let unknown = EffectivePolicy::of(&flies, &[], buffered(1), Some(fault()));
        assert!(matches!(unknown.source(), PolicySource::Unknown));
        assert!(unknown.policy.deadlines.gang > Policy::default().deadlines.gang);
        let waits = EffectivePolicy::of(&journal(State::Validating), &[claim], buffered(1), Some(fault()));
        assert!(matches!(waits.source(), PolicySource::Unknown));
        assert_eq!(*waits.policy, buffered(1));
    }

    #[test]
    fn the_launch_timeout_of_the_tier_counts_for_its_attempt_alone() {
        let tier = Tier { name: "t".into(), launch_timeout: Some(Span::minutes(1)), ..Tier::default() };
        let policy = Arc::new(Policy { tiers: vec![tier], ..Policy::default() });
        let launch =
            |state| EffectivePolicy::of_attempt(&journal(state), Arc::clone(&policy)).policy.deadlines.launch;
        assert_eq!(launch(State::Provisioning), Span::minutes(1));
        assert_eq!(launch(State::Validating), Policy::default().deadlines.launch);
        let effective = EffectivePolicy::of_attempt(&journal(State::Provisioning), Arc::clone(&policy));
        let placed = effective.with_topology("g", vec!["rack".into()]);
        let labels: Vec<&str> = placed.policy.readiness.node_labels.keys().map(String::as_str).collect();
        assert_eq!((labels, &placed.without_tier), (vec!["rack", names::GANG], &policy));
    }
}
