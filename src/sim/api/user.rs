//! Direct calls of one user: the same store and the same rules, without HTTP.

use super::kinds::Kind;
use super::status::Status;
use super::write::{By, Change};
use super::{ApiServer, Preconditions, events};
use serde_json::Value;
use std::sync::Arc;

/// One user of the server.
#[derive(Clone)]
pub struct User {
    server: ApiServer,
    name: Arc<str>,
}

impl User {
    pub(super) fn new(server: ApiServer, name: &str) -> Self {
        Self { server, name: Arc::from(name) }
    }

    /// An object; the namespace of cluster-scoped ones is empty.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.server.read(kind, &(namespace.to_owned(), name.to_owned()))
    }

    /// All objects of a kind, by namespace and name.
    pub fn list(&self, kind: &Kind) -> Vec<Arc<Value>> {
        self.server.store().all(kind).map(|s| Arc::clone(&s.object)).collect()
    }

    /// All objects of a kind in one namespace, by name.
    pub fn list_in(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Value>> {
        let store = self.server.store();
        let all = store.all(kind).filter(|s| crate::sim::values::namespace(&s.object) == namespace);
        all.map(|s| Arc::clone(&s.object)).collect()
    }

    /// Creates an object.
    pub fn create(&self, kind: &'static Kind, object: Value) -> Result<Arc<Value>, Status> {
        let by = By { user: &self.name, subresource: None };
        self.server.with(|s, deny| s.create(kind, events::stored(object), by, deny))
    }

    /// Changes metadata and spec by a merge patch.
    pub fn merge(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<Value>, Status> {
        self.change(kind, (namespace, name), &Change::Merge(patch), None)
    }

    /// Changes the status by a merge patch.
    pub fn merge_status(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<Value>, Status> {
        self.change(kind, (namespace, name), &Change::Merge(patch), Some("status"))
    }

    fn change(
        &self,
        kind: &'static Kind,
        (namespace, name): (&str, &str),
        change: &Change<'_>,
        subresource: Option<&'static str>,
    ) -> Result<Arc<Value>, Status> {
        let by = By { user: &self.name, subresource };
        let key = (namespace.to_owned(), name.to_owned());
        self.server.with(|s, deny| s.change(kind, &key, change, by, deny))
    }

    /// Deletes an object, or has its deletion begin.
    pub fn delete(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        only: Preconditions,
    ) -> Result<(), Status> {
        let by = By { user: &self.name, subresource: None };
        let key = (namespace.to_owned(), name.to_owned());
        self.server.with(|s, deny| s.delete(kind, &key, &only, by, deny)).map(|_| ())
    }
}
