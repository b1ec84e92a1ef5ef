//! Builds one NodeClaim as Karpenter itself would build it for its NodePool.
//!
//! So Karpenter neither treats it as drifted nor ignores it. Template labels, annotations and hash are copied, each custom
//! requirement key becomes a concrete label, and the NodePool is the owner.

use super::affinity::{affinity_terms, selected, undefined, with_one_of_each};
use super::demand::PodSetDemand;
use super::taints::{gang_taint, tolerates};
use super::{Obstacle, ObstacleReason, PlanRequest, devices, labels, taints};
use crate::api::node_claim::{NodeClaimSpec, NodeClassRef, ResourceRequests};
use crate::api::parameters::{CapacityReservation, CapacityType, NodeDevices, Pinning, Tier};
use crate::api::pod::{PodSpec, ResourceList};
use crate::api::requirements::{
    Clash, Requirements, Values, is_label_value, is_reserved, is_well_known, normalized,
};
use crate::api::{NodeClaim, NodePool};
use crate::names;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Karpenter's default `expireAfter`, for NodePools that do not set it.
const DEFAULT_EXPIRY: &str = "720h";

/// A claim without its resources and the gang's taint.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Name of the NodePool.
    pub node_pool: String,
    /// Requirements on the node.
    pub requirements: Requirements,
    /// Notes for the administrator.
    pub notes: Vec<String>,
    /// Whether all its types have accelerators that the pods do not ask for.
    pub has_spare: bool,
    /// Keys that NodePool, policy or flavor define. The node must have a label for each.
    defined: BTreeSet<String>,
    /// Annotations that keep Karpenter from disrupting the node.
    holds: Vec<&'static str>,
    pool: Arc<NodePool>,
}

impl Draft {
    /// Narrows a NodePool to what a pod set needs, and to nodes with the devices of these entries of the policy.
    ///
    /// # Errors
    /// The obstacle, if the NodePool cannot give what the pod set, its flavors or the policy ask for.
    pub fn new(
        pool: &Arc<NodePool>,
        request: &PlanRequest<'_>,
        tier: &Tier,
        wanted: &PodSetDemand<'_>,
        devices: &[&NodeDevices],
    ) -> Result<Self, Obstacle> {
        let parts = DraftParts { pool, request, tier, wanted };
        let offered = parts.with_flavors(parts.offered()?)?;
        let offered = devices::narrowed(devices, parts.node_pool(), offered)?;
        let defined = offered.iter().map(|(key, _)| key.clone()).collect();
        let requirements = parts.with_pods(&offered)?;
        parts.check_labels(&requirements)?;
        parts.check_taints()?;
        let repair = request.policy.do_not_repair.then_some(names::DO_NOT_REPAIR);
        let holds = [names::DO_NOT_DISRUPT].into_iter().chain(repair).collect();
        let (node_pool, notes, pool) = (parts.node_pool().to_owned(), Vec::new(), Arc::clone(pool));
        Ok(Self { node_pool, requirements, notes, has_spare: false, defined, holds, pool })
    }

    /// This draft with one label fixed to a value. Errors say that `who` asks for it.
    ///
    /// # Errors
    /// If the nodes cannot have the value.
    pub fn held_to(&self, key: &str, value: &str, who: &str) -> Result<Self, Obstacle> {
        self.narrowed(key, &Values::one(value), who)
    }

    /// This draft with one label narrowed to some values. Errors say that `who` asks for them.
    ///
    /// # Errors
    /// If the nodes can have none of the values.
    pub fn narrowed(&self, key: &str, values: &Values, who: &str) -> Result<Self, Obstacle> {
        let mut held = self.clone();
        held.requirements.add(key, values).map_err(|c| {
            Obstacle::new(ObstacleReason::RequirementsClash, c.in_words(who, &self.node_pool))
        })?;
        held.defined.insert(normalized(key).to_owned());
        Ok(held)
    }

