//! The content of a request: the object in its body and the options in its query, validated as in the
//! real server before anything else is done.

use super::events::stored;
use super::kinds::ServedKind;
use super::route::RequestTarget;
use super::status::{FieldError, Status};
use crate::values::{name, set, text};
use axum::body::Bytes;
use http::{Request, header};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The query of a request.
pub type QueryParameters = BTreeMap<String, String>;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TEXT_FORMATS: &str = "application/json, application/yaml";
const BODY_FORMATS: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
/// Maximum length of a field manager name.
const MANAGER_LIMIT: usize = 128;

/// Parses the query.
pub fn query(request: &Request<Bytes>) -> QueryParameters {
    let text = request.uri().query().unwrap_or_default();
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// The media type of the body, without parameters.
pub fn format(request: &Request<Bytes>) -> &str {
    let format = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    format.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

/// Why a text is not valid JSON, in the words of the real server.
pub fn json_fault(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}

/// The object in the body of a create or update, in its stored form.
pub fn object(request: &Request<Bytes>, target: &RequestTarget) -> Result<Value, Status> {
    let kind = target.kind;
    let object = read(request, kind)?;
    let given = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, own) = (given("apiVersion"), given("kind"));
    let expected = target.api_version();
    if kind.custom {
        if own.is_empty() || version.is_empty() {
            let text = String::from_utf8_lossy(request.body());
            let missing = if own.is_empty() { "Kind" } else { "apiVersion" };
            return Err(unrecognized(kind, &format!("Object '{missing}' is missing in '{text}' ({text})")));
        }
        if version != expected {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({expected})"
            )));
        }
        if own != kind.kind {
            let violation = FieldError::invalid("kind", &json!(own), &format!("must be {}", kind.kind));
            return Err(Status::invalid_as(&own, kind.group, name(&object), violation));
        }
    } else if (!own.is_empty() && own != kind.kind) || (!version.is_empty() && version != expected) {
        let own = if own.is_empty() { kind.kind } else { &own };
        let version = if version.is_empty() { &expected } else { &version };
        return Err(Status::bad_request(format!(
            "{own} in version \"{}\" cannot be handled as a {}: no kind \"{own}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\"",
            if own == kind.kind { kind.version } else { version.rsplit('/').next().unwrap_or_default() },
            kind.kind
        )));
    }
    placed(object, target)
}

fn read(request: &Request<Bytes>, kind: &ServedKind) -> Result<Value, Status> {
    let body = request.body();
    let object: Value = match format(request) {
        "" | "application/json" => serde_json::from_slice(body).map_err(|error| {
            let text = String::from_utf8_lossy(body);
            let shown = if body.is_empty() { "<empty>" } else { &*text };
            let why =
                format!("couldn't get version/kind; json parse error: {} ({shown})", json_fault(&error));
            unrecognized(kind, &why)
        })?,
        "application/yaml" => {
            serde_yaml::from_slice(body).map_err(|e| unrecognized(kind, &format!("yaml parse error: {e}")))?
        }
        // The real server accepts protobuf, and lists it as accepted if another format is sent.
        PROTOBUF => return Err(Status::unknown_format(TEXT_FORMATS)),
        _ => return Err(Status::unknown_format(BODY_FORMATS)),
    };
    if object.is_object() {
        Ok(object)
    } else {
        let shown = body.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let why = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }} ({shown})",
            if object.is_array() { "array" } else { "value" }
        );
        Err(unrecognized(kind, &why))
    }
}

fn unrecognized(kind: &ServedKind, why: &str) -> Status {
    Status::bad_request(format!("the object provided is unrecognized (must be of type {}): {why}", kind.kind))
}

/// The object with the kind and namespace of the path, in its stored form.
pub fn placed(object: Value, target: &RequestTarget) -> Result<Value, Status> {
    let mut object = stored(object);
    if !object.get("metadata").is_some_and(Value::is_object) {
        set(&mut object, &["metadata"], json!({}));
    }
    match &target.namespace {
        Some(namespace) => {
            let own = text(&object, "/metadata/namespace");
            if !own.is_empty() && own != namespace {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            set(&mut object, &["metadata", "namespace"], json!(namespace));
        }
        None => {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("namespace");
            }
        }
    }
    set(&mut object, &["apiVersion"], json!(target.kind.api_version()));
    set(&mut object, &["kind"], json!(target.kind.kind));
    Ok(object)
}

/// Checks that an object has the name in the path.
pub fn check_name(object: &Value, wanted: &str) -> Result<(), Status> {
    match name(object) {
        own if own == wanted => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        ))),
        own => Err(Status::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({wanted})"
        ))),
    }
}

/// Checks the options of a write; `kind` is the kind of the options.
pub fn check_options(kind: &str, query: &QueryParameters) -> Result<(), Status> {
    let given = |key: &str| query.get(key).map(String::as_str).filter(|v| !v.is_empty());
    if let Some(manager) = given("fieldManager") {
        let odd = manager.chars().enumerate().find(|(_, c)| c.is_control());
        let why = match odd {
            Some((at, character)) => {
                format!("invalid character U+{:04X} (at position {at})", u32::from(character))
            }
            None if manager.len() > MANAGER_LIMIT => format!("may not be more than {MANAGER_LIMIT} bytes"),
            None => String::new(),
        };
        if !why.is_empty() {
            let shown = go_quoted(manager);
            return Err(Status::invalid_options(kind, FieldError::invalid_as("fieldManager", &shown, &why)));
        }
    }
    if let Some(dry_run) = given("dryRun").filter(|d| *d != "All") {
        return Err(Status::invalid_options(
            kind,
            FieldError::unsupported("dryRun", &json!([dry_run]), &["All"]),
        ));
    }
    let known = ["", "Ignore", "Strict", "Warn"];
    if let Some(validation) = given("fieldValidation").filter(|v| !known.contains(v)) {
        let violation = FieldError::unsupported("fieldValidation", &json!(validation), &known);
        return Err(Status::invalid_options(kind, violation));
    }
    Ok(())
}

/// Quotes a text like Go.
fn go_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted = format!("{quoted}\\x{:02x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
