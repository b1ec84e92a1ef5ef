//! The store, and the notification of changes.
//!
//! One version counter for all kinds. A change is committed, passed to the observers, and sent to every open
//! watch, before the call that made it returns.

mod watches;

use super::kinds::ServedKind;
use super::managers::Managers;
use super::{Caller, Change, Observer, ServerOptions};
use crate::chance::Chance;
use crate::values::{name, namespace, set};
use axum::body::Bytes;
use http::Request;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_clock::Clock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use watches::{Watcher, send};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub type ObjectKey = (String, String);

/// An object and its managers.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The object as it is returned to clients.
    pub object: Arc<Value>,
    /// The object without `metadata.managedFields`.
    pub bare: Arc<Value>,
    /// The managers of its fields.
    pub managers: Arc<Managers>,
}

type ObjectsByKey = BTreeMap<ObjectKey, Stored>;

/// A committed change, kept for watches from older versions.
#[derive(Clone)]
struct PastChange {
    version: u64,
    at: Timestamp,
    kind: &'static ServedKind,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// The state of a server replica that is stale.
struct Frozen {
    objects: BTreeMap<&'static str, ObjectsByKey>,
    version: u64,
}

/// The store.
pub struct ObjectStore {
    pub clock: Clock,
    pub chance: Chance,
    pub version: u64,
    objects: BTreeMap<&'static str, ObjectsByKey>,
    watchers: Vec<Watcher>,
    past: VecDeque<PastChange>,
    forgotten: u64,
    history: usize,
    observers: Vec<Box<dyn Observer>>,
    frozen: Vec<Option<Frozen>>,
    /// Whether `metadata.managedFields` is omitted from returned objects.
    pub hides_managers: bool,
}

impl ObjectStore {
    pub fn new(options: ServerOptions) -> Self {
        Self {
            chance: Chance::new(options.seed, "api"),
            clock: options.clock,
            version: 1,
            objects: BTreeMap::new(),
            watchers: Vec::new(),
            past: VecDeque::new(),
            forgotten: 0,
            history: options.history,
            observers: Vec::new(),
            frozen: (0..options.replicas).map(|_| None).collect(),
            hides_managers: false,
        }
    }

    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Passes a request to the observers.
    pub fn asked(&mut self, caller: &Caller, request: &Request<Bytes>) {
        let at = self.clock.now();
        for observer in &mut self.observers {
            observer.asked(caller, request, at);
        }
    }

    pub fn get(&self, kind: &ServedKind, key: &ObjectKey) -> Option<&Stored> {
        self.objects.get(kind.plural)?.get(key)
    }

    /// Objects of a kind, by namespace and name.
    pub fn all(&self, kind: &ServedKind) -> impl Iterator<Item = &Stored> {
        self.objects.get(kind.plural).into_iter().flat_map(BTreeMap::values)
    }

    /// Objects of a kind and their version, from the cache of a replica.
    pub fn cached(&self, kind: &ServedKind, replica: usize) -> (Vec<Arc<Value>>, u64) {
        let list = |objects: &BTreeMap<&'static str, ObjectsByKey>| {
            let all = objects.get(kind.plural).into_iter().flat_map(BTreeMap::values);
            all.map(|s| Arc::clone(&s.object)).collect()
        };
        match self.frozen.get(replica).and_then(Option::as_ref) {
            Some(frozen) => (list(&frozen.objects), frozen.version),
            None => (list(&self.objects), self.version),
        }
    }

    /// Objects of a kind in one namespace, by name.
    pub fn all_in(&self, kind: &ServedKind, namespace: &str) -> impl Iterator<Item = &Stored> {
        let from: ObjectKey = (namespace.to_owned(), String::new());
        let objects = self.objects.get(kind.plural).map(|o| o.range(from.clone()..));
        objects.into_iter().flatten().take_while(move |(key, _)| key.0 == from.0).map(|(_, stored)| stored)
    }