    /// This draft, narrowed to nodes that launch into the capacity reservations of its tier.
    ///
    /// # Errors
    /// The obstacle, if the NodePool does not offer them.
    pub fn held_to_reservations(self, tier: &Tier) -> Result<Self, Obstacle> {
        if tier.reservations.is_empty() {
            return Ok(self);
        }
        let who = format!("tier {}, whose nodes come from reservations,", tier.name);
        let held = self.held_to(names::CAPACITY_TYPE, CapacityType::Reserved.value(), &who)?;
        let all = |value: fn(&CapacityReservation) -> Option<String>| {
            tier.reservations.iter().map(value).collect::<Option<Vec<String>>>()
        };
        let asked = [
            (names::RESERVATION_ID, all(|one| Some(one.id.clone()))),
            (names::INSTANCE_TYPE, all(|one| one.instance_type.clone())),
            (names::ZONE, all(|one| one.zone.clone())),
        ];
        let mut asked = asked.into_iter().filter_map(|(key, values)| Some((key, Values::of(&values?))));
        asked.try_fold(held, |held, (key, values)| held.narrowed(key, &values, &who))
    }

    /// Whether the NodePool, the policy or a flavor asks for a label, rather than pods alone.
    pub fn defines(&self, key: &str) -> bool {
        self.defined.contains(key)
    }

    /// Age at which Karpenter deletes the nodes, whatever runs there. `Never` for no limit.
    pub fn expire_after(&self) -> &str {
        self.pool.spec.template.spec.expire_after.as_deref().unwrap_or(DEFAULT_EXPIRY)
    }

    /// API group of the NodeClass of its NodePool.
    pub fn node_class_group(&self) -> &str {
        &self.node_class().group
    }

    /// The NodeClass of its NodePool.
    pub fn node_class(&self) -> &NodeClassRef {
        &self.pool.spec.template.spec.node_class_ref
    }

    /// The limits of its NodePool.
    pub fn limits(&self) -> Option<&ResourceList> {
        self.pool.spec.limits.as_ref()
    }

    /// Whether nodes made from both are identical.
    pub fn is_like(&self, other: &Self) -> bool {
        self.node_pool == other.node_pool
            && self.requirements == other.requirements
            && self.defined == other.defined
    }

    /// Taints of the nodes. Includes the gang's taint if the pinning uses it.
    pub fn taints(&self, gang: &str, pinning: Pinning) -> Vec<Taint> {
        let mut taints = self.pool.spec.template.spec.taints.clone();
        if pinning == Pinning::SelectorAndTaint {
            taints.push(gang_taint(gang));
        }
        taints
    }

    /// The claim without name and gang labels. It requests these amounts and asks for these types, if any are given.
    pub fn claim(
        &self,
        requests: ResourceList,
        taints: Vec<Taint>,
        types: Option<&Values>,
    ) -> Result<NodeClaim, Obstacle> {
        let mut requirements = self.requirements.clone();
        if let Some(types) = types {
            // The types were chosen among those that the requirements allow, so this cannot fail.
            let _ = requirements.add(names::INSTANCE_TYPE, types);
        }
        let template = &self.pool.spec.template;
        let spec = NodeClaimSpec {
            requirements: requirements.render(),
            resources: ResourceRequests { requests },
            taints,
            startup_taints: template.spec.startup_taints.clone(),
            node_class_ref: template.spec.node_class_ref.clone(),
            expire_after: Some(self.expire_after().to_owned()),
            termination_grace_period: template.spec.termination_grace_period.clone(),
        };
        let mut claim = NodeClaim::new("", spec);
        claim.metadata.labels = Some(self.labels()?);
        claim.metadata.annotations = Some(self.annotations());
        claim.metadata.owner_references = self.owner().map(|owner| vec![owner]);
        Ok(claim)
    }

