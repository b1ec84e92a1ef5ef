//! Which terms judge an attempt in flight, and what is done while they are unknown.
//!
//! Rule: a tenant can write a journal, but not a NodeClaim. So the terms in a journal count only while a NodeClaim of the
//! attempt has their digest. If they do not count and the policy is unknown, no decision is made that depends on them.

use super::event::Event;
use super::journal::Journal;
use super::reservation::{Ending, Reservation};
use super::state::{State, Then};
use crate::api::NodeClaim;
use crate::names;
use crate::planted::planted;
use crate::policy::terms::Terms;

/// The terms in a journal, if one of these NodeClaims confirms that its attempt has them.
pub fn confirmed_terms<'j>(journal: &'j Journal, claims: &[NodeClaim]) -> Option<&'j Terms> {
    let terms = journal.memory.terms.as_ref()?;
    let (attempt, digest) = (journal.memory.attempt.to_string(), terms.digest());
    let confirms = |c: &NodeClaim| c.label(names::ATTEMPT) == attempt && c.annotation(names::TERMS) == digest;
    claims.iter().any(confirms).then_some(terms)
}

/// Whether an event is handled the same way under all terms.
pub fn is_independent_of_terms(event: &Event, journal: &Journal, reservation: &Reservation) -> bool {
    if planted!(JudgedUnread) {
        return true;
    }
    match event {
        Event::Gone(_) | Event::Leaving(_) | Event::Reserved { .. } | Event::ClaimsExist => true,
        // Nodes that a gang finished on are deleted, handed back or kept.
        Event::Unwanted(_) => !(*reservation == Reservation::Gone(Ending::Finished) && journal.revokes()),
        Event::ClaimsGone => matches!(journal.state, State::RollingBack { then: Then::Released }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::Release;
    use crate::gang::reservation::AdmissionId;
    use crate::policy::Policy;
    use jiff::Timestamp;
    use serde_json::json;

    fn claim(attempt: &str, digest: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": "c", "labels": {(names::ATTEMPT): attempt}, "annotations": {(names::TERMS): digest},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap()
    }

    fn journal(terms: Option<Terms>) -> Journal {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        (journal.memory.attempt, journal.memory.terms) = (2, terms);
        journal
    }

    #[test]
    fn forged_terms_and_those_of_another_attempt_do_not_count() {
        let terms = Terms::of(&Policy::default(), 0).unwrap();
        let digest = terms.digest();
        let honest = journal(Some(terms.clone()));
        assert_eq!(confirmed_terms(&honest, &[claim("1", &digest), claim("2", &digest)]), Some(&terms));
        for claims in [vec![], vec![claim("1", &digest)], vec![claim("2", "")]] {
            assert_eq!(confirmed_terms(&honest, &claims), None);
        }
        let forged = journal(Some(Terms { release: Release::Warm, ..terms }));
        assert_eq!(confirmed_terms(&forged, &[claim("2", &digest)]), None);
    }
}
