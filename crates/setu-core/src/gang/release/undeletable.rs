//! NodeClaims that the API server does not delete.
//!
//! Rule: a claim that stays undeletable for as long as a deletion may take counts as stuck in deletion, so that nothing waits
//! for it.

use crate::api::NodeClaim;
use crate::gang::snapshot::claims::is_stuck;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// Whether all claims with these UIDs are given up. `since` has the time from which each remaining claim could not be deleted.
pub fn are_given_up<'u>(
    mut uids: impl Iterator<Item = &'u str>,
    since: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> bool {
    !uids.any(|uid| since.get(uid).is_some_and(|at| !is_stuck(*at, now)))
}

/// Treats a claim that is still there as being deleted: a refused delete will be refused next time too.
pub fn mark_as_deleting(claim: &mut NodeClaim, since: &BTreeMap<String, Timestamp>, now: Timestamp) {
    let since = since.get(claim.metadata.uid.as_deref().unwrap_or_default()).copied().unwrap_or(now);
    claim.metadata.deletion_timestamp.get_or_insert(Time(since));
}
