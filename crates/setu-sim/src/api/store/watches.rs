//! Open watches: how one starts, and what each is sent for a change.

use super::{ObjectStore, PastChange, last_of};
use crate::api::events;
use crate::api::kinds::ServedKind;
use crate::api::select::ObjectSelector;
use crate::api::status::Status;
use crate::api::{self, Frame};
use axum::body::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An open watch.
pub struct Watcher {
    pub kind: &'static ServedKind,
    selector: ObjectSelector,
    form: events::EventForm,
    pub replica: usize,
    sender: UnboundedSender<Frame>,
}

impl ObjectStore {
    /// Sends a change to every open watch.
    pub(super) fn notify(&mut self, past: &PastChange, last: &Arc<Value>) {
        let frozen = &self.frozen;
        let mut lines = BTreeMap::new();
        self.watchers.retain(|watcher| {
            if watcher.kind != past.kind {
                return true;
            }
            if frozen.get(watcher.replica).is_some_and(Option::is_some) {
                // The watch gets this change when its replica catches up.
                return !watcher.sender.is_closed();
            }
            send(watcher, past, last, &mut lines)
        });
    }

    /// Opens a watch of the changes after a version. It ends with an error if their history is gone.
    pub fn watch(
        &mut self,
        kind: &'static ServedKind,
        (selector, form): (ObjectSelector, events::EventForm),
        replica: usize,
        from: u64,
    ) -> UnboundedReceiver<Frame> {
        let (sender, receiver) = unbounded();
        if from < self.forgotten {
            let line = frame_line("ERROR", &Status::too_old(from, self.forgotten).to_json());
            // Cannot fail: the receiver is still open.
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

    /// Opens a watch that starts with the current objects.
    pub fn watch_from_now(
        &mut self,
        kind: &'static ServedKind,
        (selector, form): (ObjectSelector, events::EventForm),
        replica: usize,
        bookmark: bool,
    ) -> UnboundedReceiver<Frame> {
        let (objects, version) = self.cached(kind, replica);
        let (sender, receiver) = unbounded();
        let at = self.clock.now();
        for object in objects.iter().filter(|o| selector.matches(o)) {
            // A closed receiver is noticed at the next change.
            let _ = sender.unbounded_send(Frame { at, line: frame_line("ADDED", &form.of(object)) });
        }
        if bookmark {
            let end = api::bookmark(kind, form, version, true);
            let _ = sender.unbounded_send(Frame { at, line: end });
        }
        self.watchers.push(Watcher { kind, selector, form, replica, sender });
        receiver
    }
}

/// Sends a change to a watch, as its selector sees it. Returns whether the watch is still open.
pub(super) fn send(
    watcher: &Watcher,
    past: &PastChange,
    last: &Arc<Value>,
    lines: &mut BTreeMap<(&'static str, events::EventForm), Bytes>,
) -> bool {
    let was = past.before.as_ref().is_some_and(|o| watcher.selector.matches(o));
    let is = past.after.as_ref().is_some_and(|o| watcher.selector.matches(o));
    let verb = match (was, is) {
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
        (false, false) => return !watcher.sender.is_closed(),
    };
    let line = lines.entry((verb, watcher.form)).or_insert_with(|| {
        // A watch whose selector no longer matches gets the object's last matching state.
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
    use crate::api::kinds::CONFIG_MAP;
    use crate::api::{ApiServer, Caller, ServerOptions, ServerResponse, Watch};
    use axum::body::Bytes;
    use futures::{FutureExt, StreamExt};
    use serde_json::{Value, json};
    use setu_clock::Clock;

    fn server() -> ApiServer {
        ApiServer::new(ServerOptions { seed: 1, clock: Clock::wall(), replicas: 2, history: 100 })
    }

    fn map(name: &str, app: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": name, "namespace": "default", "labels": {"app": app}}})
    }

    fn answer(server: &ApiServer, replica: usize, query: &str) -> ServerResponse {
        let request = http::Request::get(format!("/api/v1/namespaces/default/configmaps?{query}"));
        let caller = Caller { user: "test".into(), replica };
        server.handle(&caller, &request.body(Bytes::new()).unwrap())
    }

    fn watch(server: &ApiServer, replica: usize, query: &str) -> Watch {
        match answer(server, replica, &format!("watch=true&{query}")) {
            ServerResponse::Watch(watch) => watch,
            ServerResponse::Whole(whole) => panic!("{whole:?}"),
        }
    }

    fn list(server: &ApiServer, replica: usize, query: &str) -> Value {
        match answer(server, replica, query) {
            ServerResponse::Whole(whole) => serde_json::from_slice(whole.body()).unwrap(),
            ServerResponse::Watch(_) => panic!("a watch"),
        }
    }

    fn received(watch: &mut Watch) -> Vec<String> {
        let frames = std::iter::from_fn(|| watch.next().now_or_never().flatten());
        let texts = frames.map(|frame| {
            let event: Value = serde_json::from_slice(&frame.line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            format!("{} {name}", event["type"].as_str().unwrap())
        });
        texts.map(|text| text.trim_end().to_owned()).collect()
    }

    fn relabel(server: &ApiServer, name: &str, app: &str) {
        let patch = json!({"metadata": {"labels": {"app": app}}});
        server.user("test").merge(&CONFIG_MAP, "default", name, &patch).unwrap();
    }

    #[test]
    fn an_object_that_enters_a_selector_is_added_and_one_that_leaves_it_is_deleted() {
        let server = server();
        let mut watch = watch(&server, 0, "labelSelector=app%3Da");
        server.user("test").create(&CONFIG_MAP, map("x", "b")).unwrap();
        for app in ["a", "a", "b"] {
            relabel(&server, "x", app);
        }
        assert_eq!(received(&mut watch), ["ADDED x", "DELETED x"], "the same label again is no change");
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
        assert_eq!(received(&mut watch), ["ADDED old"]);
        let bookmark =
            |watch: &Watch| -> Value { serde_json::from_slice(&server.bookmark(watch).line).unwrap() };
        let said = bookmark(&watch)["object"]["metadata"]["resourceVersion"].clone();
        assert_eq!(
            said,
            list(&server, 1, "resourceVersion=0")["metadata"]["resourceVersion"],
            "not what it never saw"
        );
        server.thaw(1);
        assert_eq!(received(&mut watch), ["ADDED new"]);
        assert_eq!(count(1, "resourceVersion=0"), 2);
    }

    #[test]
    fn a_watch_from_an_expired_version_ends_with_an_error() {
        let server = server();
        let old = server.version();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let mut alive = watch(&server, 0, &format!("resourceVersion={old}"));
        assert_eq!(received(&mut alive), ["ADDED x"]);
        server.compact();
        let mut late = watch(&server, 0, &format!("resourceVersion={old}"));
        assert_eq!(received(&mut late), ["ERROR"]);
        server.cut_watches(None);
        assert!(alive.next().now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_streaming_list_ends_with_its_bookmark() {
        let server = server();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        assert_eq!(received(&mut watch(&server, 0, query)), ["ADDED x", "BOOKMARK"]);
    }

    #[test]
    fn a_write_that_changes_nothing_makes_no_version_and_no_event() {
        let server = server();
        server.user("test").create(&CONFIG_MAP, map("x", "a")).unwrap();
        let (mut watch, before) = (watch(&server, 0, ""), server.version());
        received(&mut watch);
        relabel(&server, "x", "a");
        assert_eq!((server.version(), received(&mut watch)), (before, Vec::new()));
    }
}
