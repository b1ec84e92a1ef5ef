//! The embedded API server: the semantics of the real one, in memory, without time or chance of its own.
//!
//! Every call is complete when it returns. The same calls give the same answers, byte for byte.

mod body;
mod cells;
mod columns;
mod create;
mod defaults;
mod delete;
mod differ;
mod discovery;
mod events;
mod fields;
mod http;
mod items;
pub mod kinds;
mod lists;
mod managers;
mod patch;
mod pods;
mod preconditions;
mod route;
mod rules;
mod select;
mod shape;
mod status;
mod store;
mod table;
mod user;
mod write;

pub use rules::metadata::is_name;
pub use status::{Status, Violation};
pub use user::{Apply, User};

use crate::clock::Clock;
use crate::cluster::lock;
use crate::sim::values::set;
use ::http::{Request, Response};
use axum::body::Bytes;
use futures::Stream;
use futures::channel::mpsc::UnboundedReceiver;
use jiff::Timestamp;
use kinds::Kind;
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use store::Store;

/// How a server is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What UIDs and generated names are made from.
    pub seed: u64,
    /// The time.
    pub clock: Clock,
    /// How many replicas answer cached reads and watches.
    pub replicas: usize,
    /// How many changes are remembered for watches from older versions.
    pub history: usize,
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// User name.
    pub user: Arc<str>,
    /// The replica that answers cached reads and watches.
    pub replica: usize,
}

/// What a request is answered with.
pub enum Answer {
    /// A whole response.
    Whole(Response<Bytes>),
    /// A watch.
    Watch(Watch),
}

/// An open watch: a stream of frames that ends when the server ends it.
pub struct Watch {
    kind: &'static Kind,
    form: events::Form,
    /// Replica of the server that answers it.
    replica: usize,
    frames: UnboundedReceiver<Frame>,
    /// Set if the caller wants tables.
    table: Option<table::Tabling>,
}

impl Watch {
    /// The kind that is watched.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The form in which its objects are told of: whether Events are those of `v1`.
    pub fn is_core_event(&self) -> bool {
        self.form == events::Form::CoreEvent
    }
}

impl Stream for Watch {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        let frame = std::task::ready!(Pin::new(&mut self.frames).poll_next(cx));
        let table = self.table.as_mut();
        Poll::Ready(frame.map(|frame| match table {
            Some(table) => Frame { line: table.line(&frame.line, frame.at), ..frame },
            None => frame,
        }))
    }
}

/// One line of a watch.
#[derive(Clone, Debug)]
pub struct Frame {
    /// When it was committed.
    pub at: Timestamp,
    /// One JSON object and a line feed.
    pub line: Bytes,
}

/// One committed change.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version it made.
    pub version: u64,
    /// When.
    pub at: Timestamp,
    /// The kind of its object.
    pub kind: &'static Kind,
    /// The object before; `None` if it was created.
    pub before: Option<Arc<Value>>,
    /// The object after; `None` if it is gone.
    pub after: Option<Arc<Value>>,
    /// Who made it.
    pub by: Arc<str>,
    /// The subresource it was made through.
    pub subresource: Option<&'static str>,
}

/// Somebody who sees every change, in order, under the server's lock.
pub trait Observer: Send {
    /// A change was committed.
    fn committed(&mut self, change: &Change);

    /// A request came, whatever its answer will be.
    fn asked(&mut self, _caller: &Caller, _request: &Request<Bytes>, _at: Timestamp) {}
}

/// A write that admission may refuse.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// Who tries.
    pub user: &'a str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub verb: &'static str,
    /// The kind.
    pub kind: &'static Kind,
    /// The object as it would be.
    pub object: &'a Value,
    /// The object as it is.
    pub old: Option<&'a Value>,
}

/// What must hold for a delete.
#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    /// This UID.
    pub uid: Option<String>,
    /// This version.
    pub resource_version: Option<String>,
}

type Rule = Box<dyn Fn(&Attempt<'_>) -> Option<Status> + Send>;

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    store: Arc<Mutex<Store>>,
    rules: Arc<Mutex<Vec<Rule>>>,
}

