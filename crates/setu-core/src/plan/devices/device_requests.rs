//! Devices that pods ask for by dynamic resource allocation, as counts by DeviceClass.
//!
//! Sources: the ResourceClaimTemplates of the pods, and KEP-5004: if a DeviceClass serves an extended resource, the scheduler turns
//! requests for it into a ResourceClaim. Such devices are in ResourceSlices and not in a Node's allocatable, so a NodeClaim that
//! requests them never initializes.

use super::{class_of, resource_of};
use crate::api::DeviceClass;
use crate::api::pod::{PodSpec, ResourceClaim, ResourceList};
use crate::api::quantity::{Amount, ONE};
use crate::api::resource_claim_template::{DeviceRequest, ExactDeviceRequest, ResourceClaimTemplate};
use crate::api::workload::PodSet;
use crate::plan::volumes::Lookup;
use crate::plan::{Obstacle, ObstacleReason, Outcome, PlanRequest, PlanSnapshot, resources};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::cmp::Reverse;

/// The most devices that a ResourceClaim can be given: `AllocationResultsMaxSize` of resource.k8s.io/v1.
const MOST_OF_A_CLAIM: i128 = 32;
const TOO_MANY: &str = "more than the 32 that Kubernetes gives to one ResourceClaim; request fewer per pod";

/// How many devices these are in all, if that is more than a ResourceClaim can be given.
fn too_many(devices: &ResourceList) -> Option<String> {
    let amounts = devices.keys().map(|class| resources::amount(devices, class));
    let sum = amounts.fold(Amount::default(), Amount::plus);
    (sum.nanos() > MOST_OF_A_CLAIM * ONE).then(|| sum.in_decimals())
}

/// Names of the ResourceClaimTemplates that pods of this spec name.
pub fn templates_of(spec: &PodSpec) -> impl Iterator<Item = &String> {
    spec.resource_claims.iter().filter_map(|claim| claim.resource_claim_template_name.as_ref())
}

/// Resources that each pod of a pod set takes from a node, with devices as counts by class. `each` is what it takes besides claims.
///
/// # Errors
/// The claim that no plan can serve, or that needs something first.
pub fn with_devices(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    pod_set: &PodSet,
    each: ResourceList,
) -> Result<ResourceList, Outcome> {
    let (mut all, mut served_by_class) = (ResourceList::new(), ResourceList::new());
    for (resource, amount) in each {
        let class =
            if resources::is_positive(&amount) { served(cluster, request, &resource) } else { Ok(None) };
        let class = class.map_err(|why| {
            let message = format!("pod set {} requests {resource}, {why}", pod_set.name);
            Outcome::Refuse(Obstacle::new(ObstacleReason::DeviceClass, message))
        })?;
        if let Some(class) = &class {
            served_by_class.insert(class.clone(), amount.clone());
        }
        all = resources::sum(&all, &[(class.unwrap_or(resource), amount)].into());
    }
    let reader = DeviceRequestReader { cluster, request, pod_set: &pod_set.name };
    if let Some(devices) = too_many(&served_by_class) {
        return Err(reader.refused(&format!("requests {devices} devices by extended resources, {TOO_MANY}")));
    }
    for claim in &pod_set.template.spec.resource_claims {
        all = resources::sum(&all, &reader.devices_of(claim)?);
    }
    Ok(all)
}

