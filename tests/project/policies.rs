//! The chart's admission policies: their CEL expressions, as rendered, on requests of each kind of user.
//! A test on the real control plane shows that the API server evaluates them in the same way.

use kube_cel::cel::{Context, Program, Value as Cel, to_value};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use setu::names::{ATTEMPT, GANG, MANAGED_BY, NODEPOOL, REQUEST, SLOT, WORKLOAD_UID};
use setu::names::{journal_key, state_key};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

const SETU: &str = "system:serviceaccount:kueue-system:setu";
const UNINSTALL: &str = "system:serviceaccount:kueue-system:setu-uninstall";
const KUEUE: &str = "system:serviceaccount:kueue-system:kueue-controller-manager";
const KARPENTER: &str = "system:serviceaccount:kube-system:karpenter";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const MANAGER: &str = "system:kube-controller-manager";
/// Allowed only if the values name them.
const WRITER: &str = "system:serviceaccount:chart:another-writer";
const KEEPER: &str = "system:serviceaccount:chart:another-keeper";
const TENANT: &str = "system:serviceaccount:team-a:default";
/// A member of the break-glass group.
const ADMIN: &str = "kubernetes-admin";

const DEFAULT: &str = "manifests/admission-policies.yaml";
const EVERYTHING: &str = "tests/e2e/tests/chart/golden/everything.yaml";

const WRITTEN: &str = "written by Setu alone";
const REMOVED: &str = "removed by Setu alone";
const FINALIZER: &str = "taken off by Setu alone";
const MARKED: &str = "Setu says only of Workloads that it makes";
const CREATED: &str = "Setu makes and deletes only the Workloads of ProvisioningRequests";
const KEPT: &str = "made, changed and deleted by Setu and Karpenter alone";
const MADE: &str = "Karpenter makes no NodeClaims";
const OWN: &str = "Setu makes, changes and deletes only NodeClaims";
const NAMED: &str = "names its gang, Workload and attempt";
const POOLS: &str = "Setu may use the NodePools";

/// One request to the API server. A create has no `before`, a delete no `after`.
struct Ask {
    what: &'static str,
    who: &'static str,
    resource: &'static str,
    before: Value,
    after: Value,
    /// Part of each expected message, in the order of the policies.
    refusals: &'static [&'static str],
}

impl Ask {
    fn operation(&self) -> &'static str {
        match (&self.before, &self.after) {
            (Value::Null, _) => "CREATE",
            (_, Value::Null) => "DELETE",
            _ => "UPDATE",
        }
    }

    fn request(&self) -> Value {
        let group = if self.who == ADMIN { "system:masters" } else { "system:serviceaccounts" };
        json!({
            "operation": self.operation(),
            "userInfo": {"username": self.who, "groups": [group, "system:authenticated"]},
        })
    }
}

/// The policies in a file of rendered manifests.
fn policies(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let all = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).unwrap());
    let all: Vec<Value> = all.filter(|d| d["kind"] == "ValidatingAdmissionPolicy").collect();
    assert_eq!(all.len(), 4, "{file}");
    all
}

