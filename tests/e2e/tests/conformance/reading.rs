//! Generates reads (single objects, lists and watches) and requests that no client should make.

use proptest::prelude::*;
use proptest::sample::select;

use crate::generate::{APPLY, JSON, MERGE, TABLE, key, path};
use crate::kinds::Kind;
use crate::step::Step;

pub fn reads(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    let accept = select(vec![None, Some(TABLE.to_owned())]);
    let of = select(if kind.status { vec!["", "", "", "/status"] } else { vec!["", "/status"] });
    let query = select(vec!["", "", "?resourceVersion=0", "?resourceVersion={first}"]);
    (accept, of, query)
        .prop_map(move |(accept, of, query)| Step {
            request: format!(
                "GET {}{of}{}",
                path(kind, name),
                query.replace("{first}", &format!("{{first:{}}}", key(kind, name)))
            ),
            accept,
            ..Step::default()
        })
        .boxed()
}

pub fn selector() -> impl Strategy<Value = &'static str> {
    select(vec![
        "",
        "labelSelector=app%3Da",
        "labelSelector=app",
        "labelSelector=!app",
        "labelSelector=app!%3Da",
        "labelSelector=app+in+(a,b)",
        "labelSelector=app+notin+(a),tier",
        "labelSelector=app%3D%3Da,tier%3Dx",
        "labelSelector=app+in",
        "labelSelector=app%3Dbad+value!",
        "labelSelector=a/b/c",
        "fieldSelector=metadata.namespace%3D{here}",
        "fieldSelector=metadata.name!%3Da",
        "fieldSelector=metadata.labels%3Da",
        "fieldSelector=x",
    ])
}

pub fn lists(kind: &'static Kind) -> BoxedStrategy<Step> {
    let own: Vec<&str> = match kind.name {
        "Event" => vec![
            "fieldSelector=regarding.name%3Da",
            "fieldSelector=type%3DNormal",
            "fieldSelector=reason!%3DTried",
        ],
        "Workload" => vec!["fieldSelector=status.admission.clusterQueue%3Dcq"],
        _ => vec!["fieldSelector=spec.nodeName%3Dn1"],
    };
    let by_name = format!("fieldSelector=metadata.name%3D{}", kind.named("a"));
    let selector = prop_oneof![
        4 => selector().prop_map(str::to_owned),
        1 => Just(by_name),
        1 => select(own).prop_map(str::to_owned),
    ];
    let page = if kind.namespaced {
        prop_oneof![
            6 => Just(""),
            3 => Just("&limit=1"),
            1 => Just("&limit=2"),
            3 => Just("&limit=1&continue={next}"),
            1 => Just("&continue=nonsense"),
        ]
        .boxed()
    } else {
        Just("").boxed()
    };
    let version = prop_oneof![
        12 => Just(""),
        1 => select(vec![
            "&resourceVersion=0",
            "&resourceVersion={list}&resourceVersionMatch=NotOlderThan",
            "&resourceVersion=x",
        ]),
    ];
    let accept = prop_oneof![4 => Just(None), 1 => Just(Some(TABLE.to_owned()))];
    (selector, page, version, accept)
        .prop_map(move |(selector, page, version, accept)| {
            // A page with a selector is not tested: the server stops at a full page, without checking the rest.
            let question =
                if page.is_empty() { format!("{selector}{version}") } else { page[1..].to_owned() };
            Step { request: format!("GET {}?{question}", kind.collection()), accept, ..Step::default() }
        })
        .boxed()
}

pub fn watches(kind: &'static Kind, name: &'static str) -> BoxedStrategy<Step> {
    let key = key(kind, name);
    let from = select(vec![
        "resourceVersion={start}".to_owned(),
        "resourceVersion={list}".to_owned(),
        format!("resourceVersion={{version:{key}}}"),
        format!("resourceVersion={{first:{key}}}"),
        "resourceVersion=0".to_owned(),
        "resourceVersion=x".to_owned(),
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true".to_owned(),
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={start}".to_owned(),
    ]);
    let selector = prop_oneof![
        3 => Just(String::new()),
        2 => Just("&labelSelector=app%3Da".to_owned()),
        1 => Just("&labelSelector=tier%3Dx".to_owned()),
        1 => Just(format!("&fieldSelector=metadata.name%3D{}", kind.named(name))),
        1 => Just("&fieldSelector=spec.bogus%3Dn1".to_owned()),
    ];
    let accept = prop_oneof![5 => Just(None), 1 => Just(Some(TABLE.to_owned()))];
    (from, selector, accept)
        .prop_map(move |(from, selector, accept)| Step {
            request: format!("GET {}?watch=true&timeoutSeconds=60&{from}{selector}", kind.collection()),
            accept,
            ..Step::default()
        })
        .boxed()
}

/// Requests that no client should make for the kind.
pub fn odd(kind: &'static Kind) -> Vec<Step> {
    let collection = kind.collection();
    let one = path(kind, "a");
    let step = |request: String| Step { request, ..Step::default() };
    let with = |request: String, content: &str, text: &str| Step {
        request,
        content: Some(content.to_owned()),
        text: Some(text.to_owned()),
        ..Step::default()
    };
    let mut odd = vec![
        step(format!("GET {}/namespaces/{{here}}/nonsenses", kind.root)),
        step("GET /apis/nonsense.example.org/v1/things".to_owned()),
        step(format!("POST {one}")),
        step(format!("PUT {collection}")),
        with(format!("POST {collection}"), "application/json", ""),
        with(format!("POST {collection}"), "application/json", "{"),
        with(format!("POST {collection}"), "application/json", "[]"),
        with(format!("POST {collection}"), "text/plain", "hello"),
        with(format!("PATCH {one}"), "application/json", "{}"),
        with(format!("PATCH {one}"), "text/plain", "{}"),
        with(format!("PATCH {one}"), MERGE, "["),
        with(format!("PATCH {one}"), JSON, "{}"),
        with(format!("PATCH {one}"), MERGE, "{}"),
        with(format!("PATCH {one}?fieldManager=m1"), APPLY, "kind: Other"),
        with(format!("PATCH {one}?force=true"), MERGE, "{}"),
        with(format!("DELETE {one}"), "application/json", "{"),
    ];
    if !kind.custom {
        odd.push(step(format!("GET {one}/nonsense")));
    }
    odd
}
