//! The answers of standalone requests, and when their nodes are given back.

use super::*;
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::gang::statechart::reservation::AdmissionId;

const START: &str = "2026-01-01T00:00:00Z";
const BOOKING: Duration = Duration::from_mins(30);

fn at(seconds: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds)
}

fn request(name: &str, conditions: &[&str]) -> ProvisioningRequest {
    serde_json::from_value(json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {"namespace": "ns", "name": name, "uid": "u"},
        "spec": {
            "provisioningClassName": names::REQUEST_CLASS,
            "parameters": {"setu-tiers": "spot", "ValidUntilSeconds": "60"},
            "podSets": [{"podTemplateRef": {"name": "head"}, "count": 1}, {"podTemplateRef": {"name": "workers"}, "count": 3}],
        },
        "status": {"conditions": all(conditions)},
    }))
    .unwrap()
}

/// Conditions that are True. After a colon comes the message.
fn all(conditions: &[&str]) -> Vec<Value> {
    let condition = |text: &&str| {
        let (kind, message) = text.split_once(':').unwrap_or((text, ""));
        json!({"type": kind, "status": "True", "reason": "r", "message": message, "lastTransitionTime": START})
    };
    conditions.iter().map(condition).collect()
}

fn workload(conditions: &[&str], check: (&str, &str)) -> Workload {
    let made = workload_for(
        &request("batch", &[]),
        "queue",
        None,
        &[PodTemplateSpec::default(), PodTemplateSpec::default()],
    );
    let mut workload: Workload = serde_json::from_value(made).unwrap();
    workload.status = serde_json::from_value(json!({
        "conditions": all(conditions), "admission": {"clusterQueue": "gpus"},
        "admissionChecks": [{"name": "setu", "state": check.0, "message": check.1}],
    }))
    .unwrap();
    workload
}

fn answered(
    request: &ProvisioningRequest,
    workload: &Workload,
    pods: Option<PodUse>,
    seconds: i64,
) -> Answer {
    let booking = pods.map(|pods| Booking { pods, used_at: at(0), limit: BOOKING });
    let nodes = if request.is_provisioned() { BookedNodes::Reported(booking) } else { new(4) };
    let kind_of = |check: &str| if check == "setu" { CheckKind::OfSetu } else { CheckKind::Other };
    answer(request, Some(workload), kind_of, &nodes, at(seconds))
}

fn new(nodes: u32) -> BookedNodes {
    BookedNodes::Unreported(Details { nodes, ..Details::default() })
}

/// A pod that names a request. It was created at one time, and ended at another.
fn pod(phase: &str, of: &str, (created, ended): (i64, i64)) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "creationTimestamp": at(created).to_string(), "annotations": {(names::CONSUMES): of}},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": at(ended).to_string()},
        ]},
    }))
    .unwrap()
}

#[test]
fn the_workload_has_the_requested_pods_and_names_its_request() {
    let template: PodTemplateSpec = serde_json::from_value(
        json!({"spec": {"containers": [{"name": "main", "image": "trainer", "command": ["run"]}]}}),
    )
    .unwrap();
    let made = workload_for(&request("batch", &[]), "queue", None, &[PodTemplateSpec::default(), template]);
    assert_eq!(made["metadata"]["name"], "provisioningrequest-batch");
    assert_eq!(made["spec"]["queueName"], "queue");
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassRef"]), (&Value::Null, &Value::Null));
    let sets = made["spec"]["podSets"].as_array().unwrap();
    let counts: Vec<_> =
        sets.iter().map(|set| (set["name"].as_str().unwrap(), set["count"].as_i64().unwrap())).collect();
    assert_eq!(counts, [("set-1", 1), ("set-2", 3)]);
    assert_eq!(
        sets[1]["template"]["spec"]["containers"][0]["command"],
        json!(["run"]),
        "every field is kept"
    );
    let annotations = made["metadata"]["annotations"].as_object().unwrap();
    let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
    assert_eq!(keys, ["provreq.kueue.x-k8s.io/setu-tiers", names::REQUEST]);
    let workload: Workload = serde_json::from_value(made).unwrap();
    assert_eq!(workload.standalone_request(), Some(("batch", "u")));
    assert_eq!(workload.owner(), "ProvisioningRequest/batch");
}

#[test]
fn an_annotation_alone_makes_no_workload_that_of_a_request() {
    let of_request = workload(&[], ("Pending", ""));
    let mut renamed = of_request.clone();
    renamed.metadata.name = Some("job-train".to_owned());
    assert_eq!(renamed.standalone_request(), None);
    let mut of_job = of_request;
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j"}]);
    of_job.metadata.owner_references = serde_json::from_value(owner).unwrap();
    assert_eq!(of_job.standalone_request(), None);
}

#[test]
fn the_names_of_two_long_requests_differ_and_fit() {
    let [a, b] = ["a", "b"].map(|end| name_of_standalone(&format!("{}{end}", "x".repeat(252))));
    assert_ne!(a, b);
    assert!(a.len() <= 253 && b.len() <= 253);
    assert_eq!(name_of_standalone(&"x".repeat(200)), format!("provisioningrequest-{}", "x".repeat(200)));
    let dotted = name_of_standalone(&format!("{}.{}", "x".repeat(199), "y".repeat(9)));
    assert!(!dotted.contains(".-"), "{dotted}");
}

