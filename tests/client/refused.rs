//! A write that the API server refuses temporarily, over a real connection.

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::{Config, Error};
use setu::cluster::client;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

/// Creates an object and gets 503 first. Returns the number of requests, and the status that the caller gets.
/// A second request would get 404, which is never retried, so the call ends either way.
pub async fn create() -> (usize, u16) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let refusing = axum::Router::new().fallback(move || async move {
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::NOT_FOUND,
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, refusing).into_future());
    let connected = client::connect(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let maps = Api::<ConfigMap>::namespaced(connected, "n");
    let status = match maps.create(&PostParams::default(), &ConfigMap::default()).await {
        Err(Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    };
    server.abort();
    (count.load(Ordering::SeqCst), status)
}
