//! Whether the types of a NodePool hold the pods of a gang, and whether pods may share such nodes.

use super::{PodSetGroup, of_draft, resources};
use crate::api::parameters::{Allocatable, PackingMode};
use crate::api::pod::ResourceList;
use crate::api::quantity::ONE;
use crate::api::requirements::Values;
use crate::names;
use crate::plan::claim::Draft;
use crate::plan::demand::PodSetDemand;
use crate::plan::shape::is_of_machine;
use crate::plan::shapes::{KnownTypes, Sources, known};
use crate::plan::{Obstacle, ObstacleReason, PlanRequest, PlanSnapshot, Slot};
use crate::policy::Policy;
use crate::words::few;

/// The shortfall of all shapes.
pub enum Shortfall {
    /// A resource that none of them has.
    Resource(String),
    /// Room for everything together; the text names the resource that is short.
    Room(String),
}

/// The shortfall of nodes with this much room for a pod, if none of them holds it.
pub fn lack(each: &ResourceList, rooms: &[ResourceList]) -> Shortfall {
    if let Some(key) = each.keys().find(|key| rooms.iter().all(|room| !room.contains_key(*key))) {
        return Shortfall::Resource(key.clone());
    }
    let most = rooms.iter().fold(ResourceList::new(), |most, room| resources::max(&most, room));
    let short = resources::shortage(each, &most);
    Shortfall::Room(short.unwrap_or_else(|| "room for all of it at once".to_owned()))
}

/// The message that no type of a NodePool has a resource.
pub fn none_has(pool: &str, key: &str) -> String {
    format!("no instance type of NodePool {pool} has {key}")
}

/// How the types of a NodePool suit a pod set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suits {
    /// As they are, by what is known.
    Well,
    /// Only types with accelerators that the pods do not request.
    WithSpareAccelerators,
}

/// How the possible types of this draft suit a pod set.
///
/// # Errors
/// The obstacle, if all types are known and none of them holds a pod.
pub fn suits(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    draft: &Draft,
    wanted: &PodSetDemand<'_>,
) -> Result<Suits, Obstacle> {
    let known = of_draft(cluster, request, draft, wanted.asks_devices());
    if known.others {
        return Ok(Suits::Well);
    }
    if known.shapes.is_empty() {
        return Err(no_type(draft, &known));
    }
    let rooms: Vec<ResourceList> = known.shapes.iter().map(|s| s.room(&ResourceList::new())).collect();
    let holds = |room: &ResourceList| resources::first_insufficient(&wanted.each, room).is_none();
    let mut holding = known.shapes.iter().zip(&rooms).filter(|(_, room)| holds(room)).peekable();
    if holding.peek().is_none() {
        let pool = &draft.node_pool;
        let message = match lack(&wanted.each, &rooms) {
            Shortfall::Resource(key) => none_has(pool, &key),
            Shortfall::Room(lack) => format!(
                "no instance type of NodePool {pool} holds a pod of pod set {}: too little {lack}; request less per pod",
                wanted.pod_set.name
            ),
        };
        return Err(Obstacle::new(ObstacleReason::TooLarge, message));
    }
    let asks = resources::has_accelerator(&wanted.each);
    let suits = asks || holding.any(|(shape, _)| !shape.has_accelerator());
    Ok(if suits { Suits::Well } else { Suits::WithSpareAccelerators })
}

/// The draft without listed instance types that are unknown although the provider's catalogue should have all of them. Such a
/// name is misspelt, or newer than the catalogue.
///
/// # Errors
/// If no other type is listed.
pub fn of_known_types(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    draft: Draft,
    wanted: &PodSetDemand<'_>,
) -> Result<Draft, Obstacle> {
    let types = draft.requirements.get(names::INSTANCE_TYPE);
    if types.and_then(Values::listed).is_none() {
        return Ok(draft);
    }
    let known = of_draft(cluster, request, &draft, wanted.asks_devices());
    let Some(catalogue) = known.catalogue.filter(|_| !known.uncatalogued.is_empty()) else {
        return Ok(draft);
    };
    let unknown = few(known.uncatalogued.iter().map(String::as_str));
    let pool = &draft.node_pool;
    let example = known.uncatalogued.first().map_or("", String::as_str);
    let why = format!(
        "the catalogue of {} does not have it, as it lacks some types that exist; correct the name, or state what its nodes have \
         under packing.shapes, such as {{instanceType: {example}, allocatable: {{cpu: 31, memory: 120Gi}}}}",
        catalogue.date()
    );
    let what =
        format!("nothing is known of instance type {unknown}, which is asked for on NodePool {pool}: {why}");
    let note = format!("instance type {unknown} of NodePool {pool} is left out: {why}");
    let not = Values::read("NotIn", &known.uncatalogued, None).unwrap_or_default();
    let mut left = draft
        .narrowed(names::INSTANCE_TYPE, &not, "the catalogue")
        .map_err(|_| Obstacle::new(ObstacleReason::RequirementsClash, what))?;
    left.notes.push(note);
    Ok(left)
}

