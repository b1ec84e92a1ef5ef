//! Which gangs this replica acts for, and what happens when that changes.
//!
//! Rule: what is kept about a shard's gangs ends with the term in which it was learnt.

use super::context::Context;
use super::summary::WorkloadSummary;
use crate::api::Workload;
use crate::cluster::lease::shard_of;
use crate::gang::identity::gang_id;
use crate::gang::workload::journal_load;
use jiff::Timestamp;
use kube::Client;

impl Context {
    /// Whether this replica acts for the Workload with this UID.
    pub fn acts_for(&self, uid: &str) -> bool {
        self.shards.of(uid).acts()
    }

    /// The client for the Workload with this UID.
    pub fn client_of(&self, uid: &str) -> &Client {
        self.clients.get(shard_of(uid, self.clients.len())).unwrap_or(&self.client)
    }

    /// The client for a Workload and its objects.
    pub(super) fn client_for(&self, workload: &Workload) -> &Client {
        self.client_of(workload.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Begins the term of this number as leader of a shard, or ends one. What is kept about its gangs belongs to an earlier term
    /// and is dropped. A new leader reconciles everything.
    pub fn on_leadership_change(&self, shard: usize, term: Option<u64>) {
        let count = self.shards.count();
        let is_in = |uid: &str| shard_of(uid, count) == shard;
        self.forget_term(is_in);
        let Some(term) = term else { return };
        self.wait_for_begun(is_in);
        // No gang is reconciled before: what that reconcile records would be dropped above.
        if let Some(leadership) = self.shards.all().nth(shard) {
            leadership.begin(term);
        }
        if shard == 0 {
            for check in self.stores.checks.state() {
                self.wake.check(&check);
            }
            for parameters in self.stores.parameters.state() {
                self.wake.parameters(&parameters);
            }
        }
        // First those that wait for admission: thousands may run or be done.
        let waits = |w: &WorkloadSummary| !w.is_admitted && !w.is_finished;
        for first in [true, false] {
            for workload in self.stores.workloads.those(|w| is_in(&w.uid) && waits(w) == first) {
                self.wake_workload(workload);
            }
        }
        for claim in self.stores.claims.those(|c| is_in(&c.workload_uid)) {
            self.wake.claim(claim);
        }
    }

    /// Finds the gangs of these Workloads whose claims the previous leader was creating, and makes all other gangs wait for
    /// them. Their missing claims are not in the cache, and not yet in the ledger.
    pub fn wait_for_begun(&self, is_meant: impl Fn(&str) -> bool) {
        let now = self.now();
        let unfinished = self.stores.workloads.those(|w| !w.is_finished && is_meant(&w.uid));
        let workloads = unfinished.iter().filter_map(|workload| self.stores.workloads.get(workload));
        let begun: Vec<String> = workloads.flat_map(|workload| self.begun_of(&workload, now)).collect();
        self.gang_state.ledger().await_reentry(begun.into_iter(), now);
    }

    /// Ids of the gangs of a Workload whose claims are being created, by their journals.
    fn begun_of(&self, workload: &Workload, now: Timestamp) -> Vec<String> {
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let ours = journal_load::checks_being_provisioned(workload, now).filter(|check| self.is_ours(check));
        ours.map(|check| gang_id(uid, check)).collect()
    }
}
