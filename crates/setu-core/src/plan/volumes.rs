//! Where the pods' volumes can be used, and so where their nodes may be.
//!
//! Sources: `spec.nodeAffinity` of the PersistentVolume that a claim is bound to, and `allowedTopologies` of the StorageClass of
//! a claim that is bound when its pod is scheduled.

use super::affinity::joined;
use super::{Obstacle, ObstacleReason, Outcome};
use crate::api::pod::Volume;
use crate::api::requirements::normalized;
use crate::api::workload::PodSet;
use crate::api::{ResourceClaimTemplate, Workload};
use crate::names;
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    TopologySelectorTerm,
};
use k8s_openapi::api::storage::v1::StorageClass;
use std::collections::{BTreeMap, BTreeSet};

/// Provisioner of classes whose volumes are created by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Provisioners of disks that are each in one zone.
const ZONAL: [&str; 7] = [
    "ebs.csi.aws.com",
    "ebs.csi.eks.amazonaws.com",
    "pd.csi.storage.gke.io",
    "disk.csi.azure.com",
    "kubernetes.io/aws-ebs",
    "kubernetes.io/gce-pd",
    "kubernetes.io/azure-disk",
];

/// The result of reading an object that the pods depend on.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup<T> {
    /// It exists.
    There(Box<T>),
    /// It does not exist.
    Absent,
    /// Setu may not read it.
    Forbidden,
}

/// The objects that the pods of a Workload name: those of storage, and templates of claims for devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Storage {
    /// PersistentVolumeClaims of the Workload's namespace.
    pub claims: BTreeMap<String, Lookup<PersistentVolumeClaim>>,
    /// PersistentVolumes.
    pub volumes: BTreeMap<String, Lookup<PersistentVolume>>,
    /// StorageClasses.
    pub classes: BTreeMap<String, Lookup<StorageClass>>,
    /// ResourceClaimTemplates of the Workload's namespace.
    pub claim_templates: BTreeMap<String, Lookup<ResourceClaimTemplate>>,
}

impl Storage {
    /// Adds the objects that it does not hold.
    pub fn add(&mut self, more: Self) {
        fn add<K>(all: &mut BTreeMap<String, Lookup<K>>, more: BTreeMap<String, Lookup<K>>) {
            for (name, found) in more {
                all.entry(name).or_insert(found);
            }
        }
        add(&mut self.claims, more.claims);
        add(&mut self.volumes, more.volumes);
        add(&mut self.classes, more.classes);
        add(&mut self.claim_templates, more.claim_templates);
    }

    /// Whether a claim's volume is created near the first pod that uses it, and only one node at a time can mount it. Volumes
    /// with other access modes are often file systems that every zone can mount.
    pub fn follows_first_pod(&self, claim: &str) -> bool {
        let Some(Lookup::There(claim)) = self.claims.get(claim) else { return false };
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        let once = !modes.is_empty() && modes.iter().all(|mode| mode == "ReadWriteOnce");
        let class = class_of(claim).and_then(|class| self.classes.get(class));
        let waits = matches!(class, Some(Lookup::There(class)) if waits_for_pod(class));
        once && waits && volume_of(claim).is_none()
    }
}

