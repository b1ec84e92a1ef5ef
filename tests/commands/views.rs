//! The output of the reading commands for whole lives: objects as a cluster shows them, and the text committed
//! beside them.

use jiff::Timestamp;
use serde_json::{Value, json};
use setu::cli::cluster::ClusterObjects;
use setu::cli::find;
use setu::cli::render::{explanation, summary, table, waterfall};
use setu::cli::report::{self, GangReport};
use setu::gang::GangIdentity;
use setu::gang::identity::gang_label;
use setu::names;
use std::path::Path;

const CHECK: &str = "karpenter-provision";
const SPLIT: &str = "----------------------------------------\n";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_255_200 + seconds).unwrap()
}

/// Compares the text with the committed file; `SETU_REGENERATE=1` rewrites the file.
fn compare(name: &str, text: &str) {
    // Colors are only for terminals; other outputs have none.
    assert!(text.contains("\u{1b}["), "{name} has no color");
    let text = anstream::adapter::strip_str(text).to_string();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/views").join(name);
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, text,
        "{name} is not what is printed: run `just generate` and look at the difference"
    );
}

/// One Workload with its gang.
struct Gang {
    name: &'static str,
    workload: Value,
    claims: Vec<Value>,
    nodes: Vec<Value>,
    pods: Vec<Value>,
}

fn condition(kind: &str, status: &str, since: i64, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": kind, "message": message,
        "lastTransitionTime": at(since).to_string(),
    })
}

