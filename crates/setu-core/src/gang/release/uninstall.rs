//! The cleanup when Setu is uninstalled.
//!
//! Rule: Kueue answers the check of a ProvisioningRequest. Setu answers only the request.

use crate::api::workload::{CheckState, Verdict};
use crate::api::{AdmissionCheck, FrontEnd, NodeClaim, ProvisioningRequest, Workload, condition};
use crate::gang::workload::finalizer::has_finalizer;
use crate::gang::workload::other_installations::OtherInstallations;
use crate::gang::workload::queueing::Queueing;
use crate::gang::workload::request::{as_workload, has_ended, owner_of};
use crate::gang::workload::standalone::is_ending;
use crate::names;
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Reason of the condition Active of a check whose installation was uninstalled.
pub const UNINSTALLED: &str = "Uninstalled";
/// Message of that condition.
pub const CHECK_MESSAGE: &str = "Setu was uninstalled: take this check out of the ClusterQueues that name it";

/// How nodes on which admitted gangs run are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningNodes {
    /// They become Karpenter's, which removes them once their pods are done.
    HandBack,
    /// They are deleted like all others, with the pods on them.
    Delete,
}

/// Objects found in the cluster.
#[derive(Clone, Debug, Default)]
pub struct UninstallObjects {
    /// All checks.
    pub checks: Vec<AdmissionCheck>,
    /// The claims with Setu's label.
    pub claims: Vec<NodeClaim>,
    /// All Workloads. Without them it is unknown what runs; then claims are handed back, because Karpenter checks for pods before
    /// it removes a node.
    pub workloads: Option<Vec<Workload>>,
    /// The ProvisioningRequests.
    pub requests: RequestListing,
    /// When they were read.
    pub now: Timestamp,
}

/// ProvisioningRequests, as far as they can be read.
#[derive(Clone, Debug, Default)]
pub enum RequestListing {
    /// All of them.
    All(Vec<ProvisioningRequest>),
    /// The cluster serves none.
    #[default]
    NotServed,
    /// This installation may not read them: another one may serve them.
    Forbidden,
}

/// The objects that were found, by what is done with them.
#[derive(Debug, Default)]
pub struct UninstallPlan {
    /// Checks that no controller will answer any more.
    pub checks: Vec<AdmissionCheck>,
    /// Claims to delete.
    pub delete: Vec<NodeClaim>,
    /// Claims of running gangs, which are handed back to Karpenter.
    pub hand_back: Vec<NodeClaim>,
    /// Workloads that hold quota while they wait for us; they release it.
    pub waiting: Vec<Workload>,
    /// Workloads that Setu keeps out of Kueue's queue; they return to it.
    pub kept_out: Vec<Workload>,
    /// Workloads on which this installation has put what is taken away.
    pub marked: Vec<Workload>,
    /// Workloads that Setu created for standalone requests and whose nodes do not stay; they are deleted.
    pub created: Vec<Workload>,
    /// Workloads that Setu created and whose nodes stay. They keep their quota until someone deletes them.
    pub kept: Vec<Workload>,
    /// Mirrors of the requests that wait for us; they fail.
    pub open_requests: Vec<Workload>,
    /// Mirrors of other requests that have a journal and whose nodes do not stay.
    pub marked_requests: Vec<Workload>,
    /// Names of the checks that other controllers answer. What other installations have put on Workloads for them stays.
    pub others: BTreeSet<String>,
}

/// Marks that this installation has put on a Workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadMarks {
    /// Whether it holds the Workload with its finalizer.
    pub finalizer: bool,
    /// The keys of its annotations.
    pub annotations: Vec<String>,
}

impl WorkloadMarks {
    /// The finalizer alone.
    pub const FINALIZER: Self = Self { finalizer: true, annotations: Vec::new() };

