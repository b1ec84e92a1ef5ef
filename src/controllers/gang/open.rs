//! Opens the gang of a reconcile: loads its journal, and finds the policy that it is judged by.

use super::live_reads::OwnedLiveReads;
use super::reconciled::LeftAlone;
use super::scope::GangScope;
use super::snapshot::{claims_of, nodes_of};
use super::{Gang, Planned, Unwritten};
use crate::api::{NodeClaim, Workload};
use crate::controllers::Context;
use crate::controllers::plans;
use crate::gang::report::notice::Notice;
use crate::gang::snapshot::observed::Observed;
use crate::gang::statechart::effective_policy::KeptPolicy;
use crate::gang::statechart::journal::JournalError;
use crate::gang::workload::stored::StoredJournal;
use crate::gang::{CurrentPolicy, EffectivePolicy, Journal};
use crate::policy::overrides::Ignored;
use kube::ResourceExt;
use std::sync::Arc;

impl<'a> Gang<'a> {
    /// Opens a gang as the caches show it; `None` if there is nothing to do.
    ///
    /// # Errors
    /// A newer release wrote its journal and decides about its nodes.
    pub fn open(
        context: &'a Context,
        workload: &Workload,
        check: &str,
        our_checks: &'a [String],
    ) -> Result<Option<Self>, LeftAlone> {
        let scope = GangScope::of(context, workload, check, our_checks);
        let claims = claims_of(&scope);
        let Some(stored) = load(&scope, workload, &claims)? else { return Ok(None) };
        context.gang_state.registry.begin(&scope.id, || scope.is_there(workload));
        let nodes = nodes_of(context, &claims);
        let effective = judge(&scope, &stored.loaded.journal, &claims, workload);
        let observed = Observed {
            pods_listed: context.gang_state.registry.pods_listed(&scope.id),
            ..Observed::cached(claims, nodes)
        };
        let (live_reads, planned, unwritten) = <(OwnedLiveReads, Planned, Unwritten)>::default();
        let mut gang = Self { scope, stored, observed, effective, live_reads, planned, unwritten };
        let tolerated = gang.tolerated(workload);
        gang.observed.ignore_taints(&tolerated);
        Ok(Some(gang))
    }
}

/// The journal of a gang with these claims; `None` if there is nothing to do.
fn load(
    scope: &GangScope<'_>,
    workload: &Workload,
    claims: &[Arc<NodeClaim>],
) -> Result<Option<StoredJournal>, LeftAlone> {
    let own_index = scope.context.gang_state.ledger().option(&scope.id).map_or(0, |option| option.index);
    let loaded = StoredJournal::load(workload, &scope.identity, claims, own_index, scope.now());
    let (stored, unreadable) = loaded.map_err(|error| {
        warn_of_newer(scope, workload, &error);
        LeftAlone
    })?;
    if let Some(error) = unreadable {
        tracing::warn!(workload = scope.identity.workload_ref(), check = scope.identity.check, error = %error, "ignored an unreadable journal, rebuilding from the cluster");
    }
    Ok(stored)
}

/// Warns once that a gang is left alone because a newer release wrote its journal.
fn warn_of_newer(scope: &GangScope<'_>, workload: &Workload, error: &JournalError) {
    let (check, notice) = (scope.identity.check.as_str(), Notice::of_newer_journal(error));
    let registry = &scope.context.gang_state.registry;
    if !registry.note_notice(&scope.identity.uid, &format!("{check}: {}", notice.text)) {
        return;
    }
    tracing::warn!(workload = workload.name_any(), check, error = notice.text, "left a gang alone");
    scope.publish(workload, 0, scope.now(), &notice);
}

/// The policy that judges a gang with these claims. An attempt keeps the policy it began with.
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
            match effective.kept(journal) {
                KeptPolicy::Keep(policy) => registry.keep_policy(&scope.id, attempt, policy),
                KeptPolicy::Forget => registry.forget_policy(&scope.id),
                KeptPolicy::Unchanged => {}
            }
            effective
        },
        |policy| EffectivePolicy::of_attempt(journal, policy),
    );
    if !is_in_flight {
        return effective;
    }
    let topologies = plans::topologies(scope.context, &scope.request(workload, &effective.policy));
    effective.with_topologies(&scope.label, topologies)
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
