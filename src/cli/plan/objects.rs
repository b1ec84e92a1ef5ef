//! The objects a plan is made from, as YAML files and the cluster have them.
//!
//! Rule: an object that cannot be read is an error that names its file and document. Kinds that no plan depends on are
//! left out.

use super::documents::{self, Document};
use super::node_class::NodeClass;
use super::pod_sets::text;
use super::{manifest, pod_group};
use crate::api::parameters::{ProvisioningParametersSpec, Release};
use crate::api::{
    AdmissionCheck, Cohort, LocalQueue, Namespace, Node, NodeClaim, RawParameters, ResourceClaimTemplate,
    Workload,
};
use crate::cli::{CliError, find};
use crate::controllers::parameters;
use crate::gang::workload::elastic_job::nodes_of_slice;
use crate::gang::workload::request::owner_of;
use crate::names;
use crate::plan::gates::inflight::InflightNodes;
use crate::plan::limit_ranges::LimitRanges;
use crate::plan::observed_shapes::ObservedShapes;
use crate::plan::shape::Shape;
use crate::plan::volumes::{Lookup, Storage};
use crate::plan::{PlanObjects, PlanRequest, slices, warm};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything that a plan may depend on.
#[derive(Default)]
pub struct Objects {
    /// The Workload to plan for, as Kueue would create it.
    pub workload: Option<Workload>,
    /// Whether its manifest names no namespace.
    pub has_any_namespace: bool,
    /// Workloads of its namespace, if they were read from a cluster.
    pub workloads: Vec<Arc<Workload>>,
    /// The kinds that are read whole.
    pub plan: PlanObjects,
    /// NodeClasses of the files, for notes to the user.
    pub node_classes: Vec<NodeClass>,
    pub node_claims: Vec<Arc<NodeClaim>>,
    pub nodes: Vec<Arc<Node>>,
    pub local_queues: Vec<Arc<LocalQueue>>,
    pub cohorts: Vec<Arc<Cohort>>,
    pub checks: Vec<Arc<AdmissionCheck>>,
    pub parameters: Vec<Arc<RawParameters>>,
    pub limit_ranges: Vec<Arc<LimitRange>>,
    /// Remarks for the user about the files, such as on objects that no plan depends on.
    pub remarks: Vec<String>,
    /// PersistentVolumeClaims of the files. Those of a cluster are in `storage`.
    volume_claims: Vec<Arc<PersistentVolumeClaim>>,
    /// ResourceClaimTemplates of the files.
    claim_templates: Vec<Arc<ResourceClaimTemplate>>,
    /// ProvisioningRequestConfigs of the files, which checks of Kueue's own name.
    request_configs: Vec<Value>,
    /// Training runtimes and PodTemplates of the files, which TrainJobs and ProvisioningRequests name.
    named: Vec<Value>,
    /// Objects of the cluster that the Workload's pods depend on, and cluster-scoped objects of the files.
    pub storage: Storage,
    pub namespaces: Vec<Arc<Namespace>>,
}

impl Objects {
    /// Reads YAML files.
    pub fn read(files: &[PathBuf]) -> Result<Self, CliError> {
        let mut objects = Self::default();
        // A TrainJob may come before its runtime, and the pods of a group may stand apart.
        let (named, others): (Vec<_>, Vec<_>) =
            documents::read(files)?.into_iter().partition(|document| is_named(&document.object));
        objects.named = named.into_iter().map(|document| document.object).collect();
        let mut groups: BTreeMap<String, (String, Vec<Value>)> = BTreeMap::new();
        for Document { object, path, place } in others {
            if let Some(group) = pod_group::name(&object) {
                groups.entry(group.to_owned()).or_insert((place, Vec::new())).1.push(object);
            } else {
                objects.take(object, path).map_err(|e| CliError::Invalid(format!("{place}: {e}")))?;
            }
        }
        for (place, pods) in groups.into_values() {
            let is_open = pods.iter().all(|pod| text(pod, "/metadata/namespace").is_empty());
            let made = pod_group::workload(&pods).and_then(|made| objects.plan_for(made, is_open));
            made.map_err(|e| CliError::Invalid(format!("{place}: {e}")))?;
        }
        Ok(objects)
    }

