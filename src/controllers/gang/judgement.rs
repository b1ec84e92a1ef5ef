//! The policy that a gang is judged by: the current one, that of its attempt, or the terms in its journal.
//!
//! Rule: while the parameters cannot be read, a gang in flight is judged by its terms. Without terms, nothing that
//! depends on a policy is decided.

use super::Gang;
use crate::api::Workload;
use crate::controllers::context::Context;
use crate::controllers::plans;
use crate::effects::events::Moment;
use crate::gang::journal::JournalError;
use crate::gang::notice::Notice;
use crate::gang::terms::{unlimited, vouched};
use crate::gang::{JudgedBy, Memory, State, Terms};
use crate::plan::Obstacle;
use crate::policy::Policy;
use kube::ResourceExt;
use std::sync::Arc;

/// The policy that a gang is judged by, and how far it is known.
pub(super) struct Judgement {
    pub policy: Arc<Policy>,
    /// Why no policy could be read.
    pub fault: Option<Obstacle>,
    pub by: JudgedBy,
}

impl Default for Judgement {
    fn default() -> Self {
        Self { policy: Arc::default(), fault: None, by: JudgedBy::Unknown }
    }
}

impl Gang<'_> {
    /// An attempt keeps the policy it began with. Everything else uses the current policy.
    pub(super) fn settle_policy(&mut self, workload: &Workload) {
        let attempts = &self.context.of_gangs.attempts;
        let (attempt, tier) = (self.journal.memory.attempt, self.journal.memory.option.tier);
        if self.journal.state.is_in_flight()
            && let Some(kept) = attempts.of(&self.id, attempt)
        {
            (self.judgement.policy, self.judgement.fault, self.judgement.by) = (kept, None, JudgedBy::Known);
        } else {
            let (policy, fault) = plans::policy(self.context, workload, &self.identity.check);
            let terms =
                vouched(&self.journal, &self.observed.claims).filter(|_| self.journal.state.is_in_flight());
            let known = fault.is_ok() || terms.is_some();
            let policy = match terms {
                Some(terms) => terms.over(policy, tier),
                None if self.journal.state.is_in_flight() && !known => unlimited(policy),
                None => policy,
            };
            self.judgement.by = if known { JudgedBy::Known } else { JudgedBy::Unknown };
            (self.judgement.policy, self.judgement.fault) = (Arc::new(policy), fault.err());
            if !self.journal.state.is_in_flight() {
                attempts.forget(&self.id);
            } else if self.judgement.fault.is_none() {
                attempts.keep(&self.id, attempt, &self.judgement.policy);
            }
        }
        if self.journal.state.is_in_flight() {
            self.judgement.policy = plans::of_tier(&self.judgement.policy, tier);
            self.judgement.policy =
                plans::of_topology(self.context, &self.judgement.policy, workload, &self.pin);
        }
    }

    /// Bounds the deadline by the policy. While the policy is unknown, the deadline stays as it is.
    pub(super) fn bound_deadline(&mut self) {
        let waits = self.journal.state == State::Validating && self.journal.memory.deadline.is_none();
        if self.judgement.by == JudgedBy::Known || waits {
            self.journal.bound_deadline(self.context.now(), self.judgement.policy.deadlines.gang.signed());
        }
    }

    /// Records the attempt's terms in the journal when the attempt begins or moves to another tier.
    pub(super) fn settle_terms(&mut self, before: &Memory) {
        if !self.journal.state.is_in_flight() || self.journal.memory.slots == 0 {
            return;
        }
        let (attempt, tier) = (self.journal.memory.attempt, self.journal.memory.option.tier);
        let policy = if attempt == before.attempt {
            let kept = self.context.of_gangs.attempts.of(&self.id, attempt);
            let Some(kept) = kept.filter(|_| tier != before.option.tier && before.terms.is_some()) else {
                return;
            };
            kept
        } else if self.judgement.fault.is_some() {
            // An attempt that is resumed while its policy is unknown has no deadline either.
            (self.journal.memory.terms, self.journal.memory.deadline) = (None, None);
            return;
        } else {
            Arc::clone(&self.judgement.policy)
        };
        self.journal.memory.terms = Terms::of(&policy, tier);
        if self.journal.memory.terms.is_none() {
            tracing::warn!(
                workload = self.identity.workload_ref(),
                "readiness asks for more than a journal takes: another replica would judge this attempt by the policy of that time"
            );
        }
    }

    /// Whether the gang is in flight and its policy is unknown.
    pub(super) fn is_undecided(&self) -> bool {
        self.journal.state.is_in_flight() && self.judgement.by == JudgedBy::Unknown
    }
}

/// Warns once that a gang is left alone because a newer release wrote its journal.
pub(super) fn warn_of_newer(context: &Context, workload: &Workload, check: &str, error: &JournalError) {
    let text = error.to_string();
    if !context.of_gangs.notices.is_news(&workload.uid().unwrap_or_default(), &format!("{check}: {text}")) {
        return;
    }
    tracing::warn!(workload = workload.name_any(), check, error = text, "left a gang alone");
    let moment = Moment { check, seq: 0, at: context.now() };
    let notice = Notice { reason: "JournalNewer", topic: String::new(), warning: true, text };
    context.events.publish(workload, moment, &notice);
}