fn evaluated(expression: &Value, context: &Context<'_>) -> Cel {
    let text = expression["expression"].as_str().unwrap();
    let program = Program::compile(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    program.execute(context).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn holds(expression: &Value, context: &Context<'_>) -> bool {
    match evaluated(expression, context) {
        Cel::Bool(answer) => answer,
        other => panic!("{expression} is {other:?}"),
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_of(policy: &Value, ask: &Ask) -> bool {
    let has = |list: &Value, item: &str| items(list).iter().any(|i| i == item);
    let rules = items(&policy["spec"]["matchConstraints"]["resourceRules"]);
    rules.iter().any(|r| has(&r["operations"], ask.operation()) && has(&r["resources"], ask.resource))
}

/// The messages of all refusals of this request. Panics if an expression fails.
fn refusals(policies: &[Value], ask: &Ask) -> Vec<String> {
    let mut refusals = Vec::new();
    for policy in policies.iter().filter(|policy| is_of(policy, ask)) {
        let mut context = Context::default();
        for (name, value) in [("object", &ask.after), ("oldObject", &ask.before), ("request", &ask.request())]
        {
            context.add_variable_from_value(name, to_value(value).unwrap());
        }
        let spec = &policy["spec"];
        if !items(&spec["matchConditions"]).iter().all(|condition| holds(condition, &context)) {
            continue;
        }
        let mut variables: HashMap<String, Cel> = HashMap::new();
        for variable in items(&spec["variables"]) {
            let value = evaluated(variable, &context);
            variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
            context.add_variable_from_value("variables", variables.clone());
        }
        let broken = items(&spec["validations"]).iter().filter(|v| !holds(v, &context));
        refusals.extend(broken.map(|v| v["message"].as_str().unwrap().to_owned()));
    }
    refusals
}

/// Checks that each request gets the expected answer, and that each validation refuses at least one of them.
fn answers(file: &str, asks: &[Ask]) {
    let policies = policies(file);
    let mut seen = BTreeSet::new();
    for ask in asks {
        let refused = refusals(&policies, ask);
        let Ask { what, who, refusals, .. } = ask;
        let as_expected = refused.len() == refusals.len()
            && refused.iter().zip(*refusals).all(|(message, words)| message.contains(words));
        assert!(as_expected, "{file}: {what}, by {who}: {refused:?}, and not {refusals:?}");
        seen.extend(refused);
    }
    for policy in &policies {
        for validation in items(&policy["spec"]["validations"]) {
            let message = validation["message"].as_str().unwrap();
            assert!(seen.contains(message), "{file}: nothing here is refused with {message:?}");
        }
    }
}

/// A Workload with these annotations, or none if null.
fn workload(annotations: &Value) -> Value {
    let mut metadata = json!({"name": "w", "namespace": "team-a"});
    if !annotations.is_null() {
        metadata["annotations"] = annotations.clone();
    }
    json!({"metadata": metadata, "spec": {"podSets": []}})
}

fn held(finalizers: &Value) -> Value {
    json!({"metadata": {"name": "w", "finalizers": finalizers}})
}

fn workloads(who: &'static str, refused: bool) -> Vec<Ask> {
    let (journal, state) = (&journal_key("gpu"), &state_key("gpu"));
    let none = &workload(&Value::Null);
    let noted = &workload(&json!({"example.com/note": "x"}));
    let first = &workload(&json!({journal: "{}", "example.com/note": "x"}));
    let second = &workload(&json!({journal: "{\"version\":1}", "example.com/note": "x"}));
    let both = &workload(&json!({journal: "{}", state: "Approved", "example.com/note": "x"}));
    let older = "setu.kueue.x-k8s.io/nodeclaims";
    let free = &held(&json!(["kueue.x-k8s.io/resource-in-use"]));
    let held = &held(&json!(["kueue.x-k8s.io/resource-in-use", older]));
    let unheld = &json!({"metadata": {"name": "w"}});
    let no = &Value::Null;
    let of_request = &workload(&json!({REQUEST: "batch/u"}));
    let cases: [(&'static str, &Value, &Value, &'static [&'static str]); 20] = [
        ("makes a Workload", no, none, &[]),
        ("makes one with an annotation", no, noted, &[]),
        ("makes one with a journal", no, first, &[WRITTEN]),
        ("makes one with a state", no, &workload(&json!({state: "Approved"})), &[WRITTEN]),
        ("makes one for a request", no, of_request, &[WRITTEN]),
        ("says that one is for no request any more", of_request, none, &[REMOVED]),
        ("writes the first annotation", none, noted, &[]),
        ("takes the last annotation off", noted, none, &[]),
        ("writes a first journal", none, first, &[WRITTEN]),
        ("changes a journal", first, second, &[WRITTEN]),
        ("adds a state", first, both, &[WRITTEN]),
        ("takes a state off", both, first, &[REMOVED]),
        ("takes a journal off", first, noted, &[REMOVED]),
        ("takes all annotations off", first, none, &[REMOVED]),
        ("changes something else", first, &workload(&json!({journal: "{}", "example.com/note": "y"})), &[]),
        ("exchanges a journal for a state", first, &workload(&json!({state: "x"})), &[WRITTEN, REMOVED]),
        ("adds a finalizer", free, held, &[]),
        ("takes an older finalizer off", held, free, &[FINALIZER]),
        ("takes all finalizers off", held, unheld, &[FINALIZER]),
        ("takes another finalizer off", free, unheld, &[]),
    ];
    let cases = cases.into_iter().map(|(what, before, after, refusals)| {
        let (before, after) = (before.clone(), after.clone());
        Ask {
            what,
            who,
            resource: "workloads",
            before,
            after,
            refusals: if refused { refusals } else { &[] },
        }
    });
    cases.collect()
}

/// The same for a user of Setu's: of Workloads, it may make and delete those of requests only.
fn own_workloads(who: &'static str) -> Vec<Ask> {
    let mut asks = workloads(who, false);
    let of_job = workload(&Value::Null);
    let mut of_request = workload(&json!({REQUEST: "batch/u"}));
    for ask in asks.iter_mut().filter(|ask| ask.operation() != "UPDATE") {
        ask.refusals = &[CREATED];
    }
    let mut ask = |what, before: &Value, after: &Value, refusals| {
        let (before, after) = (before.clone(), after.clone());
        asks.push(Ask { what, who, resource: "workloads", before, after, refusals });
    };
    ask("says that one of a Job is for a request", &of_job, &of_request, &[MARKED]);
    ask("deletes one of a Job", &of_job, &Value::Null, &[CREATED]);
    ask("deletes one with the name of another", &of_request, &Value::Null, &[CREATED]);
    of_request["metadata"]["name"] = json!("provisioningrequest-batch");
    ask("makes one for a request, by its name", &Value::Null, &of_request, &[]);
    ask("deletes one of a request", &of_request, &Value::Null, &[]);
    of_request["metadata"]["ownerReferences"] = json!([{"kind": "Job", "name": "train"}]);
    ask("deletes one that a Job owns", &of_request, &Value::Null, &[CREATED]);
    asks
}

/// A NodeClaim with the keys that Setu writes, except for some.
fn claim(without: &[&str]) -> Value {
    let map = |all: &[(&str, &str)]| -> Map<String, Value> {
        let kept = all.iter().filter(|(key, _)| !without.contains(key));
        kept.map(|(key, value)| ((*key).to_owned(), json!(value))).collect()
    };
    let labels =
        map(&[(MANAGED_BY, "setu"), (GANG, "g"), (WORKLOAD_UID, "u"), (ATTEMPT, "1"), (NODEPOOL, "chart")]);
    let annotations = map(&[(SLOT, "0")]);
    json!({"metadata": {"name": "c", "labels": labels, "annotations": annotations}, "spec": {}})
}

/// A NodeClaim of an earlier Setu, with the slot in a label. Both versions run during an upgrade.
fn earlier() -> Value {
    let mut claim = claim(&[SLOT]);
    claim["metadata"]["labels"][SLOT] = json!("0");
    claim
}

/// The same object with one more annotation.
fn noted(claim: &Value) -> Value {
    let mut noted = claim.clone();
    noted["metadata"]["annotations"]["example.com/note"] = json!("x");
    noted
}

/// All requests of one user for NodeClaims. `make` has the refusals of a create, `keep` those of everything else.
fn claims(who: &'static str, make: &'static [&'static str], keep: &'static [&'static str]) -> Vec<Ask> {
    let (own, foreign, bare) = (claim(&[]), claim(&[MANAGED_BY]), json!({"metadata": {"name": "c"}}));
    let no = Value::Null;
    let within: &'static [&'static str] = if [SETU, UNINSTALL].contains(&who) { &[OWN] } else { &[] };
    let without_labels: &'static [&'static str] = if within.is_empty() { &[] } else { &[OWN, NAMED] };
    // When the label is added, the rules for old and new object both apply.
    let taken: &'static [&'static str] = if within.is_empty() { keep } else { within };
    let moved = {
        let mut moved = own.clone();
        moved["metadata"]["annotations"][SLOT] = json!("1");
        moved
    };
    let cases: [(&'static str, &'static str, &Value, &Value, &'static [&'static str]); 11] = [
        ("names another slot on one of Setu's", "nodeclaims", &own, &moved, keep),
        ("makes one of Setu's", "nodeclaims", &no, &own, make),
        ("changes one of Setu's", "nodeclaims", &own, &noted(&own), keep),
        ("says how one of Setu's does", "nodeclaims/status", &own, &noted(&own), keep),
        ("takes the label off", "nodeclaims", &own, &foreign, keep),
        ("takes all labels off", "nodeclaims", &own, &bare, keep),
        ("puts the label on", "nodeclaims", &foreign, &own, taken),
        ("deletes one of Setu's", "nodeclaims", &own, &no, keep),
        ("changes one of others", "nodeclaims", &foreign, &noted(&foreign), within),
        ("deletes one without labels", "nodeclaims", &bare, &no, within),
        ("makes one without labels", "nodeclaims", &no, &bare, without_labels),
    ];
    let cases = cases.into_iter().map(|(what, resource, before, after, refusals)| {
        let (before, after) = (before.clone(), after.clone());
        Ask { what, who, resource, before, after, refusals }
    });
    cases.collect()
}

/// A NodeClaim that Setu creates without one of its keys.
fn half(without: &'static str, refusals: &'static [&'static str]) -> Ask {
    let after = claim(&[without]);
    Ask { what: without, who: SETU, resource: "nodeclaims", before: Value::Null, after, refusals }
}

#[test]
fn each_who_may_come_is_let_through_with_the_own_and_nothing_else() {
    let mut asks = Vec::new();
    asks.extend(own_workloads(SETU));
    for who in [KUEUE, ADMIN] {
        asks.extend(workloads(who, false));
    }
    // By default no other installation is named.
    for who in [TENANT, KARPENTER, COLLECTOR, MANAGER, UNINSTALL, WRITER, KEEPER] {
        asks.extend(workloads(who, true));
    }
    asks.extend(claims(SETU, &[], &[]));
    asks.extend(claims(ADMIN, &[], &[]));
    asks.extend(claims(KARPENTER, &[MADE], &[]));
    for who in [COLLECTOR, MANAGER] {
        asks.extend(claims(who, &[], &[]));
    }
    for who in [TENANT, KUEUE, WRITER, KEEPER] {
        asks.extend(claims(who, &[KEPT], &[KEPT]));
    }
    for label in [GANG, WORKLOAD_UID, ATTEMPT, SLOT] {
        asks.push(half(label, &[NAMED]));
    }
    asks.push(half(MANAGED_BY, &[OWN]));
    asks.push(half(NODEPOOL, &[]));
    let (before, after) = (Value::Null, earlier());
    asks.push(Ask {
        what: "makes one as before",
        who: SETU,
        resource: "nodeclaims",
        before,
        after,
        refusals: &[],
    });
    answers(DEFAULT, &asks);
}

#[test]
fn named_writers_and_keepers_are_allowed_and_setu_is_limited_to_its_node_pools() {
    let mut asks = Vec::new();
    for who in [SETU, UNINSTALL] {
        asks.extend(own_workloads(who));
    }
    for who in [KUEUE, ADMIN, WRITER] {
        asks.extend(workloads(who, false));
    }
    for who in [TENANT, KARPENTER, KEEPER] {
        asks.extend(workloads(who, true));
    }
    asks.extend(claims(KARPENTER, &[MADE], &[]));
    asks.extend(claims(KEEPER, &[], &[]));
    for who in [TENANT, KUEUE, WRITER] {
        asks.extend(claims(who, &[KEPT], &[KEPT]));
    }
    for label in [GANG, WORKLOAD_UID, ATTEMPT, SLOT] {
        asks.push(half(label, &[NAMED]));
    }
    asks.push(half(MANAGED_BY, &[OWN]));
    asks.push(half(NODEPOOL, &[POOLS]));
    let mut elsewhere = half(NODEPOOL, &[POOLS]);
    elsewhere.after["metadata"]["labels"][NODEPOOL] = json!("expensive");
    asks.push(elsewhere);
    let mut within = half(NODEPOOL, &[]);
    within.after["metadata"]["labels"][NODEPOOL] = json!("chart-cpu");
    asks.push(within);
    answers(EVERYTHING, &asks);
}

#[test]
fn a_request_that_a_policy_cannot_evaluate_is_refused() {
    for file in [DEFAULT, EVERYTHING] {
        for policy in policies(file) {
            // The API server aborts an expression that costs too much, and a tenant can cause that.
            assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{file}: {}", policy["metadata"]["name"]);
        }
    }
}