    fn take(&mut self, value: Value, path: &Path) -> Result<(), String> {
        if manifest::is_workload(&value) {
            return self.take_workload(value);
        }
        let kind = text(&value, "/kind").to_owned();
        match kind.as_str() {
            "NodeClaim" => push(&mut self.node_claims, &value),
            "Node" => push(&mut self.nodes, &value),
            "LocalQueue" => push(&mut self.local_queues, &value),
            "Cohort" => push(&mut self.cohorts, &value),
            "AdmissionCheck" => push(&mut self.checks, &value),
            "ProvisioningParameters" => push(&mut self.parameters, &value),
            "LimitRange" => push(&mut self.limit_ranges, &value),
            "PersistentVolumeClaim" => push(&mut self.volume_claims, &value),
            "ResourceClaimTemplate" => push(&mut self.claim_templates, &value),
            "ProvisioningRequestConfig" => {
                self.request_configs.push(value);
                Ok(())
            }
            "PersistentVolume" => note(&mut self.storage.volumes, value),
            "StorageClass" => note(&mut self.storage.classes, value),
            "Namespace" => push(&mut self.namespaces, &value),
            "Policy" => Err(format!("this is a policy; give it with --config {}", path.display())),
            "" if value.is_null() => Ok(()),
            "" => Err("it has no kind".to_owned()),
            other => {
                let value = documents::completed(other, value);
                let Some(added) = self.plan.add(other, &value) else {
                    self.take_other(other, value, path);
                    return Ok(());
                };
                added.map_err(|e| unreadable(&value, &e))
            }
        }
    }

    /// Takes what is to be planned for.
    fn take_workload(&mut self, value: Value) -> Result<(), String> {
        self.remarks.extend(manifest::alike(&value));
        let is_open = text(&value, "/metadata/namespace").is_empty();
        self.plan_for(manifest::workload(value, &self.named)?, is_open)
    }

    /// Puts the Workload of the files into this namespace, as `kubectl apply -n` would.
    pub fn put_into(&mut self, namespace: &str) -> Result<(), CliError> {
        let Some(workload) = &mut self.workload else { return Ok(()) };
        let stated = workload.metadata.namespace.as_deref().unwrap_or_default();
        if !self.has_any_namespace && stated != namespace {
            return Err(CliError::Invalid(format!(
                "the file is for namespace {stated}, and -n says {namespace}; leave out one of them"
            )));
        }
        workload.metadata.namespace = Some(namespace.to_owned());
        Ok(())
    }

    /// Takes the Workload to plan for, of which there is one.
    fn plan_for(&mut self, workload: Workload, has_any_namespace: bool) -> Result<(), String> {
        let name = |w: &Workload| w.metadata.name.clone().unwrap_or_default();
        if let Some(first) = &self.workload {
            return Err(format!(
                "there is more than one Workload to plan for, {} and {}; plan them one by one",
                name(first),
                name(&workload)
            ));
        }
        (self.workload, self.has_any_namespace) = (Some(workload), has_any_namespace);
        Ok(())
    }

    /// Notes an object that no plan depends on.
    fn take_other(&mut self, kind: &str, value: Value, path: &Path) {
        // They accompany NodePools.
        if kind.ends_with("NodeClass") {
            self.node_classes.push(NodeClass::new(value));
            return;
        }
        let name = text(&value, "/metadata/name");
        let file = path.display();
        self.remarks.push(format!("{kind} {name} in {file} has no effect on a plan, and is ignored"));
    }

