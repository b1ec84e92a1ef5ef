//! The parts of the custom kinds' schemas that writers are likely to violate: required fields, enums, lengths,
//! and duplicate list entries.

use super::super::fields;
use super::super::kinds::ServedKind;
use super::super::shape::{self, ListType};
use super::super::status::FieldError;
use serde_json::{Value, json};

/// Required fields of conditions.
const CONDITION: [&str; 5] = ["lastTransitionTime", "message", "reason", "status", "type"];
/// Required fields of check entries.
const CHECK: [&str; 4] = ["lastTransitionTime", "message", "name", "state"];
const CHECK_STATES: [&str; 4] = ["Pending", "Ready", "Retry", "Rejected"];
const STOP_POLICIES: [&str; 3] = ["None", "Hold", "HoldAndDrain"];
/// Maximum number of check entries in a Workload.
const CHECKS_LIMIT: usize = 8;
/// Maximum length of a check entry's message.
const MESSAGE_LIMIT: usize = 32_768;
/// Maximum number of podSetUpdates in a check entry, and of podSets in a Workload.
const POD_SETS_LIMIT: usize = 18;
/// Maximum number of requirements in a NodeClaim.
const REQUIREMENTS_LIMIT: usize = 100;
const OPERATORS: [&str; 8] = ["Gte", "Lte", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];

/// Checks an object of a custom kind against its schema.
pub fn check(kind: &ServedKind, object: &Value, found: &mut Vec<FieldError>) {
    if !kind.custom {
        return;
    }
    let mut at = At { path: String::new(), value: object, found };
    match kind.kind {
        "NodeClaim" => {
            at.required(&["spec"]);
            at.below("spec", node_claim_spec);
        }
        "NodePool" => {
            at.required(&["spec"]);
            at.below("spec", |at| {
                at.required(&["template"]);
                at.below("template", |at| {
                    at.required(&["spec"]);
                    at.below("spec", node_claim_spec);
                });
            });
        }
        "AdmissionCheck" => at.below("spec", |at| at.required(&["controllerName"])),
        "LocalQueue" => at.below("spec", |at| at.one_of("stopPolicy", &STOP_POLICIES)),
        "Workload" => workload(&mut at),
        _ => {}
    }
    at.below("status", |at| at.each("conditions", usize::MAX, |at| at.required(&CONDITION)));
    if kind.kind == "Workload" {
        duplicates(kind, &["spec", "podSets"], object, found);
        duplicates(kind, &["status", "admissionChecks"], object, found);
    }
    duplicates(kind, &["status", "conditions"], object, found);
}

fn workload(at: &mut At<'_>) {
    at.below("spec", |at| at.each("podSets", POD_SETS_LIMIT, |at| at.required(&["template"])));
    at.below("status", |at| {
        at.each("admissionChecks", CHECKS_LIMIT, |at| {
            at.required(&CHECK);
            at.one_of("state", &CHECK_STATES);
            at.below("message", |at| at.length(MESSAGE_LIMIT));
            at.each("podSetUpdates", POD_SETS_LIMIT, |at| at.required(&["name"]));
        });
    });
}

fn node_claim_spec(at: &mut At<'_>) {
    at.required(&["nodeClassRef", "requirements"]);
    at.below("nodeClassRef", |at| at.required(&["group", "kind", "name"]));
    at.each("requirements", REQUIREMENTS_LIMIT, |at| {
        at.required(&["key", "operator"]);
        at.one_of("operator", &OPERATORS);
    });
}

/// A value in an object, with its path.
struct At<'v> {
    path: String,
    value: &'v Value,
    found: &'v mut Vec<FieldError>,
}

impl At<'_> {
    fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn required(&mut self, fields: &[&str]) {
        for field in fields {
            if self.value.get(field).is_none_or(Value::is_null) {
                self.found.push(FieldError::required(self.path_of(field), ""));
            }
        }
    }

    fn one_of(&mut self, field: &str, known: &[&str]) {
        if let Some(value) = self.value.get(field)
            && !known.iter().any(|k| value == k)
        {
            self.found.push(FieldError::unsupported(self.path_of(field), value, known));
        }
    }

    fn length(&mut self, limit: usize) {
        if self.value.as_str().is_some_and(|text| text.chars().count() > limit) {
            self.found.push(FieldError::too_long(self.path.clone(), limit));
        }
    }

    fn below(&mut self, field: &str, rule: impl FnOnce(&mut At<'_>)) {
        if let Some(value) = self.value.get(field).filter(|v| !v.is_null()) {
            let path = self.path_of(field);
            rule(&mut At { path, value, found: self.found });
        }
    }

    fn each(&mut self, field: &str, limit: usize, rule: impl Fn(&mut At<'_>)) {
        let Some(entries) = self.value.get(field).and_then(Value::as_array) else { return };
        if entries.len() > limit {
            self.found.push(FieldError::too_many(self.path_of(field), entries.len(), limit));
            return;
        }
        for (index, value) in entries.iter().enumerate() {
            let path = format!("{}[{index}]", self.path_of(field));
            rule(&mut At { path, value, found: self.found });
        }
    }
}

fn duplicates(kind: &ServedKind, path: &[&str], object: &Value, found: &mut Vec<FieldError>) {
    let ListType::Keyed(keys) = shape::list(kind, path) else { return };
    let entries = object.pointer(&format!("/{}", path.join("/"))).and_then(Value::as_array);
    let mut seen: Vec<String> = Vec::new();
    for (index, entry) in entries.into_iter().flatten().enumerate() {
        let Some(step) = fields::keyed(keys, entry) else { continue };
        if seen.contains(&step) {
            let key: Value = step.get(2..).and_then(|s| serde_json::from_str(s).ok()).unwrap_or(json!({}));
            found.push(FieldError::duplicate(format!("{}[{index}]", path.join(".")), &key));
        } else {
            seen.push(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kinds::WORKLOAD;
    use super::*;

    fn entry(name: &str) -> Value {
        json!({"name": name, "state": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn faults(entries: &[Value]) -> Vec<FieldError> {
        let mut found = Vec::new();
        check(&WORKLOAD, &json!({"status": {"admissionChecks": entries}}), &mut found);
        found
    }

    #[test]
    fn check_entries_are_limited_to_eight_and_must_be_complete_and_unique() {
        let entries: Vec<Value> = (0..9).map(|n| entry(&n.to_string())).collect();
        assert_eq!(faults(&entries[..8]), []);
        assert_eq!(faults(&entries), [FieldError::too_many("status.admissionChecks", 9, 8)]);
        assert_eq!(faults(&[json!({"name": "a"})]).len(), 3);
        assert_eq!(faults(&[entry("a"), entry("a")]).len(), 1);
    }

    #[test]
    fn a_check_message_is_limited_to_32768_characters() {
        let with = |length: usize| {
            let mut entry = entry("a");
            entry["message"] = json!("ä".repeat(length));
            faults(&[entry]).len()
        };
        assert_eq!((with(MESSAGE_LIMIT), with(MESSAGE_LIMIT + 1)), (0, 1));
    }
}