impl Gang {
    /// The Workload of a Job that was created at 0.
    fn new(name: &'static str, conditions: &[Value]) -> Self {
        let workload = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "name": format!("job-{name}-1a2b3"), "namespace": "team-a", "uid": format!("uid-{name}"),
                "creationTimestamp": at(0).to_string(), "annotations": {},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "j", "controller": true}],
            },
            "spec": {"queueName": "main", "podSets": []},
            "status": {"conditions": conditions},
        });
        Self { name, workload, claims: Vec::new(), nodes: Vec::new(), pods: Vec::new() }
    }

    /// With quota reserved at 2, and our check in the status.
    fn reserved(name: &'static str, message: &str) -> Self {
        let mut gang = Self::new(name, &[condition("QuotaReserved", "True", 2, "")]);
        gang.workload["status"]["admission"] = json!({"clusterQueue": "gpu", "podSetAssignments": []});
        gang.workload["status"]["admissionChecks"] = json!([{"name": CHECK, "state": "Pending", "message": message, "lastTransitionTime": at(3).to_string()}]);
        gang
    }

    /// In this state after the transitions `(from, to, seconds, reason)`.
    fn journal(mut self, state: &Value, attempt: u32, slots: u32, steps: &[(&str, &str, i64, &str)]) -> Self {
        let history: Vec<Value> = (1..)
            .zip(steps)
            .map(|(seq, (from, to, seconds, reason))| {
                json!({"seq": seq, "from": from, "to": to, "at": at(*seconds).to_string(), "reason": reason})
            })
            .collect();
        let mut journal = json!({
            "version": 1, "workloadUid": format!("uid-{}", self.name), "seq": steps.len(),
            "enteredAt": at(steps.last().map_or(2, |s| s.2)).to_string(), "epoch": "1-0-a",
            "attempt": attempt, "slots": slots, "deadline": at(902).to_string(),
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "history": history,
        });
        for (key, value) in state.as_object().unwrap() {
            journal[key] = value.clone();
        }
        self.workload["metadata"]["annotations"][format!("gang.setu.kueue.x-k8s.io/{CHECK}")] =
            json!(journal.to_string());
        self
    }

    /// With a NodeClaim of attempt 1, created at 4, that reached these phases.
    fn claim(mut self, slot: u32, reached: &[(&str, i64)]) -> Self {
        let identity = GangIdentity {
            namespace: "team-a".into(),
            workload: format!("job-{}-1a2b3", self.name),
            uid: format!("uid-{}", self.name),
            check: CHECK.into(),
        };
        let node = format!("{}-node-{slot}", self.name);
        let conditions: Vec<Value> =
            reached.iter().map(|(kind, since)| condition(kind, "True", *since, "")).collect();
        let registered = reached.iter().any(|(kind, _)| *kind == "Registered");
        let gpus = json!({"cpu": "96", "nvidia.com/gpu": "8"});
        self.claims.push(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": identity.claim_name(1, slot), "uid": format!("{}-{slot}", self.name),
                "creationTimestamp": at(4).to_string(),
                "annotations": {"setu.kueue.x-k8s.io/check": CHECK, "setu.kueue.x-k8s.io/slot": slot.to_string()},
                "labels": {
                    "app.kubernetes.io/managed-by": "setu", "setu.kueue.x-k8s.io/gang": identity.id(),
                    "setu.kueue.x-k8s.io/workload-uid": identity.uid, "setu.kueue.x-k8s.io/attempt": "1",
                    "karpenter.sh/nodepool": "gpu",
                    "node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/zone": "eu-1b",
                },
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "resources": {"requests": gpus}},
            "status": {"nodeName": if registered { node.as_str() } else { "" }, "conditions": conditions},
        }));
        if registered {
            self.nodes.push(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
                "spec": {}, "status": {"allocatable": gpus, "conditions": [{"type": "Ready", "status": "True"}]},
            }));
        }
        self
    }

    fn edit(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

const READY: [(&str, i64); 3] = [("Launched", 20), ("Registered", 48), ("Initialized", 63)];

/// Gangs that wait before their first attempt.
fn gated() -> impl Iterator<Item = Gang> {
    [
        ("gated", "LimitExceeded: NodePool gpu would hold 12 nodes, and its limit is 8 nodes. Continues automatically once this is fixed; stops waiting at 2026-11-21T10:15:02Z"),
        ("lasting", "OtherChecks: 2 NodeClaims; they are created once check budget is Ready. Continues automatically once this is fixed"),
        ("rehearsed", "DryRun: 2 NodeClaims; they would be created; strategy DryRun creates nothing"),
        ("scarce", "CapacityShort: no tier is left to try. Continues automatically once this is fixed; stops waiting at 2026-11-21T10:15:02Z"),
        ("second", "OthersFirst: p5.48xlarge in any zone, on-demand ran out of capacity lately, and another gang tries there first. Continues automatically once this is fixed; stops waiting at 2026-11-21T10:15:02Z"),
    ]
    .into_iter()
    .map(|(name, message)| Gang::reserved(name, message).journal(&json!({"state": "Validating"}), 0, 0, &[]))
}

/// A gang that was admitted long ago. Two of its three pods are not scheduled.
fn unbound(approved: &[(&str, &str, i64, &str)]) -> Gang {
    let mut gang = Gang::reserved("unbound", "").journal(&json!({"state": "Approved"}), 1, 1, approved);
    gang = gang.claim(0, &READY);
    gang.workload["status"]["admissionChecks"][0]["state"] = json!("Ready");
    gang.workload["spec"]["podSets"] = json!([{"name": "main", "count": 3, "template": {}}]);
    let admitted = condition("Admitted", "True", -120, "");
    gang.workload["status"]["conditions"].as_array_mut().unwrap().push(admitted);
    let label = gang_label(&serde_json::from_value(gang.workload.clone()).unwrap(), CHECK);
    let pod = |name: &str, created: i64| {
        let mut unscheduled = condition(
            "PodScheduled",
            "False",
            created,
            "0/5 nodes are available: 5 node(s) didn't match pod affinity rules.",
        );
        unscheduled["reason"] = json!("Unschedulable");
        json!({
            "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": at(created).to_string()},
            "spec": {"nodeSelector": {names::GANG: label}, "containers": []},
            "status": {"phase": "Pending", "conditions": [unscheduled]},
        })
    };
    gang.pods = vec![pod("a", -100), pod("b", -99)];
    gang
}