    /// The parameters that a check names, if it names any.
    pub fn parameters_of(&self, check: &str) -> Result<Option<ProvisioningParametersSpec>, CliError> {
        let found = self.checks.iter().find(|c| c.metadata.name.as_deref() == Some(check));
        let Some(reference) = found.and_then(|c| c.spec.parameters.as_ref()) else { return Ok(None) };
        if let Some(fault) = reference.fault() {
            return Err(CliError::Invalid(format!("check {check} cannot be used: {fault}")));
        }
        let name = &reference.name;
        let refused = |why: String| {
            CliError::Invalid(format!("check {check} names ProvisioningParameters {name}, {why}"))
        };
        let object = self.parameters.iter().find(|p| p.metadata.name.as_ref() == Some(name));
        let object = object.ok_or_else(|| refused("which were not found; give them with -f".to_owned()))?;
        let read = parameters::read(object);
        read.map(Some).map_err(|fault| refused(format!("which cannot be used: {fault}")))
    }

    /// The class of the ProvisioningRequests that answer a check of Kueue's own, if its ProvisioningRequestConfig is in the files.
    pub fn request_class_of(&self, check: &AdmissionCheck) -> Option<&str> {
        let name = &check.spec.parameters.as_ref()?.name;
        let config = self.request_configs.iter().find(|config| text(config, "/metadata/name") == name)?;
        Some(text(config, "/spec/provisioningClassName"))
    }

    /// The LimitRanges of this namespace, and of those of the DaemonSets. One without a namespace counts for this one.
    pub fn limit_ranges_for(&self, namespace: &str) -> LimitRanges {
        let all = self.limit_ranges.iter().map(|range| {
            if range.metadata.namespace.is_some() {
                return Arc::clone(range);
            }
            let mut range = (**range).clone();
            range.metadata.namespace = Some(namespace.to_owned());
            Arc::new(range)
        });
        LimitRanges::for_plan(all, namespace, &self.plan.daemon_sets)
    }

    /// The objects that pods of a namespace may name. One without a namespace counts for each.
    pub fn storage_of(&self, namespace: &str) -> Storage {
        let mut storage = self.storage.clone();
        storage.claims.extend(named_in(namespace, &self.volume_claims));
        storage.claim_templates.extend(named_in(namespace, &self.claim_templates));
        storage
    }

    /// Labels of a namespace. If no file has it, only the label that every namespace has.
    pub fn labels_of(&self, namespace: &str) -> BTreeMap<String, String> {
        let found = self.namespaces.iter().find(|n| n.metadata.name.as_deref() == Some(namespace));
        let labels = found.and_then(|n| n.metadata.labels.clone());
        labels.unwrap_or_else(|| [(names::NAMESPACE_NAME.to_owned(), namespace.to_owned())].into())
    }

    /// NodeClaims in flight, nodes held for others than this Workload, and recent creates. A controller also knows the creates of
    /// nodes that are gone.
    pub fn inflight(&self, workload: &Workload, now: Timestamp) -> InflightNodes {
        let (own, queue) = (workload.full_name(), workload.local_queue());
        let of_others = |claim: &&Arc<NodeClaim>| {
            claim.label(names::MANAGED_BY) == names::SETU && claim.annotation(names::WORKLOAD) != own
        };
        let is_of_queue = |claim: &NodeClaim| {
            let owner = owner_of(claim).map(|(_, _, uid)| uid);
            let is_meant = |w: &&Arc<Workload>| match owner {
                Some(owner) => w.metadata.uid.as_deref() == Some(owner),
                None => w.full_name() == claim.annotation(names::WORKLOAD),
            };
            let made_for = self.workloads.iter().find(is_meant);
            made_for.map_or(claim.annotation(names::WARM_QUEUE) == queue, |w| w.local_queue() == queue)
        };
        let mut inflight = InflightNodes::default();
        for claim in self.node_claims.iter().filter(of_others) {
            let stays = !claim.is_deleting();
            if stays && !claim.is_initialized() {
                inflight.add_in_flight();
            }
            let is_of_queue = is_of_queue(claim);
            if stays && is_of_queue {
                inflight.add_held(Arc::clone(claim));
            }
            if let Some(created) = &claim.metadata.creation_timestamp {
                inflight.add_created(created.0, is_of_queue, now);
            }
        }
        inflight
    }

