//! Checks that must hold for any bytes. The fuzz targets call them with libFuzzer's input, `tests/core/fuzz.rs` with the
//! corpus and with mutations of it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use setu::api::quantity::Amount;
use setu::gang::statechart::journal::{JournalError, WRITE_LIMIT};
use setu::gang::{GangIdentity, Journal};
use setu::policy::{PolicyFile, Settings};

/// A check of one kind of input.
pub type Check = fn(&[u8]);

/// Every check, by the name of its target and corpus.
pub const ALL: [(&str, Check); 4] =
    [("journal", journal), ("quantity", quantity), ("policy", policy), ("names", names)];

/// The UID of the Workload that the corpus's journals belong to.
const UID: &str = "uid-1";

/// An annotation is read without a panic. The result stays small, and survives a round trip.
pub fn journal(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let created = Timestamp::from_second(1_700_000_000).unwrap();
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let Ok(journal) = Journal::decode(text, UID, created, now) else { return };
    let written = journal.encode();
    assert!(written.len() <= WRITE_LIMIT, "{} bytes", written.len());
    let again = Journal::decode(&written, UID, created, now).unwrap();
    assert_eq!(again.encode(), written);
    assert!((created..=now).contains(&again.entered_at));
    assert_eq!(Journal::decode(&written, "uid-2", created, now), Err(JournalError::Foreign));
}

/// Two quantities, one per line, are read, added and written without a panic or loss.
pub fn quantity(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let amounts: Vec<Amount> = text.lines().take(2).filter_map(Amount::parse).collect();
    let sum = amounts.iter().fold(Amount::default(), |sum, amount| sum.plus(*amount));
    for amount in amounts.iter().chain([&sum]) {
        let Quantity(written) = (*amount).into();
        // A sum may be larger than any quantity that can be read.
        if let Some(again) = Amount::parse(&written) {
            assert_eq!(again, *amount, "{written}");
        }
        if let Some(binary) = amount.in_binary_units()
            && let Some(again) = Amount::parse(&binary)
        {
            assert_eq!(again, *amount, "{binary}");
        }
    }
}

/// A policy file is read or refused. If read, it gives every check a policy.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(file) = PolicyFile::parse(text) else { return };
    let policy = Settings::from(file).policy("any", None);
    assert!(policy.in_check.wait(u32::MAX) <= policy.in_check.max);
}

/// For any Workload name, its claims' names are labels that every provider accepts, and no other Workload's claims
/// have the same names.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut words = text.lines();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (namespace, workload) = (word(), word());
    let number = |text: String| text.parse::<u32>().unwrap_or_default();
    let (attempt, slot) = (number(word()), number(word()));
    let gang = |namespace: &str, workload: &str, uid: &str| GangIdentity {
        namespace: namespace.to_owned(),
        workload: workload.to_owned(),
        uid: uid.to_owned(),
        check: "check".to_owned(),
    };
    let one = gang(&namespace, &workload, UID);
    let name = one.claim_name(attempt, slot);
    assert!(name.len() <= 34, "{name}");
    assert!(name.starts_with("setu-") && !name.ends_with('-'), "{name}");
    assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
    assert_eq!(name, one.claim_name(attempt, slot));
    // The same words split elsewhere, and the same Workload recreated.
    let shifted = gang(&format!("{namespace}-{workload}"), &workload, "uid-2");
    let anew = gang(&namespace, &workload, "uid-3");
    for other in [shifted, anew] {
        assert_ne!(name, other.claim_name(attempt, slot));
        assert_ne!(one.id(), other.id());
    }
    assert_ne!(name, one.claim_name(attempt, slot.wrapping_add(1)));
    assert_ne!(name, one.claim_name(attempt.wrapping_add(1), slot));
}
