//! Keeps a replica from writing for a shard that it does not lead: a client that refuses everything except reads unless
//! the replica leads at that moment.
//!
//! Calls under way when leadership ends may finish; the writes themselves are fenced too.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use tower::service_fn;

/// A write was refused.
#[derive(Debug, thiserror::Error)]
#[error("this replica does not lead any more")]
struct NotLeading;

/// A client that writes only while the replica `leads`.
pub fn fenced(client: &Client, leads: impl Fn() -> bool + Send + 'static) -> Client {
    let inner = client.clone();
    let send = move |request: Request<Body>| {
        let (inner, leads) = (inner.clone(), leads());
        async move {
            if *request.method() != Method::GET && !leads {
                return Err(kube::Error::Service(NotLeading.into()));
            }
            inner.send(request).await
        }
    };
    Client::new(service_fn(send), client.default_namespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Workload;
    use crate::cluster::lease::{Leadership, Term};
    use http::Response;
    use kube::Api;
    use kube::api::PostParams;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn only_a_leader_writes_and_everybody_reads() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let server = service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, std::convert::Infallible>(Response::new(Body::empty())) }
        });
        let (sender, leadership) = Leadership::channel(Some(Term {
            number: 1,
            until: Instant::now() + Duration::from_secs(10),
            after: None,
        }));
        let client = fenced(&Client::new(server, "default"), move || leadership.leads());
        let api: Api<Workload> = Api::default_namespaced(client);
        let workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        let write = async || api.create(&PostParams::default(), &workload).await.unwrap_err().to_string();
        // The answers are empty, so what counts is whether a request was made.
        write().await;
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(write().await.contains("does not lead"));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let _ = api.get("w").await;
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        drop(sender);
    }
}
