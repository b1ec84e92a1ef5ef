//! The policy that judges a gang: the current one, that of its attempt, or the terms in its journal.
//!
//! Rule: while the parameters cannot be read, a gang in flight is judged by its terms. Without terms, nothing that
//! depends on a policy is decided.

use super::attempt_terms::{PolicySource, confirmed_terms};
use super::journal::Journal;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::api::{NodeClaim, Workload};
use crate::names;
use crate::plan::{Obstacle, ObstacleReason};
use crate::policy::overrides::Ignored;
use crate::policy::terms::without_timeouts;
use crate::policy::{Policy, ResolvedDeadlines, Settings, TopologyLevels};
use kube_core::ResourceExt;
use std::sync::Arc;

/// The policy of a Workload's next attempt.
#[derive(Debug)]
pub struct CurrentPolicy {
    /// The policy. With a `fault`, it is not the one that the parameters state.
    pub policy: Policy,
    /// Why the parameters cannot be read.
    pub fault: Option<Obstacle>,
    /// Overrides of the Job that do not count.
    pub ignored: Vec<Ignored>,
}

impl CurrentPolicy {
    /// The policy under a check. `parameters` is the result of reading those of the check; `None` while they have not been read.
    pub fn of(
        settings: &Settings,
        workload: &Workload,
        check: &str,
        parameters: Option<Result<Option<ProvisioningParametersSpec>, String>>,
    ) -> Self {
        let no_policy = |why| Some(Obstacle::new(ObstacleReason::NoPolicy, why));
        let (parameters, fault) = match parameters {
            _ if !workload.front_end().has_own_checks() => (None, None),
            Some(Ok(parameters)) => (parameters, None),
            Some(Err(why)) => (None, no_policy(why)),
            None => (None, no_policy(format!("the parameters of check {check} have not been read yet"))),
        };
        let (policy, ignored) = settings.policy_of(workload.annotations(), check, parameters.as_ref());
        Self { policy, fault, ignored }
    }
}

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

/// What becomes of the policy that a replica keeps for a gang's attempt.
#[derive(Clone, Copy, Debug)]
pub enum KeptPolicy<'a> {
    /// This one is kept: it judges the attempt until its end.
    Keep(&'a Arc<Policy>),
    /// None is needed: no attempt is in flight.
    Forget,
    /// Nothing: the parameters cannot be read, and the attempt is judged by its terms meanwhile.
    Unchanged,
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

    /// What is kept of it for the attempt in this journal.
    pub fn kept(&self, journal: &Journal) -> KeptPolicy<'_> {
        match &self.fault {
            _ if !journal.state.is_in_flight() => KeptPolicy::Forget,
            None => KeptPolicy::Keep(&self.without_tier),
            Some(_) => KeptPolicy::Unchanged,
        }
    }

    /// Also requires the gang's label on every node, and the labels of these levels where they apply. Kueue places pods only there.
    #[must_use]
    pub fn with_topologies(mut self, gang: &str, topologies: Vec<TopologyLevels>) -> Self {
        if topologies.is_empty() {
            return self;
        }
        let readiness = &mut Arc::make_mut(&mut self.policy).readiness;
        readiness.node_labels.insert(names::GANG.to_owned(), gang.to_owned());
        readiness.topologies = topologies;
        self
    }

    /// The source of the policy that judges the gang.
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
        assert!(matches!(unknown.kept(&flies), KeptPolicy::Unchanged));
        let known = EffectivePolicy::of(&flies, &[], buffered(1), None);
        assert!(matches!(known.kept(&flies), KeptPolicy::Keep(policy) if **policy == buffered(1)));
        assert!(matches!(known.kept(&journal(State::Validating)), KeptPolicy::Forget));
    }

    #[test]
    fn the_parameters_of_a_check_that_is_not_setus_do_not_matter() {
        let current = |name: &str, parameters| {
            let workload = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}})).unwrap();
            CurrentPolicy::of(&Settings::default(), &workload, "c", parameters)
        };
        let fault = |name: &str, parameters| current(name, parameters).fault.map(|fault| fault.message);
        let unread = "the parameters of check c have not been read yet";
        assert_eq!(fault("w", None).as_deref(), Some(unread));
        assert_eq!(fault("w", Some(Err("they are gone".to_owned()))).as_deref(), Some("they are gone"));
        let of_request = format!("{}r", names::REQUEST_PREFIX);
        assert_eq!(fault(&of_request, None), None);
        let spec: ProvisioningParametersSpec =
            serde_json::from_value(json!({"strategy": {"bufferTime": "3m"}})).unwrap();
        let buffer = |name: &str| current(name, Some(Ok(Some(spec.clone())))).policy.buffer_time;
        assert_eq!((buffer("w"), buffer(&of_request)), (Span::minutes(3), Span::seconds(0)));
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
        let racks = TopologyLevels { labels: vec!["rack".into()], ..TopologyLevels::default() };
        let placed = effective.with_topologies("g", vec![racks.clone()]);
        let labels: Vec<&str> = placed.policy.readiness.node_labels.keys().map(String::as_str).collect();
        assert_eq!((labels, &placed.without_tier), (vec![names::GANG], &policy));
        assert_eq!(placed.policy.readiness.topologies, [racks]);
    }
}