/// One gang in each situation that a user may ask about.
fn situations() -> Vec<Gang> {
    let start = [
        ("Validating", "Provisioning", 2, "PlanAccepted"),
        ("Provisioning", "WaitingReady", 5, "AllCreated"),
    ];
    let waiting = Gang::reserved("waiting", "")
        .journal(&json!({"state": "WaitingReady"}), 1, 4, &start)
        .claim(0, &READY)
        .claim(1, &READY)
        .claim(2, &READY[..2])
        .claim(3, &READY[..1])
        .edit(|gang| {
            gang.nodes[2]["spec"] =
                json!({"taints": [{"key": "node.example/gpu-driver", "effect": "NoSchedule"}]});
            gang.claims[2]["status"]["conditions"].as_array_mut().unwrap().push(json!({
                "type": "Initialized", "status": "Unknown", "reason": "ResourceNotRegistered",
                "message": "Resource \"nvidia.com/gpu\" was requested but not registered",
                "lastTransitionTime": at(50).to_string(),
            }));
        });
    let tainted = Gang::reserved("tainted", "")
        .journal(&json!({"state": "WaitingReady"}), 1, 1, &start)
        .claim(0, &READY)
        .edit(|gang| {
            gang.nodes[0]["spec"] =
                json!({"taints": [{"key": "node.example/gpu-driver", "effect": "NoSchedule"}]});
        });
    let failure =
        json!({"reason": "InsufficientCapacity", "message": "the provider has no capacity for slot 3 now"});
    let back = [&start[..], &[("WaitingReady", "RollingBack", 30, "InsufficientCapacity")]].concat();
    let off = [&back[..], &[("RollingBack", "BackingOff", 34, "ClaimsGone")]].concat();
    let approved = [&start[..], &[("WaitingReady", "Approved", 64, "AllReady")]].concat();
    let gone = [
        &approved[..],
        &[("Approved", "RollingBack", 70, "Finished"), ("RollingBack", "Released", 80, "ClaimsGone")],
    ]
    .concat();
    let yielded = [&back[..], &[("RollingBack", "Yielded", 40, "ClaimsGone")]].concat();
    let rejected = [&back[..], &[("RollingBack", "Rejected", 40, "ClaimsGone")]].concat();
    let evicted = [&approved[..], &[("Approved", "RollingBack", 70, "Evicted")]].concat();
    let others = vec![
        Gang::new("queued", &[condition("QuotaReserved", "False", 1, "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor gpu, 8 more needed")])
            .edit(|gang| gang.workload["status"]["admissionChecks"] = json!([{"name": CHECK, "state": "Pending"}])),
        Gang::new("unlisted", &[condition("QuotaReserved", "False", 1, "Workload didn't fit")]),
        Gang::reserved("unanswered", ""),
        Gang::reserved("asked", "").edit(|gang| {
            gang.workload["status"]["conditions"][0]["lastTransitionTime"] = json!(at(89).to_string());
        }),
        Gang::reserved("usual", "0/1 nodes ready, usually 70 s more; slot 0 waits for launch; attempt 1, tier on-demand; gives up at 2026-11-21T10:15:02Z")
            .journal(&json!({"state": "WaitingReady"}), 1, 1, &start)
            .claim(0, &[])
            .edit(|gang| {
                let mut launched = condition("Launched", "Unknown", 4, "");
                launched["reason"] = json!("AwaitingReconciliation");
                gang.claims[0]["status"]["conditions"] = json!([launched]);
            }),
        Gang::new("yielded", &[condition("QuotaReserved", "False", 80, "the quota was given back")])
            .journal(&json!({"state": "Yielded", "lastFailure": failure, "notBefore": at(140).to_string()}), 3, 4, &yielded),
        Gang::new("rejected", &[condition("QuotaReserved", "False", 80, ""), condition("Evicted", "True", 80, "deactivated by a check")])
            .journal(&json!({"state": "Rejected", "lastFailure": failure}), 3, 4, &rejected)
            .edit(|gang| gang.workload["spec"]["active"] = json!(false)),
        Gang::reserved("evicted", "")
            .journal(&json!({"state": "RollingBack", "then": "Released"}), 1, 1, &evicted)
            .claim(0, &READY)
            .edit(|gang| {
                gang.workload["status"]["conditions"].as_array_mut().unwrap().push(condition("Evicted", "True", 70, "preempted by a Workload of higher priority"));
            }),
        waiting,
        tainted,
        Gang::reserved("retreating", "")
            .journal(&json!({"state": "RollingBack", "then": "BackingOff", "lastFailure": failure}), 1, 2, &back)
            .claim(0, &READY)
            .edit(|gang| gang.claims[0]["metadata"]["deletionTimestamp"] = json!(at(31).to_string())),
        Gang::reserved("short", "")
            .journal(&json!({"state": "BackingOff", "until": at(110).to_string(), "lastFailure": failure}), 1, 4, &off),
        Gang::reserved("named", "")
            .journal(&json!({"state": "Provisioning", "tier": 1, "tierName": "on-demand", "lastFailure": failure}), 1, 2, &start[..1]),
        Gang::reserved("numbered", "")
            .journal(&json!({"state": "Provisioning", "tier": 1}), 1, 2, &start[..1]),
        Gang::reserved("running", "")
            .journal(&json!({"state": "Approved"}), 1, 2, &approved)
            .claim(0, &READY)
            .claim(1, &READY)
            .edit(|gang| {
                gang.workload["status"]["admissionChecks"][0]["state"] = json!("Ready");
                gang.workload["status"]["conditions"].as_array_mut().unwrap().push(condition("Admitted", "True", 65, ""));
            }),
        unbound(&approved),
        Gang::reserved("blocked", "")
            .journal(&json!({"state": "Approved"}), 1, 1, &approved)
            .claim(0, &READY)
            .edit(|gang| gang.workload["status"]["admissionChecks"].as_array_mut().unwrap()
                .push(json!({"name": "budget", "state": "Pending", "message": "waiting for an approval"}))),
        Gang::new("done", &[condition("Finished", "True", 70, "Job finished successfully")])
            .journal(&json!({"state": "Released"}), 1, 2, &gone),
        Gang::reserved("newer", "").edit(|gang| {
            gang.workload["metadata"]["annotations"][format!("gang.setu.kueue.x-k8s.io/{CHECK}")] = json!("{\"version\": 9}");
        }),
        Gang::reserved("hostile", "\u{1b}[2Jall good").journal(&json!({"state": "Validating"}), 0, 0, &[]),
    ];
    gated().chain(others).collect()
}

