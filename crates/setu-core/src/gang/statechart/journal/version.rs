//! The versions of the journal, and the version of an annotation.

use super::{JournalError, READ_LIMIT};
use serde::Deserialize;

/// The version that this code writes. Version 2 added `terms`.
pub const VERSION: u32 = 2;
/// The first version. It has no `terms` and is otherwise read like version 2.
pub(super) const FIRST_VERSION: u64 = 1;

/// The version of an annotation that this code reads.
pub(super) fn version_of(text: &str) -> Result<u64, JournalError> {
    #[derive(Deserialize)]
    struct Head {
        version: u64,
    }
    if text.len() > READ_LIMIT {
        return Err(JournalError::TooLarge(text.len()));
    }
    let head: Head = serde_json::from_str(text).map_err(malformed)?;
    match head.version {
        0 => Err(JournalError::Malformed("no release wrote version 0".to_owned())),
        version if version > u64::from(VERSION) => Err(JournalError::Newer(version)),
        version => Ok(version),
    }
}

/// The error for a text that is no journal, without control characters.
#[allow(clippy::needless_pass_by_value, reason = "the signature is that of map_err")]
pub(super) fn malformed(error: serde_json::Error) -> JournalError {
    JournalError::Malformed(error.to_string().escape_debug().take(120).collect())
}