impl ApiServer {
    /// An empty server, but for the namespaces that every cluster has.
    pub fn new(options: Options) -> Self {
        let server = Self { store: Arc::new(Mutex::new(Store::new(options))), rules: Arc::default() };
        let system = server.user("system:apiserver");
        for namespace in ["default", "kube-system"] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": namespace, "labels": {"kubernetes.io/metadata.name": namespace},
            }});
            // Nothing is there yet that could be in the way.
            let _ = system.create(&kinds::NAMESPACE, object);
        }
        server
    }

    /// Answers one request.
    pub fn handle(&self, caller: &Caller, request: &Request<Bytes>) -> Answer {
        if request.method() == ::http::Method::GET
            && let Some(document) = discovery::answer(request.uri().path(), request.headers())
        {
            return Answer::Whole(document);
        }
        self.store().asked(caller, request);
        let answer = http::handle(self, caller, request);
        table::shown(answer, request, self.store().clock.now())
    }

    /// Direct calls of one user.
    pub fn user(&self, name: &str) -> User {
        User::new(self.clone(), name)
    }

    /// Has somebody told of every change.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        self.store().observe(observer);
    }

    /// Has a rule asked before every write.
    pub fn deny(&self, rule: Rule) {
        lock(&self.rules).push(rule);
    }

    /// From now on leaves `metadata.managedFields` out of what it shows; who owns what is known as before.
    pub fn hide_managers(&self) {
        self.store().hides_managers = true;
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.store().version
    }

    /// A line that tells a watch up to which version it has heard everything.
    pub fn bookmark(&self, watch: &Watch) -> Frame {
        let store = self.store();
        let at = store.clock.now();
        let line = bookmark(watch.kind, watch.form, store.version_of(watch.replica), false);
        Frame { at, line: watch.table.map_or_else(|| line.clone(), |mut table| table.line(&line, at)) }
    }

    /// From now on this replica answers cached reads and watches from what it has seen.
    pub fn freeze(&self, replica: usize) {
        self.store().freeze(replica);
    }

    /// This replica catches up.
    pub fn thaw(&self, replica: usize) {
        self.store().thaw(replica);
    }

    /// Forgets the history: watches from older versions are answered with 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Ends open watches, those of one replica or all.
    pub fn cut_watches(&self, replica: Option<usize>) {
        self.store().cut(replica);
    }

    /// Deletes what has lost all its owners.
    pub fn collect_garbage(&self) {
        self.store().collect_garbage(&Arc::from("garbage-collector"));
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    fn read(&self, kind: &Kind, key: &store::Key) -> Option<Arc<Value>> {
        self.store().get(kind, key).map(|s| Arc::clone(&s.object))
    }

    fn cached(&self, kind: &Kind, replica: usize) -> (Vec<Arc<Value>>, u64) {
        self.store().cached(kind, replica)
    }

    /// Runs one write, with what admission says of it.
    fn with<T>(&self, write: impl FnOnce(&mut Store, &dyn Fn(&Attempt<'_>) -> Option<Status>) -> T) -> T {
        let mut store = self.store();
        let webhooks: Vec<Arc<Value>> = store.all(&kinds::WEBHOOKS).map(|s| Arc::clone(&s.object)).collect();
        let rules = lock(&self.rules);
        let deny = |attempt: &Attempt<'_>| {
            let by_webhook = webhooks.iter().find_map(|w| rules::webhook(w, attempt));
            by_webhook.or_else(|| rules.iter().find_map(|rule| rule(attempt)))
        };
        write(&mut store, &deny)
    }
}

fn bookmark(kind: &Kind, form: events::Form, version: u64, end_of_list: bool) -> Bytes {
    let api_version = if form == events::Form::CoreEvent { "v1".to_owned() } else { kind.api_version() };
    let mut object = json!({
        "kind": kind.kind, "apiVersion": api_version,
        "metadata": {"resourceVersion": version.to_string()},
    });
    if end_of_list {
        set(&mut object, &["metadata", "annotations"], json!({"k8s.io/initial-events-end": "true"}));
    }
    Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
}
