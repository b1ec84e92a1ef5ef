//! Karpenter: launches, registers, initializes and ends NodeClaims, as its contract says, in the
//! weather that a test makes. The kubelet of its Nodes is played here too.

use super::machines::has_ended;
use super::{Actor, Stage, Touched};
use crate::names;
use crate::sim::api::kinds::{self, Kind};
use crate::sim::api::{Preconditions, User};
use crate::sim::catalogue::{Offer, offers};
use crate::sim::values::{
    annotation, condition, created, is, is_going, label, list, map, name, seconds, set, text, uid,
    with_condition,
};
use crate::sim::weather::{Place, Weather};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The finalizer on every NodeClaim.
const FINALIZER: &str = "karpenter.sh/termination";
/// Karpenter gives up on a launch after this long.
const LAUNCH_LIMIT: SignedDuration = SignedDuration::from_mins(5);
/// Karpenter gives up on a registration after this long.
const REGISTRATION_LIMIT: SignedDuration = SignedDuration::from_mins(15);
/// An unprotected node is taken away when it has been idle for this long.
const IDLE_LIMIT: Duration = Duration::from_secs(27);
/// How often a delay of the weather is looked at again.
const LOOK: Duration = Duration::from_secs(1);

/// What is next for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// An instance is bought.
    Launch,
    /// Its Node appears.
    Register,
    /// Its kubelet gets ready.
    Boot,
    /// The Node is found complete.
    Initialize,
    /// It is drained and given back.
    Terminate,
    /// It is asked whether anything runs on it.
    Idle,
}

/// The actor.
#[derive(Default)]
pub struct Karpenter {
    /// Where the instances are that exist, by name of their claim.
    live: BTreeMap<String, Place>,
    instances: u64,
}

/// A claim that is due for a phase: name, UID, phase.
type Due = (String, String, Phase);

impl Actor for Karpenter {
    type Timer = Due;
    const NAME: &'static str = "karpenter";

    fn seen(&mut self, touched: &Touched, stage: &mut Stage<Due>) {
        let user = stage.server.user(Self::NAME);
        match touched.kind.kind {
            "NodeClaim" if touched.gone => {}
            "NodeClaim" => claim_seen(&user, &touched.object, stage),
            "NodePool" if !touched.gone => pool_seen(&user, &touched.object, stage.now()),
            "KWOKNodeClass" => {
                if !touched.gone && condition(&touched.object, "Ready").is_none() {
                    let ready =
                        with_condition(&touched.object, ("Ready", "True"), ("Ready", ""), stage.now());
                    set_conditions(&user, &kinds::KWOK_NODE_CLASS, &touched.object, &ready);
                }
                for pool in user.list(&kinds::NODE_POOL) {
                    pool_seen(&user, &pool, stage.now());
                }
            }
            _ => {}
        }
    }

    fn due(&mut self, (claim, id, phase): Due, stage: &mut Stage<Due>) {
        let user = stage.server.user(Self::NAME);
        let Some(object) = user.get(&kinds::NODE_CLAIM, "", &claim).filter(|c| uid(c) == id) else {
            return;
        };
        if is_going(&object) != (phase == Phase::Terminate) {
            return;
        }
        match phase {
            Phase::Launch => self.launch(&user, &object, stage),
            Phase::Register => self.register(&user, &object, stage),
            Phase::Boot => self.boot(&user, &object, stage),
            Phase::Initialize => initialize(&user, &object, stage),
            Phase::Idle => idle(&user, &object, stage),
            Phase::Terminate => self.terminate(&user, &object),
        }
    }
}

fn claim_seen(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
    if is_going(claim) {
        stage.soon(300, 1_500, key(Phase::Terminate));
    } else if !list(claim, "/metadata/finalizers").iter().any(|f| f == FINALIZER) {
        let _ = user.merge(
            &kinds::NODE_CLAIM,
            "",
            name(claim),
            &json!({"metadata": {"finalizers": [FINALIZER]}}),
        );
        let born = seconds(created(claim));
        let unknown = |kind| json!({"type": kind, "status": "Unknown", "reason": "AwaitingReconciliation", "message": "object is awaiting reconciliation", "lastTransitionTime": born});
        let conditions = ["Launched", "Registered", "Initialized", "Ready"].map(unknown);
        let _ = user.merge_status(
            &kinds::NODE_CLAIM,
            "",
            name(claim),
            &json!({"status": {"conditions": conditions}}),
        );
        stage.soon(200, 1_200, key(Phase::Launch));
    }
}