/// The obstacle that no type meets the requirements. Names the requirement that alone rules out all types, if there is one.
pub fn no_type(draft: &Draft, known: &KnownTypes) -> Obstacle {
    let pool = &draft.node_pool;
    let group = draft.node_class_group();
    let any_without = |key: &str| {
        let rest = draft.requirements.without(key);
        let from = Sources { stated: &[], learnt: &[], group, market: None, asks_devices: false };
        !self::known(from, &rest, pool).shapes.is_empty()
    };
    let of_machine = draft.requirements.iter().filter(|(key, _)| is_of_machine(key));
    let found: Vec<_> = of_machine.filter(|(key, _)| any_without(key)).collect();
    let what = match found.iter().find(|(key, _)| !draft.defines(key)).or(found.first()) {
        None => "meets all that NodePool, policy and pods ask for".to_owned(),
        Some((key, values)) if draft.defines(key) => {
            format!("has {key} {} and the rest that is asked for", values.words())
        }
        Some((key, values)) => format!("has {key} {}, which the pods ask for", values.words()),
    };
    let date = known
        .catalogue
        .map_or_else(String::new, |c| format!(", as far as the catalogue of {} knows", c.date()));
    let meant = found.iter().find_map(|(key, values)| otherwise_written(key, values, known));
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    let newer = if known.catalogue.is_some() && meant.is_empty() {
        format!(
            ", or list types that are newer under {} and state what they have under packing.shapes",
            names::INSTANCE_TYPE
        )
    } else {
        String::new()
    };
    let message =
        format!("no instance type of NodePool {pool} {what}{date}; correct the requirements{newer}{meant}");
    Obstacle::new(ObstacleReason::RequirementsClash, message)
}

/// A label value that differs from a requested value only in the case of its letters. Karpenter writes most values in lower case.
fn otherwise_written<'k>(key: &str, asked: &Values, known: &'k KnownTypes) -> Option<&'k str> {
    let (catalogue, asked) = (known.catalogue?, asked.listed()?);
    let mut values = catalogue.names().filter_map(|name| catalogue.label(name, key));
    values.find(|value| asked.iter().any(|word| word != value && word.eq_ignore_ascii_case(value)))
}

/// Whether pods share nodes of this draft: by policy, or automatically if every type is known. Kwok nodes cost nothing, so for
/// them only stated shapes count.
pub(super) fn fills<'s>(
    policy: &Policy,
    draft: &Draft,
    known: &KnownTypes,
    sets: impl Iterator<Item = &'s PodSetDemand<'s>>,
) -> bool {
    match policy.packing {
        PackingMode::PerPod => false,
        PackingMode::Fill => true,
        PackingMode::Auto => {
            let stated = !draft.node_class().is_kwok() || !policy.shapes.is_empty();
            why_not(policy, draft, sets).is_none() && stated && !known.others
        }
    }
}

/// Why pods do not share nodes unless the policy says so.
fn why_not<'s>(
    policy: &Policy,
    draft: &Draft,
    mut sets: impl Iterator<Item = &'s PodSetDemand<'s>>,
) -> Option<&'static str> {
    if policy.mixed_tiers {
        return Some("mixedTiers lets a node come from another tier, which may hold other pods");
    }
    if policy.readiness.allocatable != Allocatable::Exact {
        return Some(
            "readiness.allocatable is not Exact, so that a node that is too small would count as ready",
        );
    }
    let mut asks_gpus = || sets.any(|set| set.each.get(GPU).is_some_and(resources::is_positive));
    (draft.node_class_group() == ONE_GPU_EACH && asks_gpus())
        .then_some("Karpenter's provider for Google Cloud counts one GPU for each machine")
}

/// Whether the policy leaves open if pods share nodes, except on kwok nodes, which cost nothing.
fn is_open(request: &PlanRequest<'_>, group: &PodSetGroup<'_>) -> bool {
    request.policy.packing == PackingMode::Auto && !group.draft.node_class().is_kwok()
}

/// A fact that pods share nodes, if some do and the policy leaves it open.
pub(super) fn shared(request: &PlanRequest<'_>, group: &PodSetGroup<'_>, made: &[Slot]) -> Option<String> {
    let pool = &group.draft.node_pool;
    let share = made.iter().any(Slot::is_shared);
    (share && is_open(request, group) && group.fills)
        .then(|| format!("pods share nodes, as every instance type of NodePool {pool} is known"))
}

/// A note why each pod gets its own node, if the policy leaves it open.
pub(super) fn note(request: &PlanRequest<'_>, group: &PodSetGroup<'_>) -> Option<String> {
    let pool = &group.draft.node_pool;
    (is_open(request, group) && !group.fills).then(|| match why_not(request.policy, group.draft, group.sets.iter().copied()) {
        Some(why) => format!("each pod gets a node of its own: {why}"),
        None => format!(
            "each pod gets a node of its own, as not every instance type of NodePool {pool} is known: packing.mode Fill would \
             share those that are"
        ),
    })
}

/// API group of the NodeClasses of the provider that counts one GPU for each machine.
const ONE_GPU_EACH: &str = "karpenter.k8s.gcp";
const GPU: &str = "nvidia.com/gpu";

/// A note that this provider may launch nothing for NodeClaims of several GPUs, if slots ask for that.
pub(super) fn several_gpus(slots: &[Slot]) -> Option<String> {
    let gpus = |slot: &Slot| resources::amount(&slot.template.spec.resources.requests, GPU);
    let is_such =
        |slot: &&Slot| slot.template.spec.node_class_ref.group == ONE_GPU_EACH && gpus(slot).nanos() > ONE;
    let pool = &slots.iter().find(is_such)?.node_pool;
    Some(format!(
        "nodes of NodePool {pool} are asked for with several GPUs each, and Karpenter's provider for Google Cloud counts one for each \
         machine, by its source of 2026-08-06: it may launch nothing"
    ))
}

#[cfg(test)]
mod tests {
    use crate::api::parameters::PackingMode;
    use crate::names;
    use crate::plan::fixtures::{Fixture, market, offer, patched, pod_set, pool};
    use crate::plan::passed_over::PassedOver;
    use crate::plan::{ObstacleReason, Outcome, Plan, PlanSnapshot};
    use crate::policy::file::Guards;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn is(label: &str, operator: &str, values: &[&str]) -> Value {
        json!({"key": format!("karpenter.k8s.aws/instance-{label}"), "operator": operator, "values": values})
    }

