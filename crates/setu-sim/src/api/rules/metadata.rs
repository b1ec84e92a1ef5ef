//! Validation rules for the `metadata` of all kinds.
//!
//! A real server checks some parts several times per update and reports each failure. The counts here were
//! observed on a real server, so that the causes of an error are the same.

use super::super::kinds::ServedKind;
use super::super::status::FieldError;
use crate::values::{list, name, text};
use serde_json::{Value, json};

/// Maximum total size of annotation keys and values in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Maximum length of an object name and of a key prefix.
const NAME_LIMIT: usize = 253;
/// Maximum length of a label value and of the name part of a key.
const LABEL_LIMIT: usize = 63;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const KEY_FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_FORM: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const TOO_LONG: &str = "must be no more than 63 bytes";

fn is_word(text: &str, inner: fn(char) -> bool, edge: fn(char) -> bool) -> bool {
    text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

fn is_subdomain(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.split('.')
        .all(|label| is_word(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-', edge))
}

/// Whether this is a valid object name.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_LIMIT && is_subdomain(text)
}

fn is_label_text(text: &str) -> bool {
    is_word(
        text,
        |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'),
        |c| c.is_ascii_alphanumeric(),
    )
}

/// The faults of a label or annotation key.
pub fn key_faults(key: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>().as_slice() {
        [name] => (*name).to_owned(),
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else if prefix.len() > NAME_LIMIT {
                faults.push(format!("prefix part must be no more than {NAME_LIMIT} bytes"));
            } else if !is_subdomain(prefix) {
                faults.push(format!("prefix part {SUBDOMAIN}"));
            }
            (*name).to_owned()
        }
        _ => {
            return vec![format!(
                "a valid label key {KEY_FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_LIMIT {
        faults.push(format!("name part {TOO_LONG}"));
    }
    if !name.is_empty() && !is_label_text(&name) {
        faults.push(format!("name part {KEY_FORM}"));
    }
    faults
}

/// The faults of a label value.
pub fn value_faults(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > LABEL_LIMIT {
        faults.push(TOO_LONG.to_owned());
    }
    if !value.is_empty() && !is_label_text(value) {
        faults.push(VALUE_FORM.to_owned());
    }
    faults
}

/// Checks one part of the metadata.
type MetadataRule = fn(&Value) -> Vec<FieldError>;

/// Checks the metadata of an object that is about to replace `old`.
pub fn check(kind: &ServedKind, old: Option<&Value>, new: &Value, found: &mut Vec<FieldError>) {
    let updated = old.is_some();
    let repeated = match (updated, kind.custom) {
        (false, _) => 1,
        (true, true) => 3,
        (true, false) => 4,
    };
    if !updated {
        found.extend(name_fault(kind, name(new)));
    }
    let changed = |path: &str| old.and_then(|o| o.pointer(path)) != new.pointer(path);
    let shared: [(&str, MetadataRule); 3] = [
        ("/metadata/labels", labels),
        ("/metadata/annotations", annotations),
        ("/metadata/ownerReferences", owners),
    ];
    for (path, rule) in shared {
        // Unchanged values were checked when they were stored.
        if changed(path) {
            let faults = rule(new);
            (0..repeated).for_each(|_| found.extend(faults.iter().cloned()));
        }
    }
    if changed("/metadata/finalizers") {
        let faults = finalizers(kind, new);
        let repeated = if updated && !kind.custom { 2 } else { 1 };
        (0..repeated).for_each(|_| found.extend(faults.iter().cloned()));
    }
}

fn name_fault(kind: &ServedKind, name: &str) -> Option<FieldError> {
    let at = "metadata.name";
    if name.len() > NAME_LIMIT {
        return Some(FieldError::invalid(
            at,
            &json!(name),
            &format!("must be no more than {NAME_LIMIT} bytes"),
        ));
    }
    (!is_subdomain(name) && kind.kind != "Event").then(|| FieldError::invalid(at, &json!(name), SUBDOMAIN))
}

fn labels(object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    for (key, value) in object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let faults = key_faults(key).into_iter().map(|f| (key.as_str(), f));
        let faults = faults.chain(value_faults(value).into_iter().map(|f| (value, f)));
        found.extend(faults.map(|(shown, why)| FieldError::invalid("metadata.labels", &json!(shown), &why)));
    }
    found
}

fn annotations(object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    let mut size = 0;
    for (key, value) in
        object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten()
    {
        size += key.len() + value.as_str().map_or(0, str::len);
        let faults = key_faults(&key.to_lowercase());
        found.extend(faults.iter().map(|why| FieldError::invalid("metadata.annotations", &json!(key), why)));
    }
    if size > ANNOTATIONS_LIMIT {
        found.push(FieldError::too_long("metadata.annotations", ANNOTATIONS_LIMIT));
    }
    found
}

fn owners(object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    let owners = list(object, "/metadata/ownerReferences");
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                let at = format!("metadata.ownerReferences.{field}");
                found.push(FieldError::invalid(at, &json!(""), "must not be empty"));
            }
        }
    }
    let controllers: Vec<String> = owners
        .iter()
        .filter(|o| o.get("controller") == Some(&json!(true)))
        .map(|o| format!("{}/{}", text(o, "/kind"), text(o, "/name")))
        .collect();
    if let [first, second, ..] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        found.push(FieldError::invalid_as("metadata.ownerReferences", &shown(owners), &why));
    }
    found
}

