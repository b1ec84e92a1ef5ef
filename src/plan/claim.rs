//! One NodeClaim, made as Karpenter itself would make it for its NodePool.
//!
//! So it is neither drifted nor invisible: template labels, annotations and hash are copied, every
//! custom requirement key gets a concrete label, and the NodePool is its owner.

use super::daemons::{gang_taint, overhead, tolerates};
use super::demand::PodSetDemand;
use super::requirements::{Clash, Requirements, Values, is_well_known, normalized};
use super::resources::{self, Defaults};
use super::{Cluster, Obstacle, ObstacleReason, Request};
use crate::api::node_claim::{NodeClaimSpec, Requirement, ResourceRequests};
use crate::api::parameters::Pinning;
use crate::api::pod::PodSpec;
use crate::api::{NodeClaim, NodePool};
use crate::names;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Age at which Karpenter replaces a node whose NodePool does not say.
const DEFAULT_EXPIRY: &str = "720h";

/// A claim in the making: everything but its resources and the gang's taint.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Name of the NodePool.
    pub node_pool: String,
    /// What the node must be.
    pub requirements: Requirements,
    /// Taints of the NodePool.
    pub taints: Vec<Taint>,
    pool: Arc<NodePool>,
}

impl Draft {
    /// Narrows a NodePool to what a pod set needs.
    ///
    /// # Errors
    /// What of the pod set, its flavors or the policy the NodePool cannot give.
    pub fn new(
        pool: &Arc<NodePool>,
        request: &Request<'_>,
        wanted: &PodSetDemand<'_>,
    ) -> Result<Self, Obstacle> {
        let node_pool = pool.metadata.name.clone().unwrap_or_default();
        let who = format!("pod set {}", wanted.pod_set.name);
        let tell = |reason, who: &str, clash: &Clash| {
            Obstacle::new(
                reason,
                format!(
                    "{who} asks for {} {}, but NodePool {node_pool} offers {}",
                    clash.key, clash.asked, clash.offered
                ),
            )
        };
        let clash = |who: &str, c: &Clash| tell(ObstacleReason::RequirementsClash, who, c);
        let mut requirements = of_pool(pool).map_err(|c| clash("its own template", &c))?;
        requirements.add_all(&request.policy.requirements).map_err(|c| clash("the policy", &c))?;
        for flavor in &wanted.flavors {
            let who = format!("ResourceFlavor {}", flavor.metadata.name.as_deref().unwrap_or_default());
            for (key, value) in &flavor.spec.node_labels {
                let key = normalized(key);
                // A pool that the administrator names may be given the flavor's labels; one that is
                // only found must have them by itself.
                let known = is_well_known(key)
                    || requirements.get(key).is_some()
                    || request.policy.node_pool.is_some();
                if !known {
                    return Err(tell(ObstacleReason::FlavorNotOffered, &who, &undefined(key, value)));
                }
                requirements
                    .add(key, &Values::one(value))
                    .map_err(|c| tell(ObstacleReason::FlavorNotOffered, &who, &c))?;
            }
        }
        let requirements =
            constrained(&requirements, &wanted.pod_set.template.spec).map_err(|c| clash(&who, &c))?;
        let taints = pool.spec.template.spec.taints.clone();
        check_taints(&taints, wanted, &node_pool)?;
        Ok(Self { node_pool, requirements, taints, pool: Arc::clone(pool) })
    }

    /// The claim, without name and gang labels.
    pub fn finish(
        &self,
        cluster: &Cluster<'_>,
        wanted: &PodSetDemand<'_>,
        gang: &str,
        pinning: Pinning,
    ) -> Result<NodeClaim, Obstacle> {
        let mut taints = self.taints.clone();
        if pinning == Pinning::SelectorAndTaint {
            taints.push(gang_taint(gang));
        }
        let bad = |who: &str, e: &resources::BadQuantity| {
            Obstacle::new(
                ObstacleReason::BadQuantity,
                format!("{who} requests {e}; write an amount such as 500m, 2 or 4Gi"),
            )
        };
        let defaults =
            Defaults { limit_ranges: cluster.limit_ranges, runtime_classes: cluster.runtime_classes };
        let pod = resources::of_pod(&wanted.pod_set.template.spec, defaults)
            .map_err(|e| bad(&format!("pod set {}", wanted.pod_set.name), &e))?;
        let daemons = overhead(self, &taints, cluster.daemon_sets).map_err(|e| bad("a DaemonSet", &e))?;
        let template = &self.pool.spec.template;
        let spec = NodeClaimSpec {
            requirements: self.requirements.render(),
            resources: ResourceRequests { requests: resources::sum(&pod, &daemons) },
            taints,
            startup_taints: template.spec.startup_taints.clone(),
            node_class_ref: template.spec.node_class_ref.clone(),
            expire_after: Some(
                template.spec.expire_after.clone().unwrap_or_else(|| DEFAULT_EXPIRY.to_owned()),
            ),
            termination_grace_period: template.spec.termination_grace_period.clone(),
        };
        let mut claim = NodeClaim::new("", spec);
        claim.metadata.labels = Some(self.labels()?);
        claim.metadata.annotations = Some(self.annotations());
        claim.metadata.owner_references = Some(vec![self.owner()]);
        Ok(claim)
    }

