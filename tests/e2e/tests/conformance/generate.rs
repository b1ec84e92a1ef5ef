//! Generates sequences: a few objects of one or two kinds, with every verb, and with one wrong request in
//! ten. Simpler choices come first, because proptest shrinks towards them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::kinds::{ALL, Kind};
use crate::reading::{lists, odd, reads, selector, watches};
use crate::step::{Sequence, Step};

pub const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Generates sequences of about five to 25 requests.
pub fn sequence() -> impl Strategy<Value = Sequence> {
    let kinds = subsequence(ALL.iter().collect::<Vec<_>>(), 1..=2);
    kinds.prop_flat_map(|kinds| {
        let first =
            vec(select(kinds.clone()).prop_flat_map(|kind| (Just(kind), name())).prop_map(create), 1..=3);
        let then = vec(select(kinds).prop_flat_map(step), 4..=22);
        (first, then).prop_map(|(mut steps, more)| {
            steps.extend(more);
            Sequence { about: None, steps }
        })
    })
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just("a"), 2 => Just("b"), 1 => Just("c")]
}

fn create((kind, name): (&'static Kind, &'static str)) -> Step {
    let mut body = kind.base();
    body["metadata"] = json!({"name": kind.named(name), "labels": {"app": name}});
    Step { request: format!("POST {}", kind.collection()), body: Some(body), ..Step::default() }
}

fn step(kind: &'static Kind) -> BoxedStrategy<Step> {
    let odd = odd(kind);
    name()
        .prop_flat_map(move |name| {
            prop_oneof![
                2 => reads(kind, name),
                3 => creates(kind, name),
                4 => updates(kind, name),
                8 => patches(kind, name),
                5 => applies(kind, name),
                4 => deletes(kind, name),
                3 => lists(kind),
                2 => watches(kind, name),
            ]
        })
        .prop_flat_map(move |step| prop_oneof![30 => Just(step), 1 => select(odd.clone())])
        .boxed()
}

pub fn path(kind: &Kind, name: &str) -> String {
    format!("{}/{}", kind.collection(), kind.named(name))
}

pub fn key(kind: &Kind, name: &str) -> String {
    format!("{}/{name}", kind.plural)
}

/// A valid change of metadata.
fn lawful_metadata() -> impl Strategy<Value = Value> {
    select(vec![
        json!({"labels": {"app": "a"}}),
        json!({"labels": {"app": "b", "tier": "x"}}),
        json!({"labels": {"app": null}}),
        json!({"labels": null}),
        json!({"annotations": {"note": "1"}}),
        json!({"annotations": {"note": "2", "example.org/more": "yes"}}),
        json!({"annotations": {"note": null}}),
        json!({"annotations": null}),
        json!({"finalizers": ["example.org/hold"]}),
        json!({"finalizers": ["example.org/hold", "example.org/other"]}),
        json!({"finalizers": null}),
        json!({"finalizers": []}),
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "11111111-2222-3333-4444-555555555555"}]}),
        json!({"ownerReferences": null}),
    ])
}

/// A change of metadata that the server refuses or ignores.
fn odd_metadata(kind: &Kind, name: &str) -> impl Strategy<Value = Value> + use<> {
    let key = key(kind, name);
    let mut odd = vec![
        json!({"labels": {"app": "bad value!"}}),
        json!({"labels": {"bad key!": "x"}}),
        json!({"labels": {"app": "x".repeat(64)}}),
        json!({"labels": {"/x": "y"}}),
        json!({"annotations": {"bad key!": "x"}}),
        json!({"annotations": {"note": "{huge}"}}),
        json!({"finalizers": ["example.org/third"]}),
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": ""}]}),
        json!({"uid": "11111111-2222-3333-4444-555555555555"}),
        json!({"uid": null}),
        json!({"creationTimestamp": "2020-01-01T00:00:00Z"}),
        json!({"creationTimestamp": null}),
        json!({"deletionTimestamp": "2020-01-01T00:00:00Z"}),
        json!({"deletionTimestamp": null}),
        json!({"name": kind.named("other")}),
        json!({"namespace": "other"}),
        json!({"resourceVersion": format!("{{version:{key}}}")}),
        json!({"resourceVersion": format!("{{first:{key}}}")}),
        json!({"resourceVersion": "1"}),
        json!({"resourceVersion": "x"}),
        json!({"managedFields": null}),
    ];
    if kind.custom {
        // Built-in kinds treat these differently on create and on update.
        odd.extend([
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "2", "controller": true},
            ]}),
            json!({"finalizers": ["noslash"]}),
            json!({"finalizers": ["bad name!/x"]}),
            json!({"resourceVersion": null}),
            json!({"resourceVersion": ""}),
        ]);
    }
    select(odd)
}

