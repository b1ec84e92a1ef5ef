//! Reads what a gang is judged by: the current policy, that of its attempt, and what its topology demands.

use super::scope::GangScope;
use crate::api::{NodeClaim, Workload};
use crate::controllers::plans::{self, CurrentPolicy};
use crate::gang::report::notice::Notice;
use crate::gang::{EffectivePolicy, Journal};
use crate::policy::overrides::Ignored;
use std::sync::Arc;

/// What a gang with these claims is judged by. An attempt keeps the policy it began with.
pub(super) fn judge(
    scope: &GangScope<'_>,
    journal: &Journal,
    claims: &[Arc<NodeClaim>],
    workload: &Workload,
) -> EffectivePolicy {
    let registry = &scope.context.gang_state.registry;
    let (is_in_flight, attempt) = (journal.state.is_in_flight(), journal.memory.attempt);
    let kept = || registry.policy(&scope.id, attempt).filter(|_| is_in_flight);
    let effective = kept().map_or_else(
        || {
            let CurrentPolicy { policy, fault, ignored } =
                plans::policy(scope.context, workload, &scope.identity.check);
            publish_ignored(scope, workload, &ignored);
            let effective = EffectivePolicy::of(journal, claims, policy, fault);
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

/// Publishes each ignored override of the Job once.
fn publish_ignored(scope: &GangScope<'_>, workload: &Workload, ignored: &[Ignored]) {
    for Ignored { key, why } in ignored {
        let notice = Notice::of_ignored_override(key, why);
        if scope.context.gang_state.registry.note_notice(&scope.identity.uid, &notice.topic) {
            scope.publish(workload, 0, scope.now(), &notice);
        }
    }
}