/// What Karpenter's own controllers write on a NodePool.
fn pool_seen(user: &User, pool: &Value, now: Timestamp) {
    if annotation(pool, names::NODEPOOL_HASH).is_empty() {
        let hash = json!({"metadata": {"annotations": {
            (names::NODEPOOL_HASH): "1", (names::NODEPOOL_HASH_VERSION): "v3",
        }}});
        let _ = user.merge(&kinds::NODE_POOL, "", name(pool), &hash);
    }
    let class = text(pool, "/spec/template/spec/nodeClassRef/name");
    let (status, reason) = match user.get(&kinds::KWOK_NODE_CLASS, "", class) {
        None => ("False", "NodeClassNotFound"),
        Some(class) if condition(&class, "Ready").is_some_and(|c| text(c, "/status") == "False") => {
            ("False", "NodeClassNotReady")
        }
        Some(_) => ("True", "NodeClassReady"),
    };
    let message = if status == "True" { String::new() } else { format!("NodeClass {class}") };
    let mut changed = pool.clone();
    for kind in ["NodeClassReady", "ValidationSucceeded", "Ready"] {
        let status = if kind == "ValidationSucceeded" { "True" } else { status };
        let conditions = with_condition(&changed, (kind, status), (reason, &message), now);
        set(&mut changed, &["status", "conditions"], json!(conditions));
    }
    if changed != *pool {
        set_conditions(user, &kinds::NODE_POOL, pool, list(&changed, "/status/conditions"));
    }
}

fn set_conditions(user: &User, kind: &'static Kind, object: &Value, conditions: &[Value]) {
    let patch = json!({"status": {"conditions": conditions}});
    // What is gone meanwhile needs no conditions.
    let _ = user.merge_status(kind, "", name(object), &patch);
}

fn place(claim: &Value) -> Place {
    Place {
        node_pool: label(claim, names::NODEPOOL).to_owned(),
        slot: label(claim, names::SLOT).to_owned(),
        ..Place::default()
    }
}

fn weather(user: &User) -> Weather {
    Weather::read(user.get(&kinds::CONFIG_MAP, "kube-system", "weather").as_deref())
}

impl Karpenter {
    fn launch(&mut self, user: &User, claim: &Value, stage: &mut Stage<Due>) {
        let now = stage.now();
        let age = now.duration_since(created(claim));
        let weather = weather(user);
        let place = place(claim);
        if age > LAUNCH_LIMIT {
            return delete(user, claim);
        }
        let again = (name(claim).to_owned(), uid(claim).to_owned(), Phase::Launch);
        let offer = self.cheapest(claim, &place, &weather);
        // What delays a launch is where it would be.
        let target = offer.as_ref().map_or_else(|| place.clone(), |offer| offer.on(&place));
        if age < signed(weather.launch_delay(&target)) {
            return stage.after(LOOK, again);
        }
        if let Some(error) = weather.create_error(&place) {
            let unknown =
                with_condition(claim, ("Launched", "Unknown"), (&error.reason, &error.message), now);
            set_conditions(user, &kinds::NODE_CLAIM, claim, &unknown);
            return stage.after(LOOK.saturating_mul(3), again);
        }
        let class = user.get(&kinds::KWOK_NODE_CLASS, "", text(claim, "/spec/nodeClassRef/name"));
        if class
            .as_ref()
            .is_some_and(|c| condition(c, "Ready").is_some_and(|r| text(r, "/status") == "False"))
        {
            return delete(user, claim);
        }
        let Some(offer) = class.and(offer) else {
            out_of_capacity(user, claim, now);
            return delete(user, claim);
        };
        self.launched(user, claim, &offer, now);
        stage.soon(500, 2_500, (name(claim).to_owned(), uid(claim).to_owned(), Phase::Register));
    }