fn snapshot(gangs: &[Gang]) -> ClusterObjects {
    let read = |value: &Value| value.clone();
    let check = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": CHECK},
        "spec": {"controllerName": "c", "parameters": {"apiGroup": "setu.kueue.x-k8s.io", "kind": "ProvisioningParameters", "name": "p"}},
        "status": {"conditions": [condition("Active", "True", 0, "")]},
    });
    let parameters = json!({
        "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "ProvisioningParameters", "metadata": {"name": "p"},
        "spec": {"deadlines": {"initialize": "10m", "register": "5m"}},
    });
    let local_queue = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": "team-a"}, "spec": {"clusterQueue": "gpu"},
    });
    let cluster_queue = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "gpu"},
        "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}},
    });
    // Two gangs that started at the same time, and an attempt that is not the last.
    let plan = |uid: &str, since: i64, message: &str| {
        json!({
            "metadata": {}, "reason": "GangValidated", "message": message, "involvedObject": {"uid": uid},
            "eventTime": format!("{}.000000Z", at(since).to_string().trim_end_matches('Z')),
        })
    };
    let plans = [
        plan("uid-other", 2, "1 node needed. Next: all NodeClaims are created at once"),
        plan("uid-waiting", 1, "9 nodes needed. Next: all NodeClaims are created at once"),
        plan(
            "uid-waiting",
            2,
            "4 nodes needed, at most 393.28 USD an hour, and nothing is in the way; passed over: cpu (no type with \
             nvidia.com/gpu). Next: all NodeClaims are created at once",
        ),
    ];
    ClusterObjects {
        plans: plans.into_iter().map(|event| serde_json::from_value(event).unwrap()).collect(),
        now: at(90),
        controller_name: "c".into(),
        workloads: gangs.iter().map(|g| serde_json::from_value(read(&g.workload)).unwrap()).collect(),
        checks: Some(vec![serde_json::from_value(check).unwrap()]),
        claims: Some(
            gangs.iter().flat_map(|g| &g.claims).map(|c| serde_json::from_value(read(c)).unwrap()).collect(),
        ),
        nodes: Some(
            gangs.iter().flat_map(|g| &g.nodes).map(|n| serde_json::from_value(read(n)).unwrap()).collect(),
        ),
        parameters: vec![serde_json::from_value(parameters).unwrap()],
        pods: Some(
            gangs.iter().flat_map(|g| &g.pods).map(|p| serde_json::from_value(read(p)).unwrap()).collect(),
        ),
        local_queues: vec![serde_json::from_value(local_queue).unwrap()],
        cluster_queues: vec![serde_json::from_value(cluster_queue).unwrap()],
        ..ClusterObjects::default()
    }
}

fn of<'g>(gangs: &'g [GangReport], name: &str) -> &'g GangReport {
    gangs.iter().find(|g| g.owner == format!("Job/{name}")).unwrap()
}

#[test]
fn the_table_shows_the_state_of_every_gang_and_why_it_waits() {
    let snapshot = snapshot(&situations());
    let gangs = report::gangs(&snapshot);
    let wide = table::Columns { wide: true, namespaces: true, width: None };
    let cut = table::Columns { width: Some(100), ..table::Columns::default() };
    let tables =
        [table::Columns::default(), wide, cut].map(|layout| table::gangs(&gangs, snapshot.now, layout));
    compare("inspect.txt", &tables.join(SPLIT));
    let longest =
        anstream::adapter::strip_str(&tables[2]).to_string().lines().map(|l| l.chars().count()).max();
    assert!(longest <= Some(100), "{longest:?}");
}