fn waits_for_pod(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Where one volume can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeTopology {
    /// The volume and its user, for messages.
    pub text: String,
    /// Alternatives of which a node must meet one, as in a node affinity.
    pub terms: Vec<Vec<NodeSelectorRequirement>>,
}

/// Names of the PersistentVolumeClaims that the pods use.
pub fn claims_of(workload: &Workload) -> BTreeSet<String> {
    workload.spec.pod_sets.iter().flat_map(claims_of_set).map(str::to_owned).collect()
}

/// Names of the PersistentVolumeClaims that the pods of a pod set use.
pub fn claims_of_set(pod_set: &PodSet) -> impl Iterator<Item = &str> {
    let volumes = pod_set.template.spec.volumes.iter();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// Names of the StorageClasses of ephemeral volumes, which are created with each pod.
pub fn ephemeral_classes_of(workload: &Workload) -> BTreeSet<String> {
    volumes(workload).filter_map(|volume| volume.ephemeral_class().map(str::to_owned)).collect()
}

/// Name of the PersistentVolume that a claim is, or will be, bound to.
pub fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// Name of the StorageClass of a claim.
pub fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref().filter(|name| !name.is_empty())
}

fn volumes(workload: &Workload) -> impl Iterator<Item = &Volume> {
    workload.spec.pod_sets.iter().flat_map(|set| &set.template.spec.volumes)
}

/// Where the volumes of `pods` pods of a pod set of this Workload can be used.
///
/// # Errors
/// The volume that is not ready, or that these pods can never use on new nodes.
pub fn reach(
    storage: &Storage,
    workload: &Workload,
    pod_set: &PodSet,
    pods: u32,
) -> Result<Vec<VolumeTopology>, Outcome> {
    let reader = VolumeReader { storage, workload, pod_set: &pod_set.name, pods };
    let mut all = Vec::new();
    for volume in &pod_set.template.spec.volumes {
        if let Some(claim) = &volume.persistent_volume_claim {
            all.extend(reader.claim(&claim.claim_name)?);
        }
        if let Some(class) = volume.ephemeral_class() {
            all.extend(reader.class(class, &format!("volume {}", volume.name), ClaimCreation::WithPod)?);
        }
    }
    all.retain(|reach| !reach.terms.is_empty());
    Ok(all)
}

/// When the claim of a volume is created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimCreation {
    BeforePod,
    WithPod,
}

struct VolumeReader<'a> {
    storage: &'a Storage,
    workload: &'a Workload,
    pod_set: &'a str,
    pods: u32,
}

