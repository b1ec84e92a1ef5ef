//! What is stored, and who is told of changes.
//!
//! One counter of versions for everything. A change is committed, told to the observers, and sent to
//! every open watch, before the call that made it returns.

use super::events;
use super::kinds::Kind;
use super::managers::Managers;
use super::select::Selector;
use super::{Change, Frame, Observer, Options};
use crate::clock::Clock;
use crate::sim::chance::Chance;
use crate::sim::values::{name, namespace, set};
use axum::body::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub type Key = (String, String);

/// An object and its managers.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The object as it is shown.
    pub object: Arc<Value>,
    /// The object without `metadata.managedFields`.
    pub bare: Arc<Value>,
    /// Who manages which of its fields.
    pub managers: Arc<Managers>,
}

type Objects = BTreeMap<Key, Stored>;

/// A committed change, kept for watches from older versions.
#[derive(Clone)]
struct Past {
    version: u64,
    at: Timestamp,
    kind: &'static Kind,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// An open watch.
struct Watcher {
    kind: &'static Kind,
    selector: Selector,
    form: events::Form,
    replica: usize,
    sender: UnboundedSender<Frame>,
}

/// A replica of the server that has fallen behind.
struct Frozen {
    objects: BTreeMap<&'static str, Objects>,
    version: u64,
}

/// Everything stored.
pub struct Store {
    pub clock: Clock,
    pub chance: Chance,
    pub version: u64,
    objects: BTreeMap<&'static str, Objects>,
    watchers: Vec<Watcher>,
    past: VecDeque<Past>,
    forgotten: u64,
    history: usize,
    observers: Vec<Box<dyn Observer>>,
    frozen: Vec<Option<Frozen>>,
    /// Whether `metadata.managedFields` is left out of what is shown.
    pub hides_managers: bool,
}

impl Store {
    pub fn new(options: Options) -> Self {
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

    pub fn get(&self, kind: &Kind, key: &Key) -> Option<&Stored> {
        self.objects.get(kind.plural)?.get(key)
    }

    /// Objects of a kind, by namespace and name.
    pub fn all(&self, kind: &Kind) -> impl Iterator<Item = &Stored> {
        self.objects.get(kind.plural).into_iter().flat_map(BTreeMap::values)
    }

    /// Objects of a kind and the version they are of, as a replica shows them from its cache.
    pub fn cached(&self, kind: &Kind, replica: usize) -> (Vec<Arc<Value>>, u64) {
        let list = |objects: &BTreeMap<&'static str, Objects>| {
            let all = objects.get(kind.plural).into_iter().flat_map(BTreeMap::values);
            all.map(|s| Arc::clone(&s.object)).collect()
        };
        match self.frozen.get(replica).and_then(Option::as_ref) {
            Some(frozen) => (list(&frozen.objects), frozen.version),
            None => (list(&self.objects), self.version),
        }
    }

    /// Objects of a kind in one namespace, by name.
    pub fn all_in(&self, kind: &Kind, namespace: &str) -> impl Iterator<Item = &Stored> {
        let from: Key = (namespace.to_owned(), String::new());
        let objects = self.objects.get(kind.plural).map(|o| o.range(from.clone()..));
        objects.into_iter().flatten().take_while(move |(key, _)| key.0 == from.0).map(|(_, stored)| stored)
    }

    /// The newest version that a replica has seen.
    pub fn version_of(&self, replica: usize) -> u64 {
        self.frozen.get(replica).and_then(Option::as_ref).map_or(self.version, |f| f.version)
    }

    /// An object as a replica shows it from its cache.
    pub fn cached_one(&self, kind: &Kind, key: &Key, replica: usize) -> Option<Arc<Value>> {
        let frozen = self.frozen.get(replica).and_then(Option::as_ref);
        let objects = frozen.map_or(&self.objects, |f| &f.objects);
        objects.get(kind.plural)?.get(key).map(|s| Arc::clone(&s.object))
    }

