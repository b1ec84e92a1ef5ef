//! Converts answers to Tables, which kubectl prints.
//!
//! Rule: a table is made from the finished answer, so it cannot show anything that the caller could not
//! read otherwise. Columns are in [`super::columns`]. Cells of built-in kinds follow
//! `pkg/printers/internalversion` of Kubernetes, those of custom kinds their CRDs.

use axum::body::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, Request};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::columns::{self, Column};
use super::kinds::ServedKind;
use super::{ServerResponse, Watch, route};

/// How to convert answers to tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tabling {
    kind: &'static ServedKind,
    objects: IncludedObject,
    heading: Heading,
}

/// The part of an object that is included in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncludedObject {
    None,
    Metadata,
    Whole,
}

/// Whether a table has column definitions. In a watch, only the first one has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    Shown,
    Known,
}

/// Converts the answer of a read to a table, if the caller wants one and the answer is about objects.
pub(super) fn shown(answer: ServerResponse, request: &Request<Bytes>, now: Timestamp) -> ServerResponse {
    let target = route::target(request.uri().path());
    let Some(target) = target.filter(|_| request.method() == http::Method::GET && wanted(request.headers()))
    else {
        return answer;
    };
    let objects = IncludedObject::of(request.uri().query().unwrap_or_default());
    let mut table = Tabling { kind: target.kind, objects, heading: Heading::Shown };
    match answer {
        ServerResponse::Watch(watch) => ServerResponse::Watch(Watch { table: Some(table), ..watch }),
        ServerResponse::Whole(response) if response.status().is_success() => {
            ServerResponse::Whole(response.map(|body| table.body(&body, now)))
        }
        ServerResponse::Whole(failure) => ServerResponse::Whole(failure),
    }
}

/// Whether the first accepted media type that this server supports is a table.
fn wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "*/*")) {
            continue;
        }
        let parameters: Vec<&str> = parts.collect();
        if parameters.contains(&"as=Table") {
            // Only v1 is served; v1beta1 is obsolete.
            if parameters.contains(&"v=v1") && parameters.contains(&"g=meta.k8s.io") {
                return true;
            }
            continue;
        }
        if !parameters.iter().any(|parameter| parameter.starts_with("as=")) {
            return false;
        }
    }
    false
}

impl IncludedObject {
    /// Parses the query parameter `includeObject`. Missing and unknown values mean the metadata.
    fn of(query: &str) -> Self {
        match query.split('&').find_map(|pair| pair.strip_prefix("includeObject=")) {
            Some("None") => Self::None,
            Some("Object") => Self::Whole,
            _ => Self::Metadata,
        }
    }
}

impl Tabling {
    /// Converts a complete answer. Non-JSON answers are unchanged.
    fn body(&mut self, body: &Bytes, now: Timestamp) -> Bytes {
        match serde_json::from_slice::<Value>(body) {
            Ok(answer) => Bytes::from(self.table(&answer, now).to_string()),
            Err(_) => body.clone(),
        }
    }

    /// Converts a line of a watch to a table of one row. Errors are unchanged.
    pub(super) fn line(&mut self, line: &Bytes, now: Timestamp) -> Bytes {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return line.clone() };
        let kind = event.get("type").cloned().unwrap_or_default();
        if kind == "ERROR" {
            return line.clone();
        }
        let table = self.table(event.get("object").unwrap_or(&Value::Null), now);
        Bytes::from(format!("{{\"type\":{kind},\"object\":{table}}}\n"))
    }

    /// The table of an object or a list. Later tables omit the column definitions.
    fn table(&mut self, answer: &Value, now: Timestamp) -> Value {
        let columns = columns::of(self.kind);
        let metadata = answer.get("metadata");
        let mut meta = Map::new();
        for field in ["resourceVersion", "continue", "remainingItemCount"] {
            if let Some(value) =
                metadata.and_then(|metadata| metadata.get(field)).filter(|value| *value != "")
            {
                meta.insert(field.to_owned(), value.clone());
            }
        }
        let rows: Vec<Value> = match answer.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().map(|item| self.row(columns, item, now)).collect(),
            None => vec![self.row(columns, answer, now)],
        };
        let definitions = match self.heading {
            Heading::Shown => columns.iter().map(Column::definition).collect(),
            Heading::Known => Value::Null,
        };
        self.heading = Heading::Known;
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": definitions, "rows": rows,
        })
    }

    fn row(self, columns: &[Column], object: &Value, now: Timestamp) -> Value {
        let cells: Vec<Value> = columns.iter().map(|column| column.cell(object, now)).collect();
        let shown = match self.objects {
            IncludedObject::None => Value::Null,
            IncludedObject::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object.get("metadata").cloned().unwrap_or_default(),
            }),
            IncludedObject::Whole => {
                let mut whole = object.clone();
                // List items may omit their kind, but the object of a row must have it.
                if let Some(fields) = whole.as_object_mut() {
                    fields.entry("kind").or_insert_with(|| json!(self.kind.kind));
                    fields.entry("apiVersion").or_insert_with(|| json!(self.kind.api_version()));
                }
                whole
            }
        };
        let mut row = json!({"cells": cells, "object": shown});
        if let (Some(fields), Some(conditions)) =
            (row.as_object_mut(), columns::conditions(self.kind, object))
        {
            fields.insert("conditions".to_owned(), conditions);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn a_table_is_returned_only_if_it_is_the_preferred_format() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert!(wanted(&headers(kubectl)));
        assert!(!wanted(&headers("application/json")));
        assert!(!wanted(&headers("application/json,application/json;as=Table;v=v1;g=meta.k8s.io")));
        assert!(!wanted(&headers("*/*")));
        assert!(!wanted(&HeaderMap::new()));
    }
}