    fn labels(&self) -> Result<BTreeMap<String, String>, Obstacle> {
        let mut labels = self.pool.spec.template.metadata.labels.clone();
        labels.insert(names::NODEPOOL.to_owned(), self.node_pool.clone());
        labels.insert(node_class_key(&self.pool), self.pool.spec.template.spec.node_class_ref.name.clone());
        // Karpenter marks a claim as drifted if a custom key of its NodePool has no label. A key that only pods name is one they
        // exclude, and needs no label.
        let custom = |key: &String| self.defined.contains(key) && !is_well_known(key) && !is_reserved(key);
        for (key, values) in self.requirements.iter().filter(|(key, _)| custom(key)) {
            if let Some(value) = values.pick() {
                labels.insert(key.clone(), value);
            }
        }
        match labels.iter().find(|(_, value)| !is_label_value(value)) {
            None => Ok(labels),
            Some((key, value)) => Err(bad_label(key, value)),
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
        annotations.extend(self.holds.iter().map(|key| ((*key).to_owned(), "true".to_owned())));
        annotations
    }

    /// The NodePool as owner. `None` for a NodePool from a file, which has no UID.
    fn owner(&self) -> Option<OwnerReference> {
        Some(OwnerReference {
            api_version: "karpenter.sh/v1".to_owned(),
            kind: "NodePool".to_owned(),
            name: self.node_pool.clone(),
            uid: self.pool.metadata.uid.clone()?,
            block_owner_deletion: Some(true),
            controller: None,
        })
    }
}

/// The label key under which Karpenter records the NodeClass.
fn node_class_key(pool: &NodePool) -> String {
    let class = &pool.spec.template.spec.node_class_ref;
    format!("{}/{}", class.group, class.kind.to_ascii_lowercase())
}

/// The requirements that every node of a pool meets.
fn of_pool(pool: &NodePool) -> Result<Requirements, Clash> {
    let mut requirements = Requirements::default();
    let template = &pool.spec.template;
    requirements.add_all(&template.spec.requirements)?;
    for (key, value) in &template.metadata.labels {
        requirements.add(key, &Values::one(value))?;
    }
    requirements.add(names::NODEPOOL, &Values::one(pool.metadata.name.as_deref().unwrap_or_default()))?;
    requirements.add(&node_class_key(pool), &Values::one(&template.spec.node_class_ref.name))?;
    // Every node gets these labels, and pods may select on them. A claim does not state them.
    for key in [names::REGISTERED, names::INITIALIZED] {
        requirements.add(key, &Values::one("true"))?;
    }
    Ok(requirements)
}

/// The inputs of a draft.
struct DraftParts<'a> {
    pool: &'a NodePool,
    request: &'a PlanRequest<'a>,
    tier: &'a Tier,
    wanted: &'a PodSetDemand<'a>,
}

