//! Whether the types of a NodePool hold the pods of a gang, and whether pods may share nodes of them.

use super::{Family, of_draft, resources};
use crate::api::parameters::{Allocatable, PackingMode};
use crate::api::pod::ResourceList;
use crate::plan::claim::Draft;
use crate::plan::demand::PodSetDemand;
use crate::plan::shapes::{Known, Sources, is_of_machine, known};
use crate::plan::{Cluster, Obstacle, ObstacleReason, Request};
use crate::policy::Policy;
use crate::words::few;

/// What no shape has.
pub enum Lack {
    /// Any of a resource.
    Resource(String),
    /// Room for all: of this too little, in words.
    Room(String),
}

/// What no node with so much room has of what a pod takes.
pub fn lack(each: &ResourceList, rooms: &[ResourceList]) -> Lack {
    if let Some(key) = each.keys().find(|key| rooms.iter().all(|room| !room.contains_key(*key))) {
        return Lack::Resource(key.clone());
    }
    let most = rooms.iter().fold(ResourceList::new(), |most, room| resources::max(&most, room));
    let short = resources::shortage(each, &most);
    Lack::Room(short.unwrap_or_else(|| "room for all of it at once".to_owned()))
}

/// How the types of a NodePool suit a pod set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suits {
    /// As they are, as far as is known.
    Well,
    /// With accelerators for which the pods do not ask.
    WithSpareAccelerators,
}

/// How the types that nodes of this draft may be of suit a pod set.
///
/// # Errors
/// What none of them has, where all are known.
pub fn suits(
    cluster: &Cluster<'_>,
    request: &Request<'_>,
    draft: &Draft,
    wanted: &PodSetDemand<'_>,
) -> Result<Suits, Obstacle> {
    let known = of_draft(cluster, request, draft);
    if known.others {
        return Ok(Suits::Well);
    }
    if known.shapes.is_empty() {
        return Err(no_type(draft, &known));
    }
    let rooms: Vec<ResourceList> = known.shapes.iter().map(|s| s.room(&ResourceList::new())).collect();
    let holds = |room: &ResourceList| resources::first_short(&wanted.each, room).is_none();
    let mut holding = known.shapes.iter().zip(&rooms).filter(|(_, room)| holds(room)).peekable();
    if holding.peek().is_none() {
        let pool = &draft.node_pool;
        let message = match lack(&wanted.each, &rooms) {
            Lack::Resource(key) => format!("no instance type of NodePool {pool} has {key}"),
            Lack::Room(lack) => format!(
                "no instance type of NodePool {pool} holds a pod of pod set {}: too little {lack}",
                wanted.pod_set.name
            ),
        };
        return Err(Obstacle::new(ObstacleReason::TooLarge, message));
    }
    let asks = resources::has_accelerator(&wanted.each);
    let suits = asks || holding.any(|(shape, _)| !shape.has_accelerator());
    Ok(if suits { Suits::Well } else { Suits::WithSpareAccelerators })
}

/// That no type meets the requirements, with the one that keeps the others from it if it is one alone.
pub fn no_type(draft: &Draft, known: &Known) -> Obstacle {
    let pool = &draft.node_pool;
    let group = draft.node_class_group();
    let any_without = |key: &str| {
        let rest = draft.requirements.without(key);
        !self::known(Sources { stated: &[], learnt: &[], group }, &rest, pool).shapes.is_empty()
    };
    let mut of_machine = draft.requirements.iter().filter(|(key, _)| is_of_machine(key));
    let found = of_machine.find(|(key, _)| any_without(key));
    let what = found.map_or_else(
        || "meets all that NodePool, policy and pods ask for".to_owned(),
        |(key, values)| format!("has {key} {} and the rest that is asked for", values.words()),
    );
    let date = known
        .catalogue
        .map_or_else(String::new, |c| format!(", as far as the catalogue of {} knows", c.date()));
    let message = format!("no instance type of NodePool {pool} {what}{date}; correct the requirements");
    Obstacle::new(ObstacleReason::RequirementsClash, message)
}

/// Whether pods share nodes of this draft: by the policy, or by itself where every type is known. Nodes of kwok cost nothing:
/// of them only stated shapes count.
pub fn fills(policy: &Policy, draft: &Draft, known: &Known) -> bool {
    match policy.packing {
        PackingMode::PerPod => false,
        PackingMode::Fill => true,
        PackingMode::Auto => {
            let stated = !draft.node_class().is_kwok() || !policy.shapes.is_empty();
            why_not(policy).is_none() && stated && !known.others
        }
    }
}

/// What of the policy keeps pods from sharing nodes where it does not say that they do.
fn why_not(policy: &Policy) -> Option<&'static str> {
    if policy.mixed_tiers {
        return Some("mixedTiers lets a node come from another tier, which may hold other pods");
    }
    (policy.readiness.allocatable != Allocatable::Exact).then_some(
        "readiness.allocatable is not Exact, so that a node that is too small would count as ready",
    )
}

/// Whether the policy leaves open if pods share nodes, and it matters: nodes of kwok cost nothing.
fn is_open(request: &Request<'_>, family: &Family<'_>) -> bool {
    request.policy.packing == PackingMode::Auto && !family.draft.node_class().is_kwok()
}

/// That pods share nodes, where the policy leaves it open.
pub(super) fn shared(request: &Request<'_>, family: &Family<'_>) -> Option<String> {
    let pool = &family.draft.node_pool;
    (is_open(request, family) && family.fills)
        .then(|| format!("pods share nodes, as every instance type of NodePool {pool} is known"))
}

