//! Answers as kubectl prints them: a Table with the kind's columns in place of the object or list.
//!
//! The rule: a table is made from the finished answer, so that it can show nothing that the caller
//! could not read otherwise. Columns are in [`super::columns`]; what the cells of built-in kinds say
//! follows `pkg/printers/internalversion` of Kubernetes, those of custom kinds their CRDs.

use http::HeaderMap;
use http::header::ACCEPT;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::columns::{self, Column};
use super::kinds::Kind;

/// How an answer shall be shown as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tabling {
    pub kind: &'static Kind,
    pub objects: Objects,
}

/// What of an object goes along with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objects {
    None,
    Metadata,
    Whole,
}

/// Whether the column definitions stand in a table; in a watch only the first has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    Shown,
    Known,
}

/// Whether the first media type the caller accepts and this server can give is a table.
pub(super) fn wanted(headers: &HeaderMap) -> bool {
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
    pub(super) fn from_query(value: Option<&str>) -> Self {
        match value {
            Some("None") => Self::None,
            Some("Object") => Self::Whole,
            _ => Self::Metadata,
        }
    }
}

impl Tabling {
    /// The table of an object or a list at the moment `now`.
    pub(super) fn table(self, answer: &Value, heading: Heading, now: Timestamp) -> Value {
        let columns = columns::of(self.kind);
        let metadata = answer.get("metadata");
        let mut meta = Map::new();
        for field in ["resourceVersion", "continue", "remainingItemCount"] {
            if let Some(value) = metadata.and_then(|metadata| metadata.get(field)) {
                meta.insert(field.to_owned(), value.clone());
            }
        }
        let rows: Vec<Value> = match answer.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().map(|item| self.row(columns, item, now)).collect(),
            None => vec![self.row(columns, answer, now)],
        };
        let definitions = match heading {
            Heading::Shown => columns.iter().map(Column::definition).collect(),
            Heading::Known => Value::Null,
        };
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": definitions, "rows": rows,
        })
    }

    /// The same watch event with a table of one row as its object; an error stays what it is.
    pub(super) fn event(self, event: &Value, heading: Heading, now: Timestamp) -> Value {
        let kind = event.get("type").cloned().unwrap_or_default();
        if kind == "ERROR" {
            return event.clone();
        }
        let object = event.get("object").unwrap_or(&Value::Null);
        json!({"type": kind, "object": self.table(object, heading, now)})
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
                if let Some(fields) = whole.as_object_mut() {
                    fields.insert("kind".to_owned(), json!(self.kind.kind));
                    fields.insert("apiVersion".to_owned(), json!(self.kind.api_version()));
                }
                whole
            }
        };
        let mut row = json!({"cells": cells, "object": shown});
        if let (Some(fields), Some(conditions)) = (row.as_object_mut(), columns::conditions(self.kind, object)) {
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
