//! Requests and answers as the real API server has them.

use super::events::{Form, stored};
use super::route::{Target, target};
use super::select::Selector;
use super::status::Status;
use super::write::{By, Change};
use super::{Answer, ApiServer, Caller, Preconditions, Watch};
use crate::sim::values::{name, text};
use axum::body::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

type Query = BTreeMap<String, String>;

/// Answers one request.
pub fn handle(server: &ApiServer, caller: &Caller, request: &Request<Bytes>) -> Answer {
    let done = match target(request.uri().path()) {
        None => Err(Status::no_such_path()),
        Some(target) => served(server, caller, request, &target),
    };
    done.unwrap_or_else(|status| Answer::Whole(response(status.code, &status.to_json())))
}

fn response(code: u16, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn query(request: &Request<Bytes>) -> Query {
    let text = request.uri().query().unwrap_or_default();
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

fn served(
    server: &ApiServer,
    caller: &Caller,
    request: &Request<Bytes>,
    target: &Target,
) -> Result<Answer, Status> {
    let query = query(request);
    let body = || -> Result<Value, Status> {
        if request.body().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(request.body())
            .map_err(|e| Status::bad_request(format!("the body is no JSON: {e}")))
    };
    let whole = |code: u16, object: &Arc<Value>| Ok(Answer::Whole(response(code, &target.form.of(object))));
    match (request.method(), &target.name) {
        (&Method::GET, Some(name)) if !query.contains_key("watch") => {
            let found = server.read(target.kind, &key(target, name));
            whole(200, &found.ok_or_else(|| Status::not_found(target.kind, name))?)
        }
        (&Method::GET, _) => list_or_watch(server, caller, target, &query),
        (&Method::POST, None) => {
            let mut object = stored(body()?);
            place(&mut object, target)?;
            whole(201, &server.with(|s, deny| s.create(target.kind, object, by(caller, target), deny))?)
        }
        (&Method::PUT, Some(name)) => {
            let object = stored(body()?);
            let versioned = !text(&object, "/metadata/resourceVersion").is_empty();
            if target.kind.custom && !versioned {
                let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
                return Err(Status::invalid(target.kind, name, why));
            }
            let change = Change::Replace(&object);
            whole(
                200,
                &server.with(|s, deny| {
                    s.change(target.kind, &key(target, name), &change, by(caller, target), deny)
                })?,
            )
        }
        (&Method::PATCH, Some(name)) => patch(server, caller, request, target, name, &query),
        (&Method::DELETE, Some(name)) => {
            let only = preconditions(&body()?);
            let key = key(target, name);
            let (object, gone) =
                server.with(|s, deny| s.delete(target.kind, &key, &only, by(caller, target), deny))?;
            if !gone {
                return whole(200, &object);
            }
            let details = json!({
                "name": name, "group": target.kind.group, "kind": target.kind.plural, "uid": text(&object, "/metadata/uid"),
            });
            let done = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Ok(Answer::Whole(response(200, &done)))
        }
        (&Method::DELETE, None) => {
            let selector = selector(target, &query)?;
            let (objects, version) = server.cached(target.kind, usize::MAX);
            let chosen: Vec<Arc<Value>> = objects.into_iter().filter(|o| selector.takes(o)).collect();
            for object in &chosen {
                let key = (text(object, "/metadata/namespace").to_owned(), self::name(object).to_owned());
                // Gone meanwhile is as good.
                let _ = server.with(|s, deny| {
                    s.delete(target.kind, &key, &Preconditions::default(), by(caller, target), deny)
                });
            }
            Ok(Answer::Whole(response(200, &list(target, chosen.iter(), version))))
        }
        _ => Err(Status::not_allowed()),
    }
}

fn by<'c>(caller: &'c Caller, target: &Target) -> By<'c> {
    By { user: &caller.user, subresource: target.subresource }
}

fn key(target: &Target, name: &str) -> (String, String) {
    (target.namespace.clone().unwrap_or_default(), name.to_owned())
}

/// Puts the path's namespace into an object, and its kind where it is missing.
fn place(object: &mut Value, target: &Target) -> Result<(), Status> {
    if !object.is_object() {
        return Err(Status::bad_request("the body is no object"));
    }
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = json!({});
    }
    match &target.namespace {
        Some(namespace) => {
            let own = text(object, "/metadata/namespace");
            if !own.is_empty() && own != namespace {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            object["metadata"]["namespace"] = json!(namespace);
        }
        None if target.kind.namespaced => return Err(Status::not_allowed()),
        None => {}
    }
    object["apiVersion"] = json!(target.kind.api_version());
    object["kind"] = json!(target.kind.kind);
    Ok(())
}