#[test]
fn the_explanation_shows_what_is_missing_and_what_comes_next_and_when() {
    let snapshot = snapshot(&situations());
    let texts: Vec<String> =
        report::gangs(&snapshot).iter().map(|gang| explanation::explain(gang, snapshot.now)).collect();
    compare("explain.txt", &texts.join(SPLIT));
}

#[test]
fn the_cause_of_a_failure_is_shown_once() {
    let snapshot = snapshot(&situations());
    let gangs = report::gangs(&snapshot);
    for name in ["rejected", "yielded", "short", "retreating", "named"] {
        let text = explanation::explain(of(&gangs, name), snapshot.now);
        assert_eq!(text.matches("no capacity for slot 3").count(), 1, "{text}");
    }
}

#[test]
fn a_running_gang_shows_why_earlier_attempts_of_its_admission_failed() {
    let steps = [
        ("Provisioning", "RollingBack", "Interrupted", 1, 0),
        ("RollingBack", "Yielded", "ClaimsGone", 1, 0),
        ("Yielded", "Validating", "Reserved", 1, 0),
        ("Validating", "Provisioning", "PlanAccepted", 2, 0),
        ("Provisioning", "RollingBack", "LaunchTimeout", 2, 0),
        ("RollingBack", "BackingOff", "ClaimsGone", 2, 0),
        ("BackingOff", "Validating", "WaitOver", 2, 0),
        ("Validating", "Provisioning", "PlanAccepted", 3, 1),
        ("Provisioning", "RollingBack", "InsufficientCapacity", 3, 1),
        ("RollingBack", "BackingOff", "ClaimsGone", 3, 1),
        ("BackingOff", "Validating", "WaitOver", 3, 1),
        ("Validating", "Provisioning", "PlanAccepted", 4, 2),
        ("Provisioning", "WaitingReady", "AllCreated", 4, 2),
        ("WaitingReady", "Approved", "AllReady", 4, 2),
    ];
    let history: Vec<Value> = (1..)
        .zip(steps)
        .map(|(seq, (from, to, reason, attempt, tier))| {
            json!({
                "seq": seq, "from": from, "to": to, "at": at(seq).to_string(), "reason": reason,
                "attempt": attempt, "tier": tier,
            })
        })
        .collect();
    let failure = json!({"reason": "InsufficientCapacity", "message": "none left"});
    let journal = json!({
        "state": "Approved", "tier": 2, "seq": 14, "trace": {"since": at(3).to_string(), "seq": 3}, "history": history,
        "lastFailure": failure,
    });
    let gang = Gang::reserved("moved", "").journal(&journal, 4, 1, &[]).edit(|gang| {
        gang.workload["status"]["admissionChecks"][0]["state"] = json!("Ready");
        let admitted = condition("Admitted", "True", 65, "");
        gang.workload["status"]["conditions"].as_array_mut().unwrap().push(admitted);
    });
    let snapshot = snapshot(&[gang]);
    let text = explanation::explain(&report::gangs(&snapshot)[0], snapshot.now);
    let text = anstream::adapter::strip_str(&text).to_string();
    let expected = "Attempts that failed before\n  attempt 2, tier 1: LaunchTimeout\n  \
                    attempt 3, tier 2: InsufficientCapacity: none left\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_message_about_an_earlier_state_is_not_shown() {
    let shown = |message: &str| {
        let gang = Gang::reserved("late", message)
            .journal(&json!({"state": "WaitingReady"}), 1, 1, &[])
            .claim(0, &[]);
        let snapshot = snapshot(&[gang]);
        let text = explanation::explain(&report::gangs(&snapshot)[0], snapshot.now);
        text.contains("Reported to Kueue")
    };
    assert!(shown("0/1 nodes ready, usually 70 s more; attempt 1"));
    assert!(!shown("rolling back attempt 1: 1 NodeClaim left, then tries the next tier"));
}

#[test]
fn the_waterfall_shows_states_and_nodes_on_one_scale() {
    let snapshot = snapshot(&situations());
    let gangs = report::gangs(&snapshot);
    let layout = waterfall::Layout {
        width: 140,
        everything: false,
        trace_url: Some("https://traces.example/trace/{traceId}?uiEmbed"),
    };
    let drawn = ["waiting", "short", "running", "done", "queued"]
        .map(|name| waterfall::waterfall(of(&gangs, name), snapshot.now, layout));
    compare("trace.txt", &drawn.join(SPLIT));
}

