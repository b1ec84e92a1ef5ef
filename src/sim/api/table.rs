//! Answers as kubectl prints them: a Table with the kind's columns in place of the object or list.
//!
//! The rule: a table is made from the finished answer, so that it can show nothing that the caller
//! could not read otherwise. Columns are in [`super::columns`]; what the cells of built-in kinds say
//! follows `pkg/printers/internalversion` of Kubernetes, those of custom kinds their CRDs.

use axum::body::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, Request};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::columns::{self, Column};
use super::kinds::Kind;
use super::{Answer, Watch, route};

/// How an answer shall be shown as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tabling {
    kind: &'static Kind,
    objects: Objects,
    heading: Heading,
}

/// What of an object goes along with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objects {
    None,
    Metadata,
    Whole,
}

/// Whether the column definitions stand in a table; in a watch only the first has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    Shown,
    Known,
}

/// The answer to a read as a table, if its caller wants one and it is of an object at all.
pub(super) fn shown(answer: Answer, request: &Request<Bytes>, now: Timestamp) -> Answer {
    let target = route::target(request.uri().path());
    let Some(target) = target.filter(|_| request.method() == http::Method::GET && wanted(request.headers()))
    else {
        return answer;
    };
    let objects = Objects::of(request.uri().query().unwrap_or_default());
    let mut table = Tabling { kind: target.kind, objects, heading: Heading::Shown };
    match answer {
        Answer::Watch(watch) => Answer::Watch(Watch { table: Some(table), ..watch }),
        Answer::Whole(response) if response.status().is_success() => {
            Answer::Whole(response.map(|body| table.body(&body, now)))
        }
        Answer::Whole(failure) => Answer::Whole(failure),
    }
}

/// Whether the first media type the caller accepts and this server can give is a table.
fn wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "*/*")) {
            continue;
        }
        let parameters: Vec<&str> = parts.collect();
        if parameters.contains(&"as=Table") {
            // Only v1 is served; v1beta1 is of the past.
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

impl Objects {
    /// From the query parameter `includeObject`; none and unknown ones mean the metadata.
    fn of(query: &str) -> Self {
        match query.split('&').find_map(|pair| pair.strip_prefix("includeObject=")) {
            Some("None") => Self::None,
            Some("Object") => Self::Whole,
            _ => Self::Metadata,
        }
    }
}

impl Tabling {
    /// A whole answer. What is no JSON stays what it is.
    fn body(&mut self, body: &Bytes, now: Timestamp) -> Bytes {
        match serde_json::from_slice::<Value>(body) {
            Ok(answer) => Bytes::from(self.table(&answer, now).to_string()),
            Err(_) => body.clone(),
        }
    }

    /// One line of a watch, with a table of one row as its object. An error stays what it is.
    pub(super) fn line(&mut self, line: &Bytes, now: Timestamp) -> Bytes {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return line.clone() };
        let kind = event.get("type").cloned().unwrap_or_default();
        if kind == "ERROR" {
            return line.clone();
        }
        let table = self.table(event.get("object").unwrap_or(&Value::Null), now);
        Bytes::from(format!("{{\"type\":{kind},\"object\":{table}}}\n"))
    }

    /// The table of an object or a list. The next one will not repeat the column definitions.
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
            Objects::None => Value::Null,
            Objects::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object.get("metadata").cloned().unwrap_or_default(),
            }),
            Objects::Whole => {
                let mut whole = object.clone();
                // Items of a list need not say what they are; a row's object does.
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
    fn a_table_is_given_to_who_prefers_one_and_to_nobody_else() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert!(wanted(&headers(kubectl)));
        assert!(!wanted(&headers("application/json")));
        assert!(!wanted(&headers("application/json,application/json;as=Table;v=v1;g=meta.k8s.io")));
        assert!(!wanted(&headers("*/*")));
        assert!(!wanted(&HeaderMap::new()));
    }
}
