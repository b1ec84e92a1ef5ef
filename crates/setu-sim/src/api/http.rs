//! Requests and answers in the format of the real API server.
//!
//! Reads are in `lists`, parsing of bodies and queries in `body`. This module maps verbs to the store.

use super::body::{self, QueryParameters};
use super::delete::Propagation;
use super::items::ServedList;
use super::patch::Patch;
use super::route::{RequestTarget, target};
use super::status::{FieldError, Status};
use super::write::By;
use super::{ApiServer, Caller, Preconditions, ServerResponse, lists};
use crate::values::{name, namespace, set, text};
use axum::body::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use std::sync::Arc;

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// Patch formats that custom kinds accept.
const CUSTOM_FORMATS: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

/// Answers one request.
pub fn handle(server: &ApiServer, caller: &Caller, request: &Request<Bytes>) -> ServerResponse {
    let Some(target) = target(request.uri().path()) else {
        return nothing_here(request.uri().path());
    };
    let done = ApiCall { server, caller, request, target: &target, query: body::query(request) }.answered();
    done.unwrap_or_else(|status| ServerResponse::json(status.code, &status.to_json()))
}

/// The answer for an unknown path. Within a served built-in group it is a Status object.
fn nothing_here(path: &str) -> ServerResponse {
    let served = super::kinds::ALL.iter().filter(|kind| !kind.custom).any(|kind| {
        let root = if kind.group.is_empty() {
            "/api/v1/".to_owned()
        } else {
            format!("/apis/{}/", kind.api_version())
        };
        path.starts_with(&root)
    });
    if served {
        let status = Status::no_such_path();
        return ServerResponse::json(status.code, &status.to_json());
    }
    let mut response = Response::new(Bytes::from_static(b"404 page not found\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    ServerResponse::Whole(response)
}

/// One request.
struct ApiCall<'c> {
    server: &'c ApiServer,
    caller: &'c Caller,
    request: &'c Request<Bytes>,
    target: &'c RequestTarget,
    query: QueryParameters,
}

impl ApiCall<'_> {
    fn answered(&self) -> Result<ServerResponse, Status> {
        let Self { server, caller, target, query, .. } = self;
        match (self.request.method(), &target.name) {
            (&Method::GET, Some(name)) if !query.contains_key("watch") => {
                Ok(self.whole(200, &lists::one(server, caller, target, (name, query))?))
            }
            (&Method::GET, _) => lists::list_or_watch(server, caller, target, query),
            (&Method::POST, name) if name.is_none() || target.kind.custom => self.create(),
            (&Method::PUT, Some(name)) => self.replace(name),
            (&Method::PATCH, Some(name)) => self.patch(name),
            (&Method::DELETE, Some(name)) => self.delete(name),
            (&Method::DELETE, None) => self.delete_all(),
            (&Method::PUT | &Method::PATCH, None) if target.kind.custom => {
                Err(Status::bad_request("name must be provided"))
            }
            _ => Err(Status::not_allowed()),
        }
    }

    fn whole(&self, code: u16, object: &Arc<Value>) -> ServerResponse {
        ServerResponse::json(code, &self.target.form.of(object))
    }

    fn key(&self, name: &str) -> (String, String) {
        (self.target.namespace.clone().unwrap_or_default(), name.to_owned())
    }

    /// The writer. The field manager is the named one, or the name of the client program.
    fn by(&self) -> By<'_> {
        let agent = self.request.headers().get(header::USER_AGENT).and_then(|v| v.to_str().ok());
        let agent = agent.unwrap_or_default().split('/').next().unwrap_or_default();
        let manager = self.query.get("fieldManager").map_or("", String::as_str);
        By {
            user: &self.caller.user,
            manager: [manager, agent].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown"),
            subresource: self.target.subresource,
            dry_run: self.query.get("dryRun").is_some_and(|d| d == "All"),
        }
    }

    fn create(&self) -> Result<ServerResponse, Status> {
        let kind = self.target.kind;
        body::check_options("CreateOptions", &self.query)?;
        if kind.namespaced && self.target.namespace.is_none() {
            return Err(Status::not_allowed());
        }
        let object = body::object(self.request, self.target)?;
        Ok(self.whole(201, &self.server.with(|s, deny| s.create(kind, object, self.by(), deny))?))
    }

    fn replace(&self, name: &str) -> Result<ServerResponse, Status> {
        body::check_options("UpdateOptions", &self.query)?;
        let object = body::object(self.request, self.target)?;
        body::check_name(&object, name)?;
        let (kind, key) = (self.target.kind, self.key(name));
        Ok(self.whole(200, &self.server.with(|s, deny| s.replace(kind, &key, object, self.by(), deny))?))
    }

    fn patch(&self, name: &str) -> Result<ServerResponse, Status> {
        let kind = self.target.kind;
        let format = body::format(self.request);
        if format == APPLY {
            return self.apply(name);
        }
        if ![MERGE, JSON].contains(&format) && (format != STRATEGIC || kind.custom) {
            let custom = kind.custom || format == STRATEGIC;
            return Err(if custom { Status::unknown_format(CUSTOM_FORMATS) } else { Status::unsupported() });
        }
        if self.query.contains_key("force") {
            let violation = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(Status::invalid_options("PatchOptions", violation));
        }
        body::check_options("PatchOptions", &self.query)?;
        if self.server.read(kind, &self.key(name)).is_none() {
            // Checked before the patch is parsed.
            return Err(Status::not_found(kind, name));
        }
        let wrong = |why: &str| Status::bad_request(format!("error decoding patch: {why}"));
        let patch: Value =
            serde_json::from_slice(self.request.body()).map_err(|e| wrong(&body::json_fault(&e)))?;
        let go_type = if format == JSON { "[]handlers.jsonPatchOp" } else { "map[string]interface {}" };
        let patch = match (format, &patch) {
            (JSON, Value::Array(_)) => {
                Patch::Json(serde_json::from_value(patch).map_err(|_| Status::unprocessable())?)
            }
            (MERGE, Value::Object(_)) => Patch::Merge(patch),
            (STRATEGIC, Value::Object(_)) => Patch::Strategic(patch),
            _ => {
                let is = if patch.is_array() { "array" } else { "object" };
                return Err(wrong(&format!("json: cannot unmarshal {is} into Go value of type {go_type}")));
            }
        };
        let key = self.key(name);
        Ok(self.whole(200, &self.server.with(|s, deny| s.patch(kind, &key, &patch, self.by(), deny))?))
    }

    fn apply(&self, name: &str) -> Result<ServerResponse, Status> {
        let (kind, key) = (self.target.kind, self.key(name));
        if self.query.get("fieldManager").is_none_or(String::is_empty) {
            let violation = FieldError::required("fieldManager", "is required for apply patch");
            return Err(Status::invalid_options("PatchOptions", violation));
        }
        body::check_options("PatchOptions", &self.query)?;
        let wrong = |e: &dyn std::fmt::Display| Status::bad_request(format!("error decoding YAML: {e}"));
        let stated: Value = serde_yaml::from_slice(self.request.body()).map_err(|e| wrong(&e))?;
        let given = |field: &str| stated.get(field).and_then(Value::as_str).unwrap_or_default();
        let (version, own) = (given("apiVersion"), given("kind"));
        if version.is_empty() || own != kind.kind {
            let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
            let message = format!("invalid object type: {group}/{version}, Kind={own}");
            return Err(Status::bad_request(message));
        }
        let mut stated = body::placed(stated, self.target)?;
        if self::name(&stated).is_empty() {
            set(&mut stated, &["metadata", "name"], json!(name));
        }
        body::check_name(&stated, name)?;
        let force = self.query.get("force").is_some_and(|f| f == "true");
        let (object, new) =
            self.server.with(|s, deny| s.apply(kind, &key, (&stated, force), self.by(), deny))?;
        Ok(self.whole(if new { 201 } else { 200 }, &object))
    }

    /// The options of a delete, from its body, or from its query if the body is empty.
    fn deletion(&self) -> Result<(Preconditions, Option<Propagation>, bool), Status> {
        let options: Value = if self.request.body().is_empty() {
            json!({
                "propagationPolicy": self.query.get("propagationPolicy"),
                "dryRun": self.query.get("dryRun").map(|d| vec![d]),
            })
        } else {
            serde_json::from_slice(self.request.body()).map_err(|e| {
                let why = body::json_fault(&e);
                Status::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
            })?
        };
        let propagation = match text(&options, "/propagationPolicy") {
            "" => None,
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                let violation = FieldError::unsupported("propagationPolicy", &json!(other), &known);
                return Err(Status::invalid_options("DeleteOptions", violation));
            }
        };
        let owned = |path: &str| options.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let only = Preconditions {
            uid: owned("/preconditions/uid"),
            resource_version: owned("/preconditions/resourceVersion"),
        };
        Ok((only, propagation, text(&options, "/dryRun/0") == "All"))
    }

    fn delete(&self, name: &str) -> Result<ServerResponse, Status> {
        let (only, propagation, dry_run) = self.deletion()?;
        let (kind, key) = (self.target.kind, self.key(name));
        let by = By { dry_run: dry_run || self.by().dry_run, ..self.by() };
        let (object, gone) =
            self.server.with(|s, deny| s.delete(kind, &key, (&only, propagation), by, deny))?;
        if !gone {
            return Ok(self.whole(200, &object));
        }
        let mut details = json!({"name": name, "kind": kind.plural, "uid": text(&object, "/metadata/uid")});
        if !kind.group.is_empty() {
            set(&mut details, &["group"], json!(kind.group));
        }
        let done = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(ServerResponse::json(200, &done))
    }

    fn delete_all(&self) -> Result<ServerResponse, Status> {
        let (_, propagation, dry_run) = self.deletion()?;
        let selector = lists::selector(self.target, &self.query)?;
        let (objects, version) = self.server.cached(self.target.kind, usize::MAX);
        let chosen: Vec<Arc<Value>> = objects.into_iter().filter(|o| selector.matches(o)).collect();
        let by = By { dry_run: dry_run || self.by().dry_run, ..self.by() };
        for object in &chosen {
            let key = (namespace(object).to_owned(), name(object).to_owned());
            let options = (&Preconditions::default(), propagation);
            // The object may be gone already.
            let _ = self.server.with(|s, deny| s.delete(self.target.kind, &key, options, by, deny));
        }
        Ok(ServerResponse::json(200, &ServedList::new(self.target, chosen.iter().collect(), version)))
    }
}
