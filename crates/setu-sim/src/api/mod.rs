//! The embedded API server: the semantics of the real one, in memory. It is deterministic.
//!
//! Every call is complete when it returns. The same calls produce the same answers, byte for byte.

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
pub use status::{FieldError, Status};
pub use user::{Apply, User};

use crate::values::set;
use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Request, Response, StatusCode};
use axum::body::Bytes;
use futures::Stream;
use futures::channel::mpsc::UnboundedReceiver;
use jiff::Timestamp;
use kinds::ServedKind;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value, json};
use setu_clock::Clock;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use store::ObjectStore;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Seed of UIDs and generated names.
    pub seed: u64,
    /// The clock.
    pub clock: Clock,
    /// Number of replicas that serve cached reads and watches.
    pub replicas: usize,
    /// Number of changes that are kept for watches from older versions.
    pub history: usize,
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// User name.
    pub user: Arc<str>,
    /// The replica that serves its cached reads and watches.
    pub replica: usize,
}

/// The answer to a request.
pub enum ServerResponse {
    /// A complete response.
    Whole(Response<Bytes>),
    /// A watch.
    Watch(Watch),
}

impl ServerResponse {
    /// A complete response with this body.
    fn json(code: u16, body: &impl Serialize) -> Self {
        // Fails only for maps with non-string keys, which JSON does not have.
        let mut response = Response::new(Bytes::from(serde_json::to_vec(body).unwrap_or_default()));
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self::Whole(response)
    }
}

/// An open watch: a stream of frames that ends when the server closes it.
pub struct Watch {
    kind: &'static ServedKind,
    form: events::EventForm,
    /// The server replica that serves it.
    replica: usize,
    frames: UnboundedReceiver<Frame>,
    /// Set if the caller wants tables.
    table: Option<table::Tabling>,
}

impl Watch {
    /// The kind that is watched.
    pub fn kind(&self) -> &'static ServedKind {
        self.kind
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
    /// One JSON object and a newline.
    pub line: Bytes,
}

/// One committed change.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its version.
    pub version: u64,
    /// Its time.
    pub at: Timestamp,
    /// The kind of its object.
    pub kind: &'static ServedKind,
    /// The object before; `None` if it was created.
    pub before: Option<Arc<Value>>,
    /// The object after; `None` if it was removed.
    pub after: Option<Arc<Value>>,
    /// The user who made it.
    pub by: Arc<str>,
    /// The subresource that was written, if any.
    pub subresource: Option<&'static str>,
}

/// Receives every change, in order, under the server's lock.
pub trait Observer: Send {
    /// A change was committed.
    fn committed(&mut self, change: &Change);

    /// A request arrived. It may still fail.
    fn asked(&mut self, _caller: &Caller, _request: &Request<Bytes>, _at: Timestamp) {}
}

/// A write that admission may refuse.
#[derive(Clone, Copy)]
pub struct AdmissionRequest<'a> {
    /// The user.
    pub user: &'a str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub verb: &'static str,
    /// The kind.
    pub kind: &'static ServedKind,
    /// The new object.
    pub object: &'a Value,
    /// The current object.
    pub old: Option<&'a Value>,
}

/// Preconditions of a delete.
#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    /// The required UID.
    pub uid: Option<String>,
    /// The required version.
    pub resource_version: Option<String>,
}

type AdmissionRule = Box<dyn Fn(&AdmissionRequest<'_>) -> Option<Status> + Send>;

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    store: Arc<Mutex<ObjectStore>>,
    rules: Arc<Mutex<Vec<AdmissionRule>>>,
}

