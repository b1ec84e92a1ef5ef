//! The Lease as an object: how it is written, and which of two is newer.

use crate::names::{FIELD_MANAGER, WANTED_BY};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;

/// Parameters of every write to a lease.
pub fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// The lease as it is written by whoever holds it: a request has been considered by then.
pub fn without_request(mut lease: Lease) -> Lease {
    if let Some(annotations) = lease.metadata.annotations.as_mut() {
        annotations.remove(WANTED_BY);
    }
    lease
}

/// Versions of one object can be compared as numbers.
pub fn version(lease: &Lease) -> Option<u64> {
    lease.metadata.resource_version.as_deref()?.parse().ok()
}

/// Whether a write of this lease failed because somebody else has written or deleted it. Where it is to be made, its namespace
/// is what is not found.
pub fn is_overtaken(code: u16, lease: &Lease) -> bool {
    code == 409 || (code == 404 && lease.metadata.resource_version.is_some())
}
