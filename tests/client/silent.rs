//! A watch whose connection falls silent: the peer sends nothing more and does not close it.

use axum::body::Body;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Json, Response};
use futures::stream;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::Config;
use kube::runtime::watcher;
use serde_json::json;
use setu::cluster::client;
use setu::cluster::watch::watch;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// From when on the peer sends nothing.
#[derive(Clone, Copy, Debug)]
pub enum Silence {
    /// It answers a request for a watch with headers, and no event follows.
    AfterHeaders,
    /// It does not answer a request for a watch.
    AtOnce,
}

/// When watches were opened within this time from the first one. Each of them stays silent.
pub async fn watches(silence: Silence, within: Duration) -> Vec<Duration> {
    let opened: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&opened);
    let silent = axum::Router::new().fallback(move |RawQuery(query): RawQuery| async move {
        if !query.unwrap_or_default().contains("watch=true") {
            return list();
        }
        noted.lock().unwrap().push(Instant::now());
        if let Silence::AtOnce = silence {
            std::future::pending::<()>().await;
        }
        Body::from_stream(stream::pending::<Result<Vec<u8>, Infallible>>()).into_response()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, silent).into_future());
    let connected = client::connect(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let watched = watch::<Node>("nodes", Api::all(connected), watcher::Config::default(), None);
    tokio::time::sleep(within).await;
    server.abort();
    drop(watched);
    let opened = opened.lock().unwrap();
    opened.iter().filter_map(|at| Some(*at - *opened.first()?)).collect()
}

fn list() -> Response {
    let metadata = json!({"resourceVersion": "1"});
    Json(json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": []})).into_response()
}