impl VolumeReader<'_> {
    fn claim(&self, name: &str) -> Result<Option<VolumeTopology>, Outcome> {
        let what = format!("PersistentVolumeClaim {name}");
        let claim = self.found(self.storage.claims.get(name), &what, "persistentvolumeclaims")?;
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
        let pods = self.pods_with(name);
        if pods > 1 && modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod")) {
            return Err(self.unusable(&format!(
                "{what} has access mode ReadWriteOncePod, but {pods} pods use it; give each pod its own volume"
            )));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(self.not_ready(&format!("{what} is being deleted; recreate the claim")));
        }
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
            return Err(self.unusable(&format!("{what} has lost its volume; recreate the claim")));
        }
        if let Some(volume) = volume_of(claim) {
            return self.volume(volume, claim, name, &what);
        }
        match class_of(claim) {
            Some(class) => self.class(class, &what, ClaimCreation::BeforePod),
            None => Err(self.not_ready(&format!("{what} is not bound to a volume and has no StorageClass"))),
        }
    }

    /// The number of the Workload's pods that use a claim, including those of other pod sets.
    fn pods_with(&self, claim: &str) -> u32 {
        let others = self.workload.spec.pod_sets.iter().filter(|set| set.name != self.pod_set);
        let users = others.filter(|set| claims_of_set(set).any(|of_set| of_set == claim));
        users.filter_map(|set| u32::try_from(set.count).ok()).fold(self.pods, u32::saturating_add)
    }

    fn volume(
        &self,
        name: &str,
        claim: &PersistentVolumeClaim,
        claim_name: &str,
        asking: &str,
    ) -> Result<Option<VolumeTopology>, Outcome> {
        let what = format!("PersistentVolume {name}");
        let volume = self.found(self.storage.volumes.get(name), &what, "persistentvolumes")?;
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let is_own = |owner: &&ObjectReference| {
            owner.name.as_deref() == Some(claim_name) && owner.namespace == self.workload.metadata.namespace
        };
        let uids = owner.and_then(|owner| owner.uid.as_ref()).zip(claim.metadata.uid.as_ref());
        if uids.is_some_and(|(of_owner, own)| of_owner != own) {
            return Err(self.not_ready(&format!(
                "{asking} asks for {what}, which an earlier claim has; take spec.claimRef off the volume, or name another one"
            )));
        }
        if let Some(other) = owner.filter(|owner| !is_own(owner)) {
            return Err(self.not_ready(&format!(
                "{asking} asks for {what}, which PersistentVolumeClaim {} of namespace {} has; name another volume",
                other.name.as_deref().unwrap_or_default(),
                other.namespace.as_deref().unwrap_or_default()
            )));
        }
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        let labelled = label_requirements(volume);
        let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
            let terms = if labelled.is_empty() { Vec::new() } else { vec![labelled] };
            return Ok(Some(VolumeTopology { text: self.of(&what), terms }));
        };
        let all = required.node_selector_terms.iter().filter(|term| !is_of_one_node(term));
        let terms: Vec<_> = all.map(|term| [expressions(term), labelled.clone()].concat()).collect();
        if terms.is_empty() {
            return Err(self.unusable(&format!(
                "{asking} is bound to {what}, which exists on one node; a new node cannot use it"
            )));
        }
        Ok(Some(VolumeTopology { text: self.of(&what), terms: joined(terms) }))
    }

    fn class(&self, name: &str, whose: &str, made: ClaimCreation) -> Result<Option<VolumeTopology>, Outcome> {
        let what = format!("StorageClass {name}");
        let class = self.found(self.storage.classes.get(name), &what, "storageclasses")?;
        if !waits_for_pod(class) && made == ClaimCreation::BeforePod {
            return Err(self.not_ready(&format!("{whose} is not bound to a volume yet")));
        }
        if class.provisioner == NO_PROVISIONER {
            return Err(self.unusable(&format!(
                "{whose} has {what}, whose volumes are created by hand on unknown nodes; bind the claim to a volume that \
                 new nodes can use"
            )));
        }
        let terms = joined(class.allowed_topologies.iter().flatten().map(allowed).collect());
        if !waits_for_pod(class) && may_be_elsewhere(class, &terms) {
            return Err(self.unusable(&format!(
                "{whose} has {what}, which may create a volume in a zone without the pod's node; set its volumeBindingMode to \
                 WaitForFirstConsumer, or list only the nodes' zone under its allowedTopologies"
            )));
        }
        Ok(Some(VolumeTopology { text: self.of(&what), terms }))
    }

    fn found<'f, T>(
        &self,
        found: Option<&'f Lookup<T>>,
        what: &str,
        resource: &str,
    ) -> Result<&'f T, Outcome> {
        match found {
            Some(Lookup::There(object)) => Ok(object),
            Some(Lookup::Forbidden) => Err(Outcome::Refuse(Obstacle::new(
                ObstacleReason::VolumeUnreadable,
                format!("{} may not be read; grant Setu the right to get {resource}", self.of(what)),
            ))),
            Some(Lookup::Absent) | None => Err(self.not_ready(&format!("{what} does not exist; create it"))),
        }
    }

    fn of(&self, what: &str) -> String {
        format!("{what} of pod set {}", self.pod_set)
    }

    fn not_ready(&self, why: &str) -> Outcome {
        let message = format!("pod set {}: {why}", self.pod_set);
        Outcome::Refuse(Obstacle::new(ObstacleReason::VolumeNotReady, message))
    }

    fn unusable(&self, why: &str) -> Outcome {
        let message = format!("pod set {}: {why}", self.pod_set);
        Outcome::Refuse(Obstacle::new(ObstacleReason::VolumeUnusable, message))
    }
}

/// Whether a class that creates volumes without regard to the pods may create them in several zones. `terms` are what it allows.
fn may_be_elsewhere(class: &StorageClass, terms: &[Vec<NodeSelectorRequirement>]) -> bool {
    let values = |term: &Vec<NodeSelectorRequirement>| {
        term.iter().flat_map(|asked| asked.values.iter().flatten()).count()
    };
    let is_region = |asked: &NodeSelectorRequirement| normalized(&asked.key) == names::REGION;
    let is_in_any_zone = || is_of_one_zone_each(class) && terms.iter().flatten().all(is_region);
    terms.len() > 1 || terms.iter().any(|term| values(term) > 1) || is_in_any_zone()
}

