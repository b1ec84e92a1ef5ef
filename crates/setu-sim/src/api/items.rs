//! Serializes lists directly from the stored objects. There may be tens of thousands, and copying each would cost
//! more than serializing it.

use super::route::RequestTarget;
use crate::values::set;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

/// Objects of one kind, in the requested form.
pub struct ServedList<'a> {
    target: &'a RequestTarget,
    objects: Vec<&'a Arc<Value>>,
    metadata: Value,
}

impl<'a> ServedList<'a> {
    /// A list of these objects at a version.
    pub fn new(target: &'a RequestTarget, objects: Vec<&'a Arc<Value>>, version: u64) -> Self {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if target.kind.custom {
            set(&mut metadata, &["continue"], json!(""));
        }
        Self { target, objects, metadata }
    }

    /// Sets the continue token, and the number of remaining objects if known.
    pub fn goes_on(&mut self, token: &str, left: Option<usize>) {
        set(&mut self.metadata, &["continue"], json!(token));
        if let Some(left) = left {
            set(&mut self.metadata, &["remainingItemCount"], json!(left));
        }
    }
}

impl Serialize for ServedList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // In the key order of `Value`.
        let mut list = serializer.serialize_map(Some(4))?;
        list.serialize_entry("apiVersion", &self.target.api_version())?;
        list.serialize_entry("items", &ServedItems(self))?;
        list.serialize_entry("kind", &format!("{}List", self.target.kind.kind))?;
        list.serialize_entry("metadata", &self.metadata)?;
        list.end()
    }
}

struct ServedItems<'a>(&'a ServedList<'a>);

impl Serialize for ServedItems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.objects.iter().map(|object| ServedItem(self.0.target, object)))
    }
}

struct ServedItem<'a>(&'a RequestTarget, &'a Value);

impl Serialize for ServedItem<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(target, object) = self;
        let object = target.form.of(object);
        match object.as_object() {
            // Typed lists do not repeat the kind in each item.
            Some(fields) if !target.kind.custom => {
                let fields =
                    fields.iter().filter(|(name, _)| !matches!(name.as_str(), "kind" | "apiVersion"));
                serializer.collect_map(fields)
            }
            _ => object.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::route::target;

    #[test]
    fn a_list_is_serialized_like_a_json_value() {
        let object = |name: &str| {
            Arc::new(
                json!({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": name}, "spec": {"b": 1, "a": [2]}}),
            )
        };
        let (a, b) = (object("a"), object("b"));
        for (path, typed) in [("/api/v1/nodes", true), ("/apis/karpenter.sh/v1/nodeclaims", false)] {
            let target = target(path).unwrap();
            let mut list = ServedList::new(&target, vec![&a, &b], 7);
            let continued = |list: &ServedList<'_>| {
                let text = serde_json::to_string(list).unwrap();
                let value: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(text, value.to_string(), "the keys are in order");
                value
            };
            let short = continued(&list);
            assert_eq!(short["items"][1].get("kind").is_none(), typed);
            assert_eq!(short["items"][1]["spec"], b["spec"]);
            assert_eq!(short["metadata"].get("continue"), (!typed).then_some(&json!("")));
            list.goes_on("here", Some(3));
            let metadata = json!({"continue": "here", "remainingItemCount": 3, "resourceVersion": "7"});
            assert_eq!(continued(&list)["metadata"], metadata);
        }
    }
}