    fn cheapest(&self, claim: &Value, place: &Place, weather: &Weather) -> Option<Offer> {
        let requests = map(claim, "/spec/resources/requests");
        offers()
            .filter(|offer| offer.instance_type.fits(&requests) && allowed(claim, &offer.on(place)))
            .filter(|offer| !weather.is_full(&offer.on(place), &self.live))
            .map(|offer| (offer.price * weather.price_factor(&offer.on(place)), offer))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, offer)| offer)
    }

    fn launched(&mut self, user: &User, claim: &Value, offer: &Offer, now: Timestamp) {
        self.instances = self.instances.saturating_add(1);
        let place = offer.on(&place(claim));
        let labels = json!({
            "node.kubernetes.io/instance-type": place.instance_type,
            "topology.kubernetes.io/zone": place.zone,
            (names::CAPACITY_TYPE): place.capacity_type,
        });
        self.live.insert(name(claim).to_owned(), place);
        let _ = user.merge(&kinds::NODE_CLAIM, "", name(claim), &json!({"metadata": {"labels": labels}}));
        let status = json!({"status": {
            "providerID": format!("embedded://{}", self.instances),
            "capacity": offer.instance_type.allocatable(),
            "allocatable": offer.instance_type.allocatable(),
            "conditions": with_condition(claim, ("Launched", "True"), ("Launched", ""), now),
        }});
        let _ = user.merge_status(&kinds::NODE_CLAIM, "", name(claim), &status);
    }

    fn register(&self, user: &User, claim: &Value, stage: &mut Stage<Due>) {
        let now = stage.now();
        let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
        let Some(place) = self.live.get(name(claim)) else { return };
        if now.duration_since(created(claim)) > REGISTRATION_LIMIT {
            return delete(user, claim);
        }
        let waited = crate::sim::values::since(claim, "Launched")
            .map_or(SignedDuration::MAX, |t| now.duration_since(t));
        if waited < signed(weather(user).registration_delay(place)) {
            return stage.after(LOOK, key(Phase::Register));
        }
        let mut labels = map(claim, "/metadata/labels");
        labels.insert("kubernetes.io/hostname".to_owned(), name(claim).to_owned());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        labels.insert("kubernetes.io/arch".to_owned(), "amd64".to_owned());
        labels.insert("karpenter.sh/registered".to_owned(), "true".to_owned());
        let mut taints = list(claim, "/spec/taints").to_vec();
        taints.extend_from_slice(list(claim, "/spec/startupTaints"));
        taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name(claim), "labels": labels, "annotations": map(claim, "/metadata/annotations"),
                "ownerReferences": [{
                    "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name(claim), "uid": uid(claim),
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {"providerID": text(claim, "/status/providerID"), "taints": taints},
        });
        let _ = user.create(&kinds::NODE, node);
        let status = json!({"status": {
            "nodeName": name(claim),
            "conditions": with_condition(claim, ("Registered", "True"), ("Registered", ""), now),
        }});
        let _ = user.merge_status(&kinds::NODE_CLAIM, "", name(claim), &status);
        stage.soon(200, 1_500, key(Phase::Boot));
    }

    /// The kubelet: the Node becomes Ready and shows what it has.
    fn boot(&self, user: &User, claim: &Value, stage: &mut Stage<Due>) {
        let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
        let (Some(place), Some(node)) = (self.live.get(name(claim)), user.get(&kinds::NODE, "", name(claim)))
        else {
            return;
        };
        let weather = weather(user);
        if weather.never_ready(place) {
            return stage.after(LOOK, key(Phase::Boot));
        }
        let all = map(claim, "/status/allocatable");
        let shown: BTreeMap<&String, &String> =
            all.iter().filter(|(r, _)| !weather.hides(place, r)).collect();
        let status = json!({"status": {
            "capacity": shown, "allocatable": shown,
            "conditions": with_condition(&node, ("Ready", "True"), ("KubeletReady", "kubelet is posting ready status"), stage.now()),
        }});
        let _ = user.merge_status(&kinds::NODE, "", name(claim), &status);
        let taints: Vec<&Value> = list(&node, "/spec/taints")
            .iter()
            .filter(|t| !text(t, "/key").starts_with("node.kubernetes.io/not-ready"))
            .collect();
        let _ = user.merge(&kinds::NODE, "", name(claim), &json!({"spec": {"taints": taints}}));
        if shown.len() < all.len() {
            stage.after(LOOK, key(Phase::Boot));
        }
        stage.soon(50, 500, key(Phase::Initialize));
    }

    fn terminate(&mut self, user: &User, claim: &Value) {
        let node = name(claim);
        let drained = |p: &&Arc<Value>| text(p, "/spec/nodeName") == node && !has_ended(p);
        for pod in user.list(&kinds::POD).iter().filter(drained) {
            let _ = user.delete(
                &kinds::POD,
                text(pod, "/metadata/namespace"),
                name(pod),
                Preconditions::default(),
            );
        }
        let _ = user.delete(&kinds::NODE, "", node, Preconditions::default());
        self.live.remove(node);
        let others: Vec<&Value> =
            list(claim, "/metadata/finalizers").iter().filter(|f| *f != FINALIZER).collect();
        let _ = user.merge(&kinds::NODE_CLAIM, "", node, &json!({"metadata": {"finalizers": others}}));
    }
}

