//! The transport between a replica and the API server: HTTP requests and answers without a socket, with
//! latency and faults.

use super::api::{ApiServer, Caller, Frame, ServerResponse, Watch};
use super::denials::Denials;
use super::faults::{STALE_REPLICA, WatchFault, WriteFault};
use super::wire::Wire;
use axum::body::{Body as AnswerBody, Bytes};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, stream};
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use serde_json::json;
use setu_clock::Clock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tower::Service;

/// Delay of a delayed request: long enough that the sender has given up.
const DELAY: Duration = Duration::from_secs(30);
/// Bookmark interval of a watch.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);
/// Time of the last bookmark before a watch ends.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Default timeout of a watch.
const WATCH_LIMIT: Duration = Duration::from_mins(30);

/// One replica's connection to the API server.
#[derive(Clone)]
pub struct Link {
    /// The server.
    pub server: ApiServer,
    /// The user, and the API server replica.
    pub caller: Caller,
    /// The wire, which injects faults.
    pub wire: Arc<Wire>,
    /// The clock.
    pub clock: Clock,
    /// Whether the API server is unreachable.
    pub down: Arc<AtomicBool>,
    /// Requests that the API server refuses on this connection.
    pub denials: Denials,
}

impl Link {
    async fn exchange(self, request: Request<Body>) -> Result<Response<AnswerBody>, io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(io::Error::other)?;
        let request = Request::from_parts(parts, body);
        let wire = Arc::clone(&self.wire);
        wire.up().await;
        let fault = wire.fault(&request);
        // A request that has left the replica arrives, even if the caller gives up, is paused or dies.
        let answer = tokio::spawn(self.travel(request, fault)).await;
        wire.up().await;
        answer.map_err(io::Error::other)?
    }

    /// Carries a request to the server, and its answer back.
    async fn travel(
        self,
        request: Request<Bytes>,
        fault: Option<WriteFault>,
    ) -> Result<Response<AnswerBody>, io::Error> {
        tokio::time::sleep(self.wire.latency()).await;
        if let Some(result) = self.intercepted(fault) {
            return result;
        }
        if fault == Some(WriteFault::Delayed) {
            tokio::time::sleep(DELAY).await;
        }
        if self.down.load(Ordering::Relaxed) {
            return Err(broken());
        }
        if let Some(code) = self.denials.refuse(request.method(), request.uri().path(), request.body()) {
            return Ok(refused(code, code.canonical_reason().unwrap_or_default()));
        }
        if fault == Some(WriteFault::StaleRestart) {
            self.server.freeze(STALE_REPLICA);
        }
        let date = http_date(self.clock.now());
        let mut answer = self.server.handle(&self.caller, &request);
        if fault == Some(WriteFault::AppliedTwice) {
            answer = self.server.handle(&self.caller, &request);
        }
        match fault {
            Some(deadly @ (WriteFault::CrashAfter | WriteFault::StaleRestart)) => self.wire.die(deadly),
            Some(WriteFault::ReplyLost) => return Err(broken()),
            Some(WriteFault::Timeout) => return Ok(refused(StatusCode::GATEWAY_TIMEOUT, "Timeout")),
            _ => {}
        }
        tokio::time::sleep(self.wire.latency()).await;
        Ok(match answer {
            ServerResponse::Whole(response) => {
                let mut response = response.map(AnswerBody::from);
                response.headers_mut().extend(date.map(|date| (DATE, date)));
                response
            }
            ServerResponse::Watch(watch) => {
                let limit = timeout(&request).unwrap_or(WATCH_LIMIT);
                let path = request.uri().path().to_owned();
                let frames = self.feed(watch, path, limit);
                Response::new(AnswerBody::from_stream(frames.map(Ok::<Bytes, io::Error>)))
            }
        })
    }

    /// The result of a request that does not get to the server because of this fault.
    fn intercepted(&self, fault: Option<WriteFault>) -> Option<Result<Response<AnswerBody>, io::Error>> {
        Some(match fault? {
            WriteFault::CrashBefore => {
                self.wire.die(WriteFault::CrashBefore);
                Err(broken())
            }
            WriteFault::RequestLost => Err(broken()),
            WriteFault::TooManyRequests => Ok(busy(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")),
            WriteFault::Unavailable => Ok(busy(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")),
            WriteFault::ServerError => Ok(refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
            WriteFault::Conflict => Ok(refused(StatusCode::CONFLICT, "Conflict")),
            _ => return None,
        })
    }

    /// The frames of a watch, as they arrive.
    fn feed(self, watch: Watch, path: String, limit: Duration) -> impl Stream<Item = Bytes> + Send + 'static {
        let opened = Instant::now();
        let end = opened + limit;
        let open = Some((watch, self, path));
        stream::unfold(open, move |open| async move {
            let (mut watch, link, path) = open?;
            let next = tokio::time::timeout(until_bookmark(end), watch.next()).await;
            if link.wire.is_silent(&path, opened) {
                std::future::pending::<()>().await;
            }
            let next = if let Ok(frame) = next {
                frame
            } else {
                if Instant::now() >= end {
                    return None;
                }
                link.wire.up().await;
                let bookmark = link.server.bookmark(&watch);
                // Changes that were committed while the replica was paused are sent before the bookmark.
                let Some(frame) = watch.next().now_or_never() else {
                    return Some((bookmark.line, Some((watch, link, path))));
                };
                frame
            };
            let frame = next?;
            link.arrival(&frame).await;
            match link.wire.breaks() {
                None => Some((frame.line, Some((watch, link, path)))),
                Some(WatchFault::Cut) => None,
                Some(WatchFault::Expired) => Some((expired(), None)),
                Some(WatchFault::Silent) => {
                    tokio::time::sleep_until(end).await;
                    None
                }
            }
        })
    }

    /// Waits until a frame has arrived.
    async fn arrival(&self, frame: &Frame) {
        let lag = SignedDuration::try_from(self.wire.lag()).unwrap_or_default();
        let at = frame.at.checked_add(lag).unwrap_or(frame.at);
        tokio::time::sleep(Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default()).await;
        self.wire.up().await;
    }
}

/// How long a watch with this end waits for changes before it sends a bookmark; after the last one, until its end.
fn until_bookmark(end: Instant) -> Duration {
    let left = end.saturating_duration_since(Instant::now());
    match left.saturating_sub(LAST_BOOKMARK) {
        Duration::ZERO => left,
        until_last => BOOKMARK_PERIOD.min(until_last),
    }
}

/// A time as an HTTP date, in whole seconds.
fn http_date(time: Timestamp) -> Option<HeaderValue> {
    let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok()?;
    HeaderValue::from_str(&text).ok()
}

impl Service<Request<Body>> for Link {
    type Response = Response<AnswerBody>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().exchange(request))
    }
}

fn timeout(request: &Request<Bytes>) -> Option<Duration> {
    let query = request.uri().query()?;
    let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by the embedded network")
}

fn status(code: StatusCode, reason: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": format!("injected: {reason}"), "code": code.as_u16(),
    })
}