    /// The newest version that a replica has seen.
    pub fn version_of(&self, replica: usize) -> u64 {
        self.frozen.get(replica).and_then(Option::as_ref).map_or(self.version, |f| f.version)
    }

    /// An object from the cache of a replica.
    pub fn cached_one(&self, kind: &ServedKind, key: &ObjectKey, replica: usize) -> Option<Arc<Value>> {
        let frozen = self.frozen.get(replica).and_then(Option::as_ref);
        let objects = frozen.map_or(&self.objects, |f| &f.objects);
        objects.get(kind.plural)?.get(key).map(|s| Arc::clone(&s.object))
    }

    /// Objects of a kind at a version; `None` if its history is gone.
    pub fn at(&self, kind: &ServedKind, version: u64) -> Option<Vec<Arc<Value>>> {
        if version < self.forgotten {
            return None;
        }
        let now = self.objects.get(kind.plural).into_iter().flatten();
        let since = || self.past.iter().rev().take_while(|p| p.version > version).filter(|p| p.kind == kind);
        if since().next().is_none() {
            return Some(now.map(|(_, stored)| Arc::clone(&stored.object)).collect());
        }
        let mut objects: BTreeMap<ObjectKey, Arc<Value>> =
            now.map(|(key, stored)| (key.clone(), Arc::clone(&stored.object))).collect();
        for past in since() {
            let Some(known) = past.after.as_ref().or(past.before.as_ref()) else { continue };
            let key = (namespace(known).to_owned(), name(known).to_owned());
            match &past.before {
                Some(before) => objects.insert(key, Arc::clone(before)),
                None => objects.remove(&key),
            };
        }
        Some(objects.into_values().collect())
    }