/// Owners as text, with fields in declaration order.
fn shown(owners: &[Value]) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let owners: Vec<String> = owners
        .iter()
        .map(|owner| {
            let fields = fields.iter().filter_map(|f| Some(format!("\"{f}\":{}", owner.get(*f)?)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        })
        .collect();
    format!("[{}]", owners.join(","))
}

/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

fn finalizers(kind: &ServedKind, object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    for (at, finalizer) in list(object, "/metadata/finalizers").iter().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        let faults = key_faults(text);
        found.extend(faults.iter().map(|why| FieldError::invalid("metadata.finalizers", finalizer, why)));
        // Custom kinds may have finalizers without a domain.
        if faults.is_empty() && !kind.custom && !text.contains('/') && !STANDARD_FINALIZERS.contains(&text) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            found.push(FieldError::invalid(format!("metadata.finalizers[{at}]"), finalizer, why));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::kinds::{CONFIG_MAP, WORKLOAD};
    use super::*;

    fn faults(kind: &ServedKind, old: Option<&Value>, metadata: &Value) -> Vec<FieldError> {
        let mut found = Vec::new();
        check(kind, old, &json!({"metadata": metadata}), &mut found);
        found
    }

    #[test]
    fn keys_need_a_name_and_at_most_one_prefix() {
        for good in ["app", "example.org/app", "A.b_c-d"] {
            assert_eq!(key_faults(good), Vec::<String>::new());
        }
        for bad in ["", "/x", "a/b/c", "bad key", "BAD/x", "-a"] {
            assert!(!key_faults(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn annotations_are_limited_to_256_kib_in_total() {
        let of = |size: usize| json!({"name": "a", "annotations": {"a": "x".repeat(size - 1)}});
        assert_eq!(faults(&WORKLOAD, None, &of(ANNOTATIONS_LIMIT)), Vec::new());
        assert_eq!(
            faults(&WORKLOAD, None, &of(ANNOTATIONS_LIMIT + 1)),
            [FieldError::too_long("metadata.annotations", ANNOTATIONS_LIMIT)]
        );
    }

    #[test]
    fn only_built_in_kinds_require_qualified_finalizers() {
        let metadata = json!({"name": "a", "finalizers": ["bare"]});
        assert_eq!(faults(&WORKLOAD, None, &metadata).len(), 0);
        assert_eq!(faults(&CONFIG_MAP, None, &metadata).len(), 1);
    }

    #[test]
    fn names_must_be_lower_case_subdomains() {
        assert_eq!(faults(&WORKLOAD, None, &json!({"name": "a.b-c"})).len(), 0);
        assert_eq!(faults(&WORKLOAD, None, &json!({"name": "Bad_Name"})).len(), 1);
        assert_eq!(faults(&WORKLOAD, None, &json!({"name": "a..b"})).len(), 1);
    }
}