fn refused(code: StatusCode, reason: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::from(status(code, reason).to_string()));
    *response.status_mut() = code;
    response
}

/// A refusal with a Retry-After header.
fn busy(code: StatusCode, reason: &str) -> Response<AnswerBody> {
    let mut response = refused(code, reason);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn expired() -> Bytes {
    let event = json!({"type": "ERROR", "object": status(StatusCode::GONE, "Expired")});
    Bytes::from(format!("{event}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ServerOptions, kinds};
    use crate::chance::Chance;
    use crate::wire::Line;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::PostParams;
    use kube::{Api, Client};
    use tokio::sync::mpsc::unbounded_channel;

    /// Longer than the timeout of any call of Setu.
    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Makes a replica create an object with a delayed request, while `meanwhile` happens to it. Returns whether the
    /// object exists when the replica gives up, and after the delay.
    async fn created(meanwhile: impl FnOnce(&Wire)) -> (bool, bool) {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let options = ServerOptions { seed: 1, clock: clock.clone(), replicas: 1, history: 10 };
        let server = ApiServer::new(options);
        let wire = Wire::new(Chance::new(1, "test"), unbounded_channel().0, Arc::new(|_, _| {}));
        wire.plan(0, WriteFault::Delayed);
        let link = Link {
            server: server.clone(),
            caller: Caller { user: Arc::from("admin"), replica: 0 },
            wire: Arc::clone(&wire),
            clock,
            down: Arc::default(),
            denials: Denials::default(),
        };
        let maps: Api<ConfigMap> = Api::namespaced(Client::new(link, "default"), "kube-system");
        let mut map = ConfigMap::default();
        map.metadata.name = Some("late".to_owned());
        let (params, is_there) = (PostParams::default(), || {
            server.user("admin").get(&kinds::CONFIG_MAP, "kube-system", "late").is_some()
        });
        let call = tokio::time::timeout(TIMEOUT, maps.create(&params, &map));
        let (answer, ()) = tokio::join!(call, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            meanwhile(&wire);
        });
        assert!(answer.is_err(), "{answer:?}");
        let early = is_there();
        tokio::time::sleep(DELAY).await;
        (early, is_there())
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_in_flight_arrives_even_if_its_caller_gives_up_is_paused_or_dies() {
        assert_eq!(created(|_| {}).await, (false, true), "it gave up");
        assert_eq!(created(|wire| wire.set_line(Line::Paused)).await, (false, true), "it sleeps");
        assert_eq!(created(|wire| wire.set_line(Line::Dead)).await, (false, true), "it died");
    }
}
