//! What is cleaned up when Setu is uninstalled.

use super::queueing::Queueing;
use crate::api::workload::{CheckState, Verdict};
use crate::api::{AdmissionCheck, NodeClaim, Workload};
use crate::names;
use kube_core::ResourceExt;
use std::collections::BTreeSet;

/// What to do with nodes on which admitted gangs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningNodes {
    /// They become Karpenter's, which removes them once their pods are done.
    HandBack,
    /// They are deleted like all others, with the pods on them.
    Delete,
}

/// What was found, and what is done with it.
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
    /// Workloads with a finalizer of ours or, if everything is removed, a journal.
    pub marked: Vec<Workload>,
}

impl UninstallPlan {
    /// Whether nothing is left but checks, which stay inactive.
    pub fn is_done(&self) -> bool {
        let claims = self.delete.is_empty() && self.hand_back.is_empty();
        claims && self.waiting.is_empty() && self.kept_out.is_empty() && self.marked.is_empty()
    }

    /// What to do with these objects. `controller_name` is that of the checks to abandon. Without Workloads it is unknown what runs;
    /// then claims are handed back, because Karpenter checks for pods before it removes a node.
    pub fn of(
        controller_name: &str,
        nodes: RunningNodes,
        checks: Vec<AdmissionCheck>,
        claims: Vec<NodeClaim>,
        workloads: Option<Vec<Workload>>,
    ) -> Self {
        let Some(workloads) = workloads else {
            let plan = Self::sorted(controller_name, RunningNodes::Delete, checks, claims, Vec::new());
            return match nodes {
                RunningNodes::Delete => plan,
                RunningNodes::HandBack => {
                    Self { hand_back: [plan.hand_back, plan.delete].concat(), delete: Vec::new(), ..plan }
                }
            };
        };
        Self::sorted(controller_name, nodes, checks, claims, workloads)
    }

    fn sorted(
        controller_name: &str,
        nodes: RunningNodes,
        checks: Vec<AdmissionCheck>,
        claims: Vec<NodeClaim>,
        workloads: Vec<Workload>,
    ) -> Self {
        // A check of Kueue's own provisioning is ours if we have made nodes for it (`setu run --tas-compat`).
        let served: BTreeSet<&str> = claims.iter().map(|c| c.annotation(names::CHECK)).collect();
        let is_ours = |check: &AdmissionCheck| {
            check.spec.controller_name == controller_name
                || (check.is_by_request() && served.contains(check.name_any().as_str()))
        };
        let (ours, others): (Vec<_>, Vec<_>) = checks.into_iter().partition(is_ours);
        let others: BTreeSet<String> = others.iter().map(ResourceExt::name_any).collect();
        let names: BTreeSet<String> = ours.iter().map(ResourceExt::name_any).collect();
        let running = running(&workloads);
        // A claim made for another controller's check belongs to another installation.
        let claims = claims.into_iter().filter(|c| !others.contains(c.annotation(names::CHECK)));
        // Other pods may be on the Node of a claim whose hand-back has begun.
        let (hand_back, delete) = claims.partition(|c| {
            c.is_handing_back()
                || (nodes == RunningNodes::HandBack && running.contains(c.label(names::WORKLOAD_UID)))
        });
        // A Workload whose check says Retry waits only for Kueue.
        let asks = |c: &CheckState| names.contains(&c.name) && c.state != Verdict::Retry;
        // An answer for a slice that is to replace a running one would make Kueue stop the whole Job.
        let waits = |w: &&Workload| {
            w.is("QuotaReserved")
                && !w.is("Admitted")
                && w.replaces().is_none()
                && w.checks().iter().any(asks)
        };
        let waiting: Vec<Workload> = workloads.iter().filter(waits).cloned().collect();
        let has_ours = |w: &Workload| w.checks().iter().any(|c| names.contains(&c.name));
        let is_kept_out = |w: &&Workload| Queueing::of(w) == Queueing::KeptOut && has_ours(w);
        let kept_out: Vec<Workload> = workloads.iter().filter(is_kept_out).cloned().collect();
        let all_goes = nodes == RunningNodes::Delete;
        let journalled =
            |w: &Workload| all_goes && w.annotations().keys().any(|k| k.starts_with(names::JOURNAL_PREFIX));
        let marked = |w: &Workload| w.finalizers().iter().any(|f| f == names::FINALIZER) || journalled(w);
        let marked = workloads.into_iter().filter(marked).collect();
        Self { checks: ours, delete, hand_back, waiting, kept_out, marked }
    }
}

/// The UIDs of the Workloads whose pods may run.
fn running(workloads: &[Workload]) -> BTreeSet<String> {
    let runs = |w: &&Workload| w.is("Admitted") && !w.is("Finished");
    let elastic_jobs: BTreeSet<String> = workloads.iter().filter(runs).map(Workload::elastic_job).collect();
    // The pods of a replaced slice run on with those of the slice that took its place.
    let runs_on = |w: &&Workload| {
        runs(w) || (w.is("Admitted") && w.is_replaced() && elastic_jobs.contains(&w.elastic_job()))
    };
    workloads.iter().filter(runs_on).filter_map(ResourceExt::uid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::admission_check::AdmissionCheckSpec;
    use crate::api::node_claim::NodeClaimSpec;
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

    fn workload(uid: &str, conditions: &[&str]) -> Workload {
        let condition = |kind: &&str| -> Value {
            json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
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
        UninstallPlan::of("setu", nodes, checks, claims, Some(workloads))
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
            let plan = UninstallPlan::of(
                "setu",
                nodes,
                vec![check("ours", "setu")],
                vec![claim.clone()],
                Some(vec![]),
            );
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
        let plan = UninstallPlan::of(
            "setu",
            RunningNodes::HandBack,
            vec![check("ours", "setu")],
            claims,
            Some(workloads),
        );
        assert_eq!(names_of(&plan.hand_back), ["old", "new"]);
        assert!(plan.delete.is_empty() && plan.waiting.is_empty());
    }

    #[test]
    fn a_check_of_kueues_provisioning_is_cleaned_up_if_it_has_nodes_of_ours() {
        let checks = || {
            vec![check("served", names::PROVISIONING_REQUEST), check("kueues", names::PROVISIONING_REQUEST)]
        };
        let plan = UninstallPlan::of(
            "setu",
            RunningNodes::HandBack,
            checks(),
            vec![claim("a", "served", "gone")],
            Some(vec![]),
        );
        assert_eq!(
            (names_of(&plan.checks), names_of(&plan.delete)),
            (vec!["served".to_owned()], vec!["a".to_owned()])
        );
    }

    #[test]
    fn full_removal_also_deletes_nodes_of_running_gangs_and_journals() {
        let plan = found(RunningNodes::Delete);
        assert_eq!(names_of(&plan.delete), ["runs", "waits", "ended", "orphan"]);
        assert!(plan.hand_back.is_empty());
        assert_eq!(plan.marked.len(), 4);
    }

    #[test]
    fn nodes_are_handed_back_if_it_is_unknown_what_runs() {
        let plan =
            |nodes| UninstallPlan::of("setu", nodes, vec![], vec![claim("orphan", "ours", "gone")], None);
        let kept = plan(RunningNodes::HandBack);
        assert_eq!((names_of(&kept.hand_back), kept.delete.len()), (vec!["orphan".to_owned()], 0));
        let all = plan(RunningNodes::Delete);
        assert_eq!((names_of(&all.delete), all.hand_back.len()), (vec!["orphan".to_owned()], 0));
    }
}
