//! Moves that are not about one Workload. Most last until they are undone by `calm`.

use super::{Move, Mover, Props, annotate, forged, free};
use crate::names;
use crate::sim::cluster::SimCluster;
use crate::sim::scenario;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_sim::api::kinds::{self, ServedKind};
use setu_sim::api::{Preconditions, User};
use setu_sim::chance::Chance;
use setu_sim::denials::Denial;
use setu_sim::faults::STALE_REPLICA;
use setu_sim::values::{is, list, name, set, text, with_condition};

/// A finalizer whose controller is gone.
const HOLD: &str = "example.com/hold";
/// A check without a controller.
pub const OTHER: &str = "other";

/// Makes a move that is not about a particular Workload.
pub fn begin(what: Move, mover: &Mover<'_>, chance: &mut Chance) {
    let Mover { user, cluster, props } = mover;
    if let Some(denial) = denial(what) {
        return cluster.denials.begin(denial);
    }
    if let Some(rules) = rules(what, chance) {
        return weather(user, props, &rules);
    }
    match what {
        Move::DeleteClaim => {
            if let Some(claim) = chance.pick(&user.list(&kinds::NODE_CLAIM)) {
                delete(user, &kinds::NODE_CLAIM, name(claim));
            }
        }
        Move::HoldFinalizer => {
            if let Some(claim) = chance.pick(&user.list(&kinds::NODE_CLAIM)) {
                let mut all = list(claim, "/metadata/finalizers").to_vec();
                all.push(json!(HOLD));
                set_finalizers(user, claim, &all);
            }
        }
        Move::FlapNode => {
            if let Some(node) = chance.pick(&user.list(&kinds::NODE)) {
                set_ready(user, node, false, cluster);
            }
        }
        Move::FreeNode => free::stand(user, props, cluster.clock.now()),
        Move::BreakNodeClass => set_class(user, props, false, cluster),
        Move::HoldQueue => {
            let policy = if chance.happens(500) { "Hold" } else { "HoldAndDrain" };
            set_queue(user, props, &json!({"stopPolicy": policy}));
        }
        Move::RemoveCheck => set_queue(user, props, &json!({"admissionChecksStrategy": null})),
        Move::DeleteCheck => delete(user, &kinds::ADMISSION_CHECK, props.check),
        Move::TakeLimit => free::take_limit(user, props),
        Move::FreezeReplica => cluster.server.freeze(STALE_REPLICA),
        Move::Compact => cluster.server.compact(),
        Move::CutWatches => cluster.server.cut_watches(None),
        Move::ApiServerDown => cluster.set_down(true),
        Move::DeletePool => delete(user, &kinds::NODE_POOL, props.id),
        Move::DeleteClass => delete(user, &kinds::KWOK_NODE_CLASS, props.id),
        Move::ChangePool => change_pool(user, props, chance.below(1_000)),
        Move::StopKueue => cluster.stop_kueue(true),
        Move::SecondCheck => second_check(user, props, cluster.clock.now()),
        _ => {}
    }
}

/// The denial that a move begins, if it is about the rights of Setu.
const fn denial(what: Move) -> Option<Denial> {
    Some(match what {
        Move::DenyCreates => Denial::Creates,
        Move::DenySlot => Denial::OneSlot,
        Move::HangWebhook => Denial::Webhook,
        Move::DenyDeletes => Denial::Deletes,
        Move::DenyPatches => Denial::Patches,
        Move::DenyJournals => Denial::Journals,
        Move::DenyVerdicts => Denial::Verdicts,
        Move::DenyEvents => Denial::Events,
        _ => return None,
    })
}

/// The rules of the weather after a move, if it is about the cloud.
fn rules(what: Move, chance: &mut Chance) -> Option<Value> {
    Some(match what {
        Move::Shortage => json!([{"capacity": chance.below(4)}]),
        Move::SlowCloud => {
            let launch = format!("{}s", chance.below(90));
            let registration = format!("{}s", chance.below(90));
            json!([{"launchDelay": launch, "registrationDelay": registration}])
        }
        Move::RefuseSlot => {
            let error = json!({"reason": "Unauthorized", "message": "not allowed"});
            json!([{"slot": chance.below(3).to_string(), "createError": error}])
        }
        Move::HideDevices => json!([{"missingResources": ["nvidia.com/gpu"]}]),
        Move::FairWeather => json!([]),
        _ => return None,
    })
}

fn delete(user: &User, kind: &'static ServedKind, name: &str) {
    let _ = user.delete(kind, "", name, Preconditions::default());
}

/// Changes the NodePool's template and its hash annotation.
fn change_pool(user: &User, props: &Props<'_>, hash: u64) {
    let hash = hash.to_string();
    let patch = json!({
        "metadata": {"annotations": {(names::NODEPOOL_HASH): hash}},
        "spec": {"template": {"metadata": {"labels": {"example.com/edition": hash}}}},
    });
    let _ = user.merge(&kinds::NODE_POOL, "", props.id, &patch);
}