    /// Objects of a kind as they were at a version; `None` if that is forgotten.
    pub fn at(&self, kind: &Kind, version: u64) -> Option<Vec<Arc<Value>>> {
        if version < self.forgotten {
            return None;
        }
        let now = self.objects.get(kind.plural).into_iter().flatten();
        let mut objects: BTreeMap<Key, Arc<Value>> =
            now.map(|(key, stored)| (key.clone(), Arc::clone(&stored.object))).collect();
        for past in self.past.iter().rev().take_while(|p| p.version > version).filter(|p| p.kind == kind) {
            let Some(known) = past.after.as_ref().or(past.before.as_ref()) else { continue };
            let key = (namespace(known).to_owned(), name(known).to_owned());
            match &past.before {
                Some(before) => objects.insert(key, Arc::clone(before)),
                None => objects.remove(&key),
            };
        }
        Some(objects.into_values().collect())
    }

    /// Commits an object as it shall be, or its end; returns it with its new version.
    pub fn commit(
        &mut self,
        kind: &'static Kind,
        key: Key,
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
        let past = Past { version: self.version, at, kind, before: before.clone(), after: stored.clone() };
        self.tell(&past, &last);
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

    fn tell(&mut self, past: &Past, last: &Arc<Value>) {
        let frozen = &self.frozen;
        let mut lines = BTreeMap::new();
        self.watchers.retain(|watcher| {
            if watcher.kind != past.kind {
                return true;
            }
            if frozen.get(watcher.replica).is_some_and(Option::is_some) {
                // It hears of this once its replica has caught up.
                return !watcher.sender.is_closed();
            }
            send(watcher, past, last, &mut lines)
        });
    }

    /// Opens a watch of what comes after a version; it ends with an error if that is forgotten.
    pub fn watch(
        &mut self,
        kind: &'static Kind,
        (selector, form): (Selector, events::Form),
        replica: usize,
        from: u64,
    ) -> UnboundedReceiver<Frame> {
        let (sender, receiver) = unbounded();
        if from < self.forgotten {
            let line = frame_line("ERROR", &super::lists::too_old(from, self.forgotten));
            // Nobody but this sender's receiver is there to hear of it.
            let _ = sender.unbounded_send(Frame { at: self.clock.now(), line });
            return receiver;
        }
        let watcher = Watcher { kind, selector, form, replica, sender };
        let until = self.frozen.get(replica).and_then(Option::as_ref).map_or(u64::MAX, |f| f.version);
        for past in self.past.iter().filter(|p| p.kind == kind && p.version > from && p.version <= until) {
            send(&watcher, past, &past.last(), &mut BTreeMap::new());
        }
        self.watchers.push(watcher);
        receiver
    }

    /// Sends the present objects into a new watch, which then goes on.
    pub fn watch_from_now(
        &mut self,
        kind: &'static Kind,
        (selector, form): (Selector, events::Form),
        replica: usize,
        bookmark: bool,
    ) -> UnboundedReceiver<Frame> {
        let (objects, version) = self.cached(kind, replica);
        let (sender, receiver) = unbounded();
        let at = self.clock.now();
        for object in objects.iter().filter(|o| selector.takes(o)) {
            // A receiver that is gone already is found out at the next change.
            let _ = sender.unbounded_send(Frame { at, line: frame_line("ADDED", &form.of(object)) });
        }
        if bookmark {
            let end = super::bookmark(kind, form, version, true);
            let _ = sender.unbounded_send(Frame { at, line: end });
        }
        self.watchers.push(Watcher { kind, selector, form, replica, sender });
        receiver
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
        let missed: Vec<Past> = self.past.iter().filter(|p| p.version > frozen.version).cloned().collect();
        for past in missed {
            let last = past.last();
            let mut lines = BTreeMap::new();
            self.watchers
                .retain(|w| w.replica != replica || w.kind != past.kind || send(w, &past, &last, &mut lines));
        }
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        self.past.clear();
        self.forgotten = self.version;
    }

    /// Ends open watches.
    pub fn cut(&mut self, replica: Option<usize>) {
        self.watchers.retain(|w| replica.is_some_and(|r| r != w.replica));
    }
}

impl Past {
    /// The object as a watch tells it, also where it is gone.
    fn last(&self) -> Arc<Value> {
        self.after.clone().unwrap_or_else(|| last_of(self.before.as_ref(), self.version))
    }
}

/// An object that is gone, with the version of its end.
fn last_of(before: Option<&Arc<Value>>, version: u64) -> Arc<Value> {
    let mut object = before.map(|b| (**b).clone()).unwrap_or_default();
    set(&mut object, &["metadata", "resourceVersion"], json!(version.to_string()));
    Arc::new(object)
}

/// Tells a watch of a change, as its selector sees it. Returns whether the watch is still open.
fn send(
    watcher: &Watcher,
    past: &Past,
    last: &Arc<Value>,
    lines: &mut BTreeMap<(&'static str, events::Form), Bytes>,
) -> bool {
    let was = past.before.as_ref().is_some_and(|o| watcher.selector.takes(o));
    let is = past.after.as_ref().is_some_and(|o| watcher.selector.takes(o));
    let verb = match (was, is) {
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
        (false, false) => return !watcher.sender.is_closed(),
    };
    let line = lines.entry((verb, watcher.form)).or_insert_with(|| {
        // Who loses sight of an object is told how it was when last seen.
        let unseen = past.before.as_ref().filter(|_| verb == "DELETED");
        let seen = unseen.map_or_else(|| Arc::clone(last), |before| last_of(Some(before), past.version));
        frame_line(verb, &watcher.form.of(&seen))
    });
    watcher.sender.unbounded_send(Frame { at: past.at, line: line.clone() }).is_ok()
}

fn frame_line(verb: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{verb}\",\"object\":{object}}}\n"))
}

#[cfg(test)]
mod tests {
    use super::super::kinds::CONFIG_MAP;
    use super::super::{Answer, ApiServer, Caller, Options, Preconditions, Watch};
    use crate::clock::Clock;
    use axum::body::Bytes;
    use futures::{FutureExt, StreamExt};
    use serde_json::{Value, json};

