//! ProvisioningRequests among the objects that were read: each stands as a Workload, as it does for the controller.
//!
//! Rule: a request that was deleted while its gang runs is rebuilt from the NodeClaims that were made for it, for readers only.

use super::cluster::ClusterObjects;
use super::gang_objects::GangObjects;
use crate::api::provisioning_request::{ProvisioningRequestSpec, ProvisioningRequestStatus};
use crate::api::{AdmissionCheck, FrontEnd, NodeClaim, ProvisioningRequest, Workload, condition};
use crate::gang::workload::request::{ENDS, as_workload, check_of, owner, owner_of};
use crate::gang::workload::standalone::NO_QUEUE;
use crate::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

impl ClusterObjects {
    /// Adds the ProvisioningRequests of Setu's class to the Workloads, and those that were deleted while their gang runs.
    pub fn add_requests(&mut self) {
        let mirror = |request: &ProvisioningRequest| {
            let uid = request.workload().map(|(_, uid)| uid);
            let owner = self.workloads.iter().find(|w| w.metadata.uid.as_deref() == uid && uid.is_some());
            let check =
                owner.and_then(|owner| check_of(request, owner, |check| self.may_be_by_request(check)));
            as_workload(request, owner.map(|owner| (owner, check)))
        };
        // A standalone request is read by the Workload that was created for it.
        let served: BTreeSet<&str> =
            self.workloads.iter().filter_map(|w| Some(w.standalone_request()?.1)).collect();
        let has_workload = |request: &ProvisioningRequest| {
            request.metadata.uid.as_deref().is_some_and(|uid| served.contains(uid))
        };
        let ours = self.requests.iter().flatten();
        let ours = ours.filter(|request| request.is_of_setus_class() && !has_workload(request));
        let mut mirrors: Vec<Workload> = ours.map(mirror).collect();
        mirrors.extend(self.claims_of_deleted().values().filter_map(|claims| self.deleted(claims)));
        self.workloads.extend(mirrors);
    }

    /// Whether this Workload stands for a request that was deleted.
    pub fn is_deleted_request(&self, workload: &Workload) -> bool {
        let exists = |requests: &Vec<ProvisioningRequest>| {
            requests.iter().any(|request| request.metadata.uid == workload.metadata.uid)
        };
        // If requests may not be read, none is known to be deleted.
        workload.front_end() == FrontEnd::ProvisioningRequest
            && self.requests.as_ref().is_some_and(|all| !exists(all))
    }

    /// Whether Kueue has a check answered by ProvisioningRequests.
    pub fn is_by_request(&self, check: &str) -> bool {
        self.check(check).is_some_and(AdmissionCheck::is_by_request)
    }

    fn may_be_by_request(&self, check: &str) -> bool {
        self.check(check).is_none_or(AdmissionCheck::is_by_request)
    }

    /// The check of this name; `None` if there is none, or if checks may not be read.
    pub fn check(&self, name: &str) -> Option<&AdmissionCheck> {
        self.checks.iter().flatten().find(|check| check.metadata.name.as_deref() == Some(name))
    }

    /// The claims of deleted requests, by the UID of the request.
    fn claims_of_deleted(&self) -> BTreeMap<&str, Vec<&NodeClaim>> {
        let mut found: BTreeMap<&str, Vec<&NodeClaim>> = BTreeMap::new();
        // Where requests may not be read, none is known to be gone.
        let Some(requests) = &self.requests else { return found };
        let exists = |uid: &str| requests.iter().any(|request| request.metadata.uid.as_deref() == Some(uid));
        for claim in self.claims.iter().flatten().filter(|claim| !claim.is_warm()) {
            let uid = claim.label(names::WORKLOAD_UID);
            if owner_of(claim).is_some() && !exists(uid) {
                found.entry(uid).or_default().push(claim);
            }
        }
        found
    }