    /// Those that an uninstallation takes away. A journal stays with the nodes, so that Setu can go on from there when it comes
    /// back. `others` are the checks of other controllers.
    pub fn of(workload: &Workload, nodes: RunningNodes, others: &BTreeSet<String>, now: Timestamp) -> Self {
        let annotations = workload.annotations();
        let is_journalled = |check: &str| annotations.contains_key(&names::journal_key(check));
        let is_others = |check: &str| others.contains(check) && is_journalled(check);
        let of_check = |key: &&String| {
            let mut prefixes = [names::JOURNAL_PREFIX, names::STATE_PREFIX].into_iter();
            prefixes.find_map(|prefix| key.strip_prefix(prefix)).is_some_and(|check| !others.contains(check))
        };
        let ours = annotations.keys().filter(|_| nodes == RunningNodes::Delete).filter(of_check);
        Self {
            finalizer: has_finalizer(workload)
                && !OtherInstallations::of(workload, is_others, now).may_have_nodes,
            annotations: ours.cloned().collect(),
        }
    }

    /// Whether there is nothing to take away.
    pub fn is_empty(&self) -> bool {
        !self.finalizer && self.annotations.is_empty()
    }
}

impl UninstallPlan {
    /// Whether nothing is left but checks, which stay inactive.
    pub fn is_done(&self) -> bool {
        let claims = self.delete.is_empty() && self.hand_back.is_empty();
        let workloads = self.waiting.is_empty()
            && self.kept_out.is_empty()
            && self.created.is_empty()
            && self.marked.is_empty();
        claims && workloads && self.open_requests.is_empty() && self.marked_requests.is_empty()
    }

    /// The entries for our checks of a Workload that make Kueue take its quota back.
    pub fn retries(&self, workload: &Workload, now: Timestamp) -> Vec<CheckState> {
        let is_ours = |entry: &&CheckState| self.checks.iter().any(|check| check.name_any() == entry.name);
        let retry = |entry: &CheckState| CheckState {
            name: entry.name.clone(),
            state: Verdict::Retry,
            last_transition_time: now,
            message: "Setu was uninstalled".to_owned(),
            requeue_after_seconds: Some(0),
            pod_set_updates: Vec::new(),
        };
        workload.checks().iter().filter(is_ours).map(retry).collect()
    }

    /// Decides what to do with these objects. `controller_name` is that of the checks to abandon.
    pub fn of(controller_name: &str, nodes: RunningNodes, found: UninstallObjects) -> Self {
        let UninstallObjects { checks, claims, workloads, requests, now } = found;
        let is_own = |check: &AdmissionCheck| check.spec.controller_name == controller_name;
        let others = checks.iter().filter(|check| !is_own(check) && !check.is_by_request());
        let others: BTreeSet<String> = others.map(ResourceExt::name_any).collect();
        // Their installations put nothing on Workloads any more, and take nothing away.
        let gone: BTreeSet<String> =
            checks.iter().filter(|check| is_abandoned(check)).map(ResourceExt::name_any).collect();
        // Where requests are served, Kueue answers its own checks.
        let may_be_served_elsewhere = matches!(requests, RequestListing::Forbidden);
        let (serves_requests, mut requests) = match requests {
            RequestListing::All(requests) => (true, requests),
            RequestListing::NotServed | RequestListing::Forbidden => (false, Vec::new()),
        };
        let compat = if serves_requests { BTreeSet::new() } else { served_without_request(&claims) };
        let is_ours = |check: &AdmissionCheck| {
            is_own(check) || (check.is_by_request() && compat.contains(&check.name_any()))
        };
        let checks = checks.into_iter().filter(is_ours).collect();
        let running = workloads.as_deref().map(running);
        let stays = |uid: &str| {
            nodes == RunningNodes::HandBack && running.as_ref().is_none_or(|running| running.contains(uid))
        };
        requests.retain(ProvisioningRequest::is_of_setus_class);
        let owners: BTreeMap<&str, &str> = requests.iter().filter_map(with_owner).collect();
        // A claim made for another controller's check belongs to another installation.
        let lives = |uid: &str| {
            let is_it = |w: &Workload| w.metadata.uid.as_deref() == Some(uid) && !w.is_finished();
            workloads.as_deref().is_none_or(|all| all.iter().any(is_it))
        };
        let is_foreign = |claim: &NodeClaim| {
            others.contains(claim.annotation(names::CHECK))
                || (may_be_served_elsewhere && owner_of(claim).is_some_and(|(_, _, owner)| lives(owner)))
        };
        let claims = claims.into_iter().filter(|claim| !is_foreign(claim));
        // Other pods may be on the Node of a claim whose hand-back has begun.
        let (hand_back, delete) = claims.partition(|c| c.is_handing_back() || stays(workload_of(c, &owners)));
        let workloads = workloads.unwrap_or_default();
        let others = others.difference(&gone).cloned().collect();
        Self { checks, delete, hand_back, others, ..Self::default() }
            .with_requests(&requests, &workloads, stays)
            .with_workloads(workloads, nodes, serves_requests, now)
    }

