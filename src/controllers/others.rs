//! Other installations of Setu, which may have put things on a Workload that this one did not.

use super::context::Context;
use crate::api::Workload;
use crate::gang::Journal;
use crate::names;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// The controllers of Kueue's own checks.
const OF_KUEUE: [&str; 2] = [names::PROVISIONING_REQUEST, names::MULTIKUEUE];

/// What other installations of Setu may still need of a Workload, by its checks that are not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Others {
    /// One of them may keep it out of Kueue's queue.
    pub may_refuse: bool,
    /// One of them may hold it until its nodes are gone.
    pub may_hold: bool,
}

impl Others {
    /// From its journals and from the checks that it lists: an installation holds a Workload before it writes its
    /// journal.
    pub fn of(workload: &Workload, context: &Context) -> Self {
        let is_others = |check: &str| {
            let found = context.stores.checks.get(&ObjectRef::new(check)).filter(|c| !context.answers(c));
            found.is_some_and(|c| !OF_KUEUE.contains(&c.spec.controller_name.as_str()))
        };
        let (uid, now) = (workload.uid().unwrap_or_default(), context.now());
        let created = workload.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        // An unreadable journal belongs to a gang without nodes, or to a newer release.
        let is_over = |text: &str| {
            Journal::decode(text, &uid, created, now).is_ok_and(|journal| journal.state.is_over())
        };
        let journals = workload.annotations().iter().filter_map(|(key, text)| {
            let check = key.strip_prefix(names::JOURNAL_PREFIX)?;
            is_others(check).then(|| (check, is_over(text)))
        });
        let journals: Vec<(&str, bool)> = journals.collect();
        let is_journalled = |check: &str| journals.iter().any(|(of, _)| *of == check);
        let mut listed = workload.checks().iter().map(|check| check.name.as_str());
        Self {
            may_refuse: !journals.is_empty(),
            may_hold: journals.iter().any(|(_, is_over)| !is_over)
                || listed.any(|check| is_others(check) && !is_journalled(check)),
        }
    }
}