#[test]
fn the_waterfall_starts_with_the_current_admission_by_default() {
    let history = [
        ("Validating", "Yielded", 3, "NotPlannable"),
        ("Yielded", "Validating", 60, "Reserved"),
        ("Validating", "Provisioning", 61, "PlanAccepted"),
    ];
    let journal = json!({"state": "Provisioning", "trace": {"since": at(60).to_string(), "seq": 2}});
    let gang = Gang::reserved("again", "").journal(&journal, 1, 2, &history);
    let snapshot = snapshot(&[gang]);
    let gangs = report::gangs(&snapshot);
    let drawn = |everything| {
        let layout = waterfall::Layout { width: 140, everything, trace_url: None };
        waterfall::waterfall(&gangs[0], snapshot.now, layout)
    };
    assert!(!drawn(false).contains("Yielded") && drawn(false).contains("29s"), "{}", drawn(false));
    assert!(drawn(true).contains("Yielded"), "{}", drawn(true));
}

#[test]
fn held_idle_and_wasted_nodes_are_counted_by_node_pool() {
    let kept = Gang::new("kept", &[condition("Finished", "True", 70, "")]).claim(0, &READY).edit(|gang| {
        gang.claims[0]["metadata"]["labels"]["setu.kueue.x-k8s.io/warm"] = json!("key");
        gang.claims[0]["metadata"]["annotations"]["setu.kueue.x-k8s.io/warm-since"] =
            json!(at(80).to_string());
    });
    let mut gangs = situations();
    gangs.push(kept);
    let snapshot = snapshot(&gangs);
    let summary = setu::cli::summary::summary(&snapshot, report::gangs(&snapshot), 3);
    let held = &summary.pools.as_ref().unwrap()["gpu"];
    assert_eq!((held.nodes, held.running, held.coming, held.idle), (13, 3, 4, 3));
    assert_eq!((held.warm, held.wasted), (1, 2));
    // Three idle nodes for 27 s each, one kept for 10 s, one that is being deleted for 59 s, and one since its
    // creation because its gang lost its quota.
    assert_eq!(held.unused_seconds, 3 * 27 + 10 + 59 + 86);
    compare("top.txt", &summary::top(&summary, snapshot.now, None));
}