impl ApiServer {
    /// An empty server with the namespaces that every cluster has.
    pub fn new(options: ServerOptions) -> Self {
        let server = Self { store: Arc::new(Mutex::new(ObjectStore::new(options))), rules: Arc::default() };
        let system = server.user("system:apiserver");
        for namespace in ["default", "kube-system"] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": namespace, "labels": {"kubernetes.io/metadata.name": namespace},
            }});
            // Cannot fail: the store is empty.
            let _ = system.create(&kinds::NAMESPACE, object);
        }
        server
    }

    /// Answers one request.
    pub fn handle(&self, caller: &Caller, request: &Request<Bytes>) -> ServerResponse {
        if request.method() == ::http::Method::GET
            && let Some(document) = discovery::answer(request.uri().path(), request.headers())
        {
            return ServerResponse::Whole(document);
        }
        self.store().asked(caller, request);
        let answer = http::handle(self, caller, request);
        table::shown(answer, request, self.store().clock.now())
    }

    /// Direct calls as this user.
    pub fn user(&self, name: &str) -> User {
        User::new(self.clone(), name)
    }

    /// Adds an observer of all changes.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        self.store().observe(observer);
    }

    /// Adds an admission rule, which is evaluated before every write.
    pub fn deny(&self, rule: AdmissionRule) {
        self.rules.lock().push(rule);
    }

    /// From now on omits `metadata.managedFields` from all objects shown. Field ownership is still tracked.
    pub fn hide_managers(&self) {
        self.store().hides_managers = true;
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.store().version
    }

    /// A bookmark line with the newest version that a watch has seen.
    pub fn bookmark(&self, watch: &Watch) -> Frame {
        let store = self.store();
        let at = store.clock.now();
        let line = bookmark(watch.kind, watch.form, store.version_of(watch.replica), false);
        Frame { at, line: watch.table.map_or_else(|| line.clone(), |mut table| table.line(&line, at)) }
    }

    /// Stops this replica from seeing new changes: its cached reads and watches become stale.
    pub fn freeze(&self, replica: usize) {
        self.store().freeze(replica);
    }

    /// Lets this replica catch up.
    pub fn thaw(&self, replica: usize) {
        self.store().thaw(replica);
    }

    /// Drops the history: watches from older versions get a 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Closes the open watches of one replica, or all.
    pub fn cut_watches(&self, replica: Option<usize>) {
        self.store().cut(replica);
    }

    /// Deletes objects whose owners are all gone.
    pub fn collect_garbage(&self) {
        self.store().collect_garbage(&Arc::from("garbage-collector"));
    }

    fn store(&self) -> MutexGuard<'_, ObjectStore> {
        self.store.lock()
    }

    fn read(&self, kind: &ServedKind, key: &store::ObjectKey) -> Option<Arc<Value>> {
        self.store().get(kind, key).map(|s| Arc::clone(&s.object))
    }

    fn cached(&self, kind: &ServedKind, replica: usize) -> (Vec<Arc<Value>>, u64) {
        self.store().cached(kind, replica)
    }

    /// Runs one write with admission: webhooks and rules.
    fn with<T>(
        &self,
        write: impl FnOnce(&mut ObjectStore, &dyn Fn(&AdmissionRequest<'_>) -> Option<Status>) -> T,
    ) -> T {
        let mut store = self.store();
        let webhooks: Vec<Arc<Value>> = store.all(&kinds::WEBHOOKS).map(|s| Arc::clone(&s.object)).collect();
        let rules = self.rules.lock();
        let deny = |attempt: &AdmissionRequest<'_>| {
            let by_webhook = webhooks.iter().find_map(|w| rules::webhook(w, attempt));
            by_webhook.or_else(|| rules.iter().find_map(|rule| rule(attempt)))
        };
        write(&mut store, &deny)
    }
}

fn bookmark(kind: &ServedKind, form: events::EventForm, version: u64, end_of_list: bool) -> Bytes {
    let api_version = if form == events::EventForm::CoreEvent { "v1".to_owned() } else { kind.api_version() };
    let mut object = json!({
        "kind": kind.kind, "apiVersion": api_version,
        "metadata": {"resourceVersion": version.to_string()},
    });
    if end_of_list {
        set(&mut object, &["metadata", "annotations"], json!({"k8s.io/initial-events-end": "true"}));
    }
    Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
}
