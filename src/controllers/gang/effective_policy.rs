//! Reads what a gang is judged by: the current policy, that of its attempt, and what its topology demands.

use super::scope::GangScope;
use crate::api::{NodeClaim, Workload};
use crate::controllers::plans;
use crate::gang::{EffectivePolicy, Journal};

/// What a gang with these claims is judged by. An attempt keeps the policy it began with.
pub(super) fn judge(
    scope: &GangScope<'_>,
    journal: &Journal,
    claims: &[NodeClaim],
    workload: &Workload,
) -> EffectivePolicy {
    let registry = &scope.context.gang_state.registry;
    let (is_in_flight, attempt) = (journal.state.is_in_flight(), journal.memory.attempt);
    let kept = || registry.policy(&scope.id, attempt).filter(|_| is_in_flight);
    let effective = kept().map_or_else(
        || {
            let (policy, fault) = plans::policy(scope.context, workload, &scope.identity.check);
            let effective = EffectivePolicy::of(journal, claims, policy, fault.err());
            match &effective.fault {
                _ if !is_in_flight => registry.forget_policy(&scope.id),
                None => registry.keep_policy(&scope.id, attempt, &effective.without_tier),
                Some(_) => {}
            }
            effective
        },
        |policy| EffectivePolicy::of_attempt(journal, policy),
    );
    if !is_in_flight {
        return effective;
    }
    effective.with_topology(&scope.label, plans::topology_levels(scope.context, workload))
}
