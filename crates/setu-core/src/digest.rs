//! Short, stable digests for names, ids and fingerprints.
//!
//! Rule: the same parts give the same digest at every replica and release.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The hash of `parts`, with a separator between them.
pub fn hash(parts: &[&str]) -> impl Iterator<Item = u8> {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hasher.finalize().into_iter()
}

/// The first `bytes` bytes of the hash of `parts`, in hexadecimal.
pub fn hex_digest(parts: &[&str], bytes: usize) -> String {
    hash(parts).take(bytes).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `length` characters of `0-9a-v` from the hash of `parts`.
pub fn digest(parts: &[&str], length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    hash(parts)
        .take(length)
        .filter_map(|byte| ALPHABET.get(usize::from(byte & 31)).map(|c| char::from(*c)))
        .collect()
}