    /// The nodes kept for the LocalQueue that a gang of this request may take over.
    pub fn warm(&self, request: &PlanRequest<'_>, now: Timestamp) -> Vec<NodeClaim> {
        if request.policy.release != Release::Warm {
            return Vec::new();
        }
        let key = warm::key(&request.workload.local_queue(), request.check);
        let kept = self.node_claims.iter().map(|claim| &**claim).filter(|c| c.label(names::WARM) == key);
        warm::free_for(request.workload, kept, |name| self.node(name), now)
    }

    /// Earlier slices of the same elastic Job that were admitted and whose pods have nodes, Setu's or others.
    pub fn predecessors(&self, workload: &Workload, check: &str, now: Timestamp) -> Vec<Arc<Workload>> {
        let named = |name: &str| self.workloads.iter().find(|w| w.metadata.name.as_deref() == Some(name));
        let nodes_of = |slice: &Workload| {
            let stays = |claim: &&Arc<NodeClaim>| !claim.is_deleting();
            let mut staying = self.node_claims.iter().filter(stays);
            let has_nodes = slice
                .metadata
                .uid
                .as_deref()
                .is_some_and(|uid| staying.any(|claim| claim.label(names::WORKLOAD_UID) == uid));
            nodes_of_slice(slice, check, has_nodes, now)
        };
        slices::predecessors(workload, |name| named(name).cloned(), nodes_of)
    }

    /// Value of the shared label on the nodes of those slices.
    pub fn shared_domain(&self, request: &PlanRequest<'_>) -> Option<String> {
        slices::shared_domain(request, |own| {
            let claims = self.node_claims.iter();
            let of_job = claims.filter(|c| {
                c.label(names::GANG) == request.gang_label && c.label(names::WORKLOAD_UID) != own
            });
            of_job.filter_map(|claim| self.node(claim.node_name()?)).collect()
        })
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)).cloned()
    }

    /// Shapes of the existing nodes and claims, known since their creation.
    pub fn shapes(&self) -> Vec<Shape> {
        let now = Timestamp::now();
        let since = |metadata: &ObjectMeta| metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let nodes = self.nodes.iter().filter_map(|n| Shape::of_node(n, since(&n.metadata)));
        let claims = self.node_claims.iter().filter_map(|c| Shape::of_claim(c));
        let mut observed = ObservedShapes::default();
        for shape in nodes.chain(claims) {
            observed.note(shape, now);
        }
        observed.shapes(now).collect()
    }
}

/// The Workload that a user names by its own name or its Job's. Of several slices, the newest.
pub fn meant(workloads: &[Arc<Workload>], name: &str, namespace: &str) -> Result<Workload, CliError> {
    let all: Vec<Workload> = workloads.iter().map(|w| (**w).clone()).collect();
    let found = find::matches(&all, name).into_iter();
    let newest = found.max_by_key(|w| (!w.is_finished(), w.metadata.creation_timestamp.clone().map(|t| t.0)));
    newest.cloned().ok_or_else(|| {
        let place = format!("namespace {namespace}");
        CliError::Failed(find::absent(name, &place, &[], &find::similar(&all, name)))
    })
}

/// Whether it only says what others that name it are like.
fn is_named(object: &Value) -> bool {
    matches!(text(object, "/kind"), "TrainingRuntime" | "ClusterTrainingRuntime" | "PodTemplate")
}

