//! The scheduler: binds each waiting pod to a node that fits.

use crate::api::{User, kinds};
use crate::values::{flag, has_ended, is, is_going, list, map, name, text, with_condition};
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_core::api::quantity::Amount;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The API server's message for a gated pod.
const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// Binds every pod that fits on a node, and sets the reason on the others. Returns the bound pods.
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
    add_devices(user, &mut hosts);
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
        let fits = |at: &usize| hosts.get(*at).is_some_and(|h| admits(h.node, pod) && h.has_room(&wanted));
        // The real scheduler spreads pods too, and prefers nodes with much room.
        let load =
            |at: &usize| hosts.get(*at).map(|host| (host.pods, Reverse(host.free.get("cpu").copied())));
        let least = labelled.candidates(pod).filter(fits).min_by_key(load);
        if let Some(host) = least.and_then(|at| hosts.get_mut(at)) {
            host.carry(&wanted);
            let bind = json!({"spec": {"nodeName": host.name}});
            let patched = user.merge(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &bind);
            if let Ok(pod) = patched {
                mark_bound(user, &pod, now);
                bound.push(pod);
            }
        } else {
            let why = format!("0/{} nodes are available.", nodes.len());
            leave(user, pod, ("Unschedulable", &why), now);
        }
    }
    bound
}

/// Sets PodScheduled to True if the pod had a reason for not being bound.
fn mark_bound(user: &User, pod: &Value, now: Timestamp) {
    if list(pod, "/status/conditions").iter().any(|c| text(c, "/type") == "PodScheduled") {
        let conditions = with_condition(pod, ("PodScheduled", "True"), ("", ""), now);
        let status = json!({"status": {"conditions": conditions}});
        let _ = user.merge_status(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &status);
    }
}

/// Sets why a pod is not bound. The first message for a reason stays, even if the number of nodes changes.
fn leave(user: &User, pod: &Value, (reason, words): (&str, &str), now: Timestamp) {
    let current = list(pod, "/status/conditions").iter().find(|c| text(c, "/type") == "PodScheduled");
    if current.is_some_and(|current| text(current, "/reason") == reason) {
        return;
    }
    let conditions = with_condition(pod, ("PodScheduled", "False"), (reason, words), now);
    let status = json!({"status": {"conditions": conditions}});
    // The pod may be gone by now.
    let _ = user.merge_status(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &status);
}

/// How many pods like this one would fit on the nodes if they were empty.
pub fn pods_that_fit<'n>(nodes: impl Iterator<Item = &'n Value>, pod: &Value) -> i64 {
    let wanted = requests(pod);
    let takers = nodes.filter_map(Host::of).filter(|host| admits(host.node, pod));
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

/// Hosts by the labels that waiting pods select, to avoid comparing every pod with every host.
struct Labelled<'n> {
    /// Indices of hosts by label key and value.
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

    /// The smallest indexed set that contains all hosts that a pod's selector admits, in host order.
    fn candidates(&self, pod: &Value) -> impl Iterator<Item = usize> {
        let of = |asked| self.hosts.get(&asked).cloned().unwrap_or_default();
        let fewest = selector(pod).map(of).min_by_key(Vec::len);
        fewest.unwrap_or_else(|| (0..self.all).collect()).into_iter()
    }
}

/// The node selector of a pod.
fn selector(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    selector.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// A Node that accepts pods.
struct Host<'n> {
    node: &'n Value,
    name: &'n str,
    /// Number of pods on it.
    pods: u64,
    free: BTreeMap<String, Amount>,
}

impl<'n> Host<'n> {
    /// Returns `None` if the Node accepts no pods now.
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

/// Adds to the hosts the extended resources that DeviceClasses serve: the devices of the driver that has the name of the class.
fn add_devices(user: &User, hosts: &mut [Host]) {
    let slices = user.list(&kinds::RESOURCE_SLICE);
    for class in user.list(&kinds::DEVICE_CLASS) {
        let resource = text(&class, "/spec/extendedResourceName");
        let of_class = |slice: &&Arc<Value>| text(slice, "/spec/driver") == name(&class);
        for slice in slices.iter().filter(|slice| !resource.is_empty() && of_class(slice)) {
            let on_it = |host: &&mut Host| host.name == text(slice, "/spec/nodeName");
            let devices = list(slice, "/spec/devices").len().to_string();
            if let Some(host) = hosts.iter_mut().find(on_it) {
                let more = (resource.to_owned(), Amount::parse(&devices).unwrap_or_default());
                add(&mut host.free, &BTreeMap::from([more]));
            }
        }
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

/// Whether a node's labels and taints match a pod's selector and tolerations.
fn admits(node: &Value, pod: &Value) -> bool {
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