    fn server() -> ApiServer {
        ApiServer::new(Options { seed: 1, clock: Clock::wall(), replicas: 2, history: 100 })
    }

    fn map(name: &str, app: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": name, "namespace": "default", "labels": {"app": app}}})
    }

    fn answer(server: &ApiServer, replica: usize, query: &str) -> Answer {
        let request = http::Request::get(format!("/api/v1/namespaces/default/configmaps?{query}"));
        let caller = Caller { user: "test".into(), replica };
        server.handle(&caller, &request.body(Bytes::new()).unwrap())
    }

    fn watch(server: &ApiServer, replica: usize, query: &str) -> Watch {
        match answer(server, replica, &format!("watch=true&{query}")) {
            Answer::Watch(watch) => watch,
            Answer::Whole(whole) => panic!("{whole:?}"),
        }
    }

    fn list(server: &ApiServer, replica: usize, query: &str) -> Value {
        match answer(server, replica, query) {
            Answer::Whole(whole) => serde_json::from_slice(whole.body()).unwrap(),
            Answer::Watch(_) => panic!("a watch"),
        }
    }

    fn heard(watch: &mut Watch) -> Vec<String> {
        let frames = std::iter::from_fn(|| watch.next().now_or_never().flatten());
        let told = frames.map(|frame| {
            let event: Value = serde_json::from_slice(&frame.line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            format!("{} {name}", event["type"].as_str().unwrap())
        });
        told.map(|text| text.trim_end().to_owned()).collect()
    }

    fn relabel(server: &ApiServer, name: &str, app: &str) {
        let patch = json!({"metadata": {"labels": {"app": app}}});
        server.user("test").merge(&CONFIG_MAP, "default", name, &patch).unwrap();
    }

    #[test]
    fn what_comes_into_a_selector_is_added_and_what_leaves_it_deleted() {
        let server = server();
        let mut watch = watch(&server, 0, "labelSelector=app%3Da");
        server.user("test").create(&CONFIG_MAP, map("x", "b")).unwrap();
        for app in ["a", "a", "b"] {
            relabel(&server, "x", app);
        }
        assert_eq!(heard(&mut watch), ["ADDED x", "DELETED x"], "the same label again is no change");
    }

    #[test]
    fn a_frozen_replica_shows_the_past_until_it_catches_up() {
        let server = server();
        server.user("test").create(&CONFIG_MAP, map("old", "a")).unwrap();
        server.freeze(1);
        let mut watch = watch(&server, 1, "");
        server.user("test").create(&CONFIG_MAP, map("new", "a")).unwrap();
        let count = |replica, query| list(&server, replica, query)["items"].as_array().unwrap().len();
        assert_eq!((count(1, "resourceVersion=0"), count(1, ""), count(0, "resourceVersion=0")), (1, 2, 2));
        let newer = format!("resourceVersion={}", server.version());
        assert_eq!(list(&server, 1, &newer)["code"], 504);
        assert_eq!(heard(&mut watch), ["ADDED old"]);
        let bookmark =
            |watch: &Watch| -> Value { serde_json::from_slice(&server.bookmark(watch).line).unwrap() };
        let said = bookmark(&watch)["object"]["metadata"]["resourceVersion"].clone();
        assert_eq!(
            said,
            list(&server, 1, "resourceVersion=0")["metadata"]["resourceVersion"],
            "not what it never saw"
        );
        server.thaw(1);
        assert_eq!(heard(&mut watch), ["ADDED new"]);
        assert_eq!(count(1, "resourceVersion=0"), 2);
    }

    #[test]
    fn a_watch_from_a_forgotten_version_ends_with_an_error() {
        let server = server();
        let old = server.version();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let mut alive = watch(&server, 0, &format!("resourceVersion={old}"));
        assert_eq!(heard(&mut alive), ["ADDED x"]);
        server.compact();
        let mut late = watch(&server, 0, &format!("resourceVersion={old}"));
        assert_eq!(heard(&mut late), ["ERROR"]);
        server.cut_watches(None);
        assert!(alive.next().now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_streaming_list_ends_with_its_bookmark() {
        let server = server();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        assert_eq!(heard(&mut watch(&server, 0, query)), ["ADDED x", "BOOKMARK"]);
    }

    #[test]
    fn the_pages_of_a_list_are_of_one_version_until_it_is_forgotten() {
        let server = server();
        for name in ["a", "b", "c"] {
            server.user("test").create(&CONFIG_MAP, map(name, "x")).unwrap();
        }
        let first = list(&server, 0, "limit=1");
        assert_eq!(first["metadata"]["remainingItemCount"], 2);
        let user = server.user("test");
        user.delete(&CONFIG_MAP, "default", "b", Preconditions::default()).unwrap();
        user.create(&CONFIG_MAP, map("d", "x")).unwrap();
        let next = format!("limit=5&continue={}", first["metadata"]["continue"].as_str().unwrap());
        let second = list(&server, 0, &next);
        let names: Vec<&Value> =
            second["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        server.compact();
        assert_eq!(list(&server, 0, &next)["reason"], "Expired");
    }

    #[test]
    fn a_write_that_changes_nothing_makes_no_version_and_no_event() {
        let server = server();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let (mut watch, before) = (watch(&server, 0, ""), server.version());
        heard(&mut watch);
        relabel(&server, "x", "a");
        assert_eq!((server.version(), heard(&mut watch)), (before, Vec::new()));
    }

    #[test]
    fn hidden_managers_are_known_but_not_shown() {
        let server = server();
        server.hide_managers();
        let made = server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        assert_eq!(made["metadata"].get("managedFields"), None);
        let apply = |manager, force| {
            let object = json!({"data": {"a": "2"}});
            let apply = super::super::Apply { manager, object: &object, force, subresource: None };
            server.user("test").apply(&CONFIG_MAP, "default", "x", &apply)
        };
        assert_eq!(apply("other", false).unwrap_err().reason, "Conflict");
        assert_eq!(apply("other", true).unwrap()["data"]["a"], "2");
    }
}
