//! How the pods of a gang find their nodes, and whether a taint keeps others off them.

use crate::api::parameters::Pinning;
use crate::names;
use crate::plan::claim::Draft;
use crate::plan::demand::PodSetDemand;
use crate::plan::{PlanRequest, PlanSnapshot, daemons, taints};
use k8s_openapi::api::core::v1::Toleration;

/// The pinning of a plan. Its drawbacks are added to `notes`.
pub fn of(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    demand: &[PodSetDemand<'_>],
    drafts: &[Draft],
    notes: &mut Vec<String>,
) -> Pinning {
    let may_taint = matches!(request.policy.pinning, Pinning::Auto | Pinning::SelectorAndTaint);
    if may_taint
        && !request.workload.front_end().gets_pod_set_updates()
        && !all_tolerate(demand, request.gang_label)
    {
        let who = if request.workload.has_pods_of_kueue() {
            "neither the pods nor their ResourceFlavors tolerate"
        } else {
            "the pods do not tolerate"
        };
        notes.push(format!("the nodes get no taint: {who} {}", names::GANG));
        return Pinning::Selector;
    }
    let excluded = daemons::kept_off_by_taint(drafts.iter(), cluster, request.gang_label);
    let names = excluded.join(", ");
    match request.policy.pinning {
        // Kueue adds only the selector to the pods that an elastic Job gets while it runs.
        Pinning::Auto | Pinning::SelectorAndTaint if request.workload.replaces().is_some() => {
            Pinning::Selector
        }
        Pinning::Auto if excluded.is_empty() => Pinning::SelectorAndTaint,
        Pinning::Auto => {
            notes.push(format!("the nodes get no taint: DaemonSets {names} would not run on them"));
            Pinning::Selector
        }
        Pinning::SelectorAndTaint if !excluded.is_empty() => {
            notes.push(format!(
                "DaemonSets {names} do not tolerate taint {} and stay off the nodes",
                names::GANG
            ));
            Pinning::SelectorAndTaint
        }
        fixed => fixed,
    }
}

fn all_tolerate(demand: &[PodSetDemand<'_>], gang: &str) -> bool {
    let taint = taints::gang_taint(gang);
    let tolerates = |wanted: &PodSetDemand<'_>| {
        let tolerations: Vec<Toleration> = wanted.tolerations().cloned().collect();
        taints::tolerates(&tolerations, &taint)
    };
    demand.iter().all(tolerates)
}