impl DraftParts<'_> {
    fn node_pool(&self) -> &str {
        self.pool.metadata.name.as_deref().unwrap_or_default()
    }

    /// The pod set, for messages.
    fn pods(&self) -> String {
        format!("pod set {}", self.wanted.pod_set.name)
    }

    fn obstacle(&self, reason: ObstacleReason, who: &str, clash: &Clash) -> Obstacle {
        Obstacle::new(reason, clash.in_words(who, self.node_pool()))
    }

    /// The requirements that the NodePool offers, narrowed by the policy and the tier.
    fn offered(&self) -> Result<Requirements, Obstacle> {
        let clash = |who: &str, clash: &Clash| self.obstacle(ObstacleReason::RequirementsClash, who, clash);
        let template = || format!("the template of NodePool {}", self.node_pool());
        let mut requirements = of_pool(self.pool).map_err(|c| clash(&template(), &c))?;
        let policy = self.request.policy;
        requirements.add_all(&policy.requirements).map_err(|c| clash("the policy", &c))?;
        let tier = format!("tier {}", self.tier.name);
        requirements.add_all(&self.tier.requirements).map_err(|c| clash(&tier, &c))?;
        let placement = policy.placement.zones.as_deref().unwrap_or_default();
        for (who, zones) in [(tier.as_str(), self.tier.zones.as_slice()), ("gates.placement", placement)] {
            if !zones.is_empty() {
                requirements.add(names::ZONE, &Values::of(zones)).map_err(|c| clash(who, &c))?;
            }
        }
        Ok(requirements)
    }

    /// Adds the labels of the pod set's flavors.
    fn with_flavors(&self, mut requirements: Requirements) -> Result<Requirements, Obstacle> {
        for flavor in &self.wanted.flavors {
            let who = format!("ResourceFlavor {}", flavor.metadata.name.as_deref().unwrap_or_default());
            let clash = |clash: &Clash| self.obstacle(ObstacleReason::FlavorNotOffered, &who, clash);
            for (key, value) in &flavor.spec.node_labels {
                let key = normalized(key);
                // A pool that the tier names may be given the flavor's labels. Any other pool must define them.
                let can_be_given = self.tier.node_pool_name.is_some() && !is_reserved(key);
                if !is_well_known(key) && requirements.get(key).is_none() && !can_be_given {
                    return Err(clash(&undefined(key, value)));
                }
                requirements.add(key, &Values::one(value)).map_err(|c| clash(&c))?;
            }
        }
        Ok(requirements)
    }

    /// Adds what the pods and their volumes require.
    fn with_pods(&self, offered: &Requirements) -> Result<Requirements, Obstacle> {
        let clash = |c: &Clash| self.obstacle(ObstacleReason::RequirementsClash, &self.pods(), c);
        let spec = self.without_pin();
        let selected = selected(offered, &spec).map_err(|c| clash(&c))?;
        let affinity = affinity_terms(&spec).map_err(|c| clash(&c))?;
        let reach = &self.wanted.reach;
        let volumes = reach.iter().map(|reach| reach.terms.as_slice());
        let choices: Vec<_> = [affinity.as_slice()].into_iter().chain(volumes).collect();
        with_one_of_each(&selected, &choices).map_err(|(index, c)| {
            let volume = index.checked_sub(1).and_then(|index| reach.get(index));
            volume.map_or_else(
                || clash(&c),
                |volume| self.obstacle(ObstacleReason::VolumeUnusable, &volume.text, &c),
            )
        })
    }

    /// The pods' spec without the gang's own node selector, which the template of a running Job has.
    fn without_pin(&self) -> Cow<'_, PodSpec> {
        let spec = &*self.wanted.spec;
        let pinned =
            spec.node_selector.get(names::GANG).is_some_and(|value| value == self.request.gang_label);
        if !pinned || self.request.workload.replaces().is_none() {
            return Cow::Borrowed(spec);
        }
        let mut spec = spec.clone();
        spec.node_selector.remove(names::GANG);
        Cow::Owned(spec)
    }

    /// Refuses values that no label can have, and keys that no node has.
    fn check_labels(&self, requirements: &Requirements) -> Result<(), Obstacle> {
        if let Some((key, value)) = requirements.bad_value() {
            return Err(bad_label(key, value));
        }
        let Some((key, words)) = labels::absent(requirements, self.pool) else { return Ok(()) };
        let writer = self.writer(key).unwrap_or_else(|| self.pods());
        Err(Obstacle::new(ObstacleReason::RequirementsClash, format!("{writer} asks for {words}")))
    }

    /// Who asks for a label, if it is not the pods or a flavor.
    fn writer(&self, key: &str) -> Option<String> {
        let of_tier =
            labels::requires(&self.tier.requirements, key).then(|| format!("tier {}", self.tier.name));
        let of_policy =
            labels::requires(&self.request.policy.requirements, key).then(|| "the policy".to_owned());
        let of_pool = labels::states(self.pool, key).then(|| format!("NodePool {}", self.node_pool()));
        of_pool.or(of_policy).or(of_tier)
    }

    fn check_taints(&self) -> Result<(), Obstacle> {
        let tolerations: Vec<Toleration> = self.wanted.tolerations().cloned().collect();
        let mut taints = self.pool.spec.template.spec.taints.iter();
        let Some(taint) = taints.find(|taint| !tolerates(&tolerations, taint)) else { return Ok(()) };
        Err(Obstacle::new(
            ObstacleReason::TaintNotTolerated,
            format!(
                "{} does not tolerate taint {} of NodePool {}; add the toleration to the pods or to the ResourceFlavor",
                self.pods(),
                taints::in_words(taint),
                self.node_pool()
            ),
        ))
    }
}

