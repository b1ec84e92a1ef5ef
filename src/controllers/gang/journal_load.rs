//! Loads the gang of a reconcile, and warns of a stored journal that is not used.

use super::reconciled::LeftAlone;
use super::scope::GangScope;
use crate::api::{NodeClaim, Workload};
use crate::gang::report::notice::Notice;
use crate::gang::statechart::journal::JournalError;
use crate::gang::workload::stored::StoredJournal;
use kube::ResourceExt;
use std::sync::Arc;

/// The journal of a gang with these claims; `None` if there is nothing to do.
pub(super) fn load(
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