/// The resource that stands for a DeviceClass, if one serves this resource; `None` if nodes report it themselves.
fn served(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    resource: &str,
) -> Result<Option<String>, String> {
    let entries = &request.policy.devices;
    if let Some(class) = class_of(resource) {
        let is_stated = entries.iter().any(|entry| entry.device_class == class);
        return is_stated.then(|| Some(resource.to_owned())).ok_or_else(|| {
            unstated(
                class,
                "",
                "request them by the name under which a device plugin serves them, such as nvidia.com/gpu",
            )
        });
    }
    let classes = cluster.objects.device_classes.iter().map(|class| &**class);
    let serving = classes.filter(|class| class.spec.extended_resource_name.as_deref() == Some(resource));
    // Of several, the scheduler takes the newest one, and of these the first by name.
    let rank = |class: &&DeviceClass| {
        let meta = &class.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), Reverse(meta.name.clone()))
    };
    let serving = serving.max_by_key(rank).map(|class| class.metadata.name.as_deref().unwrap_or_default());
    let mut stated = entries.iter().filter(|entry| entry.extended_resource.as_deref() == Some(resource));
    match (serving, stated.clone().next()) {
        (Some(class), Some(_)) if stated.any(|entry| entry.device_class == class) => {
            Ok(Some(resource_of(class)))
        }
        // Device plugins serve it on other nodes.
        (_, Some(_)) if has_plugin(cluster, request, resource) => Ok(None),
        (_, Some(entry)) => Err(format!(
            "which is extendedResource of DeviceClass {class} under devices in the policy, but not spec.extendedResourceName of the \
             DeviceClass; set it there, or take it out of the policy",
            class = entry.device_class
        )),
        (Some(class), None) if !has_plugin(cluster, request, resource) => {
            let remedy = format!(
                "where a device plugin serves them, take spec.extendedResourceName off the DeviceClass or state the node's {resource} under packing.shapes"
            );
            Err(unstated(class, &format!(" with extendedResource {resource}"), &remedy))
        }
        (_, None) => Ok(None),
    }
}

/// The end of a message about devices of a class that the policy does not state.
fn unstated(class: &str, with: &str, remedy: &str) -> String {
    format!(
        "which DeviceClass {class} serves through dynamic resource allocation, and whose devices no NodeClaim can ask for; add an \
         entry of the class to devices in the policy{with}, or {remedy}"
    )
}

/// Whether a device plugin serves a resource on nodes that the policy allows: a shape of them has it.
fn has_plugin(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, resource: &str) -> bool {
    let has = |list: &ResourceList| list.get(resource).is_some_and(resources::is_positive);
    let stated = request.policy.shapes.iter().any(|shape| has(&shape.allocatable));
    let mut shown =
        cluster.shapes.iter().filter(|shape| shape.is_shown() && may_be_of(request, &shape.node_pool));
    stated || shown.any(|shape| has(&shape.allocatable))
}

/// Whether the policy lets nodes come from this NodePool.
fn may_be_of(request: &PlanRequest<'_>, node_pool: &str) -> bool {
    let policy = request.policy;
    let of_tiers =
        policy.tiers.iter().map(|tier| tier.node_pool_name.as_deref().or(policy.node_pool.as_deref()));
    let mut named = of_tiers.chain(policy.tiers.is_empty().then_some(policy.node_pool.as_deref()));
    named.any(|name| name.is_none_or(|name| name == node_pool))
}

/// A pod set that asks for devices by claims.
struct DeviceRequestReader<'a> {
    cluster: &'a PlanSnapshot<'a>,
    request: &'a PlanRequest<'a>,
    pod_set: &'a str,
}