fn preconditions(options: &Value) -> Preconditions {
    let owned = |path: &str| options.pointer(path).and_then(Value::as_str).map(str::to_owned);
    Preconditions {
        uid: owned("/preconditions/uid"),
        resource_version: owned("/preconditions/resourceVersion"),
    }
}

fn patch(
    server: &ApiServer,
    caller: &Caller,
    request: &Request<Bytes>,
    target: &Target,
    name: &str,
    query: &Query,
) -> Result<Answer, Status> {
    let format =
        request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let format = format.split(';').next().unwrap_or_default().trim();
    let bytes = request.body();
    let wrong = |e: &dyn std::fmt::Display| Status::bad_request(format!("error decoding patch: {e}"));
    let (key, by) = (key(target, name), by(caller, target));
    let object = match format {
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            if target.kind.custom && format.contains("strategic") {
                return Err(Status::unsupported(
                    "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            let patch: Value = serde_json::from_slice(bytes).map_err(|e| wrong(&e))?;
            server.with(|s, deny| s.change(target.kind, &key, &Change::Merge(&patch), by, deny))?
        }
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_slice(bytes).map_err(|e| wrong(&e))?;
            server.with(|s, deny| s.change(target.kind, &key, &Change::Json(&patch), by, deny))?
        }
        "application/apply-patch+yaml" => {
            let text = std::str::from_utf8(bytes).map_err(|e| wrong(&e))?;
            let mut applied: Value = serde_yaml::from_str(text).map_err(|e| wrong(&e))?;
            applied = stored(applied);
            applied["metadata"]["name"] = json!(name);
            place(&mut applied, target)?;
            let manager = query.get("fieldManager").map_or("", String::as_str);
            if manager.is_empty() {
                return Err(Status::bad_request("fieldManager is required for apply patch"));
            }
            let force = query.get("force").is_some_and(|f| f == "true");
            server.with(|s, deny| s.apply(target.kind, &key, (manager, force), &applied, by, deny))?
        }
        other => return Err(Status::unsupported(format!("the format {other:?} is not known"))),
    };
    Ok(Answer::Whole(response(200, &target.form.of(&object))))
}

fn selector(target: &Target, query: &Query) -> Result<Selector, Status> {
    let text = |key: &str| query.get(key).map_or("", String::as_str);
    let mut fields = text("fieldSelector").to_owned();
    if let Some(name) = &target.name {
        fields = format!("metadata.name={name},{fields}");
    }
    Selector::parse(target.kind, target.namespace.as_deref(), text("labelSelector"), &fields)
}

fn list<'o>(target: &Target, objects: impl Iterator<Item = &'o Arc<Value>>, version: u64) -> Value {
    let items: Vec<Value> = objects.map(|o| target.form.of(o).into_owned()).collect();
    let version_of = if target.form == Form::CoreEvent { "v1".to_owned() } else { target.kind.api_version() };
    json!({
        "kind": format!("{}List", target.kind.kind), "apiVersion": version_of,
        "metadata": {"resourceVersion": version.to_string()}, "items": items,
    })
}

fn list_or_watch(
    server: &ApiServer,
    caller: &Caller,
    target: &Target,
    query: &Query,
) -> Result<Answer, Status> {
    let selector = selector(target, query)?;
    let set = |key: &str| query.get(key).is_some_and(|v| matches!(v.as_str(), "true" | "1"));
    let version = query.get("resourceVersion").map_or("", String::as_str);
    if set("watch") {
        let from: u64 = version.parse().unwrap_or_default();
        let initial = set("sendInitialEvents");
        let frames = if from == 0 || initial {
            server.store().watch_from_now(target.kind, (selector, target.form), caller.replica, initial)
        } else {
            let past = server.store().watch(target.kind, (selector, target.form), caller.replica, from);
            past.ok_or_else(|| Status::expired(format!("too old resource version: {from}")))?
        };
        return Ok(Answer::Watch(Watch { kind: target.kind, form: target.form, frames, table: None }));
    }
    let replica = if version == "0" { caller.replica } else { usize::MAX };
    let (objects, current) = server.cached(target.kind, replica);
    let chosen: Vec<&Arc<Value>> = objects.iter().filter(|o| selector.takes(o)).collect();
    let limit: usize = query.get("limit").and_then(|l| l.parse().ok()).unwrap_or_default();
    let from: usize = query.get("continue").and_then(|c| c.parse().ok()).unwrap_or_default();
    let page: Vec<&Arc<Value>> =
        chosen.iter().skip(from).take(if limit == 0 { usize::MAX } else { limit }).copied().collect();
    let mut answer = list(target, page.iter().copied(), current);
    let left = chosen.len().saturating_sub(from + page.len());
    if left > 0 {
        answer["metadata"]["continue"] = json!((from + page.len()).to_string());
        answer["metadata"]["remainingItemCount"] = json!(left);
    }
    Ok(Answer::Whole(response(200, &answer)))
}
