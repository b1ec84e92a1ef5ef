//! Leader election on Leases, one per shard: one of several replicas acts for a shard, and another takes over when it is
//! gone.
//!
//! Rule: leadership only saves duplicate work. A leader may be overtaken between two writes, so each write is fenced by
//! itself: the journal by compare-and-swap, claims by their names and UIDs.

mod elector;
mod evaluate;
mod lost;
mod record;
mod shards;
mod share;

pub use elector::Elector;
pub use evaluate::{LeaseState, ObservedRecord, evaluate};
pub use shards::{Shards, shard_of};

use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How an election runs. The default times are those of client-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after a leader's last sign of life.
    pub lease: Duration,
    /// How long a leader that cannot renew its lease keeps leading. Shorter than `lease`.
    pub renew_deadline: Duration,
    /// Time between two renewals, and between two tries. Shorter than `renew_deadline`.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl Timing {
    /// The fault in these times, worded for the administrator; `None` if there is none.
    pub fn fault(&self) -> Option<String> {
        let Self { lease, renew_deadline, retry } = self;
        if lease.subsec_nanos() != 0 || lease.is_zero() || lease.as_secs() > i32::MAX.unsigned_abs().into() {
            return Some(format!("a lease lasts whole seconds, at least one; {lease:?} does not"));
        }
        if renew_deadline >= lease {
            return Some(format!(
                "the renew deadline {renew_deadline:?} must be shorter than the lease {lease:?}"
            ));
        }
        if retry.is_zero() || retry.saturating_mul(2) > *renew_deadline {
            return Some(format!(
                "the retry period {retry:?} must be at most half the renew deadline {renew_deadline:?}"
            ));
        }
        None
    }
}

/// Who takes part in an election, and how.
pub struct ElectionSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, shared by the replicas of one controller. With several shards it is the prefix of their Leases'
    /// names.
    pub name: String,
    /// How many shards there are; the same on all replicas.
    pub shards: usize,
    /// Identity of this replica, unlike every other and every earlier one.
    pub identity: String,
    /// The times.
    pub timing: Timing,
    /// A random number in `0.0..1.0`, which spreads the tries of several candidates.
    pub jitter: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl ElectionSettings {
    /// Name of a shard's Lease.
    pub fn lease(&self, shard: usize) -> String {
        if self.shards == 1 { self.name.clone() } else { format!("{}-{shard}", self.name) }
    }
}

/// A period in which a replica leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// Its number: each term that this replica wins has another.
    pub number: u64,
    /// When it ends, unless it is renewed.
    pub until: Instant,
    /// When the previous leader last renewed the lease, by its own clock; `None` if there was none.
    pub after: Option<Timestamp>,
}

/// Whether this replica leads one shard. Cheap to ask, so it is asked before every write.
#[derive(Clone, Debug)]
pub struct Leadership(Option<Elected>);

/// The leadership of a replica that takes part in an election.
#[derive(Clone, Debug)]
struct Elected {
    term: watch::Receiver<Option<Term>>,
    /// Number of the last term that the controllers have begun.
    begun: Arc<AtomicU64>,
}

impl Leadership {
    /// The leadership of a sole replica, which needs no election.
    pub const fn sole() -> Self {
        Self(None)
    }

    /// Whether it can never be lost.
    pub const fn is_sole(&self) -> bool {
        self.0.is_none()
    }

    /// A leadership, with the sender that sets its term.
    pub(crate) fn channel(term: Option<Term>) -> (watch::Sender<Option<Term>>, Self) {
        let (sender, term) = watch::channel(term);
        (sender, Self(Some(Elected { term, begun: Arc::default() })))
    }

    /// Whether it leads now. Ends by itself at the renew deadline, even in a process that was suspended meanwhile and has
    /// not noticed yet.
    pub fn leads(&self) -> bool {
        self.0.as_ref().is_none_or(|elected| elected.current().is_some())
    }

    /// Whether it leads, and the controllers have begun this term.
    pub fn acts(&self) -> bool {
        self.0.as_ref().is_none_or(|elected| {
            elected.current().is_some_and(|term| elected.begun.load(Ordering::Acquire) == term.number)
        })
    }

    /// Records that the controllers have begun the term of this number.
    pub fn begin(&self, term: u64) {
        if let Some(elected) = &self.0 {
            elected.begun.store(term, Ordering::Release);
        }
    }

    /// When the previous leader last renewed the lease, by its own clock; `None` if that is not known. For display only:
    /// nothing may be decided on it.
    pub fn after(&self) -> Option<Timestamp> {
        self.0.as_ref()?.term.borrow().as_ref()?.after
    }

    /// Waits until leadership is won or lost, and returns the number of the term that it leads in now, if any; `None` once
    /// that cannot change any more.
    pub async fn changed(&mut self) -> Option<Option<u64>> {
        let elected = self.0.as_mut()?;
        elected.term.changed().await.ok()?;
        Some(elected.current().map(|term| term.number))
    }
}

impl Elected {
    fn current(&self) -> Option<Term> {
        self.term.borrow().filter(|term| Instant::now() < term.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_could_give_two_leaders_are_refused() {
        let good = Timing::default();
        assert_eq!(good.fault(), None);
        let seconds = Duration::from_secs;
        assert!(Timing { renew_deadline: seconds(15), ..good }.fault().unwrap().contains("renew deadline"));
        assert!(Timing { retry: seconds(6), ..good }.fault().unwrap().contains("retry period"));
        assert!(Timing { lease: Duration::from_millis(15_500), ..good }.fault().unwrap().contains("whole"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_itself() {
        assert!(Leadership::sole().leads());
        let (sender, leadership) = Leadership::channel(Some(Term {
            number: 1,
            until: Instant::now() + Duration::from_secs(10),
            after: None,
        }));
        assert!(leadership.leads());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!leadership.leads());
        drop(sender);
    }
}
