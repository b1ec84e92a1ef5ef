//! The device drivers on Nodes: they publish the weather's ResourceSlices once a Node is ready, and again when the weather changes.

use super::karpenter::{place, weather};
use super::{Actor, ObjectChange, Stage};
use crate::api::kinds;
use crate::values::{is, label, name, uid};
use crate::weather::Location;
use serde_json::{Value, json};
use setu_core::names;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The actor.
#[derive(Default)]
pub struct Drivers {
    /// The Nodes on which drivers run, by UID.
    started: BTreeMap<String, Arc<Value>>,
}

impl Actor for Drivers {
    /// Name and UID of the Node whose devices are published.
    type Timer = (String, String);
    const NAME: &'static str = "drivers";

    fn seen(&mut self, touched: &ObjectChange, stage: &mut Stage<Self::Timer>) {
        let object = &touched.object;
        if touched.kind.kind == kinds::CONFIG_MAP.kind && name(object) == "weather" {
            for node in self.started.values() {
                publish_later(node, stage);
            }
        }
        if touched.kind.kind != kinds::NODE.kind {
            return;
        }
        if touched.gone {
            self.started.remove(uid(object));
        } else if is(object, "Ready") && !self.started.contains_key(uid(object)) {
            self.started.insert(uid(object).to_owned(), Arc::clone(object));
            publish_later(object, stage);
        }
    }

    fn due(&mut self, (node, id): Self::Timer, stage: &mut Stage<Self::Timer>) {
        let user = stage.server.user(Self::NAME);
        let Some(node) = user.get(&kinds::NODE, "", &node).filter(|found| uid(found) == id) else { return };
        for (driver, count) in weather(&user).devices(&place_of(&node)) {
            // It may be there from before a reboot.
            let _ = user.create(&kinds::RESOURCE_SLICE, slice(&node, &driver, count));
        }
    }
}

/// Publishes the devices of a Node after the delay that the weather sets.
fn publish_later(node: &Value, stage: &mut Stage<<Drivers as Actor>::Timer>) {
    let delay = weather(&stage.server.user(Drivers::NAME)).devices_delay(&place_of(node));
    stage.after(delay, (name(node).to_owned(), uid(node).to_owned()));
}

fn slice(node: &Value, driver: &str, count: u32) -> Value {
    let devices: Vec<Value> = (0..count).map(|index| json!({"name": format!("device-{index}")})).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {
            "name": format!("{}-{driver}", name(node)),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name(node), "uid": uid(node)}],
        },
        "spec": {
            "driver": driver, "nodeName": name(node), "devices": devices,
            "pool": {"name": name(node), "generation": 1, "resourceSliceCount": 1},
        },
    })
}

/// Where a Node is.
fn place_of(node: &Value) -> Location {
    Location {
        instance_type: label(node, names::INSTANCE_TYPE).to_owned(),
        zone: label(node, names::ZONE).to_owned(),
        capacity_type: label(node, names::CAPACITY_TYPE).to_owned(),
        ..place(node)
    }
}