fn bad_label(key: &str, value: &str) -> Obstacle {
    Obstacle::new(
        ObstacleReason::RequirementsClash,
        format!("{value:?} cannot be the value of label {key}: at most 63 letters, digits, '-', '_' and '.'"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::affinity::NODE_NAME;
    use super::super::fixtures::{Fixture, flavor, object, patched, pool};
    use super::super::volumes::Lookup;
    use super::*;
    use serde_json::{Value, json};

    fn world(template: &Value) -> Fixture {
        Fixture::new().pools(vec![pool("gpu", &json!({"spec": {"template": template}}))])
    }

    fn claim(world: &Fixture) -> NodeClaim {
        (*world.provisioned().slots[0].template).clone()
    }

    fn label(claim: &NodeClaim, key: &str) -> Option<String> {
        claim.metadata.labels.as_ref().unwrap().get(key).cloned()
    }

    fn requirement(claim: &NodeClaim, key: &str) -> Vec<(String, Vec<String>)> {
        let all = claim.spec.requirements.iter().filter(|r| r.key == key);
        all.map(|r| (r.operator.clone(), r.values.clone())).collect()
    }

    fn only(value: &str) -> Vec<(String, Vec<String>)> {
        vec![("In".to_owned(), vec![value.to_owned()])]
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn a_capacity_type_that_does_not_exist_is_refused_and_its_author_is_named() {
        let asked = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["cheap"]}]);
        for (world, who) in [
            (
                world(&json!({})).pods(&json!({"nodeSelector": {(names::CAPACITY_TYPE): "cheap"}})),
                "pod set main",
            ),
            (world(&json!({"spec": {"requirements": asked}})), "NodePool gpu"),
        ] {
            let message = format!(
                "{who} asks for a karpenter.sh/capacity-type that does not exist; the values are on-demand, reserved, spot"
            );
            assert_eq!(world.obstacle(), (ObstacleReason::RequirementsClash, message));
        }
    }

    #[test]
    fn a_label_that_only_another_providers_nodes_have_is_refused_if_the_node_pool_does_not_state_it() {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let key = "eks.amazonaws.com/capacityType";
        let asking = |template: &Value, spec: &Value| {
            let template = patched(json!({"spec": {"nodeClassRef": class}}), template);
            world(&template).pods(spec)
        };
        let (one, bare) = (json!({"nodeSelector": {key: "SPOT"}}), json!({}));
        let message = format!(
            "pod set main asks for label {key}, which nodes of NodePool gpu do not get: it is another provider's"
        );
        assert_eq!(asking(&bare, &one).obstacle(), (ObstacleReason::RequirementsClash, message));
        let none = affinity(&json!([{"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}]));
        for world in [asking(&json!({"metadata": {"labels": {key: "SPOT"}}}), &one), asking(&bare, &none)] {
            assert_eq!(world.provisioned().nodes(), 1);
        }
    }

    #[test]
    fn claims_are_annotated_against_node_repair_if_the_policy_says_so() {
        let mut world = world(&json!({}));
        let no_repair = |world: &Fixture| claim(world).annotation(names::DO_NOT_REPAIR).to_owned();
        assert_eq!(no_repair(&world), "");
        world.policy.do_not_repair = true;
        assert_eq!(
            (no_repair(&world), claim(&world).annotation(names::DO_NOT_DISRUPT)),
            ("true".to_owned(), "true")
        );
    }

    #[test]
    fn a_claim_equals_one_that_karpenter_would_create() {
        let template = json!({"spec": {
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "starting", "effect": "NoExecute"}],
            "terminationGracePeriod": "1h",
        }});
        let tolerating = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
        let mut world = world(&template).pods(&tolerating);
        world.policy.pinning = Pinning::Selector;
        let claim = claim(&world);
        let expected = json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {
                "name": "",
                "labels": {"team": "ml", "karpenter.sh/nodepool": "gpu", "karpenter.kwok.sh/kwoknodeclass": "default"},
                "annotations": {
                    "note": "x",
                    "karpenter.sh/nodepool-hash": "123",
                    "karpenter.sh/nodepool-hash-version": "v3",
                    "karpenter.sh/nodeclaim-min-values-relaxed": "false",
                    "karpenter.sh/do-not-disrupt": "true",
                    "setu.kueue.x-k8s.io/pod-requests": claim.annotation(names::POD_REQUESTS),
                },
                "ownerReferences": [{
                    "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "gpu", "uid": "uid-gpu",
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "requirements": [
                    {"key": "karpenter.kwok.sh/kwoknodeclass", "operator": "In", "values": ["default"]},
                    {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["gpu"]},
                    {"key": "team", "operator": "In", "values": ["ml"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]},
                ],
                "resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1", "pods": "1"}},
                "taints": [{"key": "gpu", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "starting", "effect": "NoExecute"}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "expireAfter": "720h",
                "terminationGracePeriod": "1h",
            },
        });
        assert_eq!(serde_json::to_value(&claim).unwrap(), expected);
    }

    #[test]
    fn the_gang_taint_is_added_and_the_pools_expiry_is_kept() {
        let claim = claim(&world(&json!({"spec": {"expireAfter": "Never"}})));
        assert_eq!(claim.spec.taints, [gang_taint("g1")]);
        assert_eq!(claim.spec.expire_after.as_deref(), Some("Never"));
    }

    #[test]
    fn a_pool_without_a_hash_annotation_gives_no_hash() {
        let mut world = Fixture::new();
        world.objects.node_pools = vec![pool("gpu", &json!({"metadata": {"annotations": null}}))];
        assert_eq!(claim(&world).annotation(names::NODEPOOL_HASH), "");
    }

    #[test]
    fn a_custom_requirement_of_the_pool_becomes_one_concrete_label() {
        let requirements = json!({"spec": {"requirements": [
            {"key": "rack", "operator": "In", "values": ["r2", "r1"]},
            {"key": "generation", "operator": "Gt", "values": ["3"]},
            {"key": "legacy", "operator": "DoesNotExist"},
            {"key": names::ARCH, "operator": "In", "values": ["arm64"]},
        ]}});
        let claim = claim(&world(&requirements));
        assert_eq!(label(&claim, "rack").as_deref(), Some("r1"));
        assert_eq!(label(&claim, "generation").as_deref(), Some("4"));
        assert_eq!(label(&claim, "legacy"), None);
        assert_eq!(label(&claim, names::ARCH), None, "the provider knows that one");
    }

    #[test]
    fn every_label_of_every_flavor_is_on_the_node() {
        let mut world = world(&json!({"spec": {"requirements": [{"key": "rack", "operator": "Exists"}]}}));
        let known = json!({"beta.kubernetes.io/instance-type": "p5", "team": "ml", "rack": "r7"});
        world.objects.flavors = vec![flavor("gpu", &known)];
        let claim = claim(&world);
        assert_eq!(requirement(&claim, names::INSTANCE_TYPE), only("p5"));
        assert_eq!(
            (label(&claim, "rack").unwrap().as_str(), requirement(&claim, "rack")),
            ("r7", only("r7"))
        );
    }

    #[test]
    fn a_flavor_label_missing_in_the_pool_is_added_only_if_the_tier_names_the_pool() {
        let mut world = Fixture::new();
        world.objects.flavors = vec![flavor("gpu", &json!({"example.com/pool": "x"}))];
        let expected = "ResourceFlavor gpu asks for example.com/pool [x], but NodePool gpu offers no such label; add \
                        it to the template there";
        assert_eq!(world.obstacle(), (ObstacleReason::FlavorNotOffered, expected.to_owned()));
        world.policy.node_pool = Some("gpu".into());
        let claim = claim(&world);
        assert_eq!(label(&claim, "example.com/pool").as_deref(), Some("x"));
        assert_eq!(requirement(&claim, "example.com/pool"), only("x"));
    }

    #[test]
    fn labels_that_others_set_are_never_stated() {
        let mut world = Fixture::new().pods(&json!({"nodeSelector": {"karpenter.sh/initialized": "true"}}));
        world.policy.node_pool = Some("gpu".into());
        world.objects.flavors = vec![flavor("gpu", &json!({"karpenter.sh/registered": "true"}))];
        let claim = claim(&world);
        for key in [names::REGISTERED, names::INITIALIZED] {
            assert_eq!((label(&claim, key), requirement(&claim, key)), (None, Vec::new()));
        }
        world.objects.flavors = vec![flavor("gpu", &json!({"kubernetes.io/hostname": "n1"}))];
        assert_eq!(world.obstacle().0, ObstacleReason::FlavorNotOffered);
    }

    #[test]
    fn terms_of_affinity_and_volume_are_chosen_so_that_both_are_met() {
        let also = |zone: &str, kind: &str| {
            json!({"matchExpressions": [
                {"key": names::ZONE, "operator": "In", "values": [zone]},
                {"key": names::CAPACITY_TYPE, "operator": "In", "values": [kind]},
            ]})
        };
        let zone = |zone: &str| json!({"matchExpressions": [{"key": names::ZONE, "operator": "In", "values": [zone]}]});
        let with_volume = |terms: Value| {
            let volume = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]});
            let mut world = Fixture::new().pods(&patched(affinity(&terms), &volume));
            let in_b = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [zone("b")]}}}});
            world.storage.claims =
                [("v".to_owned(), Lookup::There(Box::new(object(json!({"spec": {"volumeName": "pv"}})))))]
                    .into();
            world.storage.volumes = [("pv".to_owned(), Lookup::There(Box::new(object(in_b))))].into();
            world
        };
        for terms in [json!([zone("a"), zone("b")]), json!([also("a", "spot"), also("b", "on-demand")])] {
            assert_eq!(requirement(&claim(&with_volume(terms)), names::ZONE), only("b"));
        }
        let (_, message) = with_volume(json!([zone("a")])).obstacle();
        assert!(message.contains("PersistentVolume pv"), "{message}");
    }

    #[test]
    fn affinity_terms_that_name_nodes_are_skipped() {
        let named = |operator: &str| json!({"matchFields": [{"key": NODE_NAME, "operator": operator, "values": ["n1"]}]});
        let zone = json!({"matchExpressions": [{"key": names::ZONE, "operator": "In", "values": ["b"]}]});
        let both = Fixture::new().pods(&affinity(&json!([named("In"), zone])));
        assert_eq!(requirement(&claim(&both), names::ZONE), only("b"));
        Fixture::new().pods(&affinity(&json!([named("NotIn")]))).provisioned();
        for terms in [json!([named("In")]), json!([{}])] {
            let (reason, message) = Fixture::new().pods(&affinity(&terms)).obstacle();
            assert_eq!(reason, ObstacleReason::RequirementsClash);
            assert!(message.contains("offers new nodes alone, whose names nobody knows yet"), "{message}");
        }
    }

    #[test]
    fn the_first_term_of_the_affinity_that_can_be_met_narrows_the_claim() {
        let asks = |key: &str, v: &str| json!({"key": key, "operator": "In", "values": [v]});
        let term = |z: &str| json!({"matchExpressions": [asks(names::ZONE, z), asks(names::ARCH, "amd64")]});
        let world = Fixture::new().pods(&affinity(&json!([term("c"), term("b"), term("a")])));
        assert_eq!(requirement(&claim(&world), names::ZONE), only("b"));
        let world = Fixture::new().pods(&affinity(&json!([term("c"), term("d")])));
        let expected = "pod set main asks for topology.kubernetes.io/zone [c], but NodePool gpu offers [a b]";
        assert_eq!(world.obstacle().1, expected);
    }

    #[test]
    fn affinity_terms_that_list_values_of_one_label_are_merged() {
        let zone =
            |z: &str| json!({"matchExpressions": [{"key": names::ZONE, "operator": "In", "values": [z]}]});
        let world = Fixture::new().pods(&affinity(&json!([zone("c"), zone("b"), zone("a")])));
        let either = vec![("In".to_owned(), ["a", "b"].map(str::to_owned).to_vec())];
        assert_eq!(requirement(&claim(&world), names::ZONE), either);
        let world = Fixture::new().pods(&affinity(&json!([zone("c"), zone("d")])));
        let expected =
            "pod set main asks for topology.kubernetes.io/zone [c d], but NodePool gpu offers [a b]";
        assert_eq!(world.obstacle().1, expected);
    }

    #[test]
    fn excluded_label_values_become_requirements_and_not_labels() {
        let excluding = affinity(&json!([{"matchExpressions": [
            {"key": "example.com/broken", "operator": "NotIn", "values": ["yes"]},
        ]}]));
        let claim = claim(&Fixture::new().pods(&excluding));
        assert_eq!(label(&claim, "example.com/broken"), None);
        assert_eq!(requirement(&claim, "example.com/broken"), [("NotIn".to_owned(), vec!["yes".to_owned()])]);
    }

    #[test]
    fn the_policy_narrows_the_pool_and_does_not_widen_it() {
        let only_in = |key: &str, value: &str| {
            vec![crate::api::node_claim::Requirement {
                key: key.into(),
                operator: "In".into(),
                values: vec![value.into()],
                min_values: None,
            }]
        };
        let mut world = Fixture::new();
        world.policy.requirements = only_in(names::CAPACITY_TYPE, "spot");
        assert_eq!(requirement(&claim(&world), names::CAPACITY_TYPE), only("spot"));
        world.policy.requirements = only_in(names::ZONE, "c");
        assert!(world.obstacle().1.starts_with("the policy asks for"));
        world.policy.requirements = only_in(names::REGION, "not a label");
        assert!(world.obstacle().1.starts_with("\"not a label\" cannot be the value"));
    }

    #[test]
    fn a_taint_is_tolerated_by_the_pods_or_by_a_flavor() {
        let template = json!({"spec": {"taints": [
            {"key": "gpu", "value": "x", "effect": "NoExecute"}, {"key": "soft", "effect": "PreferNoSchedule"},
        ]}});
        let mut world = world(&template);
        assert_eq!(world.obstacle().0, ObstacleReason::TaintNotTolerated);
        let mut tolerant = (*flavor("gpu", &json!({}))).clone();
        tolerant.spec.tolerations =
            vec![serde_json::from_value(json!({"key": "gpu", "value": "x"})).unwrap()];
        world.objects.flavors = vec![Arc::new(tolerant)];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn an_unreadable_quantity_error_names_its_object() {
        let pods = json!({"containers": [{"resources": {"requests": {"cpu": "many"}}}]});
        let (reason, message) = Fixture::new().pods(&pods).obstacle();
        assert_eq!(reason, ObstacleReason::BadQuantity);
        assert!(
            message.starts_with("pod set main requests cpu: \"many\" is not a valid quantity"),
            "{message}"
        );
    }
}