/// A merge patch of any part of the object, with the subresource it applies to.
fn change(kind: &'static Kind, name: &str) -> BoxedStrategy<(Value, &'static str)> {
    let metadata = lawful_metadata().prop_map(|metadata| (json!({"metadata": metadata}), ""));
    let odd = odd_metadata(kind, name).prop_map(|metadata| (json!({"metadata": metadata}), ""));
    let mut option_count = vec![(6, metadata.boxed()), (2, odd.boxed())];
    let main = kind.changes();
    if !main.is_empty() {
        option_count.push((5, select(main).prop_map(|change| (change, "")).boxed()));
    }
    if kind.status {
        let status = select(kind.statuses());
        let both = (status.clone(), prop_oneof![3 => Just(None), 1 => lawful_metadata().prop_map(Some)]);
        let both = both.prop_map(|(status, metadata)| match metadata {
            Some(metadata) => json!({"status": status, "metadata": metadata}),
            None => json!({"status": status}),
        });
        option_count.push((6, both.prop_map(|change| (change, "/status")).boxed()));
        let odd = odd_metadata(kind, name);
        let odd =
            (status, odd).prop_map(|(status, metadata)| json!({"status": status, "metadata": metadata}));
        option_count.push((1, odd.prop_map(|change| (change, "/status")).boxed()));
    }
    proptest::strategy::Union::new_weighted(option_count).boxed()
}

fn options() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => Just(""),
        4 => Just("?fieldManager=m1"),
        2 => Just("?fieldManager=m2"),
        1 => Just("?dryRun=All"),
        1 => select(vec!["?dryRun=Some", "?fieldManager=%07", "?fieldValidation=Strict", "?fieldValidation=Never"]),
    ]
}

fn creates(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    let metadata = prop_oneof![4 => lawful_metadata(), 1 => odd_metadata(kind, name)];
    let more = prop_oneof![
        6 => Just(Value::Null),
        1 => Just(json!({"metadata": {"name": null, "generateName": "gen-"}})),
        1 => select(vec![
            json!({"metadata": {"name": "Bad_Name"}}),
            json!({"metadata": {"name": null}}),
            json!({"metadata": {"namespace": "other"}}),
            json!({"kind": "Other"}),
            json!({"apiVersion": "other/v1"}),
        ]),
        2 => select(if kind.changes().is_empty() { vec![Value::Null] } else { kind.changes() }),
        1 => select(if kind.statuses().is_empty() { vec![Value::Null] } else { kind.statuses() })
            .prop_map(|status| if status.is_null() { status } else { json!({"status": status}) }),
    ];
    (metadata, more, options())
        .prop_map(move |(metadata, more, options)| {
            // One fault at a time, because the order of several errors is undefined.
            let mut metadata = if more.is_null() { metadata } else { json!({}) };
            if let Some(fields) = metadata.as_object_mut() {
                fields.remove("resourceVersion");
            }
            let mut body = kind.base();
            let labels = json!({"name": kind.named(name), "labels": {"app": name}});
            json_patch::merge(&mut body, &json!({"metadata": labels}));
            json_patch::merge(&mut body, &json!({"metadata": metadata}));
            if !more.is_null() {
                json_patch::merge(&mut body, &more);
            }
            Step {
                request: format!("POST {}{options}", kind.collection()),
                body: Some(body),
                ..Step::default()
            }
        })
        .boxed()
}

