//! The journal that a reconcile begins with: the one that was read, if it can be the gang's, or one that stands in for it.

use super::{Journal, Nodes, Reservation, State};
use crate::api::{NodeClaim, Workload};
use crate::names;
use jiff::Timestamp;

/// The journal to begin with, and whether it was made up; `None` where there is nothing to look after. A gang without a
/// journal and a reservation is looked after for its claims, and where Kueue waits for an answer of its check.
pub fn opened(
    read: Option<Journal>,
    uid: &str,
    reservation: Reservation,
    is_awaited: bool,
    now: Timestamp,
) -> Option<(Journal, bool)> {
    match (read, reservation) {
        (Some(journal), _) => Some((journal, false)),
        (None, Reservation::Leaving(_)) => None,
        (None, Reservation::Gone(_)) if !is_awaited => None,
        (None, reservation) => Some((rebuilt(uid, reservation, now), true)),
    }
}

/// The journal of a gang that has none which can be used.
pub fn rebuilt(uid: &str, reservation: Reservation, now: Timestamp) -> Journal {
    match reservation {
        Reservation::Held { admission, .. } => Journal::new(uid, admission, now, None),
        Reservation::Leaving(_) | Reservation::Gone(_) => Journal::released(uid, now),
    }
}

/// Whether a gang may have as many slots as its journal says, which a tenant can write too. More would be work for
/// nothing; with fewer than it has claims for it would start without some of its nodes.
pub fn is_possible(journal: &Journal, workload: &Workload, claims: &[NodeClaim]) -> bool {
    let pods: i64 = workload.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
    let begun = match journal.state {
        State::Provisioning | State::WaitingReady => true,
        // Without a slot it needs no nodes, and what is there goes; once it is admitted its pods run on them.
        State::Approved { nodes } => nodes != Nodes::Unneeded && !workload.is("Admitted"),
        _ => false,
    };
    let attempt = journal.memory.attempt.to_string();
    let lasts =
        |c: &&NodeClaim| c.label(names::ATTEMPT) == attempt && c.metadata.deletion_timestamp.is_none();
    let least = if begun { slots_of(claims.iter().filter(lasts)) } else { 0 };
    let most = pods.max(slots_of(claims.iter()));
    (least..=most).contains(&i64::from(journal.memory.slots))
}

/// How many slots a gang has at least that has these claims.
fn slots_of<'c>(claims: impl Iterator<Item = &'c NodeClaim>) -> i64 {
    claims.filter_map(|c| i64::from(c.slot()?).checked_add(1)).max().unwrap_or_default()
}