    fn ec2(name: &str, weight: i32, requirements: &Value) -> Arc<crate::api::NodePool> {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        pool(
            name,
            &json!({"spec": {"weight": weight, "template": {"spec":
            {"requirements": requirements, "nodeClassRef": class}}}}),
        )
    }

    /// `pods` pods with these limits, on these NodePools.
    fn world(pods: i32, limits: &Value, pools: Vec<Arc<crate::api::NodePool>>) -> Fixture {
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": limits, "limits": limits}}]}}});
        let set = crate::plan::fixtures::patched(pod_set("main", pods), &spec);
        let mut world = Fixture::new().workload(&json!({"spec": {"podSets": [set]}}));
        world.objects.node_pools = pools;
        world
    }

    fn gpu() -> Value {
        json!({"cpu": "2", "nvidia.com/gpu": "1"})
    }

    fn types(plan: &Plan) -> Vec<String> {
        let asked = &plan.slots[0].template.spec.requirements;
        asked.iter().find(|r| r.key == names::INSTANCE_TYPE).map(|r| r.values.clone()).unwrap_or_default()
    }

    #[test]
    fn pods_without_gpus_share_google_cloud_nodes_even_if_other_pods_ask_for_gpus() {
        let on = |name: &str, types: &[&str]| {
            let class = json!({"group": GOOGLE, "kind": "any", "name": "default"});
            let is = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            pool(name, &json!({"spec": {"template": {"spec": {"requirements": is, "nodeClassRef": class}}}}))
        };
        let set = |name: &str, pods, pool: &str, requests: Value| {
            let containers = json!([{"resources": {"requests": requests.clone(), "limits": requests}}]);
            let spec = json!({"containers": containers, "nodeSelector": {(names::NODEPOOL): pool}});
            patched(pod_set(name, pods), &json!({"template": {"spec": spec}}))
        };
        let sets =
            [set("learner", 1, "gpu", gpu()), set("actor", 20, "cpu", json!({"cpu": "1", "memory": "2Gi"}))];
        let assigned: Vec<Value> =
            sets.iter().map(|set| json!({"name": set["name"], "flavors": {"cpu": "gpu"}})).collect();
        let change =
            json!({"spec": {"podSets": sets}, "status": {"admission": {"podSetAssignments": assigned}}});
        let mut world = Fixture::new().workload(&change);
        world.objects.node_pools = vec![on("gpu", &["a3-highgpu-8g"]), on("cpu", &["n2-standard-64"])];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn multi_gpu_nodes_on_google_cloud_give_one_note() {
        let on = |group: &str, pods, types: &[&str], limits: &Value| {
            let class = json!({"group": group, "kind": "any", "name": "default"});
            let is = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            let template = json!({"spec": {"requirements": is, "nodeClassRef": class}});
            world(pods, limits, vec![pool("gpu", &json!({"spec": {"template": template}}))])
        };
        let notes = |world: &Fixture| {
            let plan = world.provisioned();
            plan.notes.iter().filter(|note| note.contains("with several GPUs each")).count()
        };
        let google = "karpenter.k8s.gcp";
        let mut shared = on(google, 12, &["a3-highgpu-8g"], &gpu());
        let plan = shared.provisioned();
        assert_eq!((plan.slots.len(), notes(&shared)), (12, 0), "each node is asked for with one");
        let why = "each pod gets a node of its own: Karpenter's provider for Google Cloud counts one GPU for each machine";
        assert!(plan.notes.iter().any(|note| note == why), "{:?}", plan.notes);
        let without = on(google, 12, &["n2-standard-64"], &json!({"cpu": "4"})).provisioned();
        assert_eq!(without.slots.len(), 1, "{:?}", without.notes);
        shared.policy.packing = PackingMode::Fill;
        assert_eq!((shared.provisioned().slots.len(), notes(&shared)), (2, 1));
        assert_eq!(notes(&on(google, 1, &["a3-highgpu-8g"], &json!({"nvidia.com/gpu": "8"}))), 1);
        assert_eq!(notes(&on("karpenter.k8s.aws", 12, &["p5.48xlarge"], &gpu())), 0);
    }

    #[test]
    fn a_node_pool_of_windows_nodes_on_ec2_is_planned() {
        let on = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
        let asked = json!([on(names::OS, "windows"), on(names::INSTANCE_TYPE, "m5.2xlarge")]);
        let plan = world(3, &json!({"cpu": "2"}), vec![ec2("gpu", 1, &asked)]).provisioned();
        assert_eq!((plan.slots.len(), types(&plan)), (1, vec!["m5.2xlarge".to_owned()]));
    }

    #[test]
    fn a_type_with_an_unlisted_gpu_is_used_only_if_it_is_named() {
        let (hidden, plain) = ("Standard_NG16ads_V620_v1", "Standard_D64s_v5");
        let on = |types: &[&str], limits: &Value| {
            let class = json!({"group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default"});
            let is = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            let template = json!({"spec": {"requirements": is, "nodeClassRef": class}});
            world(2, limits, vec![pool("gpu", &json!({"spec": {"template": template}}))])
        };
        let cpu = json!({"cpu": "2"});
        assert_eq!(types(&on(&[hidden, plain], &cpu).provisioned()), [plain]);
        assert_eq!(types(&on(&[hidden], &cpu).provisioned()), [hidden]);
        let mut seen = on(&[hidden, plain], &cpu);
        let node = json!({
            "metadata": {"name": "n1", "labels": {(names::INSTANCE_TYPE): hidden, (names::INITIALIZED): "true",
                (names::NODEPOOL): "gpu"}},
            "status": {"allocatable": {"cpu": "15", "memory": "25Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let node = crate::plan::fixtures::object(node);
        seen.shapes =
            crate::plan::shape::Shape::of_node(&node, jiff::Timestamp::UNIX_EPOCH).into_iter().collect();
        assert_eq!(
            types(&seen.provisioned()),
            [plain],
            "a Node without devices does not make it a plain one"
        );
        for device in ["amd.com/gpu", "nvidia.com/gpu"] {
            let (reason, message) = on(&[hidden], &json!({"cpu": "2", device: "1"})).obstacle();
            assert_eq!(reason, ObstacleReason::TooLarge, "{message}");
        }
    }

    #[test]
    fn eight_one_gpu_pods_share_an_eight_gpu_machine_and_the_plan_says_why() {
        let listed = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}]);
        let mut world = world(8, &gpu(), vec![ec2("gpu", 0, &listed)]);
        let plan = world.provisioned();
        assert_eq!(
            (plan.slots.len(), plan.facts[0].as_str()),
            (1, "pods share nodes, as every instance type of NodePool gpu is known")
        );
        assert!(
            plan.facts[1].starts_with("packed into shape p5.48xlarge as known from the catalogue of "),
            "{:?}",
            plan.notes
        );
        world.policy.packing = PackingMode::PerPod;
        assert_eq!(world.provisioned().slots.len(), 8);
        world.policy.packing = PackingMode::Auto;
        world.policy.mixed_tiers = true;
        let plan = world.provisioned();
        assert_eq!(plan.slots.len(), 8);
        assert!(plan.notes[0].contains("mixedTiers lets a node come from another tier"), "{:?}", plan.notes);
    }

    #[test]
    fn an_unknown_type_is_named_and_left_out() {
        let listed =
            |types: &[&str]| json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
        let of = |types: &[&str]| world(8, &gpu(), vec![ec2("gpu", 0, &listed(types))]);
        let plan = of(&["p5.48xlarge", "p9.huge"]).provisioned();
        assert_eq!((plan.slots.len(), types(&plan)), (1, vec!["p5.48xlarge".to_owned()]));
        let note = &plan.notes[0];
        assert!(
            note.starts_with("instance type p9.huge of NodePool gpu is left out: the catalogue of "),
            "{note}"
        );
        let (reason, message) = of(&["p9.huge"]).obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(
            message.starts_with("nothing is known of instance type p9.huge, which is asked for on"),
            "{message}"
        );
        let remedy = "does not have it, as it lacks some types that exist; correct the name, or state what its nodes have under \
                      packing.shapes, such as {instanceType: p9.huge, ";
        assert!(message.contains(remedy), "{message}");
        let mut stated = of(&["p9.huge"]);
        let shape = json!({"instanceType": "p9.huge", "allocatable": {"cpu": 64, "memory": "1Ti", "nvidia.com/gpu": 8}});
        stated.policy.shapes = serde_json::from_value(json!([shape])).unwrap();
        assert_eq!(types(&stated.provisioned()), ["p9.huge"]);
        let mut elsewhere = of(&["p9.huge"]);
        elsewhere.objects.node_pools = vec![pool(
            "gpu",
            &json!({"spec": {"template": {"spec": {"requirements": listed(&["p9.huge"])}}}}),
        )];
        assert_eq!(types(&elsewhere.provisioned()), ["p9.huge"], "whose provider has no catalogue");
    }

    #[test]
    fn a_value_in_the_wrong_case_gets_a_suggestion() {
        let name = json!([is("gpu-name", "In", &["H100"])]);
        let message = world(2, &gpu(), vec![ec2("gpu", 0, &name)]).obstacle().1;
        assert!(message.ends_with("; correct the requirements; did you mean h100?"), "{message}");
        let other = json!([is("gpu-name", "In", &["h1000"])]);
        let message = world(2, &gpu(), vec![ec2("gpu", 0, &other)]).obstacle().1;
        let newer = "; correct the requirements, or list types that are newer under node.kubernetes.io/instance-type and state \
                     what they have under packing.shapes";
        assert!(message.ends_with(newer), "{message}");
    }

    #[test]
    fn no_sharing_fact_if_each_pod_has_its_own_node() {
        let large = world(
            2,
            &json!({"nvidia.com/gpu": "8"}),
            vec![ec2("gpu", 0, &json!([is("family", "In", &["p5"])]))],
        );
        let facts = large.provisioned().facts;
        assert!(!facts.iter().any(|fact| fact.starts_with("pods share nodes")), "{facts:?}");
    }

    #[test]
    fn a_type_missing_in_the_catalogue_gets_its_size_from_karpenter_metrics() {
        let of_type = |name: &str, value: &str| {
            format!("karpenter_cloudprovider_instance_type_{name}{{instance_type=\"m99.huge\"}} {value}\n")
        };
        let page = of_type("cpu_cores", "64")
            + &of_type("memory_bytes", "274877906944")
            + &offer("available", ["m99.huge", "on-demand", "us-east-1a"], 1);
        let market = market(&page);
        let listed = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["m99.huge"]}]);
        let planned = |limits: &Value, market| {
            let world = world(4, limits, vec![ec2("cpu", 0, &listed)]);
            crate::plan::plan(&crate::plan::PlanSnapshot { market, ..world.cluster() }, &world.request())
        };
        let cpu = json!({"cpu": "15", "memory": "50Gi"});
        let crate::plan::Outcome::Provision(plan) = planned(&cpu, Some(&market)) else { panic!("no plan") };
        assert_eq!(plan.slots.len(), 1, "63 of 64 cores, and 228 of 256 GiB: four pods fit");
        assert_eq!(plan.slots[0].most.resources["cpu"].0, "64", "limits count the machine");
        let words = "packed into shape m99.huge as known from Karpenter's metrics, read 1970-01-01T00:00:00Z";
        assert!(plan.facts.iter().any(|fact| fact == words), "{:?}", plan.facts);
        for (limits, market) in [(&cpu, None), (&gpu(), Some(&market))] {
            let crate::plan::Outcome::Refuse(obstacle) = planned(limits, market) else { panic!("{limits}") };
            let words = "nothing is known of instance type m99.huge";
            assert!(obstacle.message.starts_with(words), "{}", obstacle.message);
        }
    }

    #[test]
    fn requirements_of_the_pods_are_named_before_those_of_the_node_pool() {
        let family = json!([is("family", "In", &["p5"])]);
        let mut world = world(2, &gpu(), vec![ec2("gpu", 0, &family)]);
        let arm =
            json!({"spec": {"podSets": [{"template": {"spec": {"nodeSelector": {names::ARCH: "arm64"}}}}]}});
        let set = crate::plan::fixtures::patched(
            serde_json::to_value(&world.workload.spec.pod_sets[0]).unwrap(),
            &arm["spec"]["podSets"][0],
        );
        world = world.workload(&json!({"spec": {"podSets": [set]}}));
        let message = world.obstacle().1;
        let words = "no instance type of NodePool gpu has kubernetes.io/arch [arm64], which the pods ask for";
        assert!(message.starts_with(words), "{message}");
    }

    #[test]
    fn a_pod_with_too_many_devices_is_refused_with_both_figures() {
        let family = json!([is("family", "In", &["p5"])]);
        let message = world(2, &json!({"nvidia.com/gpu": "16"}), vec![ec2("gpu", 0, &family)]).obstacle().1;
        assert!(message.contains("nvidia.com/gpu (8 of 16)"), "{message}");
    }

    #[test]
    fn a_claim_lists_the_cheapest_types_that_hold_its_pods_and_no_more_than_karpenter_asks_for() {
        let families = json!([is("category", "In", &["c", "m", "r"]), is("generation", "Gt", &["2"])]);
        let plan =
            world(10, &json!({"cpu": "3", "memory": "6Gi"}), vec![ec2("cpu", 0, &families)]).provisioned();
        let listed = types(&plan);
        let shape = plan.slots[0].shape.as_ref().unwrap();
        assert_eq!((plan.slots.len(), listed.len()), (1, 60));
        let catalogue = crate::plan::catalogue::of("karpenter.k8s.aws").unwrap();
        let price = |name: &str| match catalogue.price(name, None).unwrap() {
            crate::plan::catalogue::ListPrice::Usual(price) => price.micros,
            other => panic!("{other:?}"),
        };
        assert!(listed.iter().all(|name| price(name) >= price(&shape.instance_type)), "{listed:?}");
        assert!(listed.contains(&shape.instance_type));
        assert!(listed.iter().map(|name| price(name)).max().unwrap() < 4_000_000, "{listed:?}");
    }

    #[test]
    fn types_over_the_budget_are_left_out_if_others_are_within_it() {
        let family = json!([is("family", "In", &["g5"])]);
        let mut world = world(4, &gpu(), vec![ec2("gpu", 0, &family)]);
        let lists_large_type = |plan: &Plan| types(plan).contains(&"g5.48xlarge".to_owned());
        assert!(lists_large_type(&world.provisioned()));
        world.policy.budget.max_hourly_cost = Some("10".parse().unwrap());
        let plan = world.provisioned();
        assert!(!lists_large_type(&plan) && plan.slots.len() == 1, "{:?}", types(&plan));
        assert!(
            plan.notes.iter().any(|note| note.contains("g5.48xlarge")
                && note.ends_with("the budget is less than the price of 1 node of such a type")),
            "{:?}",
            plan.notes
        );
        world.policy.budget.max_hourly_cost = Some("2".parse().unwrap());
        assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
        // Some types of category g have no known price.
        let mut open = self::world(4, &gpu(), vec![ec2("gpu", 0, &json!([is("category", "In", &["g"])]))]);
        open.policy.budget.max_hourly_cost = Some("50".parse().unwrap());
        let plan = open.provisioned();
        assert!(plan.notes.iter().any(|note| note.contains("no price is known")), "{:?}", plan.notes);
        world.policy.budget.max_hourly_cost = None;
        let mut guards = Guards::default();
        guards.per_local_queue.max_hourly_cost = Some("10".parse().unwrap());
        let cluster = PlanSnapshot { guards: Some(&guards), ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        assert!(!lists_large_type(&plan), "the bound of the LocalQueue leaves it out, too");
    }

    #[test]
    fn pods_that_ask_for_disk_do_not_share_nodes_of_unknown_disk_size() {
        let family = || json!([is("family", "In", &["m5"])]);
        let disk = |size: &str| json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": size});
        let mut scratch = world(4, &disk("15Gi"), vec![ec2("cpu", 0, &family())]);
        for mode in [PackingMode::Auto, PackingMode::Fill] {
            scratch.policy.packing = mode;
            let plan = scratch.provisioned();
            assert_eq!(plan.slots.len(), 4, "{mode:?}");
            let words =
                "pods of pod set main request ephemeral-storage and share no node with others that do";
            assert!(plan.notes.iter().any(|note| note.starts_with(words)), "{:?}", plan.notes);
        }
        scratch.policy.packing = PackingMode::PerPod;
        let words = "pods of pod set main request ephemeral-storage, but the amount on nodes of NodePool cpu is unknown until \
                    one exists, as spec.blockDeviceMappings of its EC2NodeClass is not read";
        let notes = scratch.provisioned().notes;
        assert!(notes.iter().any(|note| note.starts_with(words)), "{notes:?}");
        scratch.policy.packing = PackingMode::Auto;
        let plan = world(4, &json!({"cpu": "1"}), vec![ec2("cpu", 0, &family())]).provisioned();
        assert_eq!((plan.slots.len(), plan.notes.len()), (1, 0), "without it they share a node");
        scratch.objects.node_pools = vec![ec2(
            "cpu",
            0,
            &json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["m5.4xlarge"]}]),
        )];
        scratch.policy.shapes = serde_json::from_value(json!([{"instanceType": "m5.4xlarge",
            "allocatable": {"cpu": 15, "memory": "60Gi", "ephemeral-storage": "47Gi"}}]))
        .unwrap();
        assert_eq!(scratch.provisioned().slots.len(), 2, "three of 15Gi are within 47Gi");
    }

    #[test]
    fn a_claim_lists_the_requested_number_of_distinct_values_or_is_refused() {
        let with = |least: i32| {
            let mut family = is("family", "Exists", &[]);
            family["minValues"] = json!(least);
            json!([is("category", "In", &["p"]), family])
        };
        let plan = world(8, &gpu(), vec![ec2("gpu", 0, &with(7))]).provisioned();
        let families: std::collections::BTreeSet<String> =
            types(&plan).iter().map(|t| t.split('.').next().unwrap().to_owned()).collect();
        assert!(families.len() >= 7, "{families:?}");
        let (reason, message) = world(8, &gpu(), vec![ec2("gpu", 0, &with(40))]).obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(message.contains("asks for 40 values of karpenter.k8s.aws/instance-family"), "{message}");
    }

    /// A requirement on instance types or zones with this `minValues`.
    fn at_least(key: &str, values: &[&str], least: i32) -> Value {
        let operator = if values.is_empty() { "Exists" } else { "In" };
        json!({"key": key, "operator": operator, "values": values, "minValues": least})
    }

    fn asked_at_least(plan: &Plan, key: &str) -> Vec<Option<i32>> {
        let asked = |slot: &crate::plan::Slot| {
            let all = &slot.template.spec.requirements;
            all.iter().find(|r| r.key == key).and_then(|r| r.min_values)
        };
        plan.slots.iter().map(asked).collect()
    }

    #[test]
    fn a_claim_lists_as_many_types_as_asked_for_that_hold_its_pods_and_says_how_many() {
        let four = ["g6.xlarge", "g6.2xlarge", "g6.4xlarge", "g5.xlarge"];
        let of = |types: &[&str], least| {
            world(2, &gpu(), vec![ec2("gpu", 0, &json!([at_least(names::INSTANCE_TYPE, types, least)]))])
        };
        for mode in [PackingMode::Auto, PackingMode::PerPod] {
            let mut world = of(&four, 3);
            world.policy.packing = mode;
            let plan = world.provisioned();
            assert!(types(&plan).len() >= 3, "{:?}", types(&plan));
            assert_eq!(asked_at_least(&plan, names::INSTANCE_TYPE), [Some(3), Some(3)]);
        }
        let metrics = market(
            &four
                .map(|name| offer("available", [name, "on-demand", "a"], u8::from(name.ends_with(".xlarge"))))
                .concat(),
        );
        for mode in [PackingMode::Auto, PackingMode::PerPod] {
            let mut world = of(&four, 3);
            world.policy.packing = mode;
            let cluster = PlanSnapshot { market: Some(&metrics), ..world.cluster() };
            match crate::plan::plan(&cluster, &world.request()) {
                Outcome::Wait(obstacle) => {
                    let said = (obstacle.reason, obstacle.until.is_some());
                    assert_eq!(said, (ObstacleReason::CapacityShort, true), "{mode:?} {obstacle:?}");
                }
                other => {
                    panic!("two of the four are out of capacity, so it is waited for: {mode:?} {other:?}")
                }
            }
        }
        // Two of them do not hold a pod of two GPUs.
        let mut large = of(&["g6.xlarge", "g6.2xlarge", "g6.12xlarge"], 2);
        let two = json!({"cpu": "2", "nvidia.com/gpu": "2"});
        large.workload = self::world(1, &two, vec![]).workload;
        for mode in [PackingMode::Auto, PackingMode::PerPod] {
            large.policy.packing = mode;
            let (reason, message) = large.obstacle();
            assert_eq!(reason, ObstacleReason::RequirementsClash);
            let words = format!(
                "asks for 2 values of {} to choose from, and the types that hold",
                names::INSTANCE_TYPE
            );
            assert!(message.contains(&words), "{message}");
        }
        let mut narrowed = of(&four, 3);
        narrowed.policy.requirements = serde_json::from_value(json!([
            {"key": names::INSTANCE_TYPE, "operator": "In", "values": four[..2]}]))
        .unwrap();
        assert!(narrowed.obstacle().1.contains("asks for 3 values"), "a policy that leaves two");
    }

    #[test]
    fn a_single_pod_node_lists_only_available_fitting_types_without_spare_accelerators() {
        let listed = ["m5.large", "m5.xlarge", "m5.2xlarge", "g6.xlarge"];
        let of = |pods: &Value, out: &str| {
            let asked = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": listed}]);
            let mut world = world(2, pods, vec![ec2("gpu", 0, &asked)]);
            world.policy.packing = PackingMode::PerPod;
            let offered =
                listed.map(|name| offer("available", [name, "on-demand", "a"], u8::from(name != out)));
            let market = market(&offered.concat());
            match crate::plan::plan(
                &PlanSnapshot { market: Some(&market), ..world.cluster() },
                &world.request(),
            ) {
                Outcome::Provision(plan) => types(&plan),
                other => panic!("{other:?}"),
            }
        };
        let (small, large) = (json!({"cpu": "1"}), json!({"cpu": "3"}));
        assert_eq!(of(&small, ""), ["m5.2xlarge", "m5.large", "m5.xlarge"]);
        assert_eq!(of(&small, "m5.2xlarge"), ["m5.large", "m5.xlarge"]);
        assert_eq!(of(&large, ""), ["m5.2xlarge", "m5.xlarge"]);
        assert_eq!(of(&gpu(), ""), ["g6.xlarge"]);
    }

    #[test]
    fn pods_are_packed_into_nodes_that_enough_types_hold() {
        let of = |least| {
            let asked = json!([is("family", "In", &["g6"]), at_least(names::INSTANCE_TYPE, &[], least)]);
            world(8, &gpu(), vec![ec2("gpu", 0, &asked)]).provisioned()
        };
        let one = of(1);
        assert_eq!((one.slots.len(), types(&one)), (1, vec!["g6.48xlarge".to_owned()]));
        let three = of(3);
        assert!(types(&three).len() >= 3 && three.slots.len() > 1, "{:?}", types(&three));
        let pods: u32 = three.slots.iter().flat_map(|slot| slot.pods.iter()).map(|share| share.pods).sum();
        assert_eq!(pods, 8);
    }

    #[test]
    fn label_values_not_set_by_types_are_the_listed_ones_and_too_few_give_a_note() {
        let zones = |values: &[&str], least| {
            let asked = json!([is("family", "In", &["g6"]), at_least(names::ZONE, values, least)]);
            world(2, &gpu(), vec![ec2("gpu", 0, &asked)])
        };
        let plan = zones(&["us-east-1a", "us-east-1b"], 2).provisioned();
        assert!(asked_at_least(&plan, names::ZONE).iter().all(|least| *least == Some(2)), "{plan:?}");
        let mut narrowed = zones(&["us-east-1a", "us-east-1b"], 2);
        narrowed.policy.placement.zones = Some(vec!["us-east-1a".to_owned()]);
        let plan = narrowed.provisioned();
        assert!(asked_at_least(&plan, names::ZONE).iter().all(Option::is_none));
        let words = "minValues 2 of topology.kubernetes.io/zone is left out";
        assert!(plan.notes.iter().any(|note| note.starts_with(words)), "{:?}", plan.notes);
    }

    #[test]
    fn a_pool_without_the_device_room_or_architecture_is_passed_over_with_the_reason() {
        let taint =
            json!({"spec": {"template": {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}}});
        let mut pools = vec![
            ec2("cpu", 9, &json!([is("category", "In", &["c", "m"])])),
            ec2("gpu", 1, &json!([is("category", "In", &["g"]), is("generation", "Gte", &["6"])])),
            ec2("later", 0, &json!([is("category", "In", &["p"])])),
            ec2(
                "arm",
                8,
                &json!([is("category", "In", &["g"]), {"key": names::ARCH, "operator": "In", "values": ["arm64"]},
                is("gpu-name", "In", &["l4"])]),
            ),
        ];
        pools.push(pool("tainted", &taint));
        let plan = world(2, &gpu(), pools.clone()).provisioned();
        let reasons: Vec<(&str, &str)> = plan
            .passed_over
            .iter()
            .map(|PassedOver { node_pool, reason }| (node_pool.as_str(), reason.as_str()))
            .collect();
        assert_eq!(plan.slots[0].node_pool, "gpu");
        assert_eq!(
            reasons.iter().map(|(pool, _)| *pool).collect::<Vec<_>>(),
            ["arm", "cpu", "later", "tainted"]
        );
        assert!(reasons[0].1.starts_with("no instance type of NodePool arm has "), "{reasons:?}");
        assert_eq!(reasons[1].1, "no instance type of NodePool cpu has nvidia.com/gpu");
        assert_eq!(reasons[2].1, "NodePool gpu of weight 1 came first; its own weight is 0");
        assert!(reasons[3].1.contains("taint"), "{reasons:?}");
        let large = json!({"cpu": "2", "nvidia.com/gpu": "1", "memory": "3000Gi"});
        let plan = world(1, &large, pools.clone()).provisioned();
        assert_eq!(plan.slots[0].node_pool, "later");
        let reason = &plan.passed_over.iter().find(|one| one.node_pool == "gpu").unwrap().reason;
        assert!(
            reason.starts_with(
                "no instance type of NodePool gpu holds a pod of pod set main: too little memory"
            ),
            "{reason}"
        );
        let message = world(2, &gpu(), vec![pools.remove(0)]).obstacle().1;
        assert!(
            message.contains(
                "pod set main: no instance type of NodePool cpu has nvidia.com/gpu; correct the request"
            ),
            "{message}"
        );
    }

    #[test]
    fn pods_without_accelerators_avoid_accelerator_nodes_if_others_exist() {
        let cpu = json!({"cpu": "2"});
        let pools = || {
            vec![
                ec2("gpu", 9, &json!([is("category", "In", &["g"])])),
                ec2("cpu", 1, &json!([is("category", "In", &["m"])])),
            ]
        };
        let plan = world(2, &cpu, pools()).provisioned();
        assert_eq!(plan.slots[0].node_pool, "cpu");
        let spare = "its instance types have accelerators, which the pods do not ask for";
        assert_eq!(
            (plan.passed_over[0].node_pool.as_str(), plan.passed_over[0].reason.as_str()),
            ("gpu", spare)
        );
        assert_eq!(world(2, &cpu, vec![pools().remove(0)]).provisioned().slots[0].node_pool, "gpu");
        let mixed = vec![ec2("all", 0, &json!([is("category", "In", &["g", "m"])]))];
        let plan = world(2, &cpu, mixed.clone()).provisioned();
        assert!(types(&plan).iter().all(|name| name.starts_with('m')), "{:?}", types(&plan));
        let mut world = world(4, &gpu(), mixed);
        let lead = crate::plan::fixtures::patched(
            pod_set("lead", 1),
            &json!({"template": {"spec":
            {"containers": [{"resources": {"requests": cpu, "limits": cpu}}]}}}),
        );
        world = world.workload(&json!({
            "spec": {"podSets": [lead, pod_set("main", 4)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "lead", "flavors": {"cpu": "gpu"}}, {"name": "main", "flavors": {"cpu": "gpu"}},
            ]}},
        }));
        let plan = world.provisioned();
        let kinds: Vec<(&str, bool)> = plan
            .slots
            .iter()
            .map(|slot| {
                let shape = slot.shape.as_ref().unwrap();
                (slot.pods[0].pod_set.as_str(), shape.allocatable.contains_key("nvidia.com/gpu"))
            })
            .collect();
        assert_eq!(kinds, [("main", true), ("lead", false)]);
    }

    /// A NodePool of a provider other than AWS.
    fn elsewhere(group: &str, requirements: &Value, limit: &str) -> Arc<crate::api::NodePool> {
        let kind = if group == AZURE { "AKSNodeClass" } else { "GCENodeClass" };
        let class = json!({"group": group, "kind": kind, "name": "default"});
        pool(
            "gpu",
            &json!({"spec": {"limits": {"nvidia.com/gpu": limit},
                "template": {"spec": {"requirements": requirements, "nodeClassRef": class}}}}),
        )
    }

    const AZURE: &str = "karpenter.azure.com";
    const GOOGLE: &str = "karpenter.k8s.gcp";

    #[test]
    fn a_gpu_gang_is_refused_on_machines_of_azure_and_google_without_gpus() {
        for (group, key, value) in
            [(AZURE, "sku-family", "D"), (AZURE, "sku-family", "E"), (GOOGLE, "instance-family", "n2")]
        {
            let only = json!([{"key": format!("{group}/{key}"), "operator": "In", "values": [value]}]);
            let (reason, message) = world(8, &gpu(), vec![elsewhere(group, &only, "64")]).obstacle();
            let words = "pod set main: no instance type of NodePool gpu has nvidia.com/gpu";
            assert!(reason == ObstacleReason::TooLarge && message.starts_with(words), "{value}: {message}");
            let mut other = (*elsewhere(group, &only, "64")).clone();
            other.metadata.name = Some("cpu".to_owned());
            let gpus = elsewhere(group, &json!([]), "64");
            let plan = world(8, &gpu(), vec![Arc::new(other), gpus]).provisioned();
            assert!(plan.slots.iter().all(|slot| slot.node_pool == "gpu"));
            let passed: Vec<String> = plan.passed_over.iter().map(|p| p.reason.clone()).collect();
            assert!(
                passed.iter().any(|p| p.contains("no instance type of NodePool cpu has nvidia.com/gpu")),
                "{passed:?}"
            );
        }
    }

    #[test]
    fn a_gpu_gang_fills_machines_of_azure_and_google_within_their_limits() {
        let one_of = |group: &str, key: &str, values: &[&str]| json!([{"key": format!("{group}/{key}"), "operator": "In", "values": values}]);
        let h100 = one_of(AZURE, "sku-gpu-name", &["H100"]);
        let a3 = one_of(GOOGLE, "instance-gpu-name", &["nvidia-h100-80gb"]);
        let [nd, a3s] = [vec!["Standard_ND96isr_H100_v5"], vec!["a3-edgegpu-8g", "a3-highgpu-8g"]];
        for (group, asked, expected) in [
            (AZURE, &h100, &nd),
            (AZURE, &json!([]), &vec![]),
            (GOOGLE, &a3, &a3s),
            (GOOGLE, &json!([]), &vec![]),
        ] {
            let on = |limit| {
                let mut world = world(16, &gpu(), vec![elsewhere(group, asked, limit)]);
                world.policy.packing = PackingMode::Fill;
                world
            };
            let plan = on("16").provisioned();
            let catalogue = crate::plan::catalogue::of(group).unwrap();
            let listed = types(&plan);
            let gpus =
                |name: &String| catalogue.get(name).unwrap().shape.allocatable.contains_key("nvidia.com/gpu");
            assert!(!listed.is_empty() && listed.iter().all(gpus), "{listed:?}");
            assert_eq!(plan.reservations("g1")[0].most["nvidia.com/gpu"].0, "16", "{group} {listed:?}");
            if !expected.is_empty() {
                assert_eq!(
                    (plan.slots.len(), listed.iter().map(String::as_str).collect()),
                    (2, expected.clone())
                );
            }
            let (reason, message) = on("15").obstacle();
            assert_eq!(reason, ObstacleReason::LimitTooSmall, "{message}");
        }
    }

    #[test]
    fn an_unknown_azure_or_google_type_is_named_and_an_unknown_provider_accepts_any() {
        let listed =
            json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["Standard_ND96isr_H10_v5"]}]);
        for group in [AZURE, GOOGLE] {
            let message = world(8, &gpu(), vec![elsewhere(group, &listed, "64")]).obstacle().1;
            assert!(
                message.starts_with("nothing is known of instance type Standard_ND96isr_H10_v5"),
                "{message}"
            );
        }
        let plan = world(8, &gpu(), vec![elsewhere("karpenter.gcp.io", &json!([]), "64")]);
        assert_eq!(plan.obstacle().0, ObstacleReason::AmountUnknown);
    }
}
