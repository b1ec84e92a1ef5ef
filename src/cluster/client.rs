//! The client: kube's own stack without its retries, plus a layer that counts every request.
//!
//! kube would retry a POST for minutes, even if the state has changed since. Here a failed call is an answer; the caller
//! reads again and decides anew.

use crate::cluster::watch::WATCH_SECONDS;
use crate::planted::planted;
use crate::telemetry::metrics;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for a connection from which an answer is awaited and nothing comes. A watch that is idle ends before: it lasts
/// [`WATCH_SECONDS`].
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

/// Connects with the given configuration.
pub fn connect(mut config: Config) -> Result<Client, kube::Error> {
    config.default_retry = planted!(RetryInClient);
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // The time that a connection was idle before a request does not count.
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?.with_layer(&CountLayer).build())
}

/// Counts the requests to any other service that acts as an API server.
pub fn counted<S>(service: S) -> Count<S> {
    CountLayer.layer(service)
}

/// Adds [`Count`] to a stack.
#[derive(Clone, Copy, Debug)]
struct CountLayer;

impl<S> Layer<S> for CountLayer {
    type Service = Count<S>;

    fn layer(&self, inner: S) -> Count<S> {
        Count { inner }
    }
}

/// Counts requests by verb, resource and answer.
#[derive(Clone, Debug)]
pub struct Count<S> {
    inner: S,
}

impl<S, B> Service<Request<Body>> for Count<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let resource = resource(request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut counted = Counted { method, resource, code: None };
            let answer = answer.await;
            counted.code = answer.as_ref().ok().map(|r| r.status().as_u16());
            after_write(&counted.method, resource);
            answer
        })
    }
}

/// Counts a call when it is dropped. One that a time limit ended has no code.
struct Counted {
    method: Method,
    resource: &'static str,
    code: Option<u16>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::api_request(&self.method, self.resource, self.code);
    }
}

/// The kinds that have their own label value in metrics; everything else is `other`.
pub(crate) const RESOURCES: [&str; 26] = [
    "workloads",
    "provisioningrequests",
    "admissionchecks",
    "clusterqueues",
    "resourceflavors",
    "nodeclaims",
    "nodepools",
    "nodes",
    "daemonsets",
    "limitranges",
    "runtimeclasses",
    "deviceclasses",
    "resourceclaimtemplates",
    "resourceslices",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "events",
    "leases",
    "provisioningparameters",
    "localqueues",
    "customresourcedefinitions",
    "cohorts",
    "topologies",
    "namespaces",
    "pods",
];

/// The kind in a path, found only by its position: names are chosen by others.
fn resource(path: &str) -> &'static str {
    let mut parts = path.split('/').filter(|p| !p.is_empty()).skip_while(|p| !["api", "apis"].contains(p));
    let before_kind = if parts.next() == Some("apis") { 2 } else { 1 };
    let rest: Vec<&str> = parts.skip(before_kind).collect();
    let kind = match rest.as_slice() {
        ["namespaces", _, kind, ..] | [kind, ..] => *kind,
        [] => "",
    };
    RESOURCES.into_iter().find(|r| *r == kind).unwrap_or("other")
}

#[cfg(not(feature = "fail-points"))]
fn after_write(_: &Method, _: &str) {}

/// Kills the process with SIGKILL right after the write with the number in `SETU_KILL_AFTER_WRITE`: `12`, or `nodeclaims
/// 3` to count only one kind.
#[cfg(feature = "fail-points")]
fn after_write(method: &Method, resource: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static WRITES: AtomicU64 = AtomicU64::new(0);
    static LAST: LazyLock<Option<(Option<String>, u64)>> = LazyLock::new(|| {
        let given = std::env::var("SETU_KILL_AFTER_WRITE").ok()?;
        let (kind, number) =
            given.split_once(' ').map_or((None, &*given), |(kind, n)| (Some(kind.to_owned()), n));
        Some((kind, number.parse().ok()?))
    });
    let Some((kind, last)) = &*LAST else { return };
    if *method == Method::GET || kind.as_ref().is_some_and(|kind| kind != resource) {
        return;
    }
    if WRITES.fetch_add(1, Ordering::SeqCst) + 1 == *last {
        // Nothing may run after this line: no destructor, no flush, no other thread's write.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_counted_by_its_kind_and_never_by_a_name() {
        assert_eq!(resource("/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads/nodes/status"), "workloads");
        assert_eq!(resource("/apis/kueue.x-k8s.io/v1beta2/namespaces/nodes/workloads/x"), "workloads");
        assert_eq!(resource("/api/v1/namespaces/nodes/pods"), "pods");
        assert_eq!(resource("/apis/karpenter.sh/v1/nodeclaims/setu-a-1"), "nodeclaims");
        assert_eq!(resource("/apis/kueue.x-k8s.io/v1beta2/cohorts"), "cohorts");
        assert_eq!(resource("/apis/kueue.x-k8s.io/v1beta2/topologies"), "topologies");
        assert_eq!(resource("/api/v1/namespaces"), "namespaces");
        assert_eq!(resource("/api/v1/namespaces/pods"), "namespaces");
        assert_eq!(resource("/k8s/clusters/nodes/api/v1/namespaces/a/events"), "events");
        for other in ["/apis/example.com/v1/things/x", "/apis/nodes/v1/things", "/apis", "/version", "/"] {
            assert_eq!(resource(other), "other", "{other}");
        }
    }
}