impl DeviceRequestReader<'_> {
    /// The devices that each pod gets by one of its claims.
    fn devices_of(&self, claim: &ResourceClaim) -> Result<ResourceList, Outcome> {
        if let Some(name) = &claim.resource_claim_name {
            return Err(Outcome::Never(self.refusal(&format!(
                "uses ResourceClaim {name} by its name, so all its pods share devices of one node; use a \
                 ResourceClaimTemplate, by which each pod gets a claim of its own"
            ))));
        }
        let Some(name) = &claim.resource_claim_template_name else { return Ok(ResourceList::new()) };
        if self.request.policy.devices.is_empty() {
            return Err(self.refused(&format!(
                "uses ResourceClaimTemplate {name}, and the policy states no devices; add an entry of its DeviceClass to \
                 devices in the policy, or take the check off this queue"
            )));
        }
        // Where nobody has read templates, the question does not depend on them.
        let Some(storage) = self.cluster.storage else { return Ok(ResourceList::new()) };
        match storage.claim_templates.get(name) {
            Some(Lookup::There(template)) => self.devices_by(name, template),
            Some(Lookup::Forbidden) => Err(self.refused(&format!(
                "uses ResourceClaimTemplate {name}, which Setu may not read; grant its ServiceAccount get on \
                 resourceclaimtemplates of resource.k8s.io"
            ))),
            Some(Lookup::Absent) | None => Err(Outcome::Refuse(Obstacle::new(
                ObstacleReason::ResourceClaimTemplateMissing,
                format!(
                    "pod set {} uses ResourceClaimTemplate {name}, which does not exist; create it",
                    self.pod_set
                ),
            ))),
        }
    }

    /// The devices of all requests of a template.
    fn devices_by(&self, name: &str, template: &ResourceClaimTemplate) -> Result<ResourceList, Outcome> {
        let requests = &template.spec.spec.devices.requests;
        let mut all = ResourceList::new();
        for asked in requests {
            all = resources::sum(&all, &self.devices_by_request(name, asked)?);
        }
        if let Some(devices) = too_many(&all) {
            return Err(self.refused(&format!(
                "uses ResourceClaimTemplate {name}, which asks for {devices} devices, {TOO_MANY}"
            )));
        }
        Ok(all)
    }

    fn devices_by_request(&self, template: &str, asked: &DeviceRequest) -> Result<ResourceList, Outcome> {
        let refused = |what: &str| {
            let request = &asked.name;
            self.refused(&format!("uses ResourceClaimTemplate {template}, whose request {request} {what}"))
        };
        let Some(exact) = asked.exactly.as_ref().filter(|_| asked.first_available.is_empty()) else {
            return Err(refused(
                "has firstAvailable, so that nobody knows beforehand which devices it gets; use exactly",
            ));
        };
        let ExactDeviceRequest { device_class_name: class, allocation_mode, count, admin_access, .. } = exact;
        if allocation_mode.as_deref().is_some_and(|mode| mode != "ExactCount") {
            return Err(refused(
                "asks for all devices of a node; use allocationMode ExactCount with a count",
            ));
        }
        if *admin_access == Some(true) {
            return Err(refused(
                "has adminAccess, by which it gets devices that others use too; take it out",
            ));
        }
        if !self.request.policy.devices.iter().any(|entry| entry.device_class == *class) {
            let message = format!(
                "pod set {} asks for devices of DeviceClass {class} by ResourceClaimTemplate {template}, and the policy does not \
                 state which nodes have them; add an entry {{deviceClass: {class}, driver: DRIVER, perNode: COUNT}} to devices",
                self.pod_set
            );
            return Err(Outcome::Refuse(Obstacle::new(ObstacleReason::DeviceClass, message)));
        }
        if !self.exists(class) {
            let message = format!(
                "pod set {} asks for devices of DeviceClass {class} by ResourceClaimTemplate {template}, and the DeviceClass does not \
                 exist; create it",
                self.pod_set
            );
            return Err(Outcome::Refuse(Obstacle::new(ObstacleReason::DeviceClass, message)));
        }
        Ok([(resource_of(class), Quantity(count.unwrap_or(1).to_string()))].into())
    }

    fn exists(&self, class: &str) -> bool {
        self.cluster.objects.device_classes.iter().any(|known| known.metadata.name.as_deref() == Some(class))
    }

    fn refused(&self, what: &str) -> Outcome {
        Outcome::Refuse(self.refusal(what))
    }

    fn refusal(&self, what: &str) -> Obstacle {
        Obstacle::new(ObstacleReason::ResourceClaims, format!("pod set {} {what}", self.pod_set))
    }
}

/// Notes of what nobody checks before pods start: whether devices meet the expressions and constraints of their requests.
pub fn notes(cluster: &PlanSnapshot<'_>, pod_set: &PodSet) -> Vec<String> {
    let of_template = |name: &String| {
        let found = cluster.storage.and_then(|storage| storage.claim_templates.get(name));
        let Some(Lookup::There(template)) = found else { return Vec::new() };
        let devices = &template.spec.spec.devices;
        let mut exact = devices.requests.iter().filter_map(|asked| asked.exactly.as_ref());
        let selects = exact.any(|exact| !exact.selectors.is_empty()).then(|| {
            format!(
                "ResourceClaimTemplate {name} selects devices by expressions, which are not evaluated: all devices of the class \
                 count. Kueue looks for matching devices on nodes that exist, and reserves no quota where there are none"
            )
        });
        let constrains = (!devices.constraints.is_empty()).then(|| {
            format!(
                "ResourceClaimTemplate {name} has constraints, which are not evaluated: the pods may not fit on nodes that have \
                 enough devices"
            )
        });
        selects.into_iter().chain(constrains).collect()
    };
    templates_of(&pod_set.template.spec).flat_map(of_template).collect()
}
