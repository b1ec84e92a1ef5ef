//! Objects that may be unreadable, each decoded by itself: an unreadable one does not stop the others.
//!
//! Each is taken as text first, which is cheap: a list of thousands passes here at every start. Its managed fields are
//! left out, because they are not needed and often larger than the rest.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// An object as the API server sent it, or its readable part with the error. Read from JSON text only.
#[derive(Clone, Debug)]
pub struct Decoded<K>(pub Result<K, InvalidObject>);

/// The minimum that an object must have to be reported.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Where an object has its managed fields.
#[derive(Deserialize)]
struct Managed<'a> {
    #[serde(borrow, default)]
    metadata: Fields<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow, default)]
    managed_fields: Option<&'a RawValue>,
}

/// The text of an object without its managed fields.
fn unmanaged(text: &str) -> Cow<'_, str> {
    let found = serde_json::from_str::<Managed<'_>>(text).ok().and_then(|m| m.metadata.managed_fields);
    let cut = found.and_then(|managed| {
        // It is a slice of the text.
        let start = managed.get().as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        Some([text.get(..start)?, "null", text.get(start + managed.get().len()..)?].concat())
    });
    cut.map_or(Cow::Borrowed(text), Cow::Owned)
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = unmanaged(<&RawValue>::deserialize(deserializer)?.get());
        let error = match serde_json::from_str(&text) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        let Named { metadata } = serde_json::from_str(&text).map_err(D::Error::custom)?;
        Ok(Self(Err(InvalidObject { error, metadata })))
    }
}

impl<K: Resource> Resource for Decoded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|bad| &bad.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|bad| &mut bad.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodePool;
    use kube::ResourceExt;
    use kube::core::{ObjectList, WatchEvent};

    #[test]
    fn an_unreadable_object_is_named_and_does_not_stop_the_others() {
        let text = r#"{"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [
            {"metadata": {"name": "bad"}, "spec": {"limits": "none"}},
            {"metadata": {"name": "good"}, "spec": {"template": {"spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}}}}}
        ]}"#;
        let list: ObjectList<Decoded<NodePool>> = serde_json::from_str(text).unwrap();
        let names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["bad", "good"]);
        let bad = list.items[0].0.as_ref().unwrap_err();
        assert!(bad.error.contains("invalid type: string \"none\""), "{}", bad.error);
        assert!(list.items[1].0.is_ok(), "{:?}", list.items[1]);
    }

    #[test]
    fn managed_fields_are_left_out_of_an_object() {
        let text = |managed: &str| {
            format!(
                r#"{{"metadata": {{"labels": {{"managedFields": "é"}}{managed}, "name": "n"}}, "spec": {{"managedFields": [1]}}}}"#
            )
        };
        let managed = r#", "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:a": {}}}, "é"]"#;
        assert_eq!(unmanaged(&text(managed)), text(r#", "managedFields": null"#));
        assert_eq!(unmanaged(&text("")), text(""));
        assert_eq!(unmanaged(&text(r#", "managedFields": null"#)), text(r#", "managedFields": null"#));
        for other in ["[]", "{}", r#"{"metadata": 7}"#, "nonsense"] {
            assert_eq!(unmanaged(other), other);
        }
        let read: Decoded<NodePool> = serde_json::from_str(&text(managed)).unwrap();
        assert_eq!((read.name_any(), read.meta().managed_fields.is_none()), ("n".to_owned(), true));
    }

    #[test]
    fn an_event_of_a_watch_is_read_as_the_api_server_writes_it() {
        let text = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "bad"}, "spec": 1}}"#;
        let event: WatchEvent<Decoded<NodePool>> = serde_json::from_str(text).unwrap();
        let WatchEvent::Modified(object) = event else { panic!("{event:?}") };
        assert_eq!(object.name_any(), "bad");
        assert!(object.0.is_err());
    }
}
