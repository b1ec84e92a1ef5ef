//! An API server that lacks a kind which Setu can do without, in the embedded cluster and virtual time.

use crate::world;
use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use setu::app::server;
use setu::sim::cluster::Start;
use setu_sim::denials::Denial;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

#[tokio::test(start_paused = true)]
async fn readyz_and_one_log_line_say_what_is_not_done_where_device_classes_are_not_served() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
    // With a single subscriber in the process, a callsite first hit on another thread would be disabled permanently.
    let _another = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(log.with_writer(file.reopen().unwrap()).finish());
    let (mut cluster, _) = world::cluster("unserved", world::policy(""));
    cluster.denials.begin(Denial::NoDeviceClasses);
    let setu = cluster.start_setu(&Start::default());
    // It asks again every ten minutes.
    tokio::time::sleep(Duration::from_mins(25)).await;
    let routes = server::health(Arc::clone(&setu.context), CancellationToken::new());
    let answer = routes.oneshot(Request::get("/readyz").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let said = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let said = str::from_utf8(&said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [ok, limitation] = lines[..] else { panic!("{said}") };
    assert!(ok == "ok" && limitation.starts_with("pods with ResourceClaims are refused, because"), "{said}");
    let logged = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(logged.matches(limitation).count(), 1, "{logged}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_served_again_is_soon_listed_again() {
    let (mut cluster, _) = world::cluster("served-again", world::policy(""));
    let setu = cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(10)).await;
    // Its CRD is deleted, and installed again two minutes later.
    cluster.denials.begin(Denial::NoDeviceClasses);
    cluster.server.cut_watches(None);
    tokio::time::sleep(Duration::from_mins(2)).await;
    cluster.denials.end();
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    setu.wire.on_request(Arc::new(move |asked| {
        if asked.uri().path().ends_with("/deviceclasses") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_ne!(lists.load(Ordering::Relaxed), 0);
}
