//! Serves an embedded API server over HTTP, so that kubectl and any other client can use it.
//!
//! Rule: nothing is decided here. Requests are passed to [`ApiServer::handle`] unchanged. This module handles
//! only transport: body size, watch timeouts, bookmarks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::FutureExt as _;
use futures::stream::{self, Stream, StreamExt as _};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::api::{ApiServer, Caller, ServerResponse, Watch};

/// Maximum body size that kube-apiserver accepts.
const LARGEST_BODY: usize = 3 << 20;
/// Default timeout of a watch.
const WATCH_LIMIT: Duration = Duration::from_mins(30);
/// Bookmark interval of an idle watch, if its caller wants bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// The user of every request: every client of the port has all rights.
const USER: &str = "kubernetes-admin";

/// A kubeconfig for a served cluster, as JSON, which is also YAML.
pub fn kubeconfig(address: SocketAddr) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "embedded",
        "clusters": [{"name": "embedded", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        "users": [{"name": "embedded", "user": {}}],
    });
    config.to_string()
}

struct Shared {
    server: ApiServer,
    caller: Caller,
    stop: CancellationToken,
}

/// Serves `server` on `listener` until `stop`, which also ends open watches. There is no TLS and no
/// authentication, so listen on loopback. Errors are those of the listener.
pub async fn serve(server: ApiServer, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
    let router = router(server, stop.clone());
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Answers every path without another route. Open watches end at `stop`.
pub fn router(server: ApiServer, stop: CancellationToken) -> Router {
    let caller = Caller { user: USER.into(), replica: 0 };
    Router::new().fallback(answer).with_state(Arc::new(Shared { server, caller, stop }))
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else {
        return too_large();
    };
    let query = Query::of(parts.uri.query().unwrap_or_default());
    match shared.server.handle(&shared.caller, &Request::from_parts(parts, body)) {
        ServerResponse::Whole(response) => response.map(Body::from),
        ServerResponse::Watch(watch) => stream_of(shared.server.clone(), watch, &query, shared.stop.clone()),
    }
}

fn too_large() -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("Request entity too large: limit is {LARGEST_BODY}"),
        "reason": "RequestEntityTooLarge", "code": 413,
    });
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// The transport options of a watch request.
struct Query {
    limit: Duration,
    bookmarks: Bookmarks,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bookmarks {
    Wanted,
    Unwanted,
}

impl Query {
    fn of(query: &str) -> Self {
        let value = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
        };
        let seconds =
            value("timeoutSeconds").and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
        let wanted = matches!(value("allowWatchBookmarks"), Some("true" | "1"));
        Self {
            limit: seconds.map_or(WATCH_LIMIT, Duration::from_secs),
            bookmarks: if wanted { Bookmarks::Wanted } else { Bookmarks::Unwanted },
        }
    }
}

fn stream_of(server: ApiServer, watch: Watch, query: &Query, stop: CancellationToken) -> Response {
    let until = Instant::now() + query.limit;
    let lines = lines(server, watch, query.bookmarks)
        .take_until(sleep_until(until))
        .take_until(stop.cancelled_owned())
        .map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, http::HeaderValue::from_static("no-cache, private"));
    response
}

/// The lines of a watch, with a bookmark whenever it was idle for a while.
fn lines(server: ApiServer, watch: Watch, bookmarks: Bookmarks) -> impl Stream<Item = Bytes> {
    stream::unfold((server, watch), move |(server, mut watch)| async move {
        let due = Instant::now() + BOOKMARK_INTERVAL;
        let line = tokio::select! {
            biased;
            frame = watch.next() => frame?.line,
            () = sleep_until(due), if bookmarks == Bookmarks::Wanted => {
                let bookmark = server.bookmark(&watch);
                // Changes that were committed before the bookmark must be sent before it.
                match watch.next().now_or_never() {
                    Some(frame) => frame?.line,
                    None => bookmark.line,
                }
            }
        };
        Some((line, (server, watch)))
    })
}
