//! Every way in which Kueue ends an attempt, as the Workload shows it: what happens to the nodes, and when. One
//! row for each line of the table of endings in Kueue's contract.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use setu::api::Workload;
use setu::api::workload::Verdict;
use setu::gang::report::verdict::desired;
use setu::gang::{
    ClaimView, Effect, Eviction, Freshness, Health, Journal, Nodes, Observation, Reservation, Rules,
    Snapshot, State, StateName, decide, observe,
};
use setu::policy::Policy;

const START: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-01T00:10:00Z";

fn at(second: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

fn condition(kind: &str, status: &str, reason: &str, since: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
}

/// A Workload with its quota reserved and our check in this state.
fn reserved(verdict: &str) -> Value {
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "namespace": "ns", "name": "w", "uid": "u", "finalizers": ["kueue.x-k8s.io/resource-in-use"],
        },
        "spec": {"active": true},
        "status": {
            "admission": {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "flavors": {"cpu": "f"}, "count": 2}]},
            "admissionChecks": [{"name": "c", "state": verdict, "lastTransitionTime": START}],
            "conditions": [condition("QuotaReserved", "True", "QuotaReserved", START)],
        },
    })
}

/// The same, admitted with our Ready.
fn admitted() -> Value {
    with(reserved("Ready"), &[Change::Is("Admitted", "True", "Admitted")])
}

/// One change to a Workload.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A condition: its type, status and reason.
    Is(&'static str, &'static str, &'static str),
    /// `spec.active` is false.
    Inactive,
    /// Kueue has reset our check.
    CheckReset,
    /// The count of evictions goes up by one.
    Counted,
    /// The admission is cleared.
    NoAdmission,
    /// It is being deleted.
    Deleted,
    /// Kueue has removed its finalizer.
    LetGo,
}

use Change::{CheckReset, Counted, Deleted, Inactive, Is, LetGo, NoAdmission};

fn with(mut workload: Value, changes: &[Change]) -> Value {
    for change in changes {
        match change {
            Is(kind, status, reason) => {
                let conditions = workload["status"]["conditions"].as_array_mut().unwrap();
                conditions.retain(|c| c["type"] != *kind);
                conditions.push(condition(kind, status, reason, LATER));
            }
            Inactive => workload["spec"]["active"] = json!(false),
            CheckReset => workload["status"]["admissionChecks"][0]["state"] = json!("Pending"),
            Counted => workload["status"]["schedulingStats"] = json!({"evictions": [{"count": 1}]}),
            NoAdmission => workload["status"]["admission"] = Value::Null,
            Deleted => workload["metadata"]["deletionTimestamp"] = json!(LATER),
            LetGo => workload["metadata"]["finalizers"] = json!(["setu.kueue.x-k8s.io/nodeclaims"]),
        }
    }
    workload
}

fn decoded(workload: &Value) -> Workload {
    serde_json::from_value(workload.clone()).unwrap()
}

/// A gang of two ready nodes, and the changes to them.
struct Gang {
    journal: Journal,
    claims: Vec<ClaimView>,
}

impl Gang {
    /// A gang in this state under this Workload's reservation.
    fn new(state: State, workload: &Value) -> Self {
        let workload = decoded(workload);
        let Reservation::Held { admission, .. } = Reservation::of(&workload, "c") else {
            panic!("it has a reservation")
        };
        let mut journal = Journal::new("u", admission, at(0), Some(at(9_000)));
        journal.state = state;
        journal.seq = 5;
        (journal.memory.attempt, journal.memory.slots) = (1, 2);
        journal.memory.plan = Some("plan".to_owned());
        let claim = |slot: u32| ClaimView::new(&slot.to_string(), 1, slot, Health::Ready { since: at(0) });
        Self { journal, claims: (0..2).map(claim).collect() }
    }

