//! The two HTTP servers: metrics on one address, probes and debug output on the other.

use super::AppError;
use crate::controllers::Context;
use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Binds the address, or says who has to change what. `[::]` means every address, including those of IPv4.
pub async fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, AppError> {
    let bound = match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(instead) => TcpListener::bind(instead).await,
            None => Err(error),
        },
        bound => bound,
    };
    bound.map_err(|e| {
        AppError::Invalid(format!("cannot listen on {address} for {what}: {e}; choose another address"))
    })
}

/// The address that means every address on a machine without IPv6; `None` if the error has another cause.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // The error for a missing address family differs between systems, and has no name in the standard library.
    let other = matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
    (address.ip() == Ipv6Addr::UNSPECIFIED && !other)
        .then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

/// Serves until `stop`.
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
            let missing = context.first_lists.missing();
            if missing.is_empty() {
                return (StatusCode::OK, ok(&context));
            }
            let lines: Vec<String> = missing.iter().map(|(kind, why)| format!("{kind}: {why}\n")).collect();
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

/// That all is well, and what the controller does not do in this cluster.
fn ok(context: &Context) -> String {
    let mut lines = vec!["ok"];
    lines.extend(context.first_lists.limitations());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn the_unspecified_address_serves_ipv4_and_ipv6() {
        let listener = bind("a test", "[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
        let taken = bind("a test", SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).await.unwrap_err();
        assert!(taken.to_string().contains("choose another address"), "{taken}");
    }

    #[test]
    fn only_a_machine_without_ipv6_falls_back_to_ipv4() {
        let every: SocketAddr = "[::]:8080".parse().unwrap();
        let instead = |address, error: io::Error| without_ipv6(address, &error).map(|a| a.to_string());
        // EAFNOSUPPORT on Linux.
        for missing in [io::Error::from_raw_os_error(97), io::ErrorKind::AddrNotAvailable.into()] {
            assert_eq!(instead(every, missing).as_deref(), Some("0.0.0.0:8080"));
        }
        for other in [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied] {
            assert_eq!(instead(every, other.into()), None);
        }
        let named = "[::1]:8080".parse().unwrap();
        assert_eq!(instead(named, io::ErrorKind::AddrNotAvailable.into()), None);
    }
}