#[test]
fn a_gang_that_waits_for_quota_shows_who_holds_it() {
    let reserved = |name, pods: u32| {
        let podsets = json!([{"name": "main", "count": pods, "template": {}}]);
        Gang::reserved(name, "").edit(|gang| gang.workload["spec"]["podSets"] = podsets)
    };
    let waits = Gang::new("waits", &[condition("QuotaReserved", "False", 1, "Workload didn't fit")]);
    let done = reserved("done", 90).edit(|gang| {
        let conditions = gang.workload["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(condition("Finished", "True", 3, ""));
    });
    let other = reserved("other", 80)
        .edit(|gang| gang.workload["status"]["admission"]["clusterQueue"] = json!("cpu"));
    let mut snapshot = snapshot(&[reserved("small", 2), waits, reserved("large", 8), done, other]);
    let gangs = report::gangs(&snapshot);
    let waits = of(&gangs, "waits");
    assert_eq!(waits.quota_held_by.iter().map(|holder| holder.pods).collect::<Vec<_>>(), [8, 2]);
    assert_eq!(
        waits.why,
        "quota is not reserved: Workload didn't fit; \
         quota of ClusterQueue gpu is held by team-a/job-large-1a2b3 (8 pods) and 1 more"
    );
    assert!(of(&gangs, "small").quota_held_by.is_empty());

    let too_large = "insufficient quota for cpu in flavor gpu, previously considered podsets requests (0) + current podset \
                     request (40) > maximum capacity (32)";
    let waits = Gang::new("waits", &[condition("QuotaReserved", "False", 1, too_large)]);
    let gangs = report::gangs(&self::snapshot(&[reserved("small", 2), waits]));
    let expected = "it will not fit when others end: ask for less, or have the quota raised";
    assert_eq!(of(&gangs, "waits").why, format!("quota is not reserved: {too_large}; {expected}"));

    // Without the right to read queues, the holders are unknown, and so is whether a Workload without checks is ours.
    snapshot.local_queues.clear();
    assert!(report::gangs(&snapshot).iter().all(|gang| gang.owner != "Job/waits"));
}

#[test]
fn without_the_right_to_read_node_claims_the_controllers_message_is_shown() {
    let message = "3/4 nodes ready; slot 3 waits for launch; attempt 1";
    let gang = Gang::reserved("tenant", message).journal(&json!({"state": "WaitingReady"}), 1, 4, &[]);
    let mut snapshot = snapshot(&[gang]);
    (snapshot.claims, snapshot.nodes, snapshot.checks) = (None, None, None);
    let gangs = report::gangs(&snapshot);
    assert_eq!(gangs[0].why, message);
    assert!(gangs[0].gang.as_ref().unwrap().nodes.is_empty());
}

#[test]
fn a_workload_is_found_by_its_own_or_its_jobs_name_and_similar_names_are_suggested() {
    let workloads = snapshot(&situations()).workloads;
    for wanted in
        ["job-waiting-1a2b3", "workload/job-waiting-1a2b3", "waiting", "job/waiting", "Jobs/waiting"]
    {
        assert_eq!(find::matches(&workloads, wanted).len(), 1, "{wanted}");
    }
    for wanted in ["jobset/waiting", "waitin", "workload/waiting", ""] {
        assert!(find::matches(&workloads, wanted).is_empty(), "{wanted}");
    }
    assert_eq!(find::similar(&workloads, "job/waitng")[0], "waiting");
    assert!(find::similar(&workloads, "zzz").is_empty());
    let line = |others: &[&str], near: &[&str]| {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        find::absent("x", "namespace a", &own(others), &own(near))
    };
    assert_eq!(line(&[], &["xx"]), "no Workload or Job x in namespace a; did you mean xx?");
    assert_eq!(line(&["b"], &[]), "no Workload or Job x in namespace a, but there is one in b: add -n b");
}

#[test]
fn a_foreign_workload_is_distinguished_from_one_without_quota() {
    let foreign = Gang::reserved("foreign", "").edit(|gang| {
        gang.workload["status"]["admissionChecks"][0]["name"] = json!("budget");
    });
    let queued =
        Gang::new("early", &[condition("QuotaReserved", "False", 1, "LocalQueue main doesn't exist")]);
    let mut snapshot = snapshot(&[foreign, queued]);
    snapshot.local_queues.clear();
    assert!(report::gangs(&snapshot).is_empty());
    let foreign = find::early(&snapshot, &snapshot.workloads[0]).unwrap_err().to_string();
    assert!(foreign.contains("only checks budget: none is of c"), "{foreign}");
    let early = find::early(&snapshot, &snapshot.workloads[1]).unwrap();
    assert_eq!(early.why, "quota is not reserved: LocalQueue main doesn't exist");
}

/// A Workload whose only check is Kueue's own, with these conditions besides the reserved quota.
fn by_request(conditions: &[&str]) -> ClusterObjects {
    let gang = Gang::reserved("asks", "").edit(|gang| {
        gang.workload["status"]["admissionChecks"][0]["name"] = json!("provisioning");
        gang.workload["spec"]["podSets"] = json!([{"name": "main", "count": 1}]);
        let more = conditions.iter().map(|kind| condition(kind, "True", 20, ""));
        gang.workload["status"]["conditions"].as_array_mut().unwrap().extend(more);
    });
    let mut snapshot = snapshot(&[gang]);
    let check = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "provisioning"},
        "spec": {"controllerName": names::PROVISIONING_REQUEST},
    });
    snapshot.checks.as_mut().unwrap().push(serde_json::from_value(check).unwrap());
    snapshot.requests = Some(Vec::new());
    snapshot
}

/// A request of this class. `is_controlled` is whether the Workload of [`by_request`] controls it.
fn request(class: &str, is_controlled: bool) -> setu::api::ProvisioningRequest {
    let owner = json!([{
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "job-asks-1a2b3", "uid": "uid-asks", "controller": true,
    }]);
    serde_json::from_value(json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {
            "name": "job-asks-1a2b3-provisioning-1", "namespace": "team-a", "uid": "uid-request",
            "creationTimestamp": at(5).to_string(), "ownerReferences": if is_controlled { owner } else { json!([]) },
        },
        "spec": {"provisioningClassName": class},
    }))
    .unwrap()
}