fn updates(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    if matches!(kind.name, "Lease" | "Event") {
        // A PUT of a missing object would create it, which is not tested here.
        return patches(kind, name);
    }
    let version = prop_oneof![
        6 => Just(Value::Null),
        1 => Just(json!({"metadata": {"resourceVersion": null}})),
        1 => Just(json!({"metadata": {"resourceVersion": format!("{{first:{}}}", key(kind, name))}})),
    ];
    let base = prop_oneof![6 => Just(false), 1 => Just(true)];
    (change(kind, name), version, options(), base)
        .prop_map(move |((change, of), version, options, anew)| {
            let mut body = json!({});
            if anew {
                body = kind.base();
                json_patch::merge(&mut body, &json!({"metadata": {"name": kind.named(name)}}));
            }
            for patch in [&change, &version] {
                match (patch, anew) {
                    (Value::Null, _) => {}
                    (patch, true) => json_patch::merge(&mut body, patch),
                    (patch, false) => merge_keeping_null(&mut body, patch),
                }
            }
            Step {
                request: format!("PUT {}{of}{options}", path(kind, name)),
                like: (!anew).then(|| key(kind, name)),
                body: Some(body),
                ..Step::default()
            }
        })
        .boxed()
}

/// Merges like a merge patch but keeps nulls, so that the result is a patch too.
fn merge_keeping_null(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_keeping_null(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn patches(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    let merge = if kind.custom {
        prop_oneof![30 => Just(MERGE), 1 => Just(STRATEGIC)].boxed()
    } else {
        prop_oneof![2 => Just(MERGE), 1 => Just(STRATEGIC)].boxed()
    };
    let merged =
        (change(kind, name), merge, options()).prop_map(move |((change, of), content, options)| Step {
            request: format!("PATCH {}{of}{options}", path(kind, name)),
            content: Some(content.to_owned()),
            body: Some(change),
            ..Step::default()
        });
    let key = key(kind, name);
    let operation = select(vec![
        json!({"op": "add", "path": "/metadata/annotations/note", "value": "j"}),
        json!({"op": "add", "path": "/metadata/annotations", "value": {"note": "j"}}),
        json!({"op": "replace", "path": "/metadata/annotations/note", "value": "k"}),
        json!({"op": "remove", "path": "/metadata/annotations/note"}),
        json!({"op": "test", "path": "/metadata/annotations/note", "value": "1"}),
        json!({"op": "test", "path": "/metadata/annotations/note", "value": null}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": format!("{{version:{key}}}")}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": format!("{{first:{key}}}")}),
        json!({"op": "test", "path": "/metadata/uid", "value": format!("{{uid:{key}}}")}),
        json!({"op": "add", "path": "/metadata/finalizers", "value": ["example.org/hold"]}),
        json!({"op": "remove", "path": "/metadata/finalizers"}),
        json!({"op": "replace", "path": "/metadata/labels/app", "value": "b"}),
        json!({"op": "bogus", "path": "/metadata"}),
    ]);
    let json = (vec(operation, 1..=3), options()).prop_map(move |(operations, options)| Step {
        request: format!("PATCH {}{options}", path(kind, name)),
        content: Some(JSON.to_owned()),
        body: Some(json!(operations)),
        ..Step::default()
    });
    prop_oneof![5 => merged, 2 => json].boxed()
}

fn applies(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    if kind.name == "Event" {
        return patches(kind, name);
    }
    let managers =
        ["fieldManager=m1", "fieldManager=m1", "fieldManager=m2", "fieldManager=m3", "fieldManager="];
    let manager = select(managers.to_vec());
    let force = prop_oneof![3 => Just(""), 2 => Just("&force=true"), 1 => Just("&dryRun=All")];
    let whole = prop_oneof![2 => Just(false), 1 => Just(true)];
    let metadata =
        lawful_metadata().prop_map(|metadata| if states(&metadata) { metadata } else { json!({}) });
    let mut contents = vec![json!({})];
    contents.extend(kind.changes().into_iter().filter(states));
    let main = (select(contents), whole).prop_map(move |(change, whole)| {
        // Other kinds would lose fields that their schema requires once their only manager stops applying them.
        let whole = whole || !matches!(kind.name, "Workload" | "LocalQueue" | "ConfigMap");
        let mut body = if whole { kind.base() } else { json!({}) };
        json_patch::merge(&mut body, &change);
        (body, "")
    });
    let part = if kind.status {
        let statuses: Vec<Value> = kind.statuses().into_iter().filter(states).collect();
        let status = select(statuses).prop_map(|status| (json!({"status": status}), "/status"));
        prop_oneof![1 => main, 1 => status].boxed()
    } else {
        main.boxed()
    };
    let metadata = prop_oneof![2 => metadata.boxed(), 1 => Just(json!({})).boxed()];
    (part, metadata, manager, force)
        .prop_map(move |((mut body, of), metadata, manager, force)| {
            let base = kind.base();
            body["apiVersion"] = base["apiVersion"].clone();
            body["kind"] = base["kind"].clone();
            merge_keeping_null(&mut body, &json!({"metadata": {"name": kind.named(name)}}));
            merge_keeping_null(&mut body, &json!({"metadata": metadata}));
            // An empty apply has no effect, so each has at least this label.
            merge_keeping_null(&mut body, &json!({"metadata": {"labels": {"applied": "yes"}}}));
            Step {
                request: format!("PATCH {}{of}?{manager}{force}", path(kind, name)),
                content: Some(APPLY.to_owned()),
                body: Some(body),
                ..Step::default()
            }
        })
        .boxed()
}

/// Whether a value has no null and no empty list. In an apply, built-in and custom kinds treat these
/// differently.
fn states(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() && items.iter().all(states),
        Value::Object(fields) => fields.values().all(states),
        _ => true,
    }
}

