//! Patches: JSON merge patches, JSON patches, and the strategic merge patches of built-in kinds.

use super::fields;
use super::kinds::ServedKind;
use super::shape::{self, ListType};
use super::status::Status;
use json_patch::PatchOperation;
use serde_json::{Map, Value};

/// A patch of an object.
#[derive(Clone, Debug)]
pub enum Patch {
    /// A merge patch.
    Merge(Value),
    /// A merge patch that merges lists by their keys.
    Strategic(Value),
    /// A JSON patch.
    Json(json_patch::Patch),
}

impl Patch {
    /// Patches an object. Fails if the patch does not fit.
    pub fn change(&self, kind: &ServedKind, object: &mut Value) -> Result<(), Status> {
        match self {
            Self::Merge(patch) => json_patch::merge(object, patch),
            Self::Strategic(patch) => strategic(kind, &mut Vec::new(), object, patch),
            Self::Json(patch) => *object = patched(object, patch).map_err(|_| Status::unprocessable())?,
        }
        Ok(())
    }
}

/// As in the real server, a test for null passes if the key is absent, and a replace adds a missing key.
fn patched(object: &Value, patch: &json_patch::Patch) -> Result<Value, json_patch::PatchError> {
    let mut wanted = object.clone();
    for operation in patch.iter() {
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && is_absent(&wanted, test.path.as_str())
        {
            continue;
        }
        let added = match operation {
            PatchOperation::Replace(replace) if is_absent(&wanted, replace.path.as_str()) => {
                let (at, value) = (replace.path.clone(), replace.value.clone());
                Some(PatchOperation::Add(json_patch::AddOperation { path: at, value }))
            }
            _ => None,
        };
        json_patch::patch(&mut wanted, std::slice::from_ref(added.as_ref().unwrap_or(operation)))?;
    }
    Ok(wanted)
}

/// Whether the path is absent and its parent object exists.
fn is_absent(target: &Value, path: &str) -> bool {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    target.pointer(path).is_none() && target.pointer(parent).is_some_and(Value::is_object)
}

/// Directive keys of strategic merge patches.
const DIRECTIVE: &str = "$patch";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";
const RETAIN: &str = "$retainKeys";

fn strategic<'v>(kind: &ServedKind, path: &mut Vec<&'v str>, target: &mut Value, change: &'v Value) {
    let Value::Object(changes) = change else {
        *target = change.clone();
        return;
    };
    if changes.get(DIRECTIVE).is_some_and(|d| d == "replace") || !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in changes {
        if let Some(list) = name.strip_prefix(DELETE_VALUES) {
            if let (Some(Value::Array(old)), Value::Array(gone)) = (fields.get_mut(list), value) {
                old.retain(|entry| !gone.contains(entry));
            }
        } else if name == DIRECTIVE || name == RETAIN || name.starts_with(ORDER) {
            // Entry order does not matter for keyed lists. `$retainKeys` applies only to unions, which are not modelled here.
        } else if value.is_null() {
            fields.remove(name);
        } else {
            path.push(name);
            field(kind, path, fields.entry(name.clone()).or_insert(Value::Null), value);
            path.pop();
        }
    }
}

fn field<'v>(kind: &ServedKind, path: &mut Vec<&'v str>, target: &mut Value, value: &'v Value) {
    // In a patch, conditions of all kinds merge by type, even those that an apply replaces as a whole.
    let shape = match path.as_slice() {
        ["status", "conditions"] => ListType::Keyed(&["type"]),
        path => shape::list(kind, path),
    };
    match (value, shape) {
        (Value::Array(new), ListType::Set) if target.is_array() => {
            if let Value::Array(old) = target {
                let added: Vec<Value> = new.iter().filter(|v| !old.contains(v)).cloned().collect();
                old.extend(added);
            }
        }
        (Value::Array(new), ListType::Keyed(keys)) => {
            let key = |entry: &Value| keys.first().and_then(|k| fields::keyed(&[k], entry));
            let mut old = target.as_array().cloned().unwrap_or_default();
            for entry in new {
                let same = old.iter().position(|o| key(o) == key(entry));
                match (entry.get(DIRECTIVE).and_then(Value::as_str), same) {
                    (Some("replace"), None) => old.clear(),
                    (Some("delete"), Some(at)) => drop(old.remove(at)),
                    (Some("delete"), None) => {}
                    (_, Some(at)) => {
                        if let Some(place) = old.get_mut(at) {
                            strategic(kind, path, place, entry);
                        }
                    }
                    (_, None) => {
                        let mut merged = Value::Null;
                        strategic(kind, path, &mut merged, entry);
                        old.push(merged);
                    }
                }
            }
            *target = Value::Array(old);
        }
        (Value::Object(_), _) => strategic(kind, path, target, value),
        _ => *target = value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::POD;
    use super::*;
    use serde_json::json;

    fn after(object: &Value, patch: Value) -> Value {
        let mut object = object.clone();
        Patch::Strategic(patch).change(&POD, &mut object).unwrap();
        object
    }

    #[test]
    fn lists_with_keys_are_merged_and_others_replaced() {
        let pod =
            json!({"spec": {"containers": [{"name": "a", "image": "1"}], "tolerations": [{"key": "x"}]}});
        let patch =
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a", "image": "2"}], "tolerations": []}});
        let expected =
            json!({"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "b"}], "tolerations": []}});
        assert_eq!(after(&pod, patch), expected);
    }

    #[test]
    fn list_entries_and_values_are_deleted_by_directives() {
        let pod =
            json!({"metadata": {"finalizers": ["a/b", "c/d"]}, "spec": {"containers": [{"name": "a"}]}});
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]},
            "spec": {"containers": [{"name": "a", "$patch": "delete"}]},
        });
        assert_eq!(
            after(&pod, patch),
            json!({"metadata": {"finalizers": ["c/d"]}, "spec": {"containers": []}})
        );
    }

    #[test]
    fn a_failed_json_patch_test_is_a_422() {
        let patch = json!([{"op": "test", "path": "/a", "value": 1}]);
        let patch = Patch::Json(serde_json::from_value(patch).unwrap());
        let refused = patch.change(&POD, &mut json!({"a": 2})).unwrap_err();
        assert_eq!((refused.code, refused.reason), (422, "Invalid"));
    }

    #[test]
    fn a_json_patch_test_for_null_passes_if_the_key_is_absent() {
        let patch = json!([{"op": "test", "path": "/metadata/annotations/x", "value": null}]);
        let patch = Patch::Json(serde_json::from_value(patch).unwrap());
        assert!(patch.change(&POD, &mut json!({"metadata": {"annotations": {}}})).is_ok());
        assert!(patch.change(&POD, &mut json!({"metadata": {"annotations": {"x": "y"}}})).is_err());
    }
}
