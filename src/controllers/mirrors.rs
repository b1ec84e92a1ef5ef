//! Mirrors ProvisioningRequests as Workloads, and reads Workloads of either front-end past the caches.
//!
//! Rule: a request is mirrored again whenever it or the Workload that owns it changes.

use super::context::Context;
use super::summary::BY_OWNER;
use super::workload_store::REQUESTS_BY_OWNER;
use crate::api::{ProvisioningRequest, Workload};
use crate::cluster::decoded::Decoded;
use crate::cluster::store::StoreChange;
use crate::effects::request;
use crate::error::Error;
use crate::gang::workload::request::{as_workload, check_of, name_as_workload, owner, served_for};
use crate::names;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeSet;

impl Context {
    /// A ProvisioningRequest was touched: it and the others for the same Workload are mirrored again.
    pub fn request_touched(&self, request: &ProvisioningRequest) {
        self.mirror(&ObjectRef::from_obj(request));
        let others =
            request.workload().map(|(_, owner)| self.stores.requests.objects.of(REQUESTS_BY_OWNER, owner));
        for other in others.into_iter().flatten().filter(|other| other.metadata.uid != request.metadata.uid) {
            self.mirror(&ObjectRef::from_obj(&*other));
        }
    }

    /// Mirrors every request again, after everything has been listed or a check has changed.
    pub fn mirror_requests(&self) {
        for request in self.stores.requests.objects.those(|_| true) {
            self.mirror(&request);
        }
    }

    /// A Workload of Kueue's was touched: its requests are mirrored again.
    pub(super) fn mirror_requests_of(&self, owner: &str) {
        for request in self.stores.requests.objects.of(REQUESTS_BY_OWNER, owner) {
            self.mirror(&ObjectRef::from_obj(&*request));
        }
    }

    /// A Workload of Kueue's has stopped running: the claims of its requests are reconciled, also where the request is gone.
    pub(super) fn wake_claims_of_requests(&self, owner: &str) {
        if !self.options.provisioning_requests {
            return;
        }
        for claim in self.stores.claims.those_of(BY_OWNER, owner) {
            self.wake.claim(claim);
        }
    }

    fn mirror(&self, object: &ObjectRef<ProvisioningRequest>) {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let name = ObjectRef::new(&name_as_workload(&object.name)).within(namespace);
        let read = || {
            let request =
                self.stores.requests.objects.get(object).filter(|request| request.is_of_setus_class())?;
            let owner = request.workload().and_then(|(name, uid)| {
                let found = self.stores.workloads.get(&ObjectRef::new(name).within(namespace))?;
                (found.metadata.uid.as_deref() == Some(uid)).then_some(found)
            });
            Some(self.as_workload(&request, owner.as_deref()))
        };
        for change in self.stores.requests.mirror(&self.stores.workloads, &name, read) {
            if let StoreChange::Applied(workload) | StoreChange::Gone(workload) = change {
                self.workload_touched(&workload);
                self.wake_workload(ObjectRef::from_obj(&*workload));
            }
        }
    }

    fn as_workload(&self, request: &ProvisioningRequest, owner: Option<&Workload>) -> Workload {
        as_workload(request, owner.map(|owner| (owner, self.served_for(request, owner))))
    }

    fn served_for<'w>(&self, request: &ProvisioningRequest, owner: &'w Workload) -> Option<&'w str> {
        let uid = owner.metadata.uid.as_deref().unwrap_or_default();
        let all = self.stores.requests.objects.of(REQUESTS_BY_OWNER, uid);
        served_for(request, owner, &all, |check| self.is_answered_by_requests(check))
    }

    /// The checks of a Workload of either front-end that Setu answers, itself or through ProvisioningRequests of Kueue's.
    pub(super) fn answered_checks(&self, workload: &Workload) -> Vec<String> {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let owner = owner(workload)
            .and_then(|(name, _)| self.stores.workloads.get(&ObjectRef::new(name).within(namespace)));
        let workload = owner.as_deref().unwrap_or(workload);
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let requests = self.stores.requests.objects.of(REQUESTS_BY_OWNER, uid);
        let by_request = |check: &str| self.is_answered_by_requests(check);
        let asked: BTreeSet<&str> =
            requests.iter().filter_map(|request| check_of(request, workload, by_request)).collect();
        let names = workload.checks().iter().map(|check| &check.name);
        names.filter(|name| self.is_ours(name) || asked.contains(name.as_str())).cloned().collect()
    }

    /// Whether Kueue has a check answered by ProvisioningRequests.
    pub(super) fn is_answered_by_requests(&self, check: &str) -> bool {
        let found = self.stores.checks.get(&ObjectRef::new(check));
        found.is_some_and(|check| check.is_by_request())
    }

    /// A Workload of either front-end as the API server has it; `None` where there is none of that name.
    ///
    /// # Errors
    /// It could not be read.
    pub(super) async fn read_workload(
        &self,
        object: &ObjectRef<Workload>,
    ) -> Result<Option<Decoded<Workload>>, Error> {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let Some(name) = object.name.strip_prefix(names::REQUEST_PREFIX) else {
            return request::read_workload(&self.client, namespace, &object.name).await;
        };
        let Some(request) = request::read(&self.client, namespace, name).await? else { return Ok(None) };
        let owner = match request.workload() {
            Some((name, uid)) => self.read_owner(namespace, name, uid).await?,
            None => None,
        };
        Ok(Some(Decoded(Ok(self.as_workload(&request, owner.as_ref())))))
    }

    /// The Workload of this name and UID.
    ///
    /// # Errors
    /// It could not be read.
    pub(super) async fn read_owner(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<Workload>, Error> {
        let object = format!("{namespace}/{name}");
        request::read_owner(&self.client, namespace, (name, uid), ("reading Workload", &object)).await
    }
}
