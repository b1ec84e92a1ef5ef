//! What is stored, and who is told of changes.
//!
//! One counter of versions for everything. A change is committed, told to the observers, and sent to
//! every open watch, before the call that made it returns.

use super::events;
use super::kinds::Kind;
use super::select::Selector;
use super::{Change, Frame, Observer, Options};
use crate::clock::Clock;
use crate::sim::chance::Chance;
use axum::body::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub type Key = (String, String);

/// An object, and what each manager has applied to it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The object.
    pub object: Arc<Value>,
    /// By manager and subresource: what it applied last.
    pub applied: BTreeMap<String, Value>,
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
        }
    }

    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    pub fn get(&self, kind: &Kind, key: &Key) -> Option<&Stored> {
        self.objects.get(kind.plural)?.get(key)
    }

    /// Keeps what managers have applied, where the object itself stays as it is.
    pub fn remember(&mut self, kind: &Kind, key: &Key, stored: Stored) {
        if let Some(place) = self.objects.get_mut(kind.plural).and_then(|o| o.get_mut(key)) {
            *place = stored;
        }
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

    /// Commits an object as it shall be, or its end; returns it with its new version.
    pub fn commit(
        &mut self,
        kind: &'static Kind,
        key: Key,
        after: Option<Stored>,
        (by, subresource): (&Arc<str>, Option<&'static str>),
    ) -> Arc<Value> {
        self.version += 1;
        let before = self.get(kind, &key).map(|s| Arc::clone(&s.object));
        let version = json!(self.version.to_string());
        let versioned = |object: &Arc<Value>| {
            let mut object = (**object).clone();
            object["metadata"]["resourceVersion"] = version.clone();
            Arc::new(object)
        };
        let objects = self.objects.entry(kind.plural).or_default();
        let (stored, last) = match after {
            Some(mut stored) => {
                stored.object = versioned(&stored.object);
                let object = Arc::clone(&stored.object);
                objects.insert(key, stored);
                (Some(Arc::clone(&object)), object)
            }
            None => {
                objects.remove(&key);
                (None, before.as_ref().map_or_else(Arc::default, versioned))
            }
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

    /// Opens a watch of what comes after a version; `None` if that is forgotten.
    pub fn watch(
        &mut self,
        kind: &'static Kind,
        (selector, form): (Selector, events::Form),
        replica: usize,
        from: u64,
    ) -> Option<UnboundedReceiver<Frame>> {
        if from < self.forgotten {
            return None;
        }
        let (sender, receiver) = unbounded();
        let watcher = Watcher { kind, selector, form, replica, sender };
        let until = self.frozen.get(replica).and_then(Option::as_ref).map_or(u64::MAX, |f| f.version);
        for past in self.past.iter().filter(|p| p.kind == kind && p.version > from && p.version <= until) {
            send(&watcher, past, &last_of(past), &mut BTreeMap::new());
        }
        self.watchers.push(watcher);
        Some(receiver)
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
            let last = last_of(&past);
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

fn last_of(past: &Past) -> Arc<Value> {
    past.after.clone().unwrap_or_else(|| {
        let mut object = past.before.as_deref().cloned().unwrap_or_default();
        object["metadata"]["resourceVersion"] = json!(past.version.to_string());
        Arc::new(object)
    })
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
    let line = lines.entry((verb, watcher.form)).or_insert_with(|| frame_line(verb, &watcher.form.of(last)));
    watcher.sender.unbounded_send(Frame { at: past.at, line: line.clone() }).is_ok()
}

fn frame_line(verb: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{verb}\",\"object\":{object}}}\n"))
}