#[test]
fn between_reservation_and_request_explain_says_that_kueue_makes_the_request() {
    let mut snapshot = by_request(&[]);
    snapshot.add_requests();
    assert!(report::gangs(&snapshot).is_empty());
    let early = find::early(&snapshot, &snapshot.workloads[0]).unwrap();
    assert_eq!(
        early.why,
        "quota is reserved, and Kueue has not made the ProvisioningRequest for check provisioning yet; Setu serves it if its class \
         is atomic.setu.kueue.x-k8s.io"
    );
    snapshot.requests = Some(vec![request("check-capacity.autoscaling.x-k8s.io", true)]);
    snapshot.add_requests();
    let foreign = find::early(&snapshot, &snapshot.workloads[0]).unwrap_err().to_string();
    assert!(
        foreign.contains("is of class check-capacity.autoscaling.x-k8s.io, which Setu does not serve"),
        "{foreign}"
    );
    snapshot.requests = None;
    let unread = find::early(&snapshot, &snapshot.workloads[0]).unwrap_err().to_string();
    assert!(unread.ends_with("is answered by a ProvisioningRequest, and those cannot be read"), "{unread}");
}

#[test]
fn a_request_that_stands_for_no_workload_is_explained_as_such() {
    let mut snapshot = by_request(&[]);
    snapshot.workloads.clear();
    snapshot.requests = Some(vec![request(names::REQUEST_CLASS, false)]);
    snapshot.add_requests();
    let report = find::early(&snapshot, &snapshot.workloads[0]).unwrap();
    let text = anstream::adapter::strip_str(&explanation::explain(&report, snapshot.now)).to_string();
    assert!(text.contains("State      Unowned\n"), "{text}");
    assert!(
        text.contains("Why it has no nodes\n  no Workload controls this request, and it has no label"),
        "{text}"
    );
    snapshot.workloads.clear();
    snapshot.requests = Some(vec![request(names::REQUEST_CLASS, true)]);
    snapshot.add_requests();
    let report = find::early(&snapshot, &snapshot.workloads[0]).unwrap();
    assert_eq!(report.why, "Workload job-asks-1a2b3, which controls this request, does not exist");
    let mut ended = request(names::REQUEST_CLASS, false);
    ended.status = serde_json::from_value(json!({"conditions": [{
        "type": "BookingExpired", "status": "True", "reason": "PodsSucceeded",
        "message": "all pods have succeeded, so the nodes are given back", "lastTransitionTime": "2026-07-01T12:00:00Z",
    }]}))
    .unwrap();
    snapshot.workloads.clear();
    snapshot.requests = Some(vec![ended]);
    snapshot.add_requests();
    let report = find::early(&snapshot, &snapshot.workloads[0]).unwrap();
    let text = anstream::adapter::strip_str(&explanation::explain(&report, snapshot.now)).to_string();
    assert!(text.contains("State      Ended\n"), "{text}");
    assert!(text.contains("How it ended\n  all pods have succeeded, so the nodes are given back"), "{text}");
}

#[test]
fn the_nodes_of_a_running_gang_are_shown_after_its_request_was_deleted() {
    let mut snapshot = by_request(&["Admitted"]);
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": "claim", "creationTimestamp": at(6).to_string(),
            "labels": {
                (names::MANAGED_BY): names::SETU, (names::WORKLOAD_UID): "uid-request", (names::ATTEMPT): "1",
                (names::NODEPOOL): "gpu",
            },
            "annotations": {
                (names::SLOT): "0", (names::CHECK): "provisioning",
                (names::WORKLOAD): "team-a/provisioningrequest/job-asks-1a2b3-provisioning-1",
                (names::OWNER): "team-a/job-asks-1a2b3/uid-asks",
            },
        },
        "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
        "status": {"conditions": [condition("Initialized", "True", 15, "")]},
    });
    snapshot.claims = Some(vec![serde_json::from_value(claim).unwrap()]);
    let read = snapshot.clone();
    snapshot.add_requests();
    let gangs = report::gangs(&snapshot);
    assert_eq!(gangs.len(), 1);
    assert_eq!(gangs[0].workload, "provisioningrequest/job-asks-1a2b3-provisioning-1");
    assert_eq!(
        gangs[0].why,
        "admitted; 1 node held for it; its ProvisioningRequest was deleted, and the nodes go when its Workload ends"
    );
    let gang = gangs[0].gang.as_ref().unwrap();
    assert_eq!((gang.slots, gang.nodes.len(), gang.since), (1, 1, at(20)));
    assert_eq!(find::matches(&snapshot.workloads, "job/asks").len(), 2);
    // A request that exists does not count as deleted, and none does without the right to read requests.
    for requests in [Some(vec![request(names::REQUEST_CLASS, true)]), None] {
        let mut other = ClusterObjects { requests, ..read.clone() };
        other.add_requests();
        assert!(!other.workloads.iter().any(|workload| other.is_deleted_request(workload)));
    }
}
