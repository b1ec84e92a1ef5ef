//! The journal that a reconcile starts with: the stored one, if it can be the gang's, or a substitute.

use super::{Journal, Nodes, Reservation, State};
use crate::api::{NodeClaim, Workload};
use crate::names;
use jiff::Timestamp;

/// The journal to start with, and whether it is a substitute; `None` if there is nothing to do. A gang without a journal and
/// a reservation is handled only for its claims, or if Kueue waits for its check.
pub fn initial_journal(
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
        (None, reservation) => Some((substitute_journal(uid, reservation, now), true)),
    }
}

/// The journal of a gang without a usable one.
pub fn substitute_journal(uid: &str, reservation: Reservation, now: Timestamp) -> Journal {
    match reservation {
        Reservation::Held { admission, .. } => Journal::new(uid, admission, now, None),
        Reservation::Leaving(_) | Reservation::Gone(_) => Journal::released(uid, now),
    }
}

/// Whether a gang may have as many slots as its journal says, which a tenant can write. More slots would cause useless work.
/// With fewer slots than claims the gang would start without some of its nodes.
pub fn has_possible_slots(journal: &Journal, workload: &Workload, claims: &[NodeClaim]) -> bool {
    let pods: i64 = workload.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
    let begun = match journal.state {
        State::Provisioning | State::WaitingReady => true,
        // Without slots it needs no nodes, and its claims are deleted. Once it is admitted, its pods run on them.
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

/// The least number of slots of a gang that has these claims.
fn slots_of<'c>(claims: impl Iterator<Item = &'c NodeClaim>) -> i64 {
    claims.filter_map(|c| i64::from(c.slot()?).checked_add(1)).max().unwrap_or_default()
}