/// Initialized is set once and never taken back.
fn initialize(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = user.get(&kinds::NODE, "", name(claim)) else { return };
    let shown = map(&node, "/status/allocatable");
    let missing = map(claim, "/spec/resources/requests").keys().any(|r| !shown.contains_key(r));
    let startup = list(claim, "/spec/startupTaints");
    let tainted = list(&node, "/spec/taints")
        .iter()
        .any(|t| startup.iter().any(|s| text(s, "/key") == text(t, "/key")));
    if is(claim, "Initialized") || missing || tainted || !is(&node, "Ready") {
        return;
    }
    let _ = user.merge(
        &kinds::NODE,
        "",
        name(claim),
        &json!({"metadata": {"labels": {"karpenter.sh/initialized": "true"}}}),
    );
    let now = stage.now();
    let mut done = claim.clone();
    for kind in ["Initialized", "Ready"] {
        let conditions = with_condition(&done, (kind, "True"), (kind, ""), now);
        if let Some(status) = done.get_mut("status") {
            set(status, &["conditions"], json!(conditions));
        }
    }
    set_conditions(user, &kinds::NODE_CLAIM, claim, list(&done, "/status/conditions"));
    stage.after(IDLE_LIMIT, (name(claim).to_owned(), uid(claim).to_owned(), Phase::Idle));
}

/// Consolidation: an unprotected node on which nothing runs is taken away.
fn idle(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let Some(node) = user.get(&kinds::NODE, "", name(claim)) else { return };
    let protected = annotation(&node, names::DO_NOT_DISRUPT) == "true";
    let runs = |p: &std::sync::Arc<Value>| {
        text(p, "/spec/nodeName") == name(claim)
            && !matches!(text(p, "/status/phase"), "Succeeded" | "Failed")
    };
    let busy = user.list(&kinds::POD).iter().any(runs);
    if protected || busy {
        stage.after(IDLE_LIMIT, (name(claim).to_owned(), uid(claim).to_owned(), Phase::Idle));
    } else {
        delete(user, claim);
    }
}

/// Whether the claim's requirements allow an instance in this place.
fn allowed(claim: &Value, place: &Place) -> bool {
    list(claim, "/spec/requirements").iter().all(|requirement| {
        let value = match text(requirement, "/key") {
            "node.kubernetes.io/instance-type" => &place.instance_type,
            "topology.kubernetes.io/zone" => &place.zone,
            key if key == names::CAPACITY_TYPE => &place.capacity_type,
            _ => return true,
        };
        let named = list(requirement, "/values").iter().any(|v| v == value);
        match text(requirement, "/operator") {
            "In" => named,
            "NotIn" => !named,
            operator => operator != "DoesNotExist",
        }
    })
}

fn out_of_capacity(user: &User, claim: &Value, now: Timestamp) {
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "default", "name": format!("{}.{:x}", name(claim), now.as_nanosecond())},
        "involvedObject": {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name(claim), "uid": uid(claim)},
        "type": "Warning", "reason": "InsufficientCapacityError", "count": 1,
        "message": format!("NodeClaim {} event: all requested instance types were unavailable during launch", name(claim)),
        "firstTimestamp": seconds(now), "lastTimestamp": seconds(now), "source": {"component": "karpenter"},
        "reportingComponent": "karpenter", "reportingInstance": "",
    });
    let _ = user.create(&kinds::EVENT, event);
}

fn delete(user: &User, claim: &Value) {
    let only_this = Preconditions { uid: Some(uid(claim).to_owned()), ..Preconditions::default() };
    let _ = user.delete(&kinds::NODE_CLAIM, "", name(claim), only_this);
}

fn signed(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}
