//! The identity of a gang, and the names that are derived from it.
//!
//! Rule: names are derived, never read back from the journal. So no tenant can point Setu at an object of another gang.

use crate::api::{NodeClaim, Workload};
use crate::digest::{digest, hash};
use crate::names;
use crate::planted::planted;
use kube_core::ResourceExt;

/// Longest name of a NodeClaim that every provider accepts.
const CLAIM_NAME_LIMIT: usize = 34;

/// One gang: a Workload with a certain UID under one of our checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangIdentity {
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload, for users; a recreated Workload has the same name.
    pub workload: String,
    /// UID of the Workload.
    pub uid: String,
    /// Name of the AdmissionCheck.
    pub check: String,
}

impl GangIdentity {
    /// The gang of this Workload under this check.
    pub fn of(workload: &Workload, check: &str) -> Self {
        Self {
            namespace: workload.namespace().unwrap_or_default(),
            workload: workload.name_any(),
            uid: workload.uid().unwrap_or_default(),
            check: check.to_owned(),
        }
    }

    /// The gang's id: 16 characters that fit a label value. It is the same over all attempts, so the pods' node selector stays
    /// valid when nodes are replaced.
    pub fn id(&self) -> String {
        gang_id(&self.uid, &self.check)
    }

    /// Name of the first NodeClaim of a slot in an attempt. Two attempts never share a name.
    pub fn claim_name(&self, attempt: u32, slot: u32) -> String {
        self.name_of(&[&attempt.to_string()], slot)
    }

    /// Name of the NodeClaim that replaces a lost one in this generation of the attempt; for 0 the slot's first
    /// NodeClaim.
    pub fn replacement_name(&self, attempt: u32, generation: u32, slot: u32) -> String {
        match generation {
            0 => self.claim_name(attempt, slot),
            _ => self.name_of(&[&attempt.to_string(), &generation.to_string()], slot),
        }
    }

    fn name_of(&self, parts: &[&str], slot: u32) -> String {
        let owner = if planted!(NameWithoutUid) { &self.workload } else { &self.uid };
        let mut hashed = vec![owner.as_str(), self.check.as_str()];
        hashed.extend(parts);
        let hash = digest(&hashed, 10);
        #[cfg(feature = "planted-bugs")]
        let hash = if planted!(RandomClaimNames) { format!("{:010}", crate::planted::salt()) } else { hash };
        let name = self.workload.strip_prefix(names::REQUEST_PREFIX).unwrap_or(&self.workload);
        let tail = format!("-{hash}-{slot}");
        let room = CLAIM_NAME_LIMIT.saturating_sub(names::CLAIM_PREFIX.len() + tail.len());
        format!("{}{}{tail}", names::CLAIM_PREFIX, dns_label(name, room))
    }

    /// Whether a claim was made for this gang.
    pub fn is_of_gang(&self, claim: &NodeClaim) -> bool {
        claim.label(names::WORKLOAD_UID) == self.uid && claim.annotation(names::CHECK) == self.check
    }

    /// `namespace/name` of the Workload.
    pub fn workload_ref(&self) -> String {
        format!("{}/{}", self.namespace, self.workload)
    }

    /// A number in `0.0..1.0` that differs between gangs and draws, but is the same at every replica.
    pub fn jitter(&self, draw: u32) -> f64 {
        let byte = hash(&[&self.uid, &self.check, &draw.to_string()]).next().unwrap_or_default();
        f64::from(byte) / 256.0
    }
}

/// Id of the gang of the Workload with this UID under this check.
pub fn gang_id(uid: &str, check: &str) -> String {
    digest(&[uid, check], 16)
}

/// Id of the gang that a claim was made for.
pub fn gang_of(claim: &NodeClaim) -> String {
    gang_id(claim.label(names::WORKLOAD_UID), claim.annotation(names::CHECK))
}

/// Whether two claims were made for the same slot in the same attempt of one gang, both at first or both as the same replacement.
pub fn are_of_one_slot(first: &NodeClaim, second: &NodeClaim) -> bool {
    let labels = [names::MANAGED_BY, names::GANG, names::WORKLOAD_UID, names::ATTEMPT];
    labels.iter().all(|key| first.label(key) == second.label(key))
        && (first.slot(), first.generation()) == (second.slot(), second.generation())
}

/// Value of the gang's label on its nodes, which its pods select: the gang's id. The slices of an elastic Job share one,
/// because the pods of a later slice have the selector of the first.
pub fn gang_label(workload: &Workload, check: &str) -> String {
    digest(&[&workload.elastic_job(), check], 16)
}

/// The start of `name` as part of a DNS label: at most `room` characters, without a dash at either end.
fn dns_label(name: &str, room: usize) -> String {
    let cut: String = name
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(room)
        .collect();
    let cut = cut.trim_matches('-');
    if cut.is_empty() { "gang".chars().take(room).collect() } else { cut.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(namespace: &str, workload: &str, uid: &str) -> GangIdentity {
        GangIdentity {
            namespace: namespace.into(),
            workload: workload.into(),
            uid: uid.into(),
            check: "karpenter-provision".into(),
        }
    }

    #[test]
    fn a_claim_name_is_a_short_stable_dns_label_for_any_workload_name() {
        let long = "x".repeat(253);
        for name in ["job-train-7f3a1", "a", "-", "Ünï.code", "a.b.c", long.as_str()] {
            for slot in [0, 7, 4999] {
                let gang = gang("team", name, "4b9d-uid");
                let claim = gang.claim_name(3, slot);
                assert!(claim.len() <= CLAIM_NAME_LIMIT, "{claim}");
                assert!(
                    claim.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                    "{claim}"
                );
                assert!(claim.ends_with(&format!("-{slot}")), "{claim}");
                assert_eq!(claim, gang.claim_name(3, slot));
            }
        }
    }

    #[test]
    fn no_two_gangs_attempts_or_slots_share_a_claim_name() {
        let one = gang("a-b", "c", "uid-1");
        let other = gang("a", "b-c", "uid-2");
        let names = [
            one.claim_name(1, 0),
            one.claim_name(1, 1),
            one.claim_name(2, 0),
            other.claim_name(1, 0),
            one.replacement_name(1, 1, 0),
            one.replacement_name(1, 2, 0),
            one.replacement_name(1, 2, 1),
            one.replacement_name(2, 1, 0),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(one.replacement_name(1, 0, 0), one.claim_name(1, 0));
    }

    #[test]
    fn the_gang_id_stays_over_attempts_and_differs_between_checks() {
        let one = gang("a", "w", "uid-1");
        let other = GangIdentity { check: "second".into(), ..one.clone() };
        assert_eq!(one.id().len(), 16);
        assert_ne!(one.id(), other.id());
    }
}
