//! Direct calls as one user: the same store and rules, without HTTP.

use super::delete::Propagation;
use super::kinds::ServedKind;
use super::patch::Patch;
use super::status::Status;
use super::store::ObjectKey;
use super::write::By;
use super::{ApiServer, Preconditions, events};
use crate::values::set;
use serde_json::{Value, json};
use std::sync::Arc;

/// One user of the server.
#[derive(Clone)]
pub struct User {
    server: ApiServer,
    name: Arc<str>,
}

/// The arguments of a server-side apply.
#[derive(Clone, Copy, Debug)]
pub struct Apply<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// The fields that the manager states.
    pub object: &'a Value,
    /// Whether fields are taken from other managers.
    pub force: bool,
    /// The subresource that is written.
    pub subresource: Option<&'static str>,
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    (namespace.to_owned(), name.to_owned())
}

impl User {
    pub(super) fn new(server: ApiServer, name: &str) -> Self {
        Self { server, name: Arc::from(name) }
    }

    fn by(&self, subresource: Option<&'static str>) -> By<'_> {
        By { user: &self.name, manager: &self.name, subresource, dry_run: false }
    }

    /// An object. The namespace is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &ServedKind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.server.read(kind, &key(namespace, name))
    }

    /// All objects of a kind, by namespace and name.
    pub fn list(&self, kind: &ServedKind) -> Vec<Arc<Value>> {
        self.server.store().all(kind).map(|s| Arc::clone(&s.object)).collect()
    }

    /// All objects of a kind in one namespace, by name.
    pub fn list_in(&self, kind: &ServedKind, namespace: &str) -> Vec<Arc<Value>> {
        self.server.store().all_in(kind, namespace).map(|s| Arc::clone(&s.object)).collect()
    }

    /// Creates an object.
    pub fn create(&self, kind: &'static ServedKind, object: Value) -> Result<Arc<Value>, Status> {
        self.server.with(|s, deny| s.create(kind, events::stored(object), self.by(None), deny))
    }

    /// Changes metadata and spec with a merge patch.
    pub fn merge(
        &self,
        kind: &'static ServedKind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<Value>, Status> {
        self.patch(kind, &key(namespace, name), patch, None)
    }

    /// Changes the status with a merge patch.
    pub fn merge_status(
        &self,
        kind: &'static ServedKind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<Value>, Status> {
        self.patch(kind, &key(namespace, name), patch, Some("status"))
    }

    fn patch(
        &self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        patch: &Value,
        subresource: Option<&'static str>,
    ) -> Result<Arc<Value>, Status> {
        let patch = Patch::Merge(patch.clone());
        self.server.with(|s, deny| s.patch(kind, key, &patch, self.by(subresource), deny))
    }

    /// Replaces the stored object. The object's version is a precondition.
    pub fn update(&self, kind: &'static ServedKind, object: Value) -> Result<Arc<Value>, Status> {
        let object = events::stored(object);
        let key = key(crate::values::namespace(&object), crate::values::name(&object));
        self.server.with(|s, deny| s.replace(kind, &key, object, self.by(None), deny))
    }

    /// Server-side apply. Creates the object if it is missing.
    pub fn apply(
        &self,
        kind: &'static ServedKind,
        namespace: &str,
        name: &str,
        apply: &Apply<'_>,
    ) -> Result<Arc<Value>, Status> {
        let mut stated = apply.object.clone();
        set(&mut stated, &["apiVersion"], json!(kind.api_version()));
        set(&mut stated, &["kind"], json!(kind.kind));
        set(&mut stated, &["metadata", "name"], json!(name));
        if kind.namespaced {
            set(&mut stated, &["metadata", "namespace"], json!(namespace));
        }
        let by = By { manager: apply.manager, ..self.by(apply.subresource) };
        let key = key(namespace, name);
        self.server
            .with(|s, deny| s.apply(kind, &key, (&stated, apply.force), by, deny))
            .map(|(object, _)| object)
    }

    /// Deletes an object, or starts its deletion if it has finalizers.
    #[allow(clippy::needless_pass_by_value, reason = "callers have just made them")]
    pub fn delete(
        &self,
        kind: &'static ServedKind,
        namespace: &str,
        name: &str,
        only: Preconditions,
    ) -> Result<(), Status> {
        let key = key(namespace, name);
        self.server
            .with(|s, deny| s.delete(kind, &key, (&only, Some(Propagation::Background)), self.by(None), deny))
            .map(|_| ())
    }
}