#[test]
fn the_client_is_told_what_its_workload_waits_for() {
    let open = request("batch", &[]);
    let pending = |text: &str| Answer::Pending(text.to_owned());
    let mut waiting = workload(&[], ("Pending", ""));
    assert_eq!(answered(&open, &waiting, None, 0), pending("waits for quota of LocalQueue queue"));
    let full = json!([{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no room", "lastTransitionTime": START}]);
    waiting.status.as_mut().unwrap().conditions = serde_json::from_value(full).unwrap();
    assert_eq!(answered(&open, &waiting, None, 0), pending("waits for quota: no room"));
    let reserved = ["QuotaReserved"];
    assert_eq!(
        answered(&open, &workload(&reserved, ("Pending", "1 of 4 nodes are ready")), None, 0),
        pending("1 of 4 nodes are ready")
    );
    let mut unlisted = workload(&reserved, ("Pending", ""));
    assert_eq!(answered(&open, &unlisted, None, 0), pending("waits for its nodes"));
    unlisted.status.as_mut().unwrap().admission_checks.clear();
    assert_eq!(answered(&open, &unlisted, None, 0), pending("waits for its nodes"));
    let admitted = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    assert_eq!(answered(&open, &admitted, None, 0), Answer::Provisioned);
}

#[test]
fn a_request_fails_if_its_workload_never_gets_nodes() {
    let open = request("batch", &[]);
    let failed = |workload: &Workload| match answered(&open, workload, None, 0) {
        Answer::Failed(failure, why) => (failure, why),
        other => panic!("{other:?}"),
    };
    let no_pool = workload(&["QuotaReserved"], ("Rejected", "no NodePool fits"));
    assert_eq!(failed(&no_pool), (RequestFailure::Rejected, "no NodePool fits".to_owned()));
    let mut off = workload(&[], ("Pending", ""));
    off.spec.active = Some(false);
    assert_eq!(failed(&off).1, "the Workload of this request was deactivated");
    let mut short = workload(&["QuotaReserved", "Evicted:a check failed"], ("Pending", "Reset to Pending"));
    assert_eq!(failed(&short), (RequestFailure::Retry, "a check failed".to_owned()));
    short.metadata.uid = Some("w".to_owned());
    let mut journal = Journal::new("w", AdmissionId("1-0-a".into()), at(0), None);
    journal.memory.last_failure = Some(Failure::new(FailureClass::InsufficientCapacity, "none is left"));
    short.metadata.annotations.as_mut().unwrap().insert(names::journal_key("setu"), journal.encode());
    assert_eq!(failed(&short).1, "InsufficientCapacity: none is left");
    let mut unserved = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    unserved.status.as_mut().unwrap().admission_checks[0].name = "other".to_owned();
    assert_eq!(
        failed(&unserved).1,
        "ClusterQueue gpus has no admission check that Setu answers, so no nodes would come"
    );
}

#[test]
fn nodes_are_kept_while_pods_run_and_given_back_when_none_does() {
    let provisioned = request("batch", &["Provisioned"]);
    let admitted = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    let after = |pods, seconds| answered(&provisioned, &admitted, Some(pods), seconds);
    assert_eq!(after(PodUse::Running, 100_000), Answer::Provisioned);
    assert_eq!(after(PodUse::Idle, 1_799), Answer::Provisioned);
    assert_eq!(after(PodUse::Idle, 1_800), Answer::Expired(Expiry::Unused));
    assert_eq!(after(PodUse::Succeeded(at(600)), 629), Answer::Provisioned, "a Job may create the next pod");
    assert_eq!(after(PodUse::Succeeded(at(600)), 630), Answer::Expired(Expiry::PodsSucceeded));
    assert_eq!(after(PodUse::Succeeded(at(-9_000)), 29), Answer::Provisioned, "it was admitted at 0");
    assert_eq!(answered(&provisioned, &admitted, None, 100_000), Answer::Provisioned, "its pods are unknown");
    let used = Booking { pods: PodUse::Idle, used_at: at(600), limit: BOOKING };
    let nodes = BookedNodes::Reported(Some(used));
    let later = |seconds| answer(&provisioned, Some(&admitted), |_| CheckKind::OfSetu, &nodes, at(seconds));
    assert_eq!(later(2_399), Answer::Provisioned, "a pod may be created again");
    assert_eq!(later(2_400), Answer::Expired(Expiry::Unused));
}

#[test]
fn nodes_are_kept_if_their_check_is_taken_out_of_the_queue() {
    let mut admitted = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    admitted.status.as_mut().unwrap().admission_checks.clear();
    let provisioned = request("batch", &["Provisioned"]);
    assert_eq!(answered(&provisioned, &admitted, Some(PodUse::Running), 0), Answer::Provisioned);
}

#[test]
fn a_request_waits_for_a_check_that_does_not_exist() {
    let reserved = workload(&["QuotaReserved"], ("Pending", ""));
    let of = |kind: CheckKind| answer(&request("batch", &[]), Some(&reserved), |_| kind, &new(0), at(0));
    assert_eq!(of(CheckKind::Missing), Answer::Pending("AdmissionCheck setu does not exist".to_owned()));
    assert!(matches!(of(CheckKind::Other), Answer::Failed(RequestFailure::Rejected, _)));
}

#[test]
fn a_workload_that_is_admitted_without_nodes_fails_the_request() {
    let admitted = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    let after = |seconds| {
        answer(&request("batch", &[]), Some(&admitted), |_| CheckKind::OfSetu, &new(0), at(seconds))
    };
    assert_eq!(after(29), Answer::Pending("waits for its nodes".to_owned()));
    let why = "Kueue admitted the Workload, but no nodes came from Setu".to_owned();
    assert_eq!(after(30), Answer::Failed(RequestFailure::Rejected, why));
}

#[test]
fn nodes_that_are_taken_away_are_revoked() {
    let provisioned = request("batch", &["Provisioned"]);
    let evicted = workload(&["QuotaReserved", "Admitted", "Evicted:preempted by a"], ("Ready", ""));
    let revoked = Answer::Revoked("Kueue took the quota back: preempted by a".to_owned());
    assert_eq!(answered(&provisioned, &evicted, None, 0), revoked);
    let mut off = workload(&["QuotaReserved", "Admitted"], ("Ready", ""));
    off.spec.active = Some(false);
    let deactivated = Answer::Revoked("the Workload of this request was deactivated".to_owned());
    assert_eq!(answered(&provisioned, &off, None, 0), deactivated);
    let gone = answer(&provisioned, None, |_| CheckKind::OfSetu, &new(0), at(0));
    assert_eq!(gone, Answer::Revoked(WORKLOAD_DELETED.to_owned()));
}

#[test]
fn only_pods_of_the_request_use_its_nodes() {
    let at_0 = Requested { name: "batch", since: at(0), pods: 2 };
    let of = |pods: &[Pod]| PodUse::of(at_0, pods, BOOKING, at(2_000));
    let ended = |phase, ended| pod(phase, "batch", (1, ended));
    assert_eq!(of(&[]), PodUse::Idle);
    assert_eq!(of(&[pod("Running", "other", (1, 1))]), PodUse::Idle);
    assert_eq!(of(&[ended("Running", 1), ended("Succeeded", 5)]), PodUse::Running);
    assert_eq!(of(&[ended("Succeeded", 5)]), PodUse::Idle, "one of two has succeeded");
    assert_eq!(of(&[ended("Succeeded", 5), ended("Succeeded", 3)]), PodUse::Succeeded(at(5)));
    let retried = [ended("Succeeded", 5), ended("Succeeded", 3), ended("Failed", 4)];
    assert_eq!(of(&retried), PodUse::Idle, "a Job may run a pod again");
    let earlier = [pod("Succeeded", "batch", (-9, -5)), pod("Succeeded", "batch", (-9, -3))];
    assert_eq!(of(&earlier), PodUse::Idle, "they used the nodes of an earlier request");
    let mut unplaced = pod("Pending", "batch", (201, 201));
    unplaced.spec.node_name.clear();
    assert_eq!(of(&[unplaced.clone()]), PodUse::Running, "it was created 1799 seconds ago");
    unplaced.metadata.creation_timestamp = pod("Pending", "batch", (200, 200)).metadata.creation_timestamp;
    assert_eq!(of(&[unplaced]), PodUse::Idle, "it fits on no node");
}

#[test]
fn the_conditions_say_the_answer_and_keep_their_times() {
    let kinds = |answer: &Answer| -> Vec<(String, String)> {
        let all = conditions(answer, &[], at(0));
        all.into_iter().map(|c| (c.type_, c.status)).collect()
    };
    let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(kind, status)| ((*kind).to_owned(), (*status).to_owned())).collect()
    };
    let accepted = ("Accepted", "True");
    assert_eq!(kinds(&Answer::Pending(String::new())), of(&[accepted, ("Provisioned", "False")]));
    let provisioned = [accepted, ("Provisioned", "True")];
    assert_eq!(kinds(&Answer::Provisioned), of(&provisioned));
    let failed = Answer::Failed(RequestFailure::Retry, String::new());
    assert_eq!(kinds(&failed), of(&[accepted, ("Provisioned", "False"), ("Failed", "True")]));
    let expired = Answer::Expired(Expiry::Unused);
    assert_eq!(kinds(&expired), of(&[&provisioned[..], &[("BookingExpired", "True")]].concat()));
    let revoked = Answer::Revoked(String::new());
    assert_eq!(kinds(&revoked), of(&[&provisioned[..], &[("CapacityRevoked", "True")]].concat()));
    let first = conditions(&Answer::Provisioned, &[], at(0));
    let second = conditions(&Answer::Provisioned, &first, at(9));
    assert!(are_equivalent(&first, &second));
    assert_eq!(second[1].last_transition_time.0, at(0));
    assert!(!are_equivalent(&first, &conditions(&expired, &first, at(9))));
}
