//! Discovery: the served kinds with their names and verbs, the version, health endpoints, and just enough
//! OpenAPI that kubectl leaves validation to the server.
//!
//! Rule: everything is derived from [`super::kinds::ALL`], so every served kind is discoverable.

use std::collections::BTreeMap;

use axum::body::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::kinds::{self, ServedKind};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The Kubernetes version whose behaviour is reproduced and compared by the conformance tests.
const VERSION: (&str, &str, &str) = ("1", "36", "v1.36.3");

/// The answer to a `GET` of a discovery path; `None` for other paths.
pub(super) fn answer(path: &str, headers: &HeaderMap) -> Option<Response<Bytes>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let document = match *parts.as_slice() {
        ["healthz" | "livez" | "readyz"] => return Some(plain("ok")),
        ["version"] => version(),
        [] => json!({"paths": paths()}),
        ["api"] if aggregated(headers) => return Some(whole(&groups(true), AGGREGATED)),
        ["apis"] if aggregated(headers) => return Some(whole(&groups(false), AGGREGATED)),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => {
            let groups: Vec<Value> = group_versions()
                .keys()
                .filter(|group| !group.is_empty())
                .filter_map(|group| group_document(group))
                .collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["api", version] => resources("", version)?,
        ["apis", group] => {
            let mut document = group_document(group)?;
            if let Some(fields) = document.as_object_mut() {
                fields.insert("kind".to_owned(), json!("APIGroup"));
                fields.insert("apiVersion".to_owned(), json!("v1"));
            }
            document
        }
        ["apis", group, version] => resources(group, version)?,
        ["openapi", "v3"] => openapi_index(),
        ["openapi", "v3", "api", version] => openapi("", version)?,
        ["openapi", "v3", "apis", group, version] => openapi(group, version)?,
        _ => return None,
    };
    Some(whole(&document, "application/json"))
}

fn whole(document: &Value, content: &'static str) -> Response<Bytes> {
    let mut response = Response::new(document.to_string().into());
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content));
    response
}

fn plain(text: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(text.as_bytes()));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|range| {
        let mut parts: Vec<&str> = range.split(';').map(str::trim).collect();
        parts.sort_unstable();
        parts == ["application/json", "as=APIGroupDiscoveryList", "g=apidiscovery.k8s.io", "v=v2"]
    })
}

/// The kinds by group and version, in order.
fn group_versions() -> BTreeMap<&'static str, BTreeMap<&'static str, Vec<&'static ServedKind>>> {
    let mut groups: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
    for kind in kinds::ALL {
        groups.entry(kind.group).or_default().entry(kind.version).or_default().push(*kind);
    }
    // Events are also served in their `v1` form.
    groups.entry("").or_default().entry("v1").or_default().push(&kinds::EVENT);
    groups
}

fn kinds_of(group: &str, version: &str) -> Option<Vec<&'static ServedKind>> {
    group_versions().get(group)?.get(version).cloned()
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn paths() -> Vec<String> {
    let mut paths: Vec<String> =
        ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
            .map(str::to_owned)
            .into();
    for (group, versions) in group_versions() {
        paths.extend(versions.keys().map(|version| format!("/{}", root(group, version))));
    }
    paths.sort();
    paths
}

fn version() -> Value {
    let (major, minor, git) = VERSION;
    json!({
        "major": major, "minor": minor, "gitVersion": git, "gitCommit": "", "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "",
        "platform": concat!("setu/", env!("CARGO_PKG_VERSION")),
    })
}

fn group_document(group: &str) -> Option<Value> {
    let groups = group_versions();
    let versions = groups.get(group)?;
    let versions: Vec<Value> = versions
        .keys()
        .map(|version| json!({"groupVersion": group_version(group, version), "version": version}))
        .collect();
    Some(json!({"name": group, "versions": versions, "preferredVersion": versions.first()}))
}

