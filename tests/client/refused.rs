//! A write that the API server does not take for now, over a real connection.

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::{Config, Error};
use setu::cluster::client;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

/// How many requests one create makes of which the first is answered 503, and the status that its caller is told.
/// A second request is answered 404, which nobody repeats, so that the call ends either way.
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
    let told = match maps.create(&PostParams::default(), &ConfigMap::default()).await {
        Err(Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    };
    server.abort();
    (count.load(Ordering::SeqCst), told)
}
