//! Parses request paths.

use super::events::EventForm;
use super::kinds::{self, ServedKind};

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget {
    /// The kind.
    pub kind: &'static ServedKind,
    /// The requested form of Events.
    pub form: EventForm,
    /// The namespace, if the path names one.
    pub namespace: Option<String>,
    /// The object, if the path names one.
    pub name: Option<String>,
    /// The subresource, if the path names one.
    pub subresource: Option<&'static str>,
}

impl RequestTarget {
    /// The requested API version of the kind.
    pub fn api_version(&self) -> String {
        if self.form == EventForm::CoreEvent { "v1".to_owned() } else { self.kind.api_version() }
    }
}

/// Parses a path; `None` if nothing is served there.
pub fn target(path: &str) -> Option<RequestTarget> {
    let mut parts = path.split('/').filter(|p| !p.is_empty());
    let (group, version) = match parts.next()? {
        "api" => ("", parts.next()?),
        "apis" => (parts.next()?, parts.next()?),
        _ => return None,
    };
    let mut rest: Vec<&str> = parts.collect();
    let core_event = group.is_empty() && version == "v1" && rest.contains(&"events");
    let find = |plural: &str| {
        let core_event = core_event && plural == "events";
        kinds::ALL
            .iter()
            .copied()
            .find(|k| k.plural == plural && (core_event || (k.group == group && k.version == version)))
    };
    let mut namespace = None;
    // `namespaces/NAME` alone is the Namespace itself.
    if let ["namespaces", name, _, ..] = rest.as_slice()
        && rest.get(2).is_some_and(|p| find(p).is_some())
    {
        namespace = Some((*name).to_owned());
        rest.drain(..2);
    }
    let kind = find(rest.first()?)?;
    let form = if core_event { EventForm::CoreEvent } else { EventForm::Stored };
    let subresource = match (rest.get(2), kind.status) {
        (None, _) => None,
        (Some(&"status"), true) => Some("status"),
        _ => return None,
    };
    Some(RequestTarget { kind, form, namespace, name: rest.get(1).map(|n| (*n).to_owned()), subresource })
}