/// Whether each volume of a class is in one zone, as far as its provisioner is known.
fn is_of_one_zone_each(class: &StorageClass) -> bool {
    // Disks of Azure that every zone of their region has.
    let is_of_all_zones = |value: &String| value.to_ascii_uppercase().ends_with("_ZRS");
    ZONAL.contains(&class.provisioner.as_str())
        && !class.parameters.iter().flatten().any(|(_, value)| is_of_all_zones(value))
}

/// Zones and regions in the labels of a volume. The scheduler respects them in addition to the node affinity.
fn label_requirements(volume: &PersistentVolume) -> Vec<NodeSelectorRequirement> {
    const KEYS: [&str; 4] = [
        names::ZONE,
        names::REGION,
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    ];
    let labels = volume.metadata.labels.iter().flatten();
    let labels = labels.filter(|(key, _)| KEYS.contains(&key.as_str()));
    // Several values are joined in one label.
    let values = |value: &String| value.split("__").map(str::to_owned).collect();
    let asked = |(key, value): (&String, &String)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(values(value)),
    };
    labels.map(asked).collect()
}

/// Whether the term names existing nodes, or is empty and so matches none.
fn is_of_one_node(term: &NodeSelectorTerm) -> bool {
    let fields = || term.match_fields.iter().flatten();
    let expressions = || term.match_expressions.iter().flatten();
    let names_some = |asked: &NodeSelectorRequirement| asked.operator == "In";
    fields().chain(expressions()).next().is_none()
        || fields().any(names_some)
        || expressions().any(|asked| asked.key == names::HOSTNAME && names_some(asked))
}

/// Requirements of the term on a new node. Host names are dropped, because a new host name is never excluded.
fn expressions(term: &NodeSelectorTerm) -> Vec<NodeSelectorRequirement> {
    let all = term.match_expressions.iter().flatten();
    all.filter(|asked| asked.key != names::HOSTNAME).cloned().collect()
}