    /// The request that these claims were made for, with the journal that follows from them; `None` unless its Workload runs.
    fn deleted(&self, claims: &[&NodeClaim]) -> Option<Workload> {
        let claim = claims.first()?;
        let (namespace, _, uid) = owner_of(claim)?;
        let owner = self.workloads.iter().find(|workload| workload.metadata.uid.as_deref() == Some(uid))?;
        let admitted = condition::since(owner.conditions(), "Admitted").filter(|_| owner.runs())?;
        let name = claim.annotation(names::WORKLOAD).strip_prefix(namespace)?.strip_prefix('/')?;
        let mut request = ProvisioningRequest::new(
            name.strip_prefix(names::REQUEST_PREFIX)?,
            ProvisioningRequestSpec::default(),
        );
        request.metadata = ObjectMeta {
            name: request.metadata.name,
            namespace: Some(namespace.to_owned()),
            uid: Some(claim.label(names::WORKLOAD_UID).to_owned()),
            creation_timestamp: claims.iter().filter_map(|c| c.metadata.creation_timestamp.clone()).min(),
            owner_references: Some(vec![controller(owner, uid)]),
            ..ObjectMeta::default()
        };
        let provisioned = Condition {
            type_: "Provisioned".to_owned(),
            status: "True".to_owned(),
            reason: String::new(),
            message: String::new(),
            last_transition_time: Time(admitted),
            observed_generation: None,
        };
        request.status =
            Some(ProvisioningRequestStatus { conditions: vec![provisioned], ..Default::default() });
        let check = claim.annotation(names::CHECK);
        let mut mirror = as_workload(&request, Some((owner, Some(check))));
        let mut journal = GangObjects::of(self, &mirror, check).rebuild_journal().ok()?;
        journal.entered_at = admitted;
        journal.history.clear();
        mirror
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(names::journal_key(check), journal.encode());
        Some(mirror)
    }
}

fn controller(owner: &Workload, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "kueue.x-k8s.io/v1beta2".to_owned(),
        kind: "Workload".to_owned(),
        name: owner.name_any(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }
}

/// The check for which Kueue is about to make a request for this Workload.
pub fn check_without_request<'w>(objects: &ClusterObjects, workload: &'w Workload) -> Option<&'w str> {
    let mut checks = workload.checks().iter().map(|check| check.name.as_str());
    let waits = workload.has_quota() && !workload.is_admitted() && !workload.is_finished();
    checks
        .find(|check| objects.is_by_request(check))
        .filter(|_| waits && requests_of(objects, workload).next().is_none())
}

/// Why a Workload with a check that is answered by a request is not Setu's; `None` if it has no such check.
pub fn why_not_ours(objects: &ClusterObjects, workload: &Workload) -> Option<String> {
    let check = workload.checks().iter().find(|check| objects.is_by_request(&check.name))?;
    let (of, check) = (workload.full_name(), &check.name);
    let found = requests_of(objects, workload).next();
    Some(match found {
        _ if objects.requests.is_none() => {
            format!(
                "check {check} of Workload {of} is answered by a ProvisioningRequest, and those cannot be read"
            )
        }
        Some(request) => format!(
            "ProvisioningRequest {} of Workload {of} is of class {}, which Setu does not serve; its own is {}",
            request.name_any(),
            request.spec.provisioning_class_name,
            names::REQUEST_CLASS
        ),
        None => {
            format!("Workload {of} has no ProvisioningRequest for its check {check}, and no nodes of Setu's")
        }
    })
}

/// Requests of any class that a Workload controls.
fn requests_of<'o>(
    objects: &'o ClusterObjects,
    workload: &Workload,
) -> impl Iterator<Item = &'o ProvisioningRequest> {
    let uid = workload.metadata.uid.clone();
    objects
        .requests
        .iter()
        .flatten()
        .filter(move |r| r.workload().map(|(_, uid)| uid) == uid.as_deref() && uid.is_some())
}

/// Why a request that stands for no Workload has no nodes.
pub fn why_unowned(mirror: &Workload) -> String {
    let said = |kind: &str| condition::find(mirror.conditions(), kind).filter(|c| !c.message.is_empty());
    let ended = ENDS.iter().find_map(|kind| said(kind).filter(|c| c.status == "True"));
    match (ended, owner(mirror), said("Provisioned")) {
        (Some(condition), _, _) | (None, None, Some(condition)) => condition.message.clone(),
        (None, Some((name, _)), _) => {
            format!("Workload {name}, which controls this request, does not exist")
        }
        (None, None, None) if !mirror.labels().contains_key(names::QUEUE) => NO_QUEUE.to_owned(),
        (None, None, None) => "Setu is about to create its Workload".to_owned(),
    }
}