    /// Reconciles the Workload until nothing changes. Deleted nodes are gone at once.
    fn see(&mut self, workload: &Value) {
        let workload = decoded(workload);
        for _ in 0..16 {
            let read = self.with(&workload, |snapshot| observe(&self.journal, snapshot));
            let Observation::Events(events) = read else { panic!("a quorum read is enough") };
            let mut effects = Vec::new();
            let before = self.journal.clone();
            for event in events {
                let eviction = Eviction::of(&workload);
                let rules = Rules { eviction, ..Rules::new(&Policy::default(), at(700), 0.0) };
                let decision = decide(&self.journal, &event, &rules);
                effects.extend(decision.effects);
                self.journal = decision.journal;
                if self.journal.seq > before.seq {
                    break;
                }
            }
            if effects.is_empty() && self.journal == before {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::DeleteClaims(names) => self.claims.retain(|c| !names.contains(&c.name)),
                    Effect::CreateClaims(slots) => panic!("slots {slots:?} are made anew"),
                }
            }
        }
    }

    fn with<T>(&self, workload: &Workload, act: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        act(&Snapshot {
            reported: workload.check("c").map(|c| c.state).unwrap_or_default(),
            claims: &self.claims,
            freshness: Freshness::Quorum,
            ..Snapshot::of(at(700), &Reservation::of(workload, "c"), &Policy::default())
        })
    }

    /// The verdict to write, if it differs from the current one.
    fn verdict(&self, workload: &Value) -> Option<Verdict> {
        let workload = decoded(workload);
        let entry = workload.check("c").unwrap();
        self.with(&workload, |snapshot| desired(&self.journal, snapshot, entry, Ok(Vec::new())))
            .map(|d| d.state)
    }

    fn is(&self) -> (StateName, usize) {
        (self.journal.state.name(), self.claims.len())
    }
}

/// How an attempt ends.
struct Row {
    name: &'static str,
    /// The changes while the pods of an admitted gang may still run.
    begins: &'static [Change],
    /// The changes once they have stopped; empty if this does not end an admitted gang.
    ends: &'static [Change],
    /// Whether it can happen before admission.
    early: bool,
}

const UNRESERVED: [Change; 3] =
    [Is("QuotaReserved", "False", "Pending"), Is("Admitted", "False", "NoReservation"), NoAdmission];

const fn evicted(name: &'static str, begins: &'static [Change]) -> Row {
    Row { name, begins, ends: &UNRESERVED, early: true }
}

const ROWS: [Row; 12] = [
    evicted(
        "preemption",
        &[Is("Evicted", "True", "Preempted"), Is("Preempted", "True", "x"), CheckReset, Counted],
    ),
    evicted("pods not ready in time", &[Is("Evicted", "True", "PodsReadyTimeout"), CheckReset, Counted]),
    evicted("a check says Retry", &[Is("Evicted", "True", "AdmissionCheck"), CheckReset, Counted]),
    evicted(
        "a check says Rejected",
        &[Inactive, Is("Evicted", "True", "DeactivatedDueToAdmissionCheck"), CheckReset, Counted],
    ),
    evicted("a user deactivates it", &[Inactive, Is("Evicted", "True", "Deactivated"), CheckReset, Counted]),
    evicted(
        "its ClusterQueue is drained",
        &[Is("Evicted", "True", "ClusterQueueStopped"), CheckReset, Counted],
    ),
    evicted("its LocalQueue is drained", &[Is("Evicted", "True", "LocalQueueStopped"), CheckReset, Counted]),
    evicted("a node fails under a topology", &[Is("Evicted", "True", "NodeFailures"), CheckReset, Counted]),
    evicted(
        "its time is up",
        &[
            Is("DeactivationTarget", "True", "MaximumExecutionTimeExceeded"),
            Inactive,
            Is("Evicted", "True", "Deactivated"),
            CheckReset,
            Counted,
        ],
    ),
    Row {
        name: "its Job is deleted",
        begins: &[],
        ends: &[Is("Finished", "True", "OwnerNotFound"), Deleted],
        early: true,
    },
    Row { name: "it is deleted", begins: &[Deleted], ends: &[LetGo], early: true },
    Row {
        name: "its pods are done",
        begins: &[],
        ends: &[Is("Finished", "True", "Succeeded")],
        early: false,
    },
];

