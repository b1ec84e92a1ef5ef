//! The scheduler: binds each pod that waits to a node that takes it.

use super::machines::has_ended;
use crate::plan::quantity::Amount;
use crate::sim::api::{User, kinds};
use crate::sim::values::{flag, is, is_going, list, map, name, text, with_condition};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the API server says of a pod with gates.
const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// Binds every pod that has a node to go to, and tells the others why not; returns those that were bound.
pub fn schedule(user: &User, now: Timestamp) -> Vec<Arc<Value>> {
    let pods = user.list(&kinds::POD);
    let unbound = pods.iter().filter(|p| text(p, "/spec/nodeName").is_empty() && !is_going(p));
    let (waiting, gated): (Vec<&Arc<Value>>, Vec<_>) =
        unbound.partition(|p| list(p, "/spec/schedulingGates").is_empty());
    for pod in gated {
        leave(user, pod, ("SchedulingGated", GATED), now);
    }
    if waiting.is_empty() {
        return Vec::new();
    }
    let nodes = user.list(&kinds::NODE);
    let mut hosts: Vec<Host> = nodes.iter().filter_map(|node| Host::of(node)).collect();
    for pod in pods.iter().filter(|p| !has_ended(p)) {
        let node = text(pod, "/spec/nodeName");
        let host = hosts.binary_search_by_key(&node, |h| h.name).ok().and_then(|index| hosts.get_mut(index));
        if let Some(host) = host {
            host.carry(&requests(pod));
        }
    }
    let labelled = Labelled::of(&hosts, &waiting);
    let mut bound = Vec::new();
    for pod in waiting {
        let wanted = requests(pod);
        let fits = |at: &usize| hosts.get(*at).is_some_and(|h| takes(h.node, pod) && h.has_room(&wanted));
        // The real scheduler spreads, too.
        let least = labelled.candidates(pod).filter(fits).min_by_key(|at| hosts.get(*at).map(|h| h.pods));
        if let Some(host) = least.and_then(|at| hosts.get_mut(at)) {
            host.carry(&wanted);
            let bind = json!({"spec": {"nodeName": host.name}});
            let patched = user.merge(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &bind);
            if let Ok(pod) = patched {
                tell_bound(user, &pod, now);
                bound.push(pod);
            }
        } else {
            let why = format!("0/{} nodes are available.", nodes.len());
            leave(user, pod, ("Unschedulable", &why), now);
        }
    }
    bound
}

/// Takes back what was said of a pod while it was not bound.
fn tell_bound(user: &User, pod: &Value, now: Timestamp) {
    if list(pod, "/status/conditions").iter().any(|c| text(c, "/type") == "PodScheduled") {
        let conditions = with_condition(pod, ("PodScheduled", "True"), ("", ""), now);
        let status = json!({"status": {"conditions": conditions}});
        let _ = user.merge_status(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &status);
    }
}

/// Writes why a pod is not bound. The first words for each reason stay: more nodes are no other reason.
fn leave(user: &User, pod: &Value, (reason, words): (&str, &str), now: Timestamp) {
    let said = list(pod, "/status/conditions").iter().find(|c| text(c, "/type") == "PodScheduled");
    if said.is_some_and(|said| text(said, "/reason") == reason) {
        return;
    }
    let conditions = with_condition(pod, ("PodScheduled", "False"), (reason, words), now);
    let status = json!({"status": {"conditions": conditions}});
    // A pod that is gone needs no reason.
    let _ = user.merge_status(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &status);
}

/// How many pods like this one the nodes would take if nothing else ran there.
pub fn places<'n>(nodes: impl Iterator<Item = &'n Value>, pod: &Value) -> i64 {
    let wanted = requests(pod);
    let takers = nodes.filter_map(Host::of).filter(|host| takes(host.node, pod));
    takers
        .map(|mut host| {
            let mut count = 0;
            while host.has_room(&wanted) {
                host.carry(&wanted);
                count += 1;
            }
            count
        })
        .sum()
}

/// Which hosts have the labels that waiting pods ask for, so that not every pod is compared with every host.
struct Labelled<'n> {
    /// Indices of hosts by key and value of a label.
    hosts: BTreeMap<(&'n str, &'n str), Vec<usize>>,
    all: usize,
}

