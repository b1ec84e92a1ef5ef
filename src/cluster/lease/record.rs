//! The Lease as an object: how it is written, and which of two versions is newer.

use crate::names::{FIELD_MANAGER, WANTED_BY};
use k8s_openapi::api::coordination::v1::Lease;
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
