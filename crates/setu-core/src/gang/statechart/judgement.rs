//! What a gang is judged by: the current policy, that of its attempt, or the terms in its journal.
//!
//! Rule: while the parameters cannot be read, a gang in flight is judged by its terms. Without terms, nothing that
//! depends on a policy is decided.

use super::journal::Journal;
use super::judged_by::{JudgedBy, confirmed_terms};
use crate::api::NodeClaim;
use crate::names;
use crate::plan::Obstacle;
use crate::policy::terms::judged_unread;
use crate::policy::{PhaseLimits, Policy};
use std::sync::Arc;

/// The policy that a gang is judged by, and how far it is known.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The policy, with the launch timeout of the attempt's tier and what its topology demands of nodes.
    pub policy: Arc<Policy>,
    /// The policy without these.
    pub stated: Arc<Policy>,
    /// Why the parameters cannot be read.
    pub fault: Option<Obstacle>,
    has_terms: bool,
}

impl Judgement {
    /// By the current policy. With a `fault`, it is not the policy that the parameters state. An attempt in flight is judged
    /// by the terms in its journal, if these claims confirm them.
    pub fn of(journal: &Journal, claims: &[NodeClaim], current: Policy, fault: Option<Obstacle>) -> Self {
        let is_in_flight = journal.state.is_in_flight();
        let terms = confirmed_terms(journal, claims).filter(|_| is_in_flight);
        let stated = Arc::new(match terms {
            Some(terms) => terms.over(current, journal.memory.option.tier),
            None if is_in_flight && fault.is_some() => judged_unread(current),
            None => current,
        });
        Self { policy: for_tier(journal, &stated), stated, fault, has_terms: terms.is_some() }
    }

    /// By the policy that its attempt began with.
    pub fn of_attempt(journal: &Journal, policy: Arc<Policy>) -> Self {
        Self { policy: for_tier(journal, &policy), stated: policy, fault: None, has_terms: false }
    }

    /// The same if Kueue places pods only on nodes that have the gang's label and each of these.
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
    pub fn by(&self) -> JudgedBy<'_> {
        match self.fault {
            None => JudgedBy::Policy(&self.stated),
            Some(_) if self.has_terms => JudgedBy::Terms,
            Some(_) => JudgedBy::Unknown,
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
    let deadlines = PhaseLimits { launch, ..policy.deadlines };
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
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {
                "name": "c", "labels": {(names::ATTEMPT): "0"}, "annotations": {(names::TERMS): terms.digest()},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap();
        let mut flies = journal(State::WaitingReady);
        flies.memory.terms = Some(terms);
        let by_terms = Judgement::of(&flies, std::slice::from_ref(&claim), buffered(1), Some(fault()));
        assert!(matches!(by_terms.by(), JudgedBy::Terms));
        assert_eq!(by_terms.policy.buffer_time, Span::minutes(3));
        let unknown = Judgement::of(&flies, &[], buffered(1), Some(fault()));
        assert!(matches!(unknown.by(), JudgedBy::Unknown));
        assert!(unknown.policy.deadlines.gang > Policy::default().deadlines.gang);
        let waits = Judgement::of(&journal(State::Validating), &[claim], buffered(1), Some(fault()));
        assert!(matches!(waits.by(), JudgedBy::Unknown));
        assert_eq!(*waits.policy, buffered(1));
    }

    #[test]
    fn the_launch_timeout_of_the_tier_counts_for_its_attempt_alone() {
        let tier = Tier { name: "t".into(), launch_timeout: Some(Span::minutes(1)), ..Tier::default() };
        let policy = Arc::new(Policy { tiers: vec![tier], ..Policy::default() });
        let launch =
            |state| Judgement::of_attempt(&journal(state), Arc::clone(&policy)).policy.deadlines.launch;
        assert_eq!(launch(State::Provisioning), Span::minutes(1));
        assert_eq!(launch(State::Validating), Policy::default().deadlines.launch);
        let judgement = Judgement::of_attempt(&journal(State::Provisioning), Arc::clone(&policy));
        let placed = judgement.with_topology("g", vec!["rack".into()]);
        let labels: Vec<&str> = placed.policy.readiness.node_labels.keys().map(String::as_str).collect();
        assert_eq!((labels, &placed.stated), (vec!["rack", names::GANG], &policy));
    }
}