impl<'n> Labelled<'n> {
    fn of(hosts: &[Host<'n>], pods: &[&'n Arc<Value>]) -> Self {
        let keys: BTreeSet<&str> = pods.iter().flat_map(|pod| selector(pod)).map(|(key, _)| key).collect();
        let mut by_label: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, host) in hosts.iter().enumerate() {
            let labels = host.node.pointer("/metadata/labels");
            for key in &keys {
                if let Some(value) = labels.and_then(|l| l.get(key)).and_then(Value::as_str) {
                    by_label.entry((*key, value)).or_default().push(at);
                }
            }
        }
        Self { hosts: by_label, all: hosts.len() }
    }

    /// The fewest hosts among which are all that a pod's selector admits, in their order.
    fn candidates(&self, pod: &Value) -> impl Iterator<Item = usize> {
        let of = |asked| self.hosts.get(&asked).cloned().unwrap_or_default();
        let fewest = selector(pod).map(of).min_by_key(Vec::len);
        fewest.unwrap_or_else(|| (0..self.all).collect()).into_iter()
    }
}

/// Keys and values of the node labels that a pod asks for.
fn selector(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    selector.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// A Node that pods may go to.
struct Host<'n> {
    node: &'n Value,
    name: &'n str,
    /// How many pods it carries.
    pods: u64,
    free: BTreeMap<String, Amount>,
}

impl<'n> Host<'n> {
    /// `None` for one that takes no pods now.
    fn of(node: &'n Value) -> Option<Self> {
        if !is(node, "Ready") || is_going(node) || flag(node, "/spec/unschedulable") {
            return None;
        }
        let amount = |(r, a): (String, String)| (r, Amount::parse(&a).unwrap_or_default());
        let free = map(node, "/status/allocatable").into_iter().map(amount).collect();
        Some(Self { node, name: name(node), pods: 0, free })
    }

    fn carry(&mut self, requests: &BTreeMap<String, Amount>) {
        self.pods += 1;
        for (resource, amount) in requests {
            if let Some(free) = self.free.get_mut(resource) {
                *free = free.minus(*amount);
            }
        }
    }

    fn has_room(&self, wanted: &BTreeMap<String, Amount>) -> bool {
        wanted
            .iter()
            .all(|(resource, amount)| self.free.get(resource).copied().unwrap_or_default() >= *amount)
    }
}

fn add(sum: &mut BTreeMap<String, Amount>, more: &BTreeMap<String, Amount>) {
    for (resource, amount) in more {
        let all = sum.entry(resource.clone()).or_default();
        *all = all.plus(*amount);
    }
}

fn requests(pod: &Value) -> BTreeMap<String, Amount> {
    let mut sum = BTreeMap::from([("pods".to_owned(), Amount::parse("1").unwrap_or_default())]);
    for container in list(pod, "/spec/containers") {
        let mut requests = map(container, "/resources/limits");
        requests.extend(map(container, "/resources/requests"));
        let amounts = requests.into_iter().map(|(r, a)| (r, Amount::parse(&a).unwrap_or_default())).collect();
        add(&mut sum, &amounts);
    }
    sum
}

/// Whether a node's labels and taints agree with a pod's selector and tolerations.
fn takes(node: &Value, pod: &Value) -> bool {
    let labels = node.pointer("/metadata/labels");
    let has = |key, value| labels.and_then(|l| l.get(key)).and_then(Value::as_str) == Some(value);
    let selected = selector(pod).all(|(key, value)| has(key, value));
    let tolerated =
        list(node, "/spec/taints").iter().filter(|t| text(t, "/effect") != "PreferNoSchedule").all(|taint| {
            list(pod, "/spec/tolerations").iter().any(|t| {
                let key = text(t, "/key");
                let effect = text(t, "/effect");
                (key.is_empty() || key == text(taint, "/key"))
                    && (effect.is_empty() || effect == text(taint, "/effect"))
                    && (text(t, "/operator") == "Exists" || text(t, "/value") == text(taint, "/value"))
            })
        });
    selected && tolerated
}