#[test]
fn nodes_of_a_running_gang_go_only_once_its_pods_have_stopped() {
    for row in ROWS {
        let workload = admitted();
        let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &workload);
        gang.see(&workload);
        assert_eq!(gang.is(), (StateName::Approved, 2), "{}: it runs", row.name);
        let leaving = with(workload, row.begins);
        gang.see(&leaving);
        assert_eq!(gang.is(), (StateName::Approved, 2), "{}: its pods may still run", row.name);
        gang.see(&with(leaving, row.ends));
        assert_eq!(gang.is(), (StateName::Released, 0), "{}: its pods are stopped", row.name);
    }
}

#[test]
fn nodes_of_a_gang_that_never_ran_go_at_once() {
    for row in ROWS.iter().filter(|row| row.early) {
        let workload = reserved("Pending");
        let mut gang = Gang::new(State::WaitingReady, &workload);
        let first = if row.begins.is_empty() { row.ends } else { row.begins };
        gang.see(&with(workload, first));
        assert_eq!(gang.is(), (StateName::Released, 0), "{}", row.name);
    }
}

#[test]
fn quota_lost_without_an_eviction_ends_an_attempt_that_never_ran() {
    for (state, verdict) in [
        (State::WaitingReady, "Pending"),
        (State::Provisioning, "Pending"),
        (State::Approved { nodes: Nodes::Held }, "Ready"),
    ] {
        let workload = reserved(verdict);
        let mut gang = Gang::new(state.clone(), &workload);
        gang.see(&with(workload, &[Is("QuotaReserved", "False", "Pending"), NoAdmission]));
        assert_eq!(gang.is(), (StateName::Released, 0), "{state:?}");
    }
}

#[test]
fn changes_that_do_not_end_an_admission_take_no_node() {
    let workload = admitted();
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &workload);
    // A queue on Hold, a failed node without a topology, and a check that was removed from the queue.
    let mut unlisted = workload.clone();
    unlisted["status"]["admissionChecks"] = json!([]);
    let mut failing = workload.clone();
    failing["status"]["unhealthyNodes"] = json!([{"name": "n"}]);
    for seen in [&workload, &failing, &unlisted] {
        gang.see(seen);
        assert_eq!(gang.is(), (StateName::Approved, 2));
    }
}

#[test]
fn a_check_that_is_removed_before_admission_ends_the_attempt() {
    for (state, verdict) in
        [(State::WaitingReady, "Pending"), (State::Approved { nodes: Nodes::Held }, "Ready")]
    {
        let workload = reserved(verdict);
        let mut gang = Gang::new(state.clone(), &workload);
        let mut unlisted = workload.clone();
        unlisted["status"]["admissionChecks"] = json!([]);
        gang.see(&unlisted);
        assert_eq!(gang.is(), (StateName::Released, 0), "{state:?}");
    }
}

#[test]
fn a_slice_that_was_evicted_may_give_its_quota_back() {
    let eviction = |changes: &[Change]| {
        let slice = slice(with(reserved("Pending"), changes), Some("ns/before"));
        Eviction::of(&serde_json::from_value::<Workload>(slice).unwrap())
    };
    assert_eq!(eviction(&[]), Eviction::StopsOthers);
    assert_eq!(eviction(&[Counted]), Eviction::Harmless);
}

/// A reservation in the same second as the evicted one. Its end was not observed.
fn again(changes: &[Change]) -> Value {
    with(reserved("Pending"), changes)
}

