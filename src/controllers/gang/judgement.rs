//! The policy that a gang is judged by: the current one, that of its attempt, or the terms in its journal.
//!
//! Rule: while the parameters cannot be read, a gang in flight is judged by its terms. Without terms, nothing that
//! depends on a policy is decided.

use super::scope::GangScope;
use crate::api::{NodeClaim, Workload};
use crate::controllers::plans;
use crate::gang::journal::JournalError;
use crate::gang::notice::Notice;
use crate::gang::terms::confirmed_terms;
use crate::gang::{Journal, JudgedBy, Memory, Nodes, State};
use crate::plan::Obstacle;
use crate::policy::Policy;
use crate::policy::terms::{Terms, unlimited};
use kube::ResourceExt;
use std::sync::Arc;

/// The policy that a gang is judged by, and how far it is known.
pub(super) struct Judgement {
    pub policy: Arc<Policy>,
    /// Why no policy could be read.
    pub fault: Option<Obstacle>,
    pub by: JudgedBy,
}

impl Judgement {
    /// An attempt keeps the policy it began with. Everything else uses the current policy.
    pub(super) fn of(
        scope: &GangScope<'_>,
        journal: &Journal,
        claims: &[NodeClaim],
        workload: &Workload,
    ) -> Self {
        if !journal.state.is_in_flight() {
            let (policy, fault) = plans::policy(scope.context, workload, &scope.identity.check);
            let by = if fault.is_ok() { JudgedBy::Known } else { JudgedBy::Unknown };
            scope.context.of_gangs.registry.forget_policy(&scope.id);
            return Self { policy: Arc::new(policy), fault: fault.err(), by };
        }
        let tier = journal.memory.option.tier;
        let judgement = Self::in_flight(scope, journal, claims, workload);
        let policy = plans::of_tier(&judgement.policy, tier);
        let policy = plans::of_topology(scope.context, &policy, workload, &scope.label);
        Self { policy, ..judgement }
    }

    fn in_flight(
        scope: &GangScope<'_>,
        journal: &Journal,
        claims: &[NodeClaim],
        workload: &Workload,
    ) -> Self {
        let registry = &scope.context.of_gangs.registry;
        let attempt = journal.memory.attempt;
        if let Some(policy) = registry.policy(&scope.id, attempt) {
            return Self { policy, fault: None, by: JudgedBy::Known };
        }
        let (policy, fault) = plans::policy(scope.context, workload, &scope.identity.check);
        let (policy, by) = match confirmed_terms(journal, claims) {
            Some(terms) => (terms.over(policy, journal.memory.option.tier), JudgedBy::Known),
            None if fault.is_err() => (unlimited(policy), JudgedBy::Unknown),
            None => (policy, JudgedBy::Known),
        };
        let policy = Arc::new(policy);
        if fault.is_ok() {
            registry.keep_policy(&scope.id, attempt, &policy);
        }
        Self { policy, fault: fault.err(), by }
    }

    /// Bounds the deadline by the policy. While the policy is unknown, the deadline stays as it is.
    pub(super) fn bound_deadline(&self, scope: &GangScope<'_>, journal: &mut Journal) {
        let waits = journal.state == State::Validating && journal.memory.deadline.is_none();
        if self.by == JudgedBy::Known || waits {
            journal.bound_deadline(scope.now(), self.policy.deadlines.gang.signed());
        }
    }

    /// Records the attempt's terms in the journal when the attempt begins or moves to another tier.
    pub(super) fn settle_terms(&self, scope: &GangScope<'_>, journal: &mut Journal, before: &Memory) {
        let needs_none = matches!(journal.state, State::Approved { nodes: Nodes::Unneeded });
        if !journal.state.is_in_flight() || needs_none {
            return;
        }
        let (attempt, tier) = (journal.memory.attempt, journal.memory.option.tier);
        let policy = if attempt == before.attempt {
            let kept = scope.context.of_gangs.registry.policy(&scope.id, attempt);
            let Some(kept) = kept.filter(|_| tier != before.option.tier && before.terms.is_some()) else {
                return;
            };
            kept
        } else if self.fault.is_some() {
            // An attempt that is resumed while its policy is unknown has no deadline either.
            (journal.memory.terms, journal.memory.deadline) = (None, None);
            return;
        } else {
            Arc::clone(&self.policy)
        };
        journal.memory.terms = Terms::of(&policy, tier);
        if journal.memory.terms.is_none() {
            tracing::warn!(
                workload = scope.identity.workload_ref(),
                "readiness asks for more than a journal takes: another replica would judge this attempt by the policy of that time"
            );
        }
    }

    /// Whether the gang is in flight and its policy is unknown.
    pub(super) fn is_undecided(&self, journal: &Journal) -> bool {
        journal.state.is_in_flight() && self.by == JudgedBy::Unknown
    }
}

/// Warns once that a gang is left alone because a newer release wrote its journal.
pub(super) fn warn_of_newer(scope: &GangScope<'_>, workload: &Workload, error: &JournalError) {
    let (check, text) = (scope.identity.check.as_str(), error.to_string());
    let registry = &scope.context.of_gangs.registry;
    if !registry.is_new_notice(&scope.identity.uid, &format!("{check}: {text}")) {
        return;
    }
    tracing::warn!(workload = workload.name_any(), check, error = text, "left a gang alone");
    let notice = Notice { reason: "JournalNewer", topic: String::new(), warning: true, text };
    scope.publish(workload, 0, scope.now(), &notice);
}