fn push<K: DeserializeOwned>(all: &mut Vec<Arc<K>>, value: &Value) -> Result<(), String> {
    all.push(Arc::new(K::deserialize(value).map_err(|e| unreadable(value, &e))?));
    Ok(())
}

fn unreadable(value: &Value, error: &serde_json::Error) -> String {
    format!("{} {} cannot be read: {error}", text(value, "/kind"), text(value, "/metadata/name"))
}

/// Those of these objects that are of a namespace or name none, by name.
fn named_in<K: Resource + Clone>(namespace: &str, all: &[Arc<K>]) -> BTreeMap<String, Lookup<K>> {
    let its = all.iter().filter(|object| is_of(namespace, object.meta()));
    its.map(|one| (one.meta().name.clone().unwrap_or_default(), Lookup::There(Box::new((**one).clone()))))
        .collect()
}

/// Whether an object is of a namespace, or names none.
fn is_of(namespace: &str, metadata: &ObjectMeta) -> bool {
    metadata.namespace.as_deref().is_none_or(|of| of == namespace)
}

/// Notes an object under its name.
fn note<K: DeserializeOwned>(all: &mut BTreeMap<String, Lookup<K>>, value: Value) -> Result<(), String> {
    let name = text(&value, "/metadata/name").to_owned();
    let read = serde_json::from_value(value).map_err(|e| format!("{name} cannot be read: {e}"))?;
    all.insert(name, Lookup::There(Box::new(read)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OptionSelection;
    use crate::policy::Policy;
    use jiff::SignedDuration;
    use serde_json::json;

    fn workload(name: &str, job: &str, created: &str, replaces: Option<&str>) -> Arc<Workload> {
        let mut workload = json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": name, "creationTimestamp": created,
                "annotations": {(names::ELASTIC_JOB): "true"},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true},
                ],
            },
            "spec": {"podSets": []},
            "status": {"conditions": [{
                "type": "Admitted", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": created,
            }]},
        });
        if let Some(before) = replaces {
            workload["metadata"]["annotations"][names::SLICE_REPLACES] = json!(format!("ns/{before}"));
        }
        Arc::new(serde_json::from_value(workload).unwrap())
    }

    #[test]
    fn a_flavor_is_read_without_a_spec() {
        let mut objects = Objects::default();
        let flavor = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default"},
        });
        objects.take(flavor, Path::new("flavor.yaml")).unwrap();
        assert_eq!(objects.plan.flavors.len(), 1);
    }

    #[test]
    fn parameters_of_another_kind_are_refused_as_in_the_controller() {
        let mut objects = Objects::default();
        for object in [
            json!({
                "kind": "AdmissionCheck", "metadata": {"name": "c"},
                "spec": {"parameters": {"apiGroup": "example.com", "kind": "Other", "name": "same"}},
            }),
            json!({"kind": names::PARAMETERS_KIND, "metadata": {"name": "same"}, "spec": {}}),
        ] {
            objects.take(object, Path::new("check.yaml")).unwrap();
        }
        let Err(CliError::Invalid(why)) = objects.parameters_of("c") else { panic!("they were read") };
        assert!(why.contains("check c") && why.contains("spec.parameters names example.com/Other"), "{why}");
    }

    #[test]
    fn the_pods_of_a_group_are_one_workload() {
        let example = format!("{}/examples/pod-group.yaml", env!("CARGO_MANIFEST_DIR"));
        let made = Objects::read(&[PathBuf::from(example)]).unwrap().workload.unwrap();
        let counts: Vec<i32> = made.spec.pod_sets.iter().map(|set| set.count).collect();
        assert_eq!((made.full_name().as_str(), counts), ("default/ray", vec![1, 3]));
    }

    #[test]
    fn a_job_is_found_by_its_own_name_and_of_its_slices_the_newest_after_those_before_it() {
        let second = workload("job-train-2", "train", "2026-01-01T00:01:00Z", Some("job-train-1"));
        let first = workload("job-train-1", "train", "2026-01-01T00:00:00Z", None);
        let claim = serde_json::from_value(json!({
            "metadata": {"name": "c", "labels": {(names::WORKLOAD_UID): "job-train-1"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }));
        let node_claims = vec![Arc::new(claim.unwrap())];
        let objects = Objects { workloads: vec![second, first], node_claims, ..Objects::default() };
        let named = |name: &str| meant(&objects.workloads, name, "ns");
        let found = named("train").unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some("job-train-2"));
        let predecessors = |objects: &Objects| objects.predecessors(&found, "check", Timestamp::UNIX_EPOCH);
        let before = predecessors(&objects);
        assert_eq!(
            before.iter().map(|w| w.metadata.name.as_deref()).collect::<Vec<_>>(),
            [Some("job-train-1")]
        );
        let without_nodes = Objects { workloads: objects.workloads.clone(), ..Objects::default() };
        assert!(predecessors(&without_nodes).is_empty());
        assert_eq!(named("job-train-1").unwrap().metadata.name.as_deref(), Some("job-train-1"));
        let Err(CliError::Failed(why)) = named("trian") else { panic!("it is not there") };
        assert_eq!(
            why,
            "no Workload or Job trian in namespace ns; did you mean train or job-train-1 or job-train-2?"
        );
    }

    #[test]
    fn a_manifest_without_a_namespace_goes_where_n_says() {
        let job = |namespace: Option<&str>| {
            let mut objects = Objects::default();
            let mut job = json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
                "spec": {"parallelism": 1, "template": {"spec": {"containers": []}}},
            });
            if let Some(namespace) = namespace {
                job["metadata"]["namespace"] = json!(namespace);
            }
            objects.take(job, Path::new("job.yaml")).unwrap();
            let put = objects.put_into("team").map_err(|e| e.to_string());
            put.map(|()| objects.workload.unwrap().full_name())
        };
        assert_eq!(job(None).unwrap(), "team/train");
        assert_eq!(job(Some("team")).unwrap(), "team/train");
        assert!(
            job(Some("other")).unwrap_err().contains("the file is for namespace other, and -n says team")
        );
    }

    #[test]
    fn nodes_that_are_kept_for_the_local_queue_are_taken_over() {
        let (own, until) = (workload("own", "own", "2026-01-01T00:00:00Z", None), "2026-01-02T00:00:00Z");
        let queue = own.local_queue();
        let keeps = Policy { release: Release::Warm, ..Policy::default() };
        let warm_under = |objects: &Objects, policy: &Policy| {
            let request = PlanRequest {
                workload: &own,
                check: "c",
                our_checks: &[],
                answered_checks: &[],
                gang_label: "g",
                policy,
                selection: OptionSelection::From(0),
            };
            let taken = objects.warm(&request, "2026-01-01T00:00:00Z".parse().unwrap());
            taken.into_iter().filter_map(|claim| claim.metadata.name).collect::<Vec<_>>()
        };
        let kept = |name: &str, queue: &str| {
            let claim = json!({
                "metadata": {
                    "name": name, "labels": {(names::WARM): warm::key(queue, "c")},
                    "annotations": {(names::HOLD_UNTIL): until},
                },
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
                "status": {"nodeName": name, "conditions": [{
                    "type": "Initialized", "status": "True", "reason": "", "message": "", "lastTransitionTime": until,
                }]},
            });
            Arc::new(serde_json::from_value::<NodeClaim>(claim).unwrap())
        };
        let node = |name: &str, unschedulable: bool| {
            let node = json!({
                "metadata": {"name": name}, "spec": {"unschedulable": unschedulable},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            Arc::new(serde_json::from_value(node).unwrap())
        };
        let objects = Objects {
            node_claims: vec![kept("a", &queue), kept("b", &queue), kept("c", "ns/other")],
            nodes: vec![node("a", false), node("b", true), node("c", false)],
            ..Objects::default()
        };
        assert_eq!(warm_under(&objects, &Policy::default()), Vec::<String>::new());
        assert_eq!(warm_under(&objects, &keeps), ["a"]);
    }

    #[test]
    fn a_claim_counts_as_in_flight_until_its_node_is_ready_and_as_held_in_its_own_queue() {
        let time = "2026-01-01T00:00:00Z";
        let owned = |of: &str, owner: &str, initialized: &str| {
            let claim = json!({
                "metadata": {
                    "name": of, "labels": {(names::MANAGED_BY): names::SETU}, "creationTimestamp": time,
                    "annotations": {(names::WORKLOAD): format!("ns/{of}"), (names::OWNER): owner},
                },
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
                "status": {"conditions": [{
                    "type": "Initialized", "status": initialized, "reason": "", "message": "",
                    "lastTransitionTime": time,
                }]},
            });
            Arc::new(serde_json::from_value::<NodeClaim>(claim).unwrap())
        };
        let claim = |of: &str, initialized: &str| owned(of, "", initialized);
        let own = workload("own", "own", time, None);
        let ready = claim("same-queue", "True");
        let of_request = owned("provisioningrequest-r", "ns/same-queue/same-queue", "True");
        let mut leaving = (*claim("same-queue", "False")).clone();
        leaving.metadata.deletion_timestamp.clone_from(&leaving.metadata.creation_timestamp);
        let objects = Objects {
            workloads: vec![workload("same-queue", "other", time, None)],
            node_claims: vec![
                Arc::clone(&ready),
                Arc::clone(&of_request),
                claim("unknown", "False"),
                claim("own", "False"),
                Arc::new(leaving),
            ],
            ..Objects::default()
        };
        let created: Timestamp = time.parse().unwrap();
        let inflight = objects.inflight(&own, created);
        let held: Vec<&NodeClaim> = inflight.queue.iter().map(|nodes| &*nodes.claim).collect();
        assert_eq!((inflight.in_flight, held), (1, vec![&*ready, &*of_request]));
        assert_eq!(
            (inflight.last_minute.claims, inflight.queue_last_hour.claims),
            (4, 3),
            "it was created too"
        );
        let later = objects.inflight(&own, created + SignedDuration::from_mins(2));
        assert_eq!((later.last_minute.claims, later.queue_last_hour.claims), (0, 3));
    }

    #[test]
    fn nodes_of_the_slices_before_say_where_a_later_one_is_to_go() {
        let claim = |uid: &str, node: &str| {
            let claim = json!({
                "metadata": {"name": node, "labels": {(names::GANG): "elastic-job", (names::WORKLOAD_UID): uid}},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
                "status": {"nodeName": node},
            });
            Arc::new(serde_json::from_value(claim).unwrap())
        };
        let node = |name: &str, zone: &str| {
            let node = json!({"metadata": {"name": name, "labels": {(names::ZONE): zone}}});
            Arc::new(serde_json::from_value(node).unwrap())
        };
        let objects = Objects {
            node_claims: vec![claim("second", "n1"), claim("first", "n2")],
            nodes: vec![node("n1", "a"), node("n2", "b")],
            ..Objects::default()
        };
        let colocation = crate::policy::SharedLabel {
            topology_key: names::ZONE.to_owned(),
            mode: crate::api::parameters::ColocationMode::Preferred,
        };
        let policy =
            crate::policy::Policy { colocation: Some(colocation), ..crate::policy::Policy::default() };
        let second = workload("second", "train", "2026-01-01T00:01:00Z", Some("first"));
        let request = PlanRequest {
            workload: &second,
            check: "prov",
            our_checks: &[],
            answered_checks: &[],
            gang_label: "elastic-job",
            policy: &policy,
            selection: crate::plan::OptionSelection::From(0),
        };
        assert_eq!(objects.shared_domain(&request).as_deref(), Some("b"));
    }
}