fn deletes(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    let key = key(kind, name);
    let body = prop_oneof![
        4 => Just(None),
        4 => select(vec![
            json!({"preconditions": {"uid": format!("{{uid:{key}}}")}}),
            json!({"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}),
            json!({"preconditions": {"resourceVersion": format!("{{version:{key}}}")}}),
            json!({"preconditions": {"resourceVersion": format!("{{first:{key}}}")}}),
            json!({"preconditions": {"uid": format!("{{uid:{key}}}"), "resourceVersion": format!("{{version:{key}}}")}}),
            json!({"gracePeriodSeconds": 0}),
            json!({"propagationPolicy": "Background"}),
            json!({"propagationPolicy": "Foreground"}),
            json!({"propagationPolicy": "Orphan"}),
            json!({"propagationPolicy": "Sideways"}),
            json!({"gracePeriodSeconds": -1}),
        ]).prop_map(|mut options| {
            options["apiVersion"] = json!("v1");
            options["kind"] = json!("DeleteOptions");
            Some(options)
        }),
    ];
    let query = prop_oneof![
        6 => Just(""),
        1 => select(vec!["?propagationPolicy=Background", "?gracePeriodSeconds=0", "?propagationPolicy=Orphan"]),
    ];
    let one = (body, query).prop_map(move |(body, query)| Step {
        request: format!("DELETE {}{query}", path(kind, name)),
        body,
        ..Step::default()
    });
    if !kind.namespaced {
        return one.boxed();
    }
    let many = selector().prop_map(move |selector| Step {
        request: format!("DELETE {}?{selector}", kind.collection()),
        ..Step::default()
    });
    prop_oneof![12 => one, 1 => many].boxed()
}
