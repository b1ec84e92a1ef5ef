//! Label and field selectors.

use super::cells::either;
use super::kinds::ServedKind;
use super::rules::metadata::{key_faults, value_faults};
use super::status::Status;
use crate::values::text;
use serde_json::Value;

/// The selectors of a list or watch.
#[derive(Clone, Debug, Default)]
pub struct ObjectSelector {
    namespace: Option<String>,
    labels: Vec<SelectorTerm>,
    fields: Vec<(String, String, bool)>,
}

#[derive(Clone, Debug)]
enum SelectorTerm {
    Has(String),
    HasNot(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

/// Fields that selectors of every kind support.
const COMMON_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Fields that only selectors of some kinds support.
fn fields_of(kind: &ServedKind) -> &'static [&'static str] {
    match kind.kind {
        "Pod" => &["spec.nodeName", "status.phase", "spec.restartPolicy", "spec.schedulerName"],
        "Event" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "type",
            "reportingComponent",
            "reportingController",
            "source",
        ],
        "ResourceSlice" => &["spec.nodeName", "spec.driver"],
        "Node" => &["spec.unschedulable"],
        "Job" => &["status.successful"],
        "Workload" => &["status.admission.clusterQueue"],
        "NodeClaim" => &[
            "spec.nodeClassRef.group",
            "spec.nodeClassRef.kind",
            "spec.nodeClassRef.name",
            "status.providerID",
        ],
        _ => &[],
    }
}

impl ObjectSelector {
    /// Parses the selectors of a request.
    pub fn parse(
        kind: &ServedKind,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, Status> {
        let labels = split(labels).into_iter().map(term).collect::<Result<_, _>>()?;
        let fields =
            fields.split(',').filter(|f| !f.is_empty()).map(|f| field(kind, f)).collect::<Result<_, _>>()?;
        Ok(Self { namespace: namespace.map(str::to_owned), labels, fields })
    }

    /// Whether it selects by neither labels nor fields.
    pub fn matches_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|n| text(object, "/metadata/namespace") == n)
            && self.labels.iter().all(|t| t.matches(object))
            && self.fields.iter().all(|(path, value, equal)| (field_value(object, path) == *value) == *equal)
    }
}

/// The value of a field as a selector sees it. For Events, the field names of both forms work.
fn field_value(object: &Value, path: &str) -> String {
    let path = match path {
        "reportingComponent" => "reportingController".to_owned(),
        "source" => return either(object, "/deprecatedSource/component", "/reportingController").to_owned(),
        path => path.replace("involvedObject.", "regarding."),
    };
    match object.pointer(&format!("/{}", path.replace('.', "/"))) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

fn field(kind: &ServedKind, text: &str) -> Result<(String, String, bool), Status> {
    let (path, value, equal) = if let Some((path, value)) = text.split_once("!=") {
        (path, value, false)
    } else if let Some((path, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (path, value, true)
    } else {
        return Err(Status::bad_request(format!("invalid selector: '{text}'; can't understand '{text}'")));
    };
    let common = COMMON_FIELDS.iter().filter(|f| kind.namespaced || **f != "metadata.namespace");
    if common.chain(fields_of(kind)).any(|f| *f == path) {
        return Ok((path.to_owned(), value.to_owned(), equal));
    }
    Err(Status::bad_request(match kind.kind {
        "ConfigMap" | "Lease" | "LimitRange" | "ServiceAccount" => {
            format!(
                "\"{path}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            )
        }
        _ => format!("field label not supported: {path}"),
    }))
}

impl SelectorTerm {
    fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        let value = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
        match self {
            Self::Has(key) => value(key).is_some(),
            Self::HasNot(key) => value(key).is_none(),
            Self::In(key, values) => value(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(key, values) => value(key).is_none_or(|v| !values.iter().any(|w| w == v)),
        }
    }
}

/// Splits a selector into terms at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut depth, mut from) = (0_u32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    terms.extend(text.get(from..));
    terms.into_iter().map(str::trim).filter(|t| !t.is_empty()).collect()
}

/// Parses a term. Its key and values must be valid for a label.
fn term(text: &str) -> Result<SelectorTerm, Status> {
    let term = read(text)?;
    let (key, values) = match &term {
        SelectorTerm::Has(key) | SelectorTerm::HasNot(key) => (key, &[][..]),
        SelectorTerm::In(key, values) | SelectorTerm::NotIn(key, values) => (key, values.as_slice()),
    };
    let faults = key_faults(key).into_iter().chain(values.iter().flat_map(|value| value_faults(value)));
    match faults.into_iter().next() {
        None => Ok(term),
        Some(fault) => Err(Status::bad_request(format!("unable to parse requirement: {fault}"))),
    }
}

fn read(text: &str) -> Result<SelectorTerm, Status> {
    let wrong = || Status::bad_request(format!("unable to parse requirement: {text:?}"));
    let owned = |s: &str| s.trim().to_owned();
    if let Some((head, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(wrong)?.split(',').map(owned).collect();
        let (key, operator) = head.trim().rsplit_once(' ').ok_or_else(wrong)?;
        return match operator {
            "in" => Ok(SelectorTerm::In(owned(key), values)),
            "notin" => Ok(SelectorTerm::NotIn(owned(key), values)),
            _ => Err(wrong()),
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Ok(SelectorTerm::NotIn(owned(key), vec![owned(value)]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(SelectorTerm::In(owned(key), vec![owned(value)]));
    }
    match text.strip_prefix('!') {
        Some(key) => Ok(SelectorTerm::HasNot(owned(key))),
        None if text.contains(' ') => Err(wrong()),
        None => Ok(SelectorTerm::Has(owned(text))),
    }
}