    /// Adds what is done with requests. `stays` is whether the Workload with this UID keeps its nodes.
    fn with_requests(
        mut self,
        requests: &[ProvisioningRequest],
        workloads: &[Workload],
        stays: impl Fn(&str) -> bool,
    ) -> Self {
        let by_uid: BTreeMap<&str, &Workload> =
            workloads.iter().filter_map(|w| Some((w.metadata.uid.as_deref()?, w))).collect();
        let by_request: BTreeMap<&str, &Workload> =
            workloads.iter().filter_map(|w| Some((w.standalone_request()?.1, w))).collect();
        for request in requests {
            let uid = request.workload().map(|(_, uid)| uid);
            let owner = uid.and_then(|uid| by_uid.get(uid).copied());
            let created = request.metadata.uid.as_deref().and_then(|uid| by_request.get(uid));
            let mirror = as_workload(request, owner.map(|owner| (owner, None)));
            // If the owner is named but was not found, its pods may run.
            let waits = match (owner, created) {
                (Some(owner), _) => may_be_stopped(owner),
                (None, Some(created)) => !stays(created.metadata.uid.as_deref().unwrap_or_default()),
                (None, None) => uid.is_none(),
            };
            if waits && !has_ended(request.conditions()) {
                self.open_requests.push(mirror);
            } else if is_journalled(&mirror) && !uid.is_some_and(&stays) {
                self.marked_requests.push(mirror);
            }
        }
        self
    }

    /// Adds what is done with Workloads.
    fn with_workloads(
        mut self,
        workloads: Vec<Workload>,
        nodes: RunningNodes,
        serves_requests: bool,
        now: Timestamp,
    ) -> Self {
        let names: BTreeSet<String> = self.checks.iter().map(ResourceExt::name_any).collect();
        // A Workload whose check says Retry waits only for Kueue.
        let asks = |c: &CheckState| names.contains(&c.name) && c.state != Verdict::Retry;
        let is_created = |w: &&Workload| w.front_end() == FrontEnd::StandaloneRequest;
        // Where requests may not be read, another installation may serve them.
        let created = workloads.iter().filter(|w| serves_requests && is_created(w)).cloned();
        (self.created, self.kept) =
            created.partition(|w| nodes == RunningNodes::Delete || !w.runs() || is_ending(w));
        let waits = |w: &&Workload| {
            w.has_quota()
                && may_be_stopped(w)
                && w.checks().iter().any(asks)
                && !(serves_requests && is_created(w))
        };
        self.waiting = workloads.iter().filter(waits).cloned().collect();
        let has_ours = |w: &Workload| w.checks().iter().any(|c| names.contains(&c.name));
        let is_kept_out = |w: &&Workload| Queueing::of(w) == Queueing::KeptOut && has_ours(w);
        self.kept_out = workloads.iter().filter(is_kept_out).cloned().collect();
        let is_marked = |w: &Workload| !WorkloadMarks::of(w, nodes, &self.others, now).is_empty();
        self.marked = workloads.into_iter().filter(is_marked).collect();
        self
    }
}

/// Whether the installation that answered a check was uninstalled.
fn is_abandoned(check: &AdmissionCheck) -> bool {
    condition::find(check.conditions(), "Active").is_some_and(|active| active.reason == UNINSTALLED)
}

/// Names of the checks that have claims which were made for no request: those that `setu run --tas-compat` answered.
fn served_without_request(claims: &[NodeClaim]) -> BTreeSet<String> {
    let without = claims.iter().filter(|claim| owner_of(claim).is_none());
    without.map(|claim| claim.annotation(names::CHECK).to_owned()).collect()
}

/// UID of a request, and of the Workload that controls it.
fn with_owner(request: &ProvisioningRequest) -> Option<(&str, &str)> {
    Some((request.metadata.uid.as_deref()?, request.workload()?.1))
}

