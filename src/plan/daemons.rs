//! DaemonSets of a node that does not exist yet: what they take from it, and which of them the
//! gang's taint would keep off.

use super::claim::Draft;
use super::requirements::{Requirements, Values};
use super::resources::{self, BadQuantity, Defaults};
use crate::api::DaemonSet;
use crate::api::pod::{PodSpec, ResourceList};
use crate::names;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use std::sync::Arc;

/// The taint that keeps everybody but the gang off its nodes.
pub fn gang_taint(gang: &str) -> Taint {
    Taint {
        key: names::GANG.to_owned(),
        value: Some(gang.to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

/// Whether pods with these tolerations may run beside this taint.
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    if taint.effect == "PreferNoSchedule" {
        return true;
    }
    tolerations.iter().any(|t| {
        let effect = t.effect.as_deref().unwrap_or_default();
        let key = t.key.as_deref().unwrap_or_default();
        let exists = t.operator.as_deref() == Some("Exists");
        let value_fits =
            exists || t.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
        let key_fits = key == taint.key || (key.is_empty() && exists);
        (effect.is_empty() || effect == taint.effect) && key_fits && value_fits
    })
}

/// Names of the DaemonSets that belong on one of these nodes and do not tolerate the gang's taint.
pub fn kept_off_by_taint<'a>(
    drafts: impl Iterator<Item = &'a Draft>,
    daemon_sets: &[Arc<DaemonSet>],
    gang: &str,
) -> Vec<String> {
    let taint = gang_taint(gang);
    let mut names: Vec<String> = drafts
        .flat_map(|draft| daemon_sets.iter().filter(|d| belongs(&d.spec.template.spec, draft, &draft.taints)))
        .filter(|d| !tolerates(&d.spec.template.spec.tolerations, &taint))
        .map(|d| {
            let namespace = d.metadata.namespace.as_deref().unwrap_or_default();
            format!("{namespace}/{}", d.metadata.name.as_deref().unwrap_or_default())
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What the DaemonSets of such a node take from it.
pub fn overhead(
    draft: &Draft,
    taints: &[Taint],
    daemon_sets: &[Arc<DaemonSet>],
) -> Result<ResourceList, BadQuantity> {
    let mut total = ResourceList::new();
    for daemon in daemon_sets.iter().map(|d| &d.spec.template.spec).filter(|s| belongs(s, draft, taints)) {
        total = resources::sum(&total, &resources::of_pod(daemon, Defaults::default())?);
    }
    Ok(total)
}

/// Whether pods of this spec would run on a node made from this draft with these taints.
fn belongs(spec: &PodSpec, draft: &Draft, taints: &[Taint]) -> bool {
    if !taints.iter().all(|taint| tolerates(&spec.tolerations, taint)) {
        return false;
    }
    let mut node = draft.requirements.clone();
    for label in [names::REGISTERED, names::INITIALIZED] {
        let _ = node.add(label, &Values::one("true"));
    }
    compatible(&node, spec)
}

/// Whether a pod's selector and affinity can be met by a node of these requirements.
fn compatible(node: &Requirements, spec: &PodSpec) -> bool {
    super::claim::constrained(node, spec).is_ok()
}
