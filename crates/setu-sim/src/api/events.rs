//! Conversion between the two forms of an Event: `v1` and `events.k8s.io/v1`.

use serde_json::{Value, json};
use std::borrow::Cow;

/// The requested form of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventForm {
    /// The stored form.
    Stored,
    /// The `v1` form of an Event.
    CoreEvent,
}

/// Field names that differ: in `v1`, and as stored.
const NAMES: [(&str, &str); 6] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];
const REPORTING: (&str, &str) = ("reportingComponent", "reportingController");

impl EventForm {
    /// An object in this form.
    pub fn of(self, object: &Value) -> Cow<'_, Value> {
        match self {
            Self::Stored => Cow::Borrowed(object),
            Self::CoreEvent => Cow::Owned(renamed(object, "v1", |(core, stored)| (stored, core))),
        }
    }
}

/// Converts an Event of either form to its stored form.
pub fn stored(object: Value) -> Value {
    if object.get("apiVersion") == Some(&json!("v1")) && object.get("kind") == Some(&json!("Event")) {
        renamed(&object, "events.k8s.io/v1", |(core, stored)| (core, stored))
    } else {
        object
    }
}

fn renamed<'n>(
    object: &Value,
    version: &str,
    order: impl Fn((&'n str, &'n str)) -> (&'n str, &'n str),
) -> Value {
    let mut event = object.clone();
    if let Some(event) = event.as_object_mut() {
        for names in NAMES.into_iter().chain([REPORTING]) {
            let (from, to) = order(names);
            if let Some(value) = event.remove(from) {
                event.insert(to.to_owned(), value);
            }
        }
        event.insert("apiVersion".to_owned(), json!(version));
    }
    event
}