/// UID of the Workload whose pods a claim is for. `owners` has it by the UID of its request.
fn workload_of<'c>(claim: &'c NodeClaim, owners: &BTreeMap<&'c str, &'c str>) -> &'c str {
    let uid = claim.label(names::WORKLOAD_UID);
    // A kept claim still names the owner of its last request.
    let by_claim = || owner_of(claim).filter(|_| !claim.is_warm()).map(|(_, _, owner)| owner);
    owners.get(uid).copied().or_else(by_claim).unwrap_or(uid)
}

/// Whether a Workload loses nothing that runs if it does not get its nodes.
fn may_be_stopped(workload: &Workload) -> bool {
    // An answer for a slice that is to replace a running one would make Kueue stop the whole Job.
    !workload.is_admitted() && workload.replaces().is_none()
}

fn is_journalled(workload: &Workload) -> bool {
    workload.annotations().keys().any(|key| key.starts_with(names::JOURNAL_PREFIX))
}

/// The UIDs of the Workloads whose pods may run.
fn running(workloads: &[Workload]) -> BTreeSet<String> {
    let runs = |w: &&Workload| w.runs();
    let elastic_jobs: BTreeSet<String> = workloads.iter().filter(runs).map(Workload::elastic_job).collect();
    // The pods of a replaced slice run on with those of the slice that took its place.
    let runs_on = |w: &&Workload| {
        runs(w) || (w.is_admitted() && w.is_replaced() && elastic_jobs.contains(&w.elastic_job()))
    };
    workloads.iter().filter(runs_on).filter_map(ResourceExt::uid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::admission_check::AdmissionCheckSpec;
    use crate::api::node_claim::NodeClaimSpec;
    use crate::gang::Journal;
    use crate::gang::statechart::reservation::AdmissionId;
    use serde_json::{Value, json};

    fn check(name: &str, controller: &str) -> AdmissionCheck {
        let spec = AdmissionCheckSpec { controller_name: controller.into(), ..Default::default() };
        AdmissionCheck::new(name, spec)
    }

    fn claim(name: &str, check: &str, workload: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, NodeClaimSpec::default());
        claim.metadata.annotations = Some([(names::CHECK.to_owned(), check.to_owned())].into());
        claim.metadata.labels = Some([(names::WORKLOAD_UID.to_owned(), workload.to_owned())].into());
        claim
    }

    fn all_true(conditions: &[&str]) -> Vec<Value> {
        let condition = |kind: &&str| -> Value {
            json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        conditions.iter().map(condition).collect()
    }

    /// The only check is Setu's.
    fn of_ours(claims: Vec<NodeClaim>, workloads: Vec<Workload>) -> UninstallObjects {
        let checks = vec![check("ours", "setu")];
        UninstallObjects { checks, claims, workloads: Some(workloads), ..UninstallObjects::default() }
    }

    fn workload(uid: &str, conditions: &[&str]) -> Workload {
        let conditions = all_true(conditions);
        let journal = names::journal_key("ours");
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": uid, "uid": uid, "annotations": {journal: "{}"}},
            "spec": {}, "status": {"conditions": conditions, "admissionChecks": [{"name": "ours"}]},
        }))
        .unwrap()
    }

    fn names_of<K: ResourceExt>(objects: &[K]) -> Vec<String> {
        objects.iter().map(ResourceExt::name_any).collect()
    }

    fn found(nodes: RunningNodes) -> UninstallPlan {
        let checks = vec![check("ours", "setu"), check("theirs", "another")];
        let claims = vec![
            claim("runs", "ours", "admitted"),
            claim("waits", "ours", "reserved"),
            claim("ended", "ours", "finished"),
            claim("orphan", "gone", "nobody"),
            claim("foreign", "theirs", "admitted"),
        ];
        let workloads = vec![
            workload("admitted", &["QuotaReserved", "Admitted"]),
            workload("reserved", &["QuotaReserved"]),
            workload("finished", &["QuotaReserved", "Admitted", "Finished"]),
            workload("queued", &[]),
        ];
        UninstallPlan::of(
            "setu",
            nodes,
            UninstallObjects { checks, claims, workloads: Some(workloads), ..UninstallObjects::default() },
        )
    }

    #[test]
    fn running_gangs_keep_their_nodes_and_all_others_lose_them() {
        let plan = found(RunningNodes::HandBack);
        assert_eq!(names_of(&plan.hand_back), ["runs"]);
        assert_eq!(names_of(&plan.delete), ["waits", "ended", "orphan"]);
        assert_eq!(names_of(&plan.waiting), ["reserved"]);
        assert_eq!(names_of(&plan.checks), ["ours"]);
        assert!(plan.marked.is_empty());
    }

    #[test]
    fn a_claim_whose_hand_back_has_begun_is_never_deleted() {
        let mut claim = claim("ended", "ours", "finished");
        claim.annotations_mut().insert(names::HANDING_BACK.to_owned(), "true".to_owned());
        for nodes in [RunningNodes::HandBack, RunningNodes::Delete] {
            let plan = UninstallPlan::of("setu", nodes, of_ours(vec![claim.clone()], vec![]));
            assert_eq!((names_of(&plan.hand_back), plan.delete.len()), (vec!["ended".to_owned()], 0));
        }
    }

    /// A slice of the elastic Job with this UID.
    fn slice(uid: &str, conditions: &[&str], replaces: Option<&str>) -> Workload {
        let mut slice = workload(uid, conditions);
        slice.metadata.namespace = Some("team".to_owned());
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true});
        slice.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        let annotations = slice.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ELASTIC_JOB.to_owned(), "true".to_owned());
        if let Some(name) = replaces {
            annotations.insert(names::SLICE_REPLACES.to_owned(), format!("team/{name}"));
        }
        for finished in slice.status.iter_mut().flat_map(|s| &mut s.conditions) {
            finished.reason = "WorkloadSliceReplaced".to_owned();
        }
        slice
    }

    #[test]
    fn nodes_of_a_replaced_slice_stay_and_a_waiting_slice_is_not_answered() {
        let all = ["QuotaReserved", "Admitted", "Finished"];
        let workloads = vec![
            slice("first", &all, None),
            slice("second", &all[..2], Some("first")),
            slice("third", &all[..1], Some("second")),
        ];
        let claims = vec![claim("old", "ours", "first"), claim("new", "ours", "second")];
        let plan = UninstallPlan::of("setu", RunningNodes::HandBack, of_ours(claims, workloads));
        assert_eq!(names_of(&plan.hand_back), ["old", "new"]);
        assert!(plan.delete.is_empty() && plan.waiting.is_empty());
    }

    #[test]
    fn a_check_of_kueues_provisioning_is_cleaned_up_if_it_has_nodes_of_ours() {
        let checks =
            ["served", "requested", "kueues"].map(|name| check(name, names::PROVISIONING_REQUEST)).to_vec();
        let claims = vec![claim("a", "served", "gone"), for_request(claim("b", "requested", "gone"), "gone")];
        let found =
            UninstallObjects { checks, claims, workloads: Some(vec![]), ..UninstallObjects::default() };
        let plan_with = |requests| {
            UninstallPlan::of("setu", RunningNodes::HandBack, UninstallObjects { requests, ..found.clone() })
        };
        for (requests, closed) in
            [(RequestListing::NotServed, vec!["served"]), (RequestListing::All(vec![]), vec![])]
        {
            let plan = plan_with(requests);
            assert_eq!(names_of(&plan.checks), closed);
            assert_eq!(names_of(&plan.delete), ["a", "b"], "nobody else takes them away");
        }
    }

    /// The claim, made for a request of the Workload with this UID.
    fn for_request(mut claim: NodeClaim, owner: &str) -> NodeClaim {
        claim.annotations_mut().insert(names::OWNER.to_owned(), format!("team/{owner}/{owner}"));
        claim
    }

    /// A request with a journal and these conditions, controlled by the Workload with this UID, if any.
    fn request(name: &str, class: &str, conditions: &[&str], owner: Option<&str>) -> ProvisioningRequest {
        let reference = |uid: &str| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": uid, "uid": uid, "controller": true});
        let owners: Vec<Value> = owner.into_iter().map(reference).collect();
        serde_json::from_value(json!({
            "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
            "metadata": {
                "namespace": "team", "name": name, "uid": format!("of-{name}"), "ownerReferences": owners,
                "annotations": {names::journal_key("kueues"): "{}"},
            },
            "spec": {"provisioningClassName": class},
            "status": {"conditions": all_true(conditions)},
        }))
        .unwrap()
    }

    /// Two gangs of requests run, one without its request. One waits, one has failed, and one has finished.
    fn with_requests() -> UninstallObjects {
        let ours = names::REQUEST_CLASS;
        let claims = ["runs", "waits", "finished"]
            .map(|name| for_request(claim(name, "kueues", &format!("of-{name}")), name))
            .into_iter()
            .chain([
                for_request(claim("alone", "kueues", "of-deleted"), "alone"),
                for_request(claim("taken", "kueues", "of-runs"), "finished"),
                warm(for_request(claim("kept", "kueues", ""), "runs")),
            ]);
        let admitted = ["QuotaReserved", "Admitted"].as_slice();
        UninstallObjects {
            checks: vec![check("kueues", names::PROVISIONING_REQUEST)],
            claims: claims.collect(),
            now: Timestamp::UNIX_EPOCH,
            workloads: Some(vec![
                workload("runs", admitted),
                workload("alone", admitted),
                workload("waits", &["QuotaReserved"]),
                workload("failed", &[]),
                workload("finished", &["QuotaReserved", "Admitted", "Finished"]),
            ]),
            requests: RequestListing::All(vec![
                request("runs", ours, &["Accepted", "Provisioned"], Some("runs")),
                request("waits", ours, &["Accepted", "Provisioned"], Some("waits")),
                request("failed", ours, &["Accepted", "Failed"], Some("failed")),
                request("expired", ours, &["Accepted", "BookingExpired"], Some("waits")),
                request("finished", ours, &["Accepted", "Provisioned"], Some("finished")),
                request("ownerless", ours, &[], None),
                request("dangling", ours, &[], Some("gone")),
                request("foreign", "check-capacity.autoscaling.x-k8s.io", &[], Some("waits")),
            ]),
        }
    }

    fn warm(mut claim: NodeClaim) -> NodeClaim {
        claim.metadata.labels = Some([(names::WARM.to_owned(), "key".to_owned())].into());
        claim
    }

    /// The names of the requests that these Workloads mirror.
    fn requests_of(mirrors: &[Workload]) -> Vec<&str> {
        mirrors.iter().filter_map(Workload::request_name).collect()
    }

    #[test]
    fn nodes_of_running_requests_stay_and_open_requests_fail() {
        let plan = UninstallPlan::of("setu", RunningNodes::HandBack, with_requests());
        assert_eq!(names_of(&plan.hand_back), ["runs", "alone", "taken"]);
        assert_eq!(names_of(&plan.delete), ["waits", "finished", "kept"]);
        assert_eq!(requests_of(&plan.open_requests), ["waits", "ownerless"]);
        assert_eq!(requests_of(&plan.marked_requests), ["failed", "expired", "finished", "dangling"]);
        assert!(plan.checks.is_empty() && plan.waiting.is_empty(), "Kueue answers its own check");
    }

    #[test]
    fn full_removal_takes_nodes_and_journals_of_running_requests_too_but_fails_none_of_them() {
        let plan = UninstallPlan::of("setu", RunningNodes::Delete, with_requests());
        assert_eq!((plan.hand_back.len(), plan.delete.len()), (0, 6));
        assert_eq!(requests_of(&plan.open_requests), ["waits", "ownerless"]);
        assert_eq!(requests_of(&plan.marked_requests), ["runs", "failed", "expired", "finished", "dangling"]);
        assert!(plan.checks.is_empty() && !plan.is_done());
    }

    #[test]
    fn running_requests_keep_their_nodes_also_where_requests_are_not_served() {
        let found = UninstallObjects { requests: RequestListing::NotServed, ..with_requests() };
        let plan = UninstallPlan::of("setu", RunningNodes::HandBack, found);
        assert_eq!(names_of(&plan.hand_back), ["runs", "alone"]);
        assert!(plan.checks.is_empty() && plan.open_requests.is_empty() && plan.marked_requests.is_empty());
    }

    #[test]
    fn nodes_of_requests_stay_where_another_installation_may_serve_them() {
        for nodes in [RunningNodes::HandBack, RunningNodes::Delete] {
            let found = UninstallObjects { requests: RequestListing::Forbidden, ..with_requests() };
            let plan = UninstallPlan::of("setu-b", nodes, found);
            assert_eq!(names_of(&plan.hand_back), Vec::<String>::new());
            // Of these the Workload has finished, so nobody needs them.
            assert_eq!(names_of(&plan.delete), ["finished", "taken"]);
        }
    }

    #[test]
    fn a_request_of_a_slice_that_replaces_a_running_one_is_not_answered() {
        let slices = vec![
            slice("first", &["QuotaReserved", "Admitted"], None),
            slice("second", &["QuotaReserved"], Some("first")),
        ];
        let requests = ["first", "second"].map(|uid| request(uid, names::REQUEST_CLASS, &[], Some(uid)));
        let found = UninstallObjects {
            workloads: Some(slices),
            requests: RequestListing::All(requests.to_vec()),
            ..UninstallObjects::default()
        };
        let plan = UninstallPlan::of("setu", RunningNodes::HandBack, found);
        assert!(plan.open_requests.is_empty());
    }

    #[test]
    fn requests_are_left_alone_if_it_is_unknown_what_runs() {
        let found = UninstallObjects { workloads: None, ..with_requests() };
        let plan = UninstallPlan::of("setu", RunningNodes::HandBack, found);
        assert_eq!((plan.hand_back.len(), plan.delete.len()), (6, 0));
        assert_eq!(requests_of(&plan.open_requests), ["ownerless"]);
        assert!(plan.marked_requests.is_empty());
    }

    #[test]
    fn full_removal_also_deletes_nodes_of_running_gangs_and_journals() {
        let plan = found(RunningNodes::Delete);
        assert_eq!(names_of(&plan.delete), ["runs", "waits", "ended", "orphan"]);
        assert!(plan.hand_back.is_empty());
        assert_eq!(plan.marked.len(), 4);
    }

    #[test]
    fn what_another_installation_has_put_on_a_workload_stays() {
        let now = Timestamp::UNIX_EPOCH;
        let journal = Journal::new("u", AdmissionId("1-0-a".into()), now, None).encode();
        let held = |checks: &[&str]| {
            let mut workload = workload("u", &["QuotaReserved"]);
            workload.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
            let keys = checks.iter().map(|check| (names::journal_key(check), journal.clone()));
            workload.metadata.annotations = Some(keys.collect());
            workload
        };
        let mut checks = vec![check("c", "setu"), check("theirs", "another-setu"), check("budget", "team")];
        let marks = |checks_of: &[&str], nodes| {
            let (workloads, checks) = (Some(vec![held(checks_of)]), checks.clone());
            let plan = UninstallPlan::of(
                "setu",
                nodes,
                UninstallObjects { checks, workloads, ..UninstallObjects::default() },
            );
            let of = |workload| WorkloadMarks::of(workload, nodes, &plan.others, now);
            plan.marked.first().map(of)
        };
        assert_eq!(marks(&["theirs"], RunningNodes::Delete), None);
        assert_eq!(marks(&["c"], RunningNodes::HandBack), Some(WorkloadMarks::FINALIZER));
        let journals = WorkloadMarks { finalizer: false, annotations: vec![names::journal_key("c")] };
        assert_eq!(marks(&["c", "theirs"], RunningNodes::Delete), Some(journals));
        assert_eq!(marks(&["c", "theirs"], RunningNodes::HandBack), None);
        let active = json!({"conditions": [{
            "type": "Active", "status": "False", "reason": UNINSTALLED, "message": "", "lastTransitionTime": now,
        }]});
        checks[1].status = serde_json::from_value(active).unwrap();
        let plan = UninstallPlan::of(
            "setu",
            RunningNodes::HandBack,
            UninstallObjects { checks, ..of_ours(vec![], vec![held(&["theirs"])]) },
        );
        assert_eq!(plan.marked.len(), 1, "that installation is gone");
    }

    #[test]
    fn nodes_are_handed_back_if_it_is_unknown_what_runs() {
        let found =
            UninstallObjects { claims: vec![claim("orphan", "ours", "gone")], ..UninstallObjects::default() };
        let plan = |nodes| UninstallPlan::of("setu", nodes, found.clone());
        let kept = plan(RunningNodes::HandBack);
        assert_eq!((names_of(&kept.hand_back), kept.delete.len()), (vec!["orphan".to_owned()], 0));
        let all = plan(RunningNodes::Delete);
        assert_eq!((names_of(&all.delete), all.hand_back.len()), (vec!["orphan".to_owned()], 0));
    }
}
