//! The Lease as an object: how it is written, and which of two versions is newer.

use super::ElectionSettings;
use crate::names::{FIELD_MANAGER, WANTED_BY};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;

/// Parameters of every write to a lease.
pub fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// The lease without another replica's request for it: when the holder writes the lease, it has considered that request.
pub fn without_request(mut lease: Lease) -> Lease {
    if let Some(annotations) = lease.metadata.annotations.as_mut() {
        annotations.remove(WANTED_BY);
    }
    lease
}

/// Versions of one object compare as numbers.
pub fn version(lease: &Lease) -> Option<u64> {
    lease.metadata.resource_version.as_deref()?.parse().ok()
}

/// Whether a write of this lease failed because someone else has written or deleted it. On create, a 404 means a missing
/// namespace.
pub fn is_overtaken(code: u16, lease: &Lease) -> bool {
    code == 409 || (code == 404 && lease.metadata.resource_version.is_some())
}

/// The Lease of this name, taken or renewed now by this replica. `known` is the Lease as last seen.
pub(super) fn held_by(
    settings: &ElectionSettings,
    name: &str,
    known: Option<&Lease>,
    now: Timestamp,
) -> Lease {
    let now = MicroTime(now);
    let old = known.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let renewed = old.holder_identity.as_deref() == Some(settings.identity.as_str());
    let seconds = settings.timing.lease.as_secs();
    let spec = LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquire_time: old.acquire_time.filter(|_| renewed).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: match (known, renewed) {
            (None, _) => Some(0),
            (Some(_), true) => old.lease_transitions,
            (Some(_), false) => Some(old.lease_transitions.unwrap_or_default().saturating_add(1)),
        },
        ..old
    };
    let unnamed = || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let metadata = known.map_or_else(unnamed, |lease| lease.metadata.clone());
    without_request(Lease { metadata, spec: Some(spec) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_namespace_does_not_count_as_a_changed_lease() {
        let lease = |version: Option<&str>| Lease {
            metadata: ObjectMeta { resource_version: version.map(str::to_owned), ..ObjectMeta::default() },
            spec: None,
        };
        let overtaken = |code| [None, Some("1")].map(|version| is_overtaken(code, &lease(version)));
        assert_eq!(overtaken(409), [true, true]);
        assert_eq!(overtaken(404), [false, true]);
        assert_eq!(overtaken(403), [false, false]);
    }
}
