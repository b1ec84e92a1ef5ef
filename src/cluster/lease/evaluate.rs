//! Who leads, and when to check again: the pure part of the election.
//!
//! Rule: the age of a lease is measured on this machine's own monotonic clock, from the moment its last change was seen
//! here. The times written in it come from other machines and are never compared.

use std::time::Duration;
use tokio::time::Instant;

/// The lease as last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRecord {
    /// Who holds it; `None` once it was given up.
    pub holder: Option<String>,
    /// How long its holder asked others to wait after each renewal.
    pub lasts: Duration,
    /// When this version was first seen here.
    pub since: Instant,
}

/// The state of a Lease, and what a candidate should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It is ours: renew it at this time.
    Ours {
        /// When to renew.
        renew_at: Instant,
    },
    /// It has no holder, or its holder has been silent for too long: take it.
    Free {
        /// Since when, according to this machine.
        since: Instant,
    },
    /// Another replica leads: leave it alone until then.
    Taken {
        /// When it lapses if nothing changes.
        until: Instant,
    },
}

/// Judges the lease for the candidate `me`. `Err` means that there is no lease, since that time.
pub fn evaluate(
    observed: Result<&ObservedRecord, Instant>,
    me: &str,
    retry: Duration,
    now: Instant,
) -> LeaseState {
    let observed = match observed {
        Ok(observed) => observed,
        Err(since) => return LeaseState::Free { since },
    };
    match &observed.holder {
        None => LeaseState::Free { since: observed.since },
        Some(holder) if holder == me => LeaseState::Ours { renew_at: observed.since + retry },
        Some(_) => match observed.since.checked_add(observed.lasts) {
            Some(until) if until <= now => LeaseState::Free { since: until },
            Some(until) => LeaseState::Taken { until },
            // Longer than any clock runs: as good as forever.
            None => LeaseState::Taken { until: now + retry },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(2);
    const LASTS: Duration = Duration::from_secs(15);

    fn held_by(holder: Option<&str>, since: Instant) -> ObservedRecord {
        ObservedRecord { holder: holder.map(str::to_owned), lasts: LASTS, since }
    }

    #[test]
    fn a_lease_that_is_missing_or_given_up_is_free() {
        let now = Instant::now();
        assert_eq!(evaluate(Err(now), "a", RETRY, now), LeaseState::Free { since: now });
        assert_eq!(evaluate(Ok(&held_by(None, now)), "a", RETRY, now), LeaseState::Free { since: now });
    }

    #[test]
    fn anothers_lease_is_taken_until_it_was_unchanged_for_its_whole_duration() {
        let start = Instant::now();
        let seen = held_by(Some("b"), start);
        let until = start + LASTS;
        let just_before = until - Duration::from_millis(1);
        assert_eq!(evaluate(Ok(&seen), "a", RETRY, just_before), LeaseState::Taken { until });
        assert_eq!(evaluate(Ok(&seen), "a", RETRY, until), LeaseState::Free { since: until });
    }

    #[test]
    fn our_own_lease_is_renewed_however_old_it_is() {
        let start = Instant::now();
        let seen = held_by(Some("a"), start);
        let expected = LeaseState::Ours { renew_at: start + RETRY };
        assert_eq!(evaluate(Ok(&seen), "a", RETRY, start), expected);
        assert_eq!(evaluate(Ok(&seen), "a", RETRY, start + 3 * LASTS), expected);
    }

    #[test]
    fn a_huge_lease_duration_does_not_overflow() {
        let now = Instant::now();
        let seen = ObservedRecord { lasts: Duration::MAX, ..held_by(Some("b"), now) };
        assert_eq!(evaluate(Ok(&seen), "a", RETRY, now), LeaseState::Taken { until: now + RETRY });
    }
}
