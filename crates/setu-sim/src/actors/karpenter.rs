//! Karpenter: launches, registers, initializes and terminates NodeClaims according to its contract, in the
//! weather that a test sets.

mod limits;
mod nodes;
pub mod reboots;

use super::{Actor, ObjectChange, Stage};
use crate::api::kinds::{self, ServedKind};
use crate::api::{Preconditions, User};
use crate::catalogue::{CatalogueOffer, RESERVED, offers};
use crate::values::{
    annotation, condition, created, is_going, label, list, map, name, noted, seconds, set, text, uid,
    with_condition,
};
use crate::weather::{Location, Weather};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use setu_core::names;
use std::collections::BTreeMap;
use std::time::Duration;

/// The finalizer on every NodeClaim.
const FINALIZER: &str = "karpenter.sh/termination";
/// Karpenter gives up on a launch after this long.
const LAUNCH_LIMIT: SignedDuration = SignedDuration::from_mins(5);
/// Interval at which a delay of the weather is checked again.
const POLL: Duration = Duration::from_secs(1);

/// The next phase of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStage {
    /// An instance is launched.
    Launch,
    /// Its Node appears.
    Register,
    /// Its kubelet becomes ready.
    Boot,
    /// The Node is initialized.
    Initialize,
    /// Its machine reboots.
    Reboot,
    /// Its machine is up again.
    Rebooted,
    /// It is drained and terminated.
    Terminate,
    /// It is checked for running pods.
    Idle,
}

/// The actor.
#[derive(Default)]
pub struct Karpenter {
    /// Places of the existing instances, by claim name.
    live: BTreeMap<String, Location>,
    instances: u64,
}

/// A claim that is due for a phase: name, UID, phase.
type Due = (String, String, ClaimStage);

impl Actor for Karpenter {
    type Timer = Due;
    const NAME: &'static str = "karpenter";

    fn seen(&mut self, touched: &ObjectChange, stage: &mut Stage<Due>) {
        let user = stage.server.user(Self::NAME);
        match touched.kind.kind {
            "NodeClaim" => {
                if !touched.gone {
                    claim_seen(&user, &touched.object, stage);
                }
                limits::update_resources(&user, &touched.object);
            }
            "Node" if !touched.gone => reboots::node_seen(&user, &touched.object, stage),
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
        if is_going(&object) != (phase == ClaimStage::Terminate) {
            return;
        }
        match phase {
            ClaimStage::Launch => self.launch(&user, &object, stage),
            ClaimStage::Register => self.register(&user, &object, stage),
            ClaimStage::Boot => self.boot(&user, &object, stage),
            ClaimStage::Initialize => nodes::initialize(&user, &object, stage),
            ClaimStage::Reboot => reboots::begin(&user, &object, stage),
            ClaimStage::Rebooted => reboots::end(&user, &object, stage),
            ClaimStage::Idle => nodes::idle(&user, &object, stage),
            ClaimStage::Terminate => self.terminate(&user, &object),
        }
    }
}

fn claim_seen(user: &User, claim: &Value, stage: &mut Stage<Due>) {
    let key = |phase| (name(claim).to_owned(), uid(claim).to_owned(), phase);
    if is_going(claim) {
        stage.soon(300, 1_500, key(ClaimStage::Terminate));
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
        stage.soon(200, 1_200, key(ClaimStage::Launch));
    }
}

/// Writes what Karpenter's NodePool controllers write.
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

fn set_conditions(user: &User, kind: &'static ServedKind, object: &Value, conditions: &[Value]) {
    let patch = json!({"status": {"conditions": conditions}});
    // The object may be gone by now.
    let _ = user.merge_status(kind, "", name(object), &patch);
}

/// NodePool, slot and labels of a NodeClaim or a Node.
pub(super) fn place(object: &Value) -> Location {
    Location {
        node_pool: label(object, names::NODEPOOL).to_owned(),
        slot: noted(object, names::SLOT).to_owned(),
        labels: map(object, "/metadata/labels"),
        ..Location::default()
    }
}

/// The weather.
pub(super) fn weather(user: &User) -> Weather {
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
        let again = (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Launch);
        let offer = self.cheapest(claim, &place, &weather);
        // Launch delays depend on the place of the launch.
        let target = offer.as_ref().map_or_else(|| place.clone(), |offer| place.with(offer));
        if age < signed(weather.launch_delay(&target)) {
            return stage.after(POLL, again);
        }
        if let Some(error) = weather.create_error(&place) {
            let unknown =
                with_condition(claim, ("Launched", "Unknown"), (&error.reason, &error.message), now);
            set_conditions(user, &kinds::NODE_CLAIM, claim, &unknown);
            return stage.after(POLL.saturating_mul(3), again);
        }
        let class = user.get(&kinds::KWOK_NODE_CLASS, "", text(claim, "/spec/nodeClassRef/name"));
        if class
            .as_ref()
            .is_some_and(|c| condition(c, "Ready").is_some_and(|r| text(r, "/status") == "False"))
        {
            return delete(user, claim);
        }
        if class.is_none() {
            let name = text(claim, "/spec/nodeClassRef/name");
            let why = format!("resolving node class from nodeclaim, kwoknodeclasses \"{name}\" not found");
            out_of_capacity(user, claim, &why, now);
            return delete(user, claim);
        }
        let Some(offer) = offer else {
            out_of_capacity(user, claim, "all requested instance types were unavailable during launch", now);
            return delete(user, claim);
        };
        self.launched(user, claim, &offer, now);
        stage.soon(500, 2_500, (name(claim).to_owned(), uid(claim).to_owned(), ClaimStage::Register));
    }

    fn cheapest(&self, claim: &Value, place: &Location, weather: &Weather) -> Option<CatalogueOffer> {
        let requests = map(claim, "/spec/resources/requests");
        offers()
            .filter(|offer| offer.instance_type.fits(&requests) && allowed(claim, &place.with(offer)))
            .filter(|offer| offer.capacity_type != RESERVED || weather.reserves(&place.with(offer)))
            .filter(|offer| !weather.is_full(&place.with(offer), &self.live))
            .map(|offer| (offer.price * weather.price_factor(&place.with(&offer)), offer))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, offer)| offer)
    }

    fn launched(&mut self, user: &User, claim: &Value, offer: &CatalogueOffer, now: Timestamp) {
        self.instances = self.instances.saturating_add(1);
        let place = place(claim).with(offer);
        let mut labels = json!({
            "node.kubernetes.io/instance-type": place.instance_type,
            "topology.kubernetes.io/zone": place.zone,
            (names::CAPACITY_TYPE): place.capacity_type,
        });
        let ids =
            list(claim, "/spec/requirements").iter().filter(|r| text(r, "/key") == names::RESERVATION_ID);
        if let Some(id) =
            ids.flat_map(|r| list(r, "/values")).next().filter(|_| offer.capacity_type == RESERVED)
        {
            set(&mut labels, &[names::RESERVATION_ID], id.clone());
        }
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
}

/// Whether the claim's requirements allow an instance in this place.
fn allowed(claim: &Value, place: &Location) -> bool {
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

fn out_of_capacity(user: &User, claim: &Value, why: &str, now: Timestamp) {
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "default", "name": format!("{}.{:x}", name(claim), now.as_nanosecond())},
        "involvedObject": {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name(claim), "uid": uid(claim)},
        "type": "Warning", "reason": "InsufficientCapacityError", "count": 1,
        "message": format!("NodeClaim {} event: {why}", name(claim)),
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
