//! Which terms judge an attempt in flight, and what is done while they are unknown.
//!
//! Rule: a tenant can write a journal, but not a NodeClaim. So the terms in a journal count only while a NodeClaim of the
//! attempt has their digest. If they do not count and the policy is unknown, no decision is made that depends on them.

use super::event::Event;
use super::journal::{Journal, Memory};
use super::reservation::{Ending, Reservation};
use super::state::{Nodes, State, Then};
use crate::api::NodeClaim;
use crate::names;
use crate::planted::planted;
use crate::policy::Policy;
use crate::policy::terms::Terms;
use std::sync::Arc;

/// The source of the policy that judges a gang.
#[derive(Clone, Copy, Debug)]
pub enum PolicySource<'a> {
    /// This policy: the current one, or the one that its attempt began with.
    Policy(&'a Policy),
    /// The terms of its attempt. The parameters cannot be read.
    Terms,
    /// The parameters cannot be read, and the terms of its attempt are unknown. Only what is the same under all policies
    /// is done.
    Unknown,
}

/// The terms in a journal, if one of these NodeClaims confirms that its attempt has them.
pub fn confirmed_terms<'j>(journal: &'j Journal, claims: &[Arc<NodeClaim>]) -> Option<&'j Terms> {
    let terms = journal.memory.terms.as_ref()?;
    let (attempt, digest) = (journal.memory.attempt.to_string(), terms.digest());
    let confirms =
        |c: &Arc<NodeClaim>| c.label(names::ATTEMPT) == attempt && c.annotation(names::TERMS) == digest;
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

/// Records the terms of an attempt that begins, or that moves to another tier.
pub(in crate::gang) fn record_terms(journal: &mut Journal, before: &Memory, by: PolicySource<'_>) {
    let needs_none = matches!(journal.state, State::Approved { nodes: Nodes::Unneeded });
    if !journal.state.is_in_flight() || needs_none {
        return;
    }
    let memory = &mut journal.memory;
    let begins = memory.attempt != before.attempt;
    let moves = memory.option.tier != before.option.tier && before.terms.is_some();
    match by {
        PolicySource::Policy(policy) if begins || moves => {
            memory.terms = Terms::of(policy, memory.option.tier);
        }
        // An attempt that is resumed while its policy is unknown has no deadline either.
        PolicySource::Terms | PolicySource::Unknown if begins => {
            (memory.terms, memory.deadline) = (None, None);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::Release;
    use crate::gang::statechart::reservation::AdmissionId;
    use jiff::Timestamp;
    use serde_json::json;

    fn claim(attempt: &str, digest: &str) -> Arc<NodeClaim> {
        Arc::new(serde_json::from_value(json!({
            "metadata": {
                "name": "c", "labels": {(names::ATTEMPT): attempt}, "annotations": {(names::TERMS): digest},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap())
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

    #[test]
    fn an_attempt_that_begins_or_changes_its_tier_gets_the_terms_of_the_policy() {
        let (policy, known) = (Policy::default(), Terms::of(&Policy::default(), 0));
        let mut before = journal(known.clone());
        before.memory.deadline = Some(Timestamp::UNIX_EPOCH);
        let after = |attempt, tier, state: State, by: PolicySource<'_>| {
            let mut journal = Journal { state, ..before.clone() };
            (journal.memory.attempt, journal.memory.option.tier) = (attempt, tier);
            journal.memory.terms = None;
            record_terms(&mut journal, &before.memory, by);
            (journal.memory.terms.is_some(), journal.memory.deadline.is_some())
        };
        let by = PolicySource::Policy(&policy);
        let held = State::Approved { nodes: Nodes::Held };
        assert_eq!(after(3, 0, State::Provisioning, by), (true, true));
        assert_eq!(after(2, 1, held, by), (true, true));
        assert_eq!(after(2, 0, State::Provisioning, by), (false, true), "nothing new");
        assert_eq!(after(3, 0, State::Approved { nodes: Nodes::Unneeded }, by), (false, true));
        assert_eq!(after(3, 0, State::Released, by), (false, true));
        assert_eq!(after(3, 0, State::Provisioning, PolicySource::Unknown), (false, false));
        assert_eq!(after(2, 1, State::Provisioning, PolicySource::Terms), (false, true));
    }
}