fn allowed(term: &TopologySelectorTerm) -> Vec<NodeSelectorRequirement> {
    let expressions = term.match_label_expressions.iter().flatten();
    let expression =
        |e: &k8s_openapi::api::core::v1::TopologySelectorLabelRequirement| NodeSelectorRequirement {
            key: e.key.clone(),
            operator: "In".to_owned(),
            values: Some(e.values.clone()),
        };
    expressions.map(expression).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, object, patched, pod_set, pool};
    use super::*;
    use serde_json::{Value, json};

    const EBS: &str = "topology.ebs.csi.aws.com/zone";

    fn uses(claim: &str) -> Fixture {
        Fixture::new().pods(&json!({"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim}}, {"name": "tmp", "emptyDir": {}},
        ]}))
    }

    fn there<T: serde::de::DeserializeOwned>(name: &str, value: Value) -> BTreeMap<String, Lookup<T>> {
        [(name.to_owned(), Lookup::There(Box::new(object(value))))].into()
    }

    /// A claim that is bound to a volume with this node affinity.
    fn bound(terms: &Value) -> Fixture {
        let mut world = uses("data");
        world.storage.claims = there("data", json!({"spec": {"volumeName": "pv"}}));
        let affinity = json!({"required": {"nodeSelectorTerms": terms}});
        world.storage.volumes = there("pv", json!({"spec": {"nodeAffinity": affinity}}));
        world
    }

    fn unbound(class: Value) -> Fixture {
        let mut world = uses("data");
        world.storage.claims = there("data", json!({"spec": {"storageClassName": "fast"}}));
        world.storage.classes = there("fast", class);
        world
    }

    fn term(key: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]})
    }

    fn zones(world: &Fixture) -> Vec<String> {
        let plan = world.provisioned();
        let requirements = &plan.slots[0].template.spec.requirements;
        requirements.iter().find(|r| r.key == names::ZONE).unwrap().values.clone()
    }

    fn refused(world: &Fixture) -> String {
        match world.plan() {
            Outcome::Refuse(obstacle) => format!("{}: {}", obstacle.reason, obstacle.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nodes_are_in_the_zone_of_the_bound_volume() {
        for key in [
            names::ZONE,
            EBS,
            "topology.gke.io/zone",
            "topology.disk.csi.azure.com/zone",
            "failure-domain.beta.kubernetes.io/zone",
        ] {
            assert_eq!(zones(&bound(&json!([term(key, &["b"])]))), ["b"], "{key}");
        }
        assert_eq!(zones(&bound(&json!([term(EBS, &["b"]), term(names::ZONE, &["a"])]))), ["a", "b"]);
    }

    #[test]
    fn nodes_are_in_the_zone_that_the_label_of_a_volume_names() {
        let labelled = |zones: &str, spec: Value| {
            let mut world = bound(&json!([]));
            let labels = json!({(names::ZONE): zones, "other": "x"});
            world.storage.volumes = there("pv", json!({"metadata": {"labels": labels}, "spec": spec}));
            world
        };
        assert_eq!(zones(&labelled("b", json!({}))), ["b"]);
        assert_eq!(zones(&labelled("a__b", json!({}))), ["a", "b"]);
        let affinity = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [term(EBS, &["b", "c"])]}}});
        assert_eq!(zones(&labelled("a__b", affinity)), ["b"], "both are to be met");
        assert!(refused(&labelled("z", json!({}))).contains("PersistentVolume pv"));
    }

    #[test]
    fn volume_in_a_zone_that_no_node_pool_offers_is_refused() {
        let said = refused(&bound(&json!([term(names::ZONE, &["z"])])));
        assert_eq!(
            said,
            "VolumeUnusable: PersistentVolume pv of pod set main asks for topology.kubernetes.io/zone [z], but NodePool gpu \
             offers [a b]"
        );
    }

    #[test]
    fn volume_of_one_node_is_refused() {
        let said = refused(&bound(&json!([term(names::HOSTNAME, &["n1"])])));
        assert!(said.contains("PersistentVolume pv") && said.contains("a new node cannot use it"), "{said}");
    }

    #[test]
    fn volume_that_excludes_a_host_is_used_in_its_zone() {
        let excludes_host = json!({"matchExpressions": [
            {"key": names::HOSTNAME, "operator": "NotIn", "values": ["bad"]},
            {"key": names::ZONE, "operator": "In", "values": ["b"]},
        ]});
        assert_eq!(zones(&bound(&json!([excludes_host]))), ["b"]);
        assert_eq!(
            zones(&bound(&json!([{}, term(names::ZONE, &["b"])]))),
            ["b"],
            "an empty term matches nothing"
        );
    }

    #[test]
    fn claim_that_is_missing_or_not_bound_is_named() {
        assert_eq!(
            refused(&uses("data")),
            "VolumeNotReady: pod set main: PersistentVolumeClaim data does not exist; create it"
        );
        let immediate = unbound(json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "Immediate"}));
        assert!(refused(&immediate).contains("PersistentVolumeClaim data is not bound to a volume yet"));
    }

    #[test]
    fn zones_that_the_storage_class_allows_narrow_the_nodes() {
        let allowed = |zones: &[&str]| {
            json!({
                "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": EBS, "values": zones}]}],
            })
        };
        assert_eq!(zones(&unbound(allowed(&["b", "c"]))), ["b"]);
        assert!(refused(&unbound(allowed(&["z"]))).contains("StorageClass fast of pod set main asks for"));
        let mut ephemeral = Fixture::new().pods(&json!({"volumes": [{"name": "scratch", "ephemeral":
            {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}]}));
        ephemeral.storage.classes = there("fast", allowed(&["a"]));
        assert_eq!(zones(&ephemeral), ["a"]);
        let immediate = |zones: &[&str]| {
            let mut class = allowed(zones);
            class["volumeBindingMode"] = json!("Immediate");
            class
        };
        ephemeral.storage.classes = there("fast", immediate(&["b"]));
        assert_eq!(zones(&ephemeral), ["b"]);
        ephemeral.storage.classes = there("fast", immediate(&["a", "b"]));
        assert!(
            refused(&ephemeral)
                .contains("StorageClass fast, which may create a volume in a zone without the pod's node")
        );
        let anywhere = json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"});
        assert_eq!(zones(&unbound(anywhere)), ["a", "b"]);
    }

    #[test]
    fn a_volume_that_is_created_with_its_pod_in_any_zone_is_refused() {
        let of = |class: &Value| {
            let mut world = Fixture::new().pods(&json!({"volumes": [{"name": "scratch", "ephemeral":
                {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}]}));
            world.storage.classes = there("fast", class.clone());
            world
        };
        for provisioner in ZONAL {
            let message =
                refused(&of(&json!({"provisioner": provisioner, "volumeBindingMode": "Immediate"})));
            assert!(
                message.contains("which may create a volume in a zone without the pod's node"),
                "{message}"
            );
            assert!(
                message.ends_with("or list only the nodes' zone under its allowedTopologies"),
                "{message}"
            );
        }
        let in_region = json!([{"matchLabelExpressions": [{"key": names::REGION, "values": ["r"]}]}]);
        refused(&of(&json!({"provisioner": "pd.csi.storage.gke.io", "allowedTopologies": in_region})));
        for class in [
            json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"}),
            json!({"provisioner": "efs.csi.aws.com", "volumeBindingMode": "Immediate"}),
            json!({"provisioner": "disk.csi.azure.com", "parameters": {"skuName": "Premium_ZRS"}}),
        ] {
            assert_eq!(zones(&of(&class)), ["a", "b"], "{class}");
        }
    }

    #[test]
    fn pods_that_share_an_unbound_volume_of_one_node_are_in_one_zone() {
        let with_modes = |modes: Value| {
            let mut world = unbound(
                json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"}),
            );
            world.storage.claims =
                there("data", json!({"spec": {"storageClassName": "fast", "accessModes": modes}}));
            world
        };
        let of_each = |world: &Fixture| -> Vec<String> {
            let of = |slot: &super::super::Slot| {
                let requirements = &slot.template.spec.requirements;
                requirements.iter().find(|r| r.key == names::ZONE).unwrap().values.join(" ")
            };
            world.provisioned().slots.iter().map(of).collect()
        };
        let mut once = with_modes(json!(["ReadWriteOnce"]));
        assert_eq!(of_each(&once), ["a", "a"]);
        once.exhausted = once.provisioned().offerings();
        assert_eq!(of_each(&once), ["b", "b"], "the next zone has all of them");
        for modes in [json!(["ReadWriteMany"]), json!(["ReadWriteOnce", "ReadOnlyMany"])] {
            assert_eq!(of_each(&with_modes(modes)), ["a b", "a b"], "a file system may be in every zone");
        }
        once = with_modes(json!(["ReadWriteOnce"]));
        once.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": []}}}}))];
        let Outcome::Refuse(unknown) = once.plan() else { panic!("its zones are not listed") };
        assert!(unknown.message.contains("PersistentVolumeClaim data"), "{}", unknown.message);
    }

    #[test]
    fn unbound_volume_that_pods_without_planned_nodes_share_is_refused() {
        let mut world =
            unbound(json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"}));
        world.storage.claims =
            there("data", json!({"spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}));
        let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
        let of_spec = |set| patched(set, &json!({"template": {"spec": spec}}));
        let mut lead = pod_set("lead", 1);
        lead["template"]["spec"]["containers"] = json!([{"resources": {"requests": {"cpu": "1"}}}]);
        let assigned = ["lead", "main"].map(|name| json!({"name": name, "flavors": {"cpu": "gpu"}}));
        let mut world = world.workload(&json!({
            "spec": {"podSets": [of_spec(lead), of_spec(pod_set("main", 1))]},
            "status": {"admission": {"podSetAssignments": assigned}},
        }));
        world.policy.managed_resources = vec!["nvidia.com/gpu".to_owned()];
        let said = refused(&world);
        assert!(said.contains("pod set lead uses it too") && said.contains("managedResources"), "{said}");
        world.policy.managed_resources = vec!["cpu".to_owned()];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn volumes_made_by_hand_or_for_one_pod_are_refused() {
        let local = json!({"provisioner": NO_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"});
        assert!(refused(&unbound(local)).contains("created by hand"));
        let mut once = bound(&json!([term(names::ZONE, &["a"])]));
        once.storage.claims =
            there("data", json!({"spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}}));
        assert!(refused(&once).contains("ReadWriteOncePod, but 2 pods use it"));
        let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
        let sets =
            ["lead", "main"].map(|name| patched(pod_set(name, 1), &json!({"template": {"spec": spec}})));
        let once = once.workload(&json!({"spec": {"podSets": sets}}));
        assert!(refused(&once).contains("ReadWriteOncePod, but 2 pods use it"), "each pod set has one pod");
    }

    #[test]
    fn claim_that_is_deleted_or_whose_volume_is_taken_is_refused() {
        let mut world = bound(&json!([]));
        let volume = |namespace: &str, name: &str| {
            there("pv", json!({"spec": {"claimRef": {"namespace": namespace, "name": name}}}))
        };
        world.storage.volumes = volume("ns", "data");
        world.provisioned();
        for (namespace, name) in [("other", "data"), ("ns", "other")] {
            world.storage.volumes = volume(namespace, name);
            let said = refused(&world);
            assert!(
                said.contains(&format!("which PersistentVolumeClaim {name} of namespace {namespace} has")),
                "{said}"
            );
        }
        world.storage.volumes = volume("ns", "data");
        world.storage.volumes =
            there("pv", json!({"spec": {"claimRef": {"namespace": "ns", "name": "data", "uid": "old"}}}));
        world.storage.claims =
            there("data", json!({"metadata": {"uid": "new"}, "spec": {"volumeName": "pv"}}));
        assert!(refused(&world).contains("which an earlier claim has"));
        world.storage.volumes = volume("ns", "data");
        let going =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"volumeName": "pv"}});
        world.storage.claims = there("data", going);
        assert!(refused(&world).contains("PersistentVolumeClaim data is being deleted"));
    }

    #[test]
    fn storage_that_may_not_be_read_is_refused_with_the_missing_right() {
        let mut world = bound(&json!([]));
        world.storage.volumes = [("pv".to_owned(), Lookup::Forbidden)].into();
        assert_eq!(
            refused(&world),
            "VolumeUnreadable: PersistentVolume pv of pod set main may not be read; grant Setu the right to get \
             persistentvolumes"
        );
    }

    #[test]
    fn node_of_a_begun_gang_is_replaced_in_the_zone_its_volume_was_bound_to() {
        let anywhere = json!({"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"});
        let first = unbound(anywhere).provisioned();
        let begun = [(*first.slots[0].template).clone()];
        let now = bound(&json!([term(EBS, &["b"])]));
        let request = super::super::PlanRequest {
            selection: super::super::OptionSelection::Like { begun: &begun, plan: None },
            ..now.request()
        };
        let Outcome::Provision(plan) = super::super::plan(&now.cluster(), &request) else {
            panic!("no plan")
        };
        let requirements = &plan.slots[0].template.spec.requirements;
        assert_eq!(requirements.iter().find(|r| r.key == names::ZONE).unwrap().values, ["b"]);
        assert!(plan.replaces(&first.hash()));
    }

    #[test]
    fn volume_without_node_affinity_does_not_narrow_the_nodes() {
        let mut world = bound(&json!([]));
        world.storage.volumes = there("pv", json!({"spec": {}}));
        world.objects.node_pools = vec![pool("gpu", &json!({}))];
        assert_eq!(zones(&world), ["a", "b"]);
    }
}
