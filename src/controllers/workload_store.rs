//! The Workloads of both front-ends: Kueue's own, and ProvisioningRequests of Setu's class, mirrored as Workloads.
//!
//! Rule: a request is mirrored again whenever it or the Workload that owns it changes. Of several requests for one check of a
//! Workload only the first that has not ended is served, so that no nodes are bought twice.

use super::summary::WorkloadSummary;
use crate::api::{ProvisioningRequest, Workload};
use crate::cluster::lock;
use crate::cluster::store::{Keeping, Store, StoreChange, StoreEntry, Writer};
use crate::cluster::watch::{FirstLists, Touched, watch_keeping};
use crate::names;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use std::sync::{Arc, Mutex};

/// Every Workload, of whichever front-end.
#[derive(Clone)]
pub struct Workloads {
    of_kueue: Store<Workload, WorkloadSummary>,
    of_requests: Store<Workload, WorkloadSummary>,
}

impl Workloads {
    fn store(&self, object: &ObjectRef<Workload>) -> &Store<Workload, WorkloadSummary> {
        if object.name.starts_with(names::REQUEST_PREFIX) { &self.of_requests } else { &self.of_kueue }
    }

    /// A Workload.
    pub fn get(&self, object: &ObjectRef<Workload>) -> Option<Arc<Workload>> {
        self.store(object).get(object)
    }

    /// The summary of a Workload.
    pub fn entry(&self, object: &ObjectRef<Workload>) -> Option<StoreEntry<Workload, WorkloadSummary>> {
        self.store(object).entry(object)
    }

    /// The Workloads of a LocalQueue, given as `namespace/name`.
    pub fn of_local_queue(&self, queue: &str) -> Vec<StoreEntry<Workload, WorkloadSummary>> {
        let stores = [&self.of_kueue, &self.of_requests];
        stores.into_iter().flat_map(|store| store.entries_of(BY_LOCAL_QUEUE, queue)).collect()
    }

    /// The Workloads whose summaries are wanted.
    pub fn those(&self, is_wanted: impl Fn(&WorkloadSummary) -> bool) -> Vec<ObjectRef<Workload>> {
        [&self.of_kueue, &self.of_requests].into_iter().flat_map(|store| store.those(&is_wanted)).collect()
    }

    /// Every Workload, one after the other.
    pub fn each(&self) -> impl Iterator<Item = Arc<Workload>> + use<> {
        self.of_kueue.each().chain(self.of_requests.each())
    }
}

/// ProvisioningRequests, and the mirrors of those of Setu's class.
pub struct Requests {
    /// Every request; those of Setu's class are found by the UID of the Workload that owns them.
    pub(super) objects: RequestStore,
    /// Writes their mirrors. A lock of its own: the writer of a store, which a watch otherwise owns.
    mirrors: Mutex<Writer<Workload, WorkloadSummary>>,
}

/// The summary of a request.
#[derive(Debug)]
pub struct RequestSummary {
    owner: String,
}

impl RequestSummary {
    fn of(request: &ProvisioningRequest) -> Self {
        let owner = request.workload().filter(|_| request.is_of_setus_class());
        Self { owner: owner.map_or_else(String::new, |(_, uid)| uid.to_owned()) }
    }
}

/// The index of Workloads by their LocalQueues.
const BY_LOCAL_QUEUE: usize = 0;
/// How the Workloads of both front-ends are kept.
pub const WORKLOADS: Keeping<Workload, WorkloadSummary> = Keeping {
    summary: WorkloadSummary::of,
    indexes: |workload| vec![&workload.local_queue],
    packed: true,
    is_heartbeat: None,
};
/// The index of ProvisioningRequests by the UIDs of the Workloads that own them.
pub(super) const REQUESTS_BY_OWNER: usize = 0;
/// How ProvisioningRequests are kept.
const REQUESTS: Keeping<ProvisioningRequest, RequestSummary> = Keeping {
    summary: RequestSummary::of,
    indexes: |request| vec![&request.owner],
    packed: true,
    is_heartbeat: None,
};

/// Every request.
type RequestStore = Store<ProvisioningRequest, RequestSummary>;
/// Changes of requests.
type RequestChanges = Touched<ProvisioningRequest, RequestSummary>;

/// Watches every request if first lists are given, and none otherwise.
pub fn watch(client: &Client, lists: Option<&FirstLists>) -> (RequestStore, Option<RequestChanges>) {
    if lists.is_none() {
        return (Writer::new(REQUESTS).0, None);
    }
    let (api, all) = (Api::all(client.clone()), Config::default());
    let watched = watch_keeping("provisioningrequests", api, all, lists, REQUESTS);
    (watched.store, Some(watched.touched))
}

impl Requests {
    /// Requests that are kept here, and the Workloads together with those of Kueue.
    pub fn new(objects: RequestStore, of_kueue: Store<Workload, WorkloadSummary>) -> (Self, Workloads) {
        let (of_requests, writer) = Writer::new(WORKLOADS);
        (Self { objects, mirrors: Mutex::new(writer) }, Workloads { of_kueue, of_requests })
    }

    /// Replaces the mirror of this name by what `read` returns, and returns what changed.
    ///
    /// `read` runs under the lock of the mirrors: otherwise another task could see the request deleted meanwhile, and its mirror
    /// would come back for ever.
    pub(super) fn mirror(
        &self,
        workloads: &Workloads,
        name: &ObjectRef<Workload>,
        read: impl FnOnce() -> Option<Workload>,
    ) -> Vec<StoreChange<Workload>> {
        let mut mirrors = lock(&self.mirrors);
        let (last, next) = (workloads.get(name), read());
        if last.as_deref() == next.as_ref() {
            return Vec::new();
        }
        // Another request may have taken the name.
        let is_another =
            |last: &Arc<Workload>| next.as_ref().is_none_or(|next| next.metadata.uid != last.metadata.uid);
        let gone = last.filter(is_another).map(|last| Event::Delete((*last).clone()));
        let events = gone.into_iter().chain(next.map(Event::Apply));
        events.flat_map(|event| mirrors.take(event)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::WorkloadSpec;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn empty() -> (Requests, Workloads) {
        Requests::new(Writer::new(REQUESTS).0, Writer::new(WORKLOADS).0)
    }

    #[test]
    fn a_mirror_does_not_come_back_if_its_request_is_seen_deleted_while_it_is_read() {
        let (requests, workloads) = empty();
        let name = ObjectRef::new("provisioningrequest/r").within("ns");
        let mut mirror = Workload::new(&name.name, WorkloadSpec::default());
        mirror.metadata.namespace = Some("ns".to_owned());
        thread::scope(|scope| {
            let (requests, workloads, name) = (&requests, &workloads, &name);
            let read = move || {
                let (sender, is_deleted) = mpsc::channel();
                scope.spawn(move || {
                    requests.mirror(workloads, name, || None);
                    // Nobody waits for it any more if it had to wait for the lock.
                    let _ = sender.send(());
                });
                let _ = is_deleted.recv_timeout(Duration::from_millis(200));
                Some(mirror)
            };
            assert_eq!(requests.mirror(workloads, name, read).len(), 1);
        });
        assert!(workloads.get(&name).is_none(), "the other task came last");
    }
}