#[test]
fn an_unobserved_eviction_is_detected_by_its_count_and_readiness_is_checked_again() {
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    let first = gang.journal.memory.admission.clone();
    gang.see(&again(&[Counted]));
    assert_ne!(gang.journal.memory.admission, first);
    // The same pods on the same flavor: the existing nodes serve the new admission.
    assert_eq!(gang.is(), (StateName::Approved, 2));
    let through: Vec<StateName> = gang.journal.history.iter().map(|s| s.to).collect();
    assert_eq!(through, [StateName::WaitingReady, StateName::Approved]);
}

#[test]
fn a_new_reservation_with_another_shape_gives_the_nodes_back_first() {
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    let mut other = again(&[]);
    other["status"]["admission"]["podSetAssignments"][0]["count"] = json!(1);
    gang.see(&other);
    assert_eq!(gang.claims.len(), 0);
    let through: Vec<StateName> = gang.journal.history.iter().map(|s| s.to).collect();
    assert_eq!(through, [StateName::RollingBack, StateName::Released, StateName::Validating]);
}

/// The same, with a different count than the nodes were created for.
fn of_another_shape(mut workload: Value) -> Value {
    workload["status"]["admission"]["podSetAssignments"][0]["count"] = json!(3);
    workload
}

#[test]
fn a_changed_admission_under_running_pods_takes_no_node_and_stops_nothing() {
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    let changed = of_another_shape(admitted());
    gang.see(&changed);
    assert_eq!(gang.is(), (StateName::Approved, 2));
    assert_eq!(gang.verdict(&changed), None, "its pods run on");
    // Nodes for other pods cannot serve the next admission, even if it equals the last one.
    gang.see(&of_another_shape(again(&[Counted])));
    assert_eq!(gang.claims.len(), 0);
    assert_eq!(gang.journal.history[0].to, StateName::RollingBack);
    // A gang that needs no node runs on too.
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    (gang.journal.memory.slots, gang.claims) = (0, Vec::new());
    gang.see(&changed);
    assert_eq!((gang.is(), gang.verdict(&changed)), ((StateName::Approved, 0), None));
}

#[test]
fn a_changed_gang_admitted_on_a_stale_ready_keeps_its_nodes_until_eviction() {
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    let anew = |changes: &[Change]| of_another_shape(with(with(admitted(), &[Counted]), changes));
    gang.see(&anew(&[]));
    assert_eq!(gang.is(), (StateName::Approved, 2), "pods may run there");
    assert_eq!(gang.verdict(&anew(&[])), Some(Verdict::Retry));
    let leaving = [Is("Evicted", "True", "AdmissionCheck"), CheckReset];
    gang.see(&anew(&leaving));
    assert_eq!(gang.is(), (StateName::Approved, 2), "they are being stopped");
    gang.see(&with(anew(&leaving), &[Is("QuotaReserved", "False", "Pending"), NoAdmission]));
    assert_eq!(gang.is(), (StateName::Released, 0));
    // Pods that are not recreated are never evicted.
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &admitted());
    let pods = |mut workload: Value| {
        workload["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
        workload
    };
    gang.see(&pods(anew(&[])));
    assert_eq!((gang.is(), gang.verdict(&pods(anew(&[])))), ((StateName::Approved, 2), None));
}

#[test]
fn a_stale_ready_is_revoked_before_its_nodes_are_deleted() {
    let anew = |verdict: &str| {
        let mut other = reserved(verdict);
        other["status"]["admission"]["podSetAssignments"][0]["count"] = json!(1);
        other
    };
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &reserved("Ready"));
    gang.see(&anew("Ready"));
    assert_eq!(gang.is(), (StateName::RollingBack, 2), "Kueue may be admitting right now");
    assert_eq!(gang.verdict(&anew("Ready")), Some(Verdict::Pending));
    gang.see(&anew("Pending"));
    assert_eq!(gang.is(), (StateName::Validating, 0));
}

