//! The two small HTTP servers: metrics on one address, probes and debug output on the other.

use super::AppError;
use crate::controllers::Context;
use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Takes the address, or says who is to change what.
pub async fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|e| {
        AppError::Invalid(format!("cannot listen on {address} for {what}: {e}; choose another address"))
    })
}

/// Serves until told to stop.
pub async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) {
    if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::error!(error = %error, "an HTTP server ended");
    }
}

/// `/metrics`.
pub fn metrics(handle: PrometheusHandle) -> Router {
    let render = move || {
        let handle = handle.clone();
        async move {
            handle.run_upkeep();
            handle.render()
        }
    };
    Router::new().route("/metrics", get(render))
}

/// `/healthz`, `/readyz`, `/debug/gangs` and `/debug/capacity`.
pub fn health(context: Arc<Context>, stop: CancellationToken) -> Router {
    let for_ready = Arc::clone(&context);
    let ready = move || {
        let (context, stopping) = (Arc::clone(&for_ready), stop.is_cancelled());
        async move {
            if stopping {
                return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
            }
            let closed = context.gates.closed();
            if closed.is_empty() {
                return (StatusCode::OK, "ok\n".to_owned());
            }
            let lines: Vec<String> = closed.iter().map(|(kind, why)| format!("{kind}: {why}\n")).collect();
            (StatusCode::SERVICE_UNAVAILABLE, lines.concat())
        }
    };
    let for_capacity = Arc::clone(&context);
    let capacity = move || {
        let context = Arc::clone(&for_capacity);
        async move { Json(context.capacity()) }
    };
    let gangs = move || {
        let context = Arc::clone(&context);
        async move {
            let noted = context.board().gangs();
            Json(noted.values().map(|noted| Arc::clone(&noted.entry)).collect::<Vec<_>>())
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/debug/gangs", get(gangs))
        .route("/debug/capacity", get(capacity))
}