/// The verbs of a kind. Their order differs for custom kinds, as on a real server.
fn verbs(kind: &ServedKind) -> Value {
    if kind.custom {
        json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"])
    } else if kind.plural == "namespaces" {
        json!(["create", "delete", "get", "list", "patch", "update", "watch"])
    } else {
        json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"])
    }
}

const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The category of a kind, by which `kubectl get` selects several kinds at once.
fn categories(kind: &ServedKind) -> Option<&'static str> {
    match (kind.group, kind.plural) {
        ("", "pods") | ("batch", "jobs") | ("apps", "daemonsets") => Some("all"),
        ("karpenter.sh" | "karpenter.kwok.sh", _) => Some("karpenter"),
        (setu_core::names::API_GROUP, _) => Some("setu"),
        ("apiextensions.k8s.io", _) => Some("api-extensions"),
        _ => None,
    }
}

fn with_names(mut resource: Value, kind: &ServedKind) -> Value {
    if let Some(fields) = resource.as_object_mut() {
        if !kind.short_names.is_empty() {
            fields.insert("shortNames".to_owned(), json!(kind.short_names));
        }
        if let Some(category) = categories(kind) {
            fields.insert("categories".to_owned(), json!([category]));
        }
    }
    resource
}

/// The resource list of one group version, for clients without aggregated discovery.
fn resources(group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in kinds_of(group, version)? {
        resources.push(with_names(
            json!({
                "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": verbs(kind),
            }),
            kind,
        ));
        if kind.status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "",
                "namespaced": kind.namespaced, "kind": kind.kind, "verbs": STATUS_VERBS,
            }));
        }
    }
    let group_version = group_version(group, version);
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    }))
}

/// Everything under `/api` or under `/apis` in one document.
fn groups(core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in group_versions() {
        if group.is_empty() != core {
            continue;
        }
        let versions: Vec<Value> = versions
            .iter()
            .map(|(version, kinds)| {
                let resources: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind)).collect();
                json!({"version": version, "resources": resources, "freshness": "Current"})
            })
            .collect();
        let metadata = if core { json!({}) } else { json!({"name": group}) };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn aggregated_resource(kind: &ServedKind) -> Value {
    // A real server leaves group and version of built-in kinds empty here.
    let response = if kind.custom {
        json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
    } else {
        json!({"group": "", "version": "", "kind": kind.kind})
    };
    let mut resource = json!({
        "resource": kind.plural, "responseKind": response, "singularResource": kind.singular,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" }, "verbs": verbs(kind),
    });
    if let (true, Some(fields)) = (kind.status, resource.as_object_mut()) {
        let status = json!([{"subresource": "status", "responseKind": response, "verbs": STATUS_VERBS}]);
        fields.insert("subresources".to_owned(), status);
    }
    with_names(resource, kind)
}

fn openapi_index() -> Value {
    let mut paths = serde_json::Map::new();
    for (group, versions) in group_versions() {
        for version in versions.keys() {
            let root = root(group, version);
            let url = json!({"serverRelativeURL": format!("/openapi/v3/{root}")});
            paths.insert(root, url);
        }
    }
    json!({"paths": paths})
}

/// Paths without schemas: they show clients that the server validates, but give `kubectl explain` nothing.
fn openapi(group: &str, version: &str) -> Option<Value> {
    let mut paths = serde_json::Map::new();
    for kind in kinds_of(group, version)? {
        let namespace = if kind.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{}/{namespace}{}/{{name}}", root(group, version), kind.plural);
        let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
            .into();
        let what = json!({"group": group, "version": version, "kind": kind.kind});
        let operation = json!({
            "parameters": parameters, "x-kubernetes-group-version-kind": what,
            "x-kubernetes-action": "patch", "responses": {"200": {"description": "OK"}},
        });
        paths.insert(path, json!({"patch": operation}));
    }
    let info = json!({"title": "Setu's embedded API server", "version": VERSION.2});
    Some(json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}))
}