/// Adds another check to the queue.
pub fn second_check(user: &User, props: &Props<'_>, now: Timestamp) {
    let check = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": OTHER},
        "spec": {"controllerName": "example.com/other"},
    });
    // It exists already if this is the second time.
    if let Ok(check) = user.create(&kinds::ADMISSION_CHECK, check) {
        let conditions = with_condition(&check, ("Active", "True"), ("Other", ""), now);
        let status = json!({"status": {"conditions": conditions}});
        let _ = user.merge_status(&kinds::ADMISSION_CHECK, "", OTHER, &status);
    }
    let checks = json!({"admissionChecks": [{"name": props.check}, {"name": OTHER}]});
    set_queue(user, props, &json!({"admissionChecksStrategy": checks}));
}

/// Recreates deleted objects, and removes limits.
fn restore(user: &User, props: &Props<'_>) {
    for kind in [&kinds::NODE_POOL, &kinds::KWOK_NODE_CLASS, &kinds::ADMISSION_CHECK] {
        let all = scenario::objects(props.id, 100).unwrap_or_default();
        for object in all.into_iter().filter(|o| text(o, "/kind") == kind.kind && name(o) == props.id) {
            // It may still exist.
            let _ = user.create(kind, object);
        }
    }
    if user.get(&kinds::NODE_POOL, "", props.id).is_some_and(|pool| pool.pointer("/spec/limits").is_some()) {
        let _ = user.merge(&kinds::NODE_POOL, "", props.id, &json!({"spec": {"limits": null}}));
    }
}

/// Replaces the weather of the run's NodePool.
pub fn weather(user: &User, props: &Props<'_>, rules: &Value) {
    let mut rules = rules.clone();
    for rule in rules.as_array_mut().into_iter().flatten() {
        set(rule, &["nodePool"], json!(props.id));
    }
    let patch = json!({"data": {props.id: json!({"rules": rules}).to_string()}});
    let _ = user.merge(&kinds::CONFIG_MAP, "kube-system", "weather", &patch);
}

fn set_ready(user: &User, node: &Value, ready: bool, cluster: &SimCluster) {
    let status = if ready { "True" } else { "False" };
    let conditions = with_condition(node, ("Ready", status), ("Kubelet", ""), cluster.clock.now());
    let _ = user.merge_status(&kinds::NODE, "", name(node), &json!({"status": {"conditions": conditions}}));
}

fn set_class(user: &User, props: &Props<'_>, ready: bool, cluster: &SimCluster) {
    if let Some(class) = user.get(&kinds::KWOK_NODE_CLASS, "", props.id) {
        let status = if ready { "True" } else { "False" };
        let conditions = with_condition(&class, ("Ready", status), ("Admin", ""), cluster.clock.now());
        let _ = user.merge_status(
            &kinds::KWOK_NODE_CLASS,
            "",
            props.id,
            &json!({"status": {"conditions": conditions}}),
        );
    }
}

fn set_finalizers(user: &User, claim: &Value, all: &[Value]) {
    // Refused for a claim that is being deleted, as in the real server.
    let _ = user.merge(&kinds::NODE_CLAIM, "", name(claim), &json!({"metadata": {"finalizers": all}}));
}

fn set_queue(user: &User, props: &Props<'_>, spec: &Value) {
    let _ = user.merge(&kinds::CLUSTER_QUEUE, "", props.id, &json!({"spec": spec}));
}

/// Undoes every lasting move, so that all gangs can finish.
pub fn calm(cluster: &SimCluster, props: &Props<'_>) {
    let user = cluster.server.user("admin");
    cluster.set_down(false);
    cluster.denials.end();
    cluster.stop_kueue(false);
    restore(&user, props);
    cluster.server.thaw(STALE_REPLICA);
    weather(&user, props, &json!([]));
    set_class(&user, props, true, cluster);
    for claim in user.list(&kinds::NODE_CLAIM) {
        let all = list(&claim, "/metadata/finalizers");
        if all.iter().any(|f| f == HOLD) {
            let others: Vec<Value> = all.iter().filter(|f| *f != HOLD).cloned().collect();
            set_finalizers(&user, &claim, &others);
        }
    }
    free::clear(&user);
    let checks = json!({"admissionChecks": [{"name": props.check}]});
    set_queue(&user, props, &json!({"stopPolicy": "None", "admissionChecksStrategy": checks}));
    for node in user.list(&kinds::NODE) {
        if !is(&node, "Ready")
            && list(&node, "/status/conditions").iter().any(|c| text(c, "/reason") == "Kubelet")
        {
            set_ready(&user, &node, true, cluster);
        }
    }
    for workload in user.list(&kinds::WORKLOAD) {
        annotate(&user, &workload, "example.com/junk", &Value::Null);
        if let Some(journal) = forged::before(&workload, props.check) {
            annotate(&user, &workload, &names::journal_key(props.check), &journal);
        }
    }
}