#[test]
fn a_topology_that_kueue_never_assigns_keeps_nodes_until_the_admission_deadline() {
    let assigned = |verdict: &str, key: &str, value: Value| {
        let mut workload = reserved(verdict);
        workload["status"]["admission"]["podSetAssignments"][0][key] = value;
        workload
    };
    let put_off = |verdict| assigned(verdict, "delayedTopologyRequest", json!("Pending"));
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &put_off("Ready"));
    gang.see(&put_off("Ready"));
    assert_eq!(gang.is(), (StateName::Approved, 2), "the second pass may still come");
    // The assignment does not make it a different admission.
    let before = gang.journal.clone();
    let domains = json!({"levels": ["zone"], "domains": [{"values": ["a"], "count": 2}]});
    gang.see(&assigned("Ready", "topologyAssignment", domains));
    assert_eq!(gang.journal, before);
    // Kueue retries forever, so Setu gives up. It first revokes Ready.
    gang.journal.entered_at = at(-1_200);
    gang.see(&put_off("Ready"));
    assert_eq!(gang.is(), (StateName::Approved, 2), "it may be admitting right now");
    gang.see(&put_off("Pending"));
    assert_eq!(gang.is(), (StateName::Yielded, 0));
    let failure = gang.journal.memory.last_failure.map(|failure| failure.reason);
    assert_eq!(failure, Some(setu::gang::FailureClass::NotAdmitted));
}

#[test]
fn an_attempt_in_flight_is_never_reused_for_the_next_admission() {
    for state in [State::Provisioning, State::WaitingReady] {
        let mut gang = Gang::new(state, &reserved("Pending"));
        gang.see(&again(&[Counted]));
        assert_eq!(gang.claims.len(), 0);
        let through: Vec<StateName> = gang.journal.history.iter().map(|s| s.to).collect();
        assert_eq!(through, [StateName::RollingBack, StateName::Released, StateName::Validating]);
    }
}

/// One of the Workloads that Kueue creates for an elastic Job.
fn slice(mut workload: Value, replaces: Option<&str>) -> Value {
    let metadata = &mut workload["metadata"];
    metadata["ownerReferences"] =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true}]);
    metadata["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
    if let Some(before) = replaces {
        metadata["annotations"]["kueue.x-k8s.io/workload-slice-replacement-for"] = json!(before);
    }
    workload
}

#[test]
fn a_replaced_slice_keeps_its_nodes_unless_it_never_ran() {
    let replaced = [Is("Finished", "True", "WorkloadSliceReplaced")];
    let workload = slice(admitted(), None);
    let mut gang = Gang::new(State::Approved { nodes: Nodes::Held }, &workload);
    gang.see(&with(workload, &replaced));
    assert_eq!(gang.is(), (StateName::Approved, 2));
    for (state, verdict) in
        [(State::WaitingReady, "Pending"), (State::Approved { nodes: Nodes::Held }, "Ready")]
    {
        let workload = slice(reserved(verdict), Some("ns/before"));
        let mut gang = Gang::new(state, &workload);
        gang.see(&with(workload, &replaced));
        assert_eq!(gang.is(), (StateName::Released, 0));
    }
}

#[test]
fn a_replacing_slice_never_gives_its_quota_back() {
    let workload = slice(reserved("Pending"), Some("ns/before"));
    let policy = Policy { on_exhausted: setu::api::parameters::OnExhausted::Reject, ..Policy::default() };
    for class in setu::gang::FailureClass::ALL {
        let mut gang = Gang::new(State::WaitingReady, &workload);
        gang.journal.memory.tries = 99;
        gang.journal.memory.yields = 99;
        let event = setu::gang::Event::Failed(setu::gang::Failure::new(class, ""));
        let eviction = Eviction::of(&decoded(&workload));
        let rules = Rules { eviction, ..Rules::new(&policy, at(1), 0.0) };
        let journal = decide(&gang.journal, &event, &rules).journal;
        let then = setu::gang::Then::BackingOff;
        assert_eq!(journal.state, State::RollingBack { then }, "{class}");
    }
    let other = decoded(&slice(reserved("Pending"), Some("elsewhere/before")));
    assert_eq!(other.replaces(), None, "another namespace's Workload is nobody's predecessor");
}