/// Why each pod gets a node of its own, where the policy leaves it open; and what the catalogue lacks.
pub(super) fn notes(request: &Request<'_>, family: &Family<'_>) -> Vec<String> {
    let (pool, known) = (&family.draft.node_pool, &family.known);
    let mut notes = Vec::new();
    if let (Some(catalogue), false) = (known.catalogue, known.uncatalogued.is_empty()) {
        let types = few(known.uncatalogued.iter().map(String::as_str));
        notes.push(format!(
            "NodePool {pool} lists {types}, which the catalogue of {} does not know; state what they have under packing.shapes",
            catalogue.date()
        ));
    }
    if !is_open(request, family) || family.fills {
        return notes;
    }
    notes.push(match why_not(request.policy) {
        Some(why) => format!("each pod gets a node of its own: {why}"),
        None => format!(
            "each pod gets a node of its own, as not every instance type of NodePool {pool} is known: packing.mode Fill would \
             share those that are"
        ),
    });
    notes
}

#[cfg(test)]
mod tests {
    use crate::api::parameters::PackingMode;
    use crate::names;
    use crate::plan::fixtures::{World, pod_set, pool};
    use crate::plan::passed::PassedOver;
    use crate::plan::{ObstacleReason, Plan};
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

    /// Pods that take this, on these NodePools.
    fn world(pods: i32, limits: &Value, pools: Vec<Arc<crate::api::NodePool>>) -> World {
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": limits, "limits": limits}}]}}});
        let set = crate::plan::fixtures::patched(pod_set("main", pods), &spec);
        let mut world = World::new().workload(&json!({"spec": {"podSets": [set]}}));
        world.pools = pools;
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
    fn eight_pods_of_one_gpu_share_a_machine_of_eight_and_the_plan_says_why() {
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
    fn a_type_that_the_catalogue_does_not_know_is_named_and_no_pods_share_it() {
        let listed =
            json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge", "p9.huge"]}]);
        let plan = world(8, &gpu(), vec![ec2("gpu", 0, &listed)]).provisioned();
        assert_eq!(plan.slots.len(), 8);
        assert!(
            plan.notes[0].starts_with("NodePool gpu lists p9.huge, which the catalogue of 20"),
            "{:?}",
            plan.notes
        );
        assert!(
            plan.notes[1].contains("not every instance type of NodePool gpu is known"),
            "{:?}",
            plan.notes
        );
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
        let price = |name: &str| catalogue.price(name, None).unwrap().micros;
        assert!(listed.iter().all(|name| price(name) >= price(&shape.instance_type)), "{listed:?}");
        assert!(listed.contains(&shape.instance_type));
        assert!(listed.iter().map(|name| price(name)).max().unwrap() < 4_000_000, "{listed:?}");
    }

    #[test]
    fn types_that_would_cost_more_than_the_budget_are_left_out_where_others_are_within_it() {
        let family = json!([is("family", "In", &["g5"])]);
        let mut world = world(4, &gpu(), vec![ec2("gpu", 0, &family)]);
        let dear = |plan: &Plan| types(plan).contains(&"g5.48xlarge".to_owned());
        assert!(dear(&world.provisioned()));
        world.policy.budget.max_hourly_cost = Some("10".parse().unwrap());
        let plan = world.provisioned();
        assert!(!dear(&plan) && plan.slots.len() == 1, "{:?}", types(&plan));
        assert!(
            plan.notes.iter().any(|note| note.contains("g5.48xlarge")
                && note.ends_with("the budget is less than the price of 1 node of it")),
            "{:?}",
            plan.notes
        );
        world.policy.budget.max_hourly_cost = Some("2".parse().unwrap());
        assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
    }

    #[test]
    fn as_many_distinct_values_are_listed_as_asked_for_or_none_at_all() {
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

    #[test]
    fn a_pool_without_the_device_the_room_or_the_architecture_is_passed_over_and_told() {
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
        let told: Vec<(&str, &str)> = plan
            .passed_over
            .iter()
            .map(|PassedOver { node_pool, reason }| (node_pool.as_str(), reason.as_str()))
            .collect();
        assert_eq!(plan.slots[0].node_pool, "gpu");
        assert_eq!(
            told.iter().map(|(pool, _)| *pool).collect::<Vec<_>>(),
            ["arm", "cpu", "later", "tainted"]
        );
        assert!(told[0].1.starts_with("no instance type of NodePool arm has "), "{told:?}");
        assert_eq!(told[1].1, "no instance type of NodePool cpu has nvidia.com/gpu");
        assert_eq!(told[2].1, "another NodePool came first");
        assert!(told[3].1.contains("taint"), "{told:?}");
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
            message.contains("requests nvidia.com/gpu, which no node shape of NodePool cpu has (c1.medium"),
            "{message}"
        );
    }

    #[test]
    fn pods_without_accelerators_take_no_nodes_with_them_where_there_are_others() {
        let cpu = json!({"cpu": "2"});
        let pools = || {
            vec![
                ec2("gpu", 9, &json!([is("category", "In", &["g"])])),
                ec2("cpu", 1, &json!([is("category", "In", &["m"])])),
            ]
        };
        assert_eq!(world(2, &cpu, pools()).provisioned().slots[0].node_pool, "cpu");
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
}