    /// Commits an object's new state, or its removal. Returns the object with its new version.
    pub fn commit(
        &mut self,
        kind: &'static ServedKind,
        key: ObjectKey,
        after: Option<(Value, Managers)>,
        (by, subresource): (&Arc<str>, Option<&'static str>),
    ) -> Arc<Value> {
        self.version += 1;
        let before = self.get(kind, &key).map(|s| Arc::clone(&s.object));
        let (stored, last) = if let Some((object, managers)) = after {
            let stored = self.versioned(object, managers);
            let object = Arc::clone(&stored.object);
            self.objects.entry(kind.plural).or_default().insert(key, stored);
            (Some(Arc::clone(&object)), object)
        } else {
            self.objects.entry(kind.plural).or_default().remove(&key);
            (None, last_of(before.as_ref(), self.version))
        };
        let at = self.clock.now();
        let past =
            PastChange { version: self.version, at, kind, before: before.clone(), after: stored.clone() };
        self.notify(&past, &last);
        self.past.push_back(past);
        while self.past.len() > self.history {
            self.forgotten = self.past.pop_front().map_or(self.forgotten, |p| p.version);
        }
        let change = Change {
            version: self.version,
            at,
            kind,
            before,
            after: stored,
            by: Arc::clone(by),
            subresource,
        };
        for observer in &mut self.observers {
            observer.committed(&change);
        }
        last
    }

    fn versioned(&self, mut bare: Value, managers: Managers) -> Stored {
        set(&mut bare, &["metadata", "resourceVersion"], json!(self.version.to_string()));
        let bare = Arc::new(bare);
        let shown = if self.hides_managers { None } else { managers.write() };
        let object = shown.map_or_else(
            || Arc::clone(&bare),
            |shown| {
                let mut object = (*bare).clone();
                set(&mut object, &["metadata", "managedFields"], shown);
                Arc::new(object)
            },
        );
        Stored { object, bare, managers: Arc::new(managers) }
    }

    pub fn freeze(&mut self, replica: usize) {
        let now = Frozen { objects: self.objects.clone(), version: self.version };
        if let Some(place) = self.frozen.get_mut(replica)
            && place.is_none()
        {
            *place = Some(now);
        }
    }

    pub fn thaw(&mut self, replica: usize) {
        let Some(frozen) = self.frozen.get_mut(replica).and_then(Option::take) else { return };
        if frozen.version < self.forgotten {
            return self.cut(Some(replica));
        }
        let missed: Vec<PastChange> =
            self.past.iter().filter(|p| p.version > frozen.version).cloned().collect();
        for past in missed {
            let last = past.last();
            let mut lines = BTreeMap::new();
            self.watchers
                .retain(|w| w.replica != replica || w.kind != past.kind || send(w, &past, &last, &mut lines));
        }
    }

    /// Drops the history.
    pub fn compact(&mut self) {
        self.past.clear();
        self.forgotten = self.version;
    }

    /// Closes open watches.
    pub fn cut(&mut self, replica: Option<usize>) {
        self.watchers.retain(|w| replica.is_some_and(|r| r != w.replica));
    }
}

impl PastChange {
    /// The object as a watch sends it, even if it is gone.
    fn last(&self) -> Arc<Value> {
        self.after.clone().unwrap_or_else(|| last_of(self.before.as_ref(), self.version))
    }
}

/// The last state of a removed object, with the version of its removal.
fn last_of(before: Option<&Arc<Value>>, version: u64) -> Arc<Value> {
    let mut object = before.map(|b| (**b).clone()).unwrap_or_default();
    set(&mut object, &["metadata", "resourceVersion"], json!(version.to_string()));
    Arc::new(object)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::CONFIG_MAP;
    use super::super::{ApiServer, Apply, Caller, Preconditions, ServerOptions, ServerResponse};
    use axum::body::Bytes;
    use serde_json::{Value, json};
    use setu_clock::Clock;

    fn server() -> ApiServer {
        ApiServer::new(ServerOptions { seed: 1, clock: Clock::wall(), replicas: 2, history: 100 })
    }

    fn map(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": name, "namespace": "default"}})
    }

    fn list(server: &ApiServer, query: &str) -> Value {
        let request = http::Request::get(format!("/api/v1/namespaces/default/configmaps?{query}"));
        let caller = Caller { user: "test".into(), replica: 0 };
        match server.handle(&caller, &request.body(Bytes::new()).unwrap()) {
            ServerResponse::Whole(whole) => serde_json::from_slice(whole.body()).unwrap(),
            ServerResponse::Watch(_) => panic!("a watch"),
        }
    }

    #[test]
    fn all_pages_of_a_list_have_one_version_until_it_expires() {
        let server = server();
        for name in ["a", "b", "c"] {
            server.user("test").create(&CONFIG_MAP, map(name)).unwrap();
        }
        let first = list(&server, "limit=1");
        assert_eq!(first["metadata"]["remainingItemCount"], 2);
        let user = server.user("test");
        user.delete(&CONFIG_MAP, "default", "b", Preconditions::default()).unwrap();
        user.create(&CONFIG_MAP, map("d")).unwrap();
        let next = format!("limit=5&continue={}", first["metadata"]["continue"].as_str().unwrap());
        let second = list(&server, &next);
        let names: Vec<&Value> =
            second["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        server.compact();
        assert_eq!(list(&server, &next)["reason"], "Expired");
    }

    #[test]
    fn hidden_managers_are_tracked_but_not_shown() {
        let server = server();
        server.hide_managers();
        let made = server.user("test").create(&CONFIG_MAP, map("x")).unwrap();
        assert_eq!(made["metadata"].get("managedFields"), None);
        let apply = |manager, force| {
            let object = json!({"data": {"a": "2"}});
            let apply = Apply { manager, object: &object, force, subresource: None };
            server.user("test").apply(&CONFIG_MAP, "default", "x", &apply)
        };
        assert_eq!(apply("other", false).unwrap_err().reason, "Conflict");
        assert_eq!(apply("other", true).unwrap()["data"]["a"], "2");
    }
}
