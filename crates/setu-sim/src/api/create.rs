//! Creation of objects: name, namespace, UID, and defaults.

use super::kinds::{self, ServedKind};
use super::managers::Managers;
use super::preconditions::FIXED;
use super::status::{FieldError, Status};
use super::store::{ObjectKey, ObjectStore};
use super::write::{By, Deny};
use super::{AdmissionRequest, defaults, rules};
use crate::values::{is_going, list, map, name, namespace, seconds, set, text};
use serde_json::{Value, json};
use std::sync::Arc;

/// Number of names tried for `generateName`.
const NAME_TRIES: u32 = 8;

impl ObjectStore {
    pub fn create(
        &mut self,
        kind: &'static ServedKind,
        object: Value,
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        self.create_with(kind, object, Managers::default(), by, deny)
    }

    /// Creates an object. If there are no managers yet, the creator manages its fields.
    pub fn create_with(
        &mut self,
        kind: &'static ServedKind,
        mut object: Value,
        mut managers: Managers,
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        let versioned =
            text(&object, "/metadata/resourceVersion").parse::<u64>().is_ok_and(|version| version > 0);
        self.name(kind, &mut object)?;
        let key: ObjectKey = (namespace(&object).to_owned(), name(&object).to_owned());
        self.namespace_for(kind, &key)?;
        let now = seconds(self.clock.now());
        let mut object = completed(kind, object, &self.uid(), &now);
        if kind.kind == kinds::POD.kind {
            self.add_runtime_class(&mut object);
        }
        if managers == Managers::default() {
            let nothing = json!({"apiVersion": object.get("apiVersion"), "kind": object.get("kind")});
            managers.update(kind, by.manager(&now), &nothing, &object);
        }
        rules::check(kind, None, &object, None)?;
        if versioned && !by.dry_run {
            return Err(Status::internal("resourceVersion should not be set on objects to be created"));
        }
        self.must_not_exist(kind, &key)?;
        deny(&AdmissionRequest { user: by.user, verb: "CREATE", kind, object: &object, old: None })
            .map_or(Ok(()), Err)?;
        if by.dry_run {
            return Ok(Arc::new(self.shown(object, &managers)));
        }
        Ok(self.commit(kind, key, Some((object, managers)), (by.user, None)))
    }

    fn must_not_exist(&self, kind: &ServedKind, key: &ObjectKey) -> Result<(), Status> {
        let Some(found) = self.get(kind, key) else { return Ok(()) };
        let mut status = Status::already_exists(kind, &key.1);
        if is_going(&found.bare) {
            status.message = format!("object is being deleted: {}", status.message);
        }
        Err(status)
    }

    /// Generates the name of an object with `generateName`.
    fn name(&mut self, kind: &'static ServedKind, object: &mut Value) -> Result<(), Status> {
        let prefix = text(object, "/metadata/generateName").to_owned();
        if name(object).is_empty() && !prefix.is_empty() {
            let free = (0..NAME_TRIES).find_map(|_| {
                let ending = setu_core::digest::digest(&[&self.chance.draw().to_string()], 5);
                let name = format!("{prefix}{ending}");
                self.get(kind, &(namespace(object).to_owned(), name.clone())).is_none().then_some(name)
            });
            let free = free.ok_or_else(|| Status::already_exists(kind, &prefix))?;
            set(object, &["metadata", "name"], json!(free));
        }
        if name(object).is_empty() {
            let violation = FieldError::required("metadata.name", "name or generateName is required");
            return Err(Status::invalid(kind, "", &[violation]));
        }
        Ok(())
    }

    /// Adds the scheduling fields of its RuntimeClass to a pod, like the API server's admission plugin.
    fn add_runtime_class(&self, pod: &mut Value) {
        let key = (String::new(), text(pod, "/spec/runtimeClassName").to_owned());
        let Some(class) = self.get(&kinds::RUNTIME_CLASS, &key) else { return };
        let mut selector = map(&class.bare, "/scheduling/nodeSelector");
        selector.extend(map(pod, "/spec/nodeSelector"));
        let more = list(&class.bare, "/scheduling/tolerations");
        let tolerations: Vec<Value> = list(pod, "/spec/tolerations").iter().chain(more).cloned().collect();
        set(pod, &["spec", "nodeSelector"], json!(selector));
        set(pod, &["spec", "tolerations"], json!(tolerations));
    }

    /// Checks that the namespace exists and accepts new objects.
    fn namespace_for(&self, kind: &ServedKind, (namespace, name): &ObjectKey) -> Result<(), Status> {
        if !kind.namespaced {
            return Ok(());
        }
        let found = self.get(&kinds::NAMESPACE, &(String::new(), namespace.clone()));
        match found {
            None => Err(Status::not_found(&kinds::NAMESPACE, namespace)),
            Some(found) if is_going(&found.bare) => Err(Status::terminating(kind, name, namespace)),
            Some(_) => Ok(()),
        }
    }

    fn uid(&mut self) -> String {
        let (high, low) = (self.chance.draw(), self.chance.draw());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }
}

/// A new object with the metadata that the server sets, without a status, and with the defaults of its kind.
fn completed(kind: &ServedKind, mut object: Value, uid: &str, now: &str) -> Value {
    if kind.status
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in FIXED.iter().chain(&["managedFields"]) {
            metadata.remove(*field);
        }
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(now));
        if kind.has_generation() {
            metadata.insert("generation".to_owned(), json!(1));
        }
        defaults::drop_empty(metadata);
    }
    let mut object = defaults::without_nulls(object);
    defaults::fill(kind, &mut object);
    object
}