    fn labels(&self) -> Result<BTreeMap<String, String>, Obstacle> {
        let mut labels = self.pool.spec.template.metadata.labels.clone();
        labels.insert(names::NODEPOOL.to_owned(), self.node_pool.clone());
        labels.insert(node_class_key(&self.pool), self.pool.spec.template.spec.node_class_ref.name.clone());
        // Karpenter calls a claim drifted at once if a custom key of its NodePool has no label.
        for (key, values) in self.requirements.iter().filter(|(key, _)| !is_well_known(key)) {
            if let Some(value) = values.pick() {
                labels.insert(key.clone(), value);
            }
        }
        match labels.iter().find(|(_, value)| !is_label_value(value)) {
            None => Ok(labels),
            Some((key, value)) => Err(Obstacle::new(
                ObstacleReason::RequirementsClash,
                format!(
                    "{value:?} cannot be the value of label {key}: at most 63 letters, digits, '-', '_' and '.'"
                ),
            )),
        }
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.pool.spec.template.metadata.annotations.clone();
        let pool = self.pool.metadata.annotations.as_ref();
        for key in [names::NODEPOOL_HASH, names::NODEPOOL_HASH_VERSION] {
            if let Some(value) = pool.and_then(|a| a.get(key)) {
                annotations.insert(key.to_owned(), value.clone());
            }
        }
        annotations.insert(names::MIN_VALUES_RELAXED.to_owned(), "false".to_owned());
        annotations.insert(names::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
        annotations
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: "karpenter.sh/v1".to_owned(),
            kind: "NodePool".to_owned(),
            name: self.node_pool.clone(),
            uid: self.pool.metadata.uid.clone().unwrap_or_default(),
            block_owner_deletion: Some(true),
            controller: None,
        }
    }
}

/// The label key under which Karpenter notes the NodeClass.
fn node_class_key(pool: &NodePool) -> String {
    let class = &pool.spec.template.spec.node_class_ref;
    format!("{}/{}", class.group, class.kind.to_ascii_lowercase())
}

/// What every node of a pool is.
fn of_pool(pool: &NodePool) -> Result<Requirements, Clash> {
    let mut requirements = Requirements::default();
    let template = &pool.spec.template;
    requirements.add_all(&template.spec.requirements)?;
    for (key, value) in &template.metadata.labels {
        requirements.add(key, &Values::one(value))?;
    }
    requirements.add(names::NODEPOOL, &Values::one(pool.metadata.name.as_deref().unwrap_or_default()))?;
    requirements.add(&node_class_key(pool), &Values::one(&template.spec.node_class_ref.name))?;
    Ok(requirements)
}

/// Narrows what a node is to what a pod asks for: its node selector, and the first term of its
/// required node affinity that can be met.
pub fn constrained(node: &Requirements, spec: &PodSpec) -> Result<Requirements, Clash> {
    let mut node = node.clone();
    for (key, value) in &spec.node_selector {
        let key = normalized(key);
        // Karpenter cannot give a node a label that nothing defines.
        if !is_well_known(key) && node.get(key).is_none() {
            return Err(undefined(key, value));
        }
        node.add(key, &Values::one(value))?;
    }
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .map_or(&[][..], |selector| &selector.node_selector_terms);
    let mut first_clash = None;
    for term in terms {
        match with_term(&node, term.match_expressions.as_deref().unwrap_or_default()) {
            Ok(narrowed) => return Ok(narrowed),
            Err(clash) => first_clash = first_clash.or(Some(clash)),
        }
    }
    first_clash.map_or(Ok(node), Err)
}

fn with_term(node: &Requirements, term: &[NodeSelectorRequirement]) -> Result<Requirements, Clash> {
    let mut node = node.clone();
    for expression in term {
        let key = normalized(&expression.key);
        let needs_label = ["In", "Exists", "Gt", "Lt"].contains(&expression.operator.as_str());
        if needs_label && !is_well_known(key) && node.get(key).is_none() {
            return Err(undefined(key, &expression.values.clone().unwrap_or_default().join(" ")));
        }
        node.add_all(&[Requirement {
            key: key.to_owned(),
            operator: expression.operator.clone(),
            values: expression.values.clone().unwrap_or_default(),
            min_values: None,
        }])?;
    }
    Ok(node)
}

fn undefined(key: &str, value: &str) -> Clash {
    Clash { key: key.to_owned(), asked: format!("[{value}]"), offered: "no such label".to_owned() }
}

fn check_taints(taints: &[Taint], wanted: &PodSetDemand<'_>, pool: &str) -> Result<(), Obstacle> {
    let mut tolerations = wanted.pod_set.template.spec.tolerations.clone();
    tolerations.extend(wanted.flavors.iter().flat_map(|f| f.spec.tolerations.clone()));
    match taints.iter().find(|taint| !tolerates(&tolerations, taint)) {
        None => Ok(()),
        Some(taint) => Err(Obstacle::new(
            ObstacleReason::TaintNotTolerated,
            format!(
                "pod set {} does not tolerate taint {}:{} of NodePool {pool}; add the toleration to the pods or to the \
                 ResourceFlavor",
                wanted.pod_set.name, taint.key, taint.effect
            ),
        )),
    }
}

fn is_label_value(value: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && value.chars().all(inner)
        && edge(value.chars().next())
        && edge(value.chars().next_back())
}
