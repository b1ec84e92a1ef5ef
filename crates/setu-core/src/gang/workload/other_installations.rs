//! Other installations of Setu, which may have put things on a Workload that this one did not.

use super::journal_load::journal_of;
use crate::api::{AdmissionCheck, Workload};
use crate::names;
use jiff::Timestamp;
use kube_core::ResourceExt;

/// The controllers of Kueue's own checks.
const OF_KUEUE: [&str; 2] = [names::PROVISIONING_REQUEST, names::MULTIKUEUE];

/// How other installations of Setu may still depend on a Workload, by its checks that are not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherInstallations {
    /// One of them may keep it out of Kueue's queue.
    pub may_refuse: bool,
    /// One of them may hold it until its nodes are gone.
    pub may_have_nodes: bool,
}

impl OtherInstallations {
    /// From its journals and from the checks that it lists: an installation holds a Workload before it writes its
    /// journal. `is_others` says whether another installation may answer the check of this name.
    pub fn of(workload: &Workload, is_others: impl Fn(&str) -> bool, now: Timestamp) -> Self {
        // An unreadable journal belongs to a gang without nodes, or to a newer release.
        let is_over =
            |text: &str| journal_of(workload, text, now).is_ok_and(|journal| journal.state.is_over());
        let journals = workload.annotations().iter().filter_map(|(key, text)| {
            let check = key.strip_prefix(names::JOURNAL_PREFIX)?;
            is_others(check).then(|| (check, is_over(text)))
        });
        let journals: Vec<(&str, bool)> = journals.collect();
        let is_journalled = |check: &str| journals.iter().any(|(of, _)| *of == check);
        let mut listed = workload.checks().iter().map(|check| check.name.as_str());
        Self {
            may_refuse: !journals.is_empty(),
            may_have_nodes: journals.iter().any(|(_, is_over)| !is_over)
                || listed.any(|check| is_others(check) && !is_journalled(check)),
        }
    }
}

/// Whether a controller of Kueue itself answers a check.
pub fn is_kueues(check: &AdmissionCheck) -> bool {
    OF_KUEUE.contains(&check.spec.controller_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::Journal;
    use crate::gang::statechart::reservation::AdmissionId;
    use serde_json::json;

    #[test]
    fn another_setu_may_hold_a_workload_until_its_journal_says_that_it_is_over() {
        let now = Timestamp::UNIX_EPOCH;
        let over = Journal::released("u", now).encode();
        let runs = Journal::new("u", AdmissionId("1-0-a".into()), now, None).encode();
        let of = |check: &str, journal: Option<&str>| {
            let annotations = journal.map(|text| json!({(names::journal_key("theirs")): text}));
            let workload: Workload = serde_json::from_value(json!({
                "metadata": {"name": "w", "uid": "u", "annotations": annotations}, "spec": {},
                "status": {"admissionChecks": [{"name": check, "state": "Pending"}]},
            }))
            .unwrap();
            let others = OtherInstallations::of(&workload, |check| check == "theirs", now);
            (others.may_refuse, others.may_have_nodes)
        };
        assert_eq!(of("ours", None), (false, false));
        assert_eq!(of("theirs", None), (false, true), "its journal may come");
        assert_eq!(of("theirs", Some(&over)), (true, false));
        assert_eq!(of("ours", Some(&runs)), (true, true));
        assert_eq!(of("ours", Some("{")), (true, true));
    }
}
