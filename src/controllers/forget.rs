//! Forgets gangs: everything this replica keeps about them, in one way for every reason.
//!
//! Rule: all of it is kept in [`GangState`](super::gang_state::GangState) and forgotten here. A reconcile may add to it at any
//! await, but the end of a Workload or of a term clears only what is there by then. So each reconcile ends with
//! [`Context::forget_if_over`], which clears the rest.

use super::context::Context;
use super::gang_entry::ForgetReason;
use super::gang_state::Forgotten;
use super::summary::BY_WORKLOAD;
use crate::api::Workload;
use crate::gang::identity::{gang_id, gang_of};
use crate::gang::trace::{CutOff, KnownClaims, Subject, cut_off};
use crate::gang::{Ending, Journal};
use crate::plan::PlanChange;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};

impl Context {
    /// Forgets a deleted Workload, and its gangs.
    pub(super) fn forget_deleted(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        self.gang_state.registry.add(&uid, gangs_of(workload));
        let forgotten = self.forget(&uid, ForgetReason::Deleted { ran: workload.is_admitted() });
        for (gang, journal, subject) in &forgotten.last_journals {
            self.trace_cut_off(gang, journal, subject);
        }
        if forgotten.freed {
            self.plans_may_change(PlanChange::Other);
        }
    }

    /// Forgets the gangs of a Workload except those of these checks: their checks are gone or no longer ours, and nothing
    /// reconciles them.
    pub(super) fn forget_without_check(&self, workload: &Workload, checks: &[String]) {
        let uid = workload.uid().unwrap_or_default();
        let kept = checks.iter().map(|check| gang_id(&uid, check)).collect();
        if !self.gang_state.registry.has_others(&uid, &kept) {
            return;
        }
        let cause = ForgetReason::CheckGone { kept: &kept, ran: workload.is_admitted() };
        if self.forget(&uid, cause).freed {
            self.plans_may_change(PlanChange::Other);
        }
    }

    /// Forgets the gangs of all Workloads whose UID fits, because their term is over.
    pub(super) fn forget_term(&self, fits: impl Fn(&str) -> bool) {
        let mut freed = false;
        for uid in self.gang_state.registry.uids(&fits) {
            freed |= self.forget(&uid, ForgetReason::TermOver).freed;
        }
        if freed {
            self.plans_may_change(PlanChange::Other);
        }
        self.gang_state.registry.forget_orphaned_where(fits);
        if !self.shards.any_led() || self.shards.count() == 1 {
            // Shortages and creations were recorded for these gangs alone.
            self.gang_state.ledger().forget_gangs();
        }
    }

    /// Forgets a Workload that was just reconciled if it is gone by now, or if this replica no longer acts for it.
    pub fn forget_if_over(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        let known = self.stores.workloads.entry(&ObjectRef::from_obj(workload));
        if known.is_none_or(|known| known.uid != uid) {
            self.forget_deleted(workload);
        } else if !self.acts_for(&uid) {
            // The end of the term removed it from the registry, and the reconcile has added to its gangs since.
            self.gang_state.registry.add(&uid, gangs_of(workload));
            self.forget(&uid, ForgetReason::TermOver);
        }
    }

    fn forget(&self, uid: &str, cause: ForgetReason<'_>) -> Forgotten {
        let claims = match cause {
            ForgetReason::Deleted { .. } | ForgetReason::CheckGone { .. } => {
                self.stores.claims.those_of(BY_WORKLOAD, uid).into_iter().map(|claim| claim.name).collect()
            }
            ForgetReason::TermOver => BTreeSet::new(),
        };
        self.gang_state.forget(uid, cause, &claims)
    }

    /// How many entries about gangs there are of each kind. Empty once all gangs are forgotten.
    pub fn remembered_gangs(&self) -> BTreeMap<&'static str, usize> {
        self.gang_state.counts()
    }

    /// Sends the spans of a gang whose Workload is gone, with the last state of its NodeClaims.
    fn trace_cut_off(&self, gang: &str, journal: &Journal, subject: &Subject) {
        if !self.telemetry.traces.is_on() {
            return;
        }
        let mut claims = self.stores.claims.of(BY_WORKLOAD, &journal.workload_uid);
        claims.retain(|claim| gang_of(claim) == gang);
        let end = CutOff { at: self.now(), why: Ending::Deleted, by: &self.telemetry.instance };
        self.telemetry.traces.send(cut_off(journal, end, KnownClaims::Then(&claims), subject));
    }
}

/// The ids of all gangs of a Workload, by its checks and its journals.
fn gangs_of(workload: &Workload) -> impl Iterator<Item = String> {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    workload.checks_of_gangs().into_iter().map(move |check| gang_id(uid, check))
}
