//! The two HTTP servers: metrics on one address, probes and debug output on the other.
//!
//! Rule: any pod of the cluster may reach them, so a client gets few connections and little time, and what names Workloads is
//! only for clients on the same host. `kubectl port-forward` is one.

use super::AppError;
use super::heartbeat::Heartbeat;
use crate::cluster::lock;
use crate::controllers::Context;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// How long a client may take for the header of a request, and for reading more of an answer.
const STALLED: Duration = Duration::from_secs(30);
/// The most connections of one client address at a time. Further ones are closed.
const CONNECTIONS: usize = 64;
/// How soon the next connection is accepted after that has failed, as when there are no file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

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

/// Serves until `stop`, and then until the requests that have begun are answered.
pub async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let (clients, running) = (Clients::default(), GracefulShutdown::new());
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let Some(place) = clients.enter(address.ip()) else { continue };
        let service = TowerToHyperService::new(routes.clone().layer(Extension(ConnectInfo(address))));
        let connection = http().serve_connection(TokioIo::new(Box::pin(timed(stream))), service).into_owned();
        let connection = running.watch(connection);
        tokio::spawn(async move {
            // It fails when the client goes away or stalls, which is the client's affair.
            let _ = connection.await;
            drop(place);
        });
    }
    running.shutdown().await;
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    http.http1().timer(TokioTimer::new()).header_read_timeout(STALLED);
    http
}

/// A connection that fails if the client does not read for [`STALLED`].
fn timed(stream: TcpStream) -> TimeoutStream<TcpStream> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALLED));
    stream
}

/// How many connections each client address has. Clones share them.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Clients {
    /// A place for another connection of this address; `None` if it has as many as it may have.
    fn enter(&self, address: IpAddr) -> Option<Place> {
        let mut all = lock(&self.0);
        let connections = all.entry(address).or_default();
        if *connections >= CONNECTIONS {
            return None;
        }
        *connections += 1;
        Some(Place { clients: self.clone(), address })
    }
}

/// A connection that counts, until it is dropped.
struct Place {
    clients: Clients,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.clients.0);
        match all.get_mut(&self.address) {
            Some(connections) if *connections > 1 => *connections -= 1,
            _ => drop(all.remove(&self.address)),
        }
    }
}

/// Refuses clients on other hosts.
async fn from_this_host(
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if client.ip().to_canonical().is_loopback() {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "only for clients on this host: use kubectl port-forward\n").into_response()
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

/// `/healthz`.
pub fn liveness(heartbeat: Heartbeat) -> Router {
    let alive = move || {
        let is_alive = heartbeat.is_alive();
        async move {
            if is_alive {
                return (StatusCode::OK, "ok\n");
            }
            tracing::error!("the main loop hangs: this is a bug in Setu, and the kubelet will restart it");
            (StatusCode::SERVICE_UNAVAILABLE, "the main loop hangs\n")
        }
    };
    Router::new().route("/healthz", get(alive))
}

/// `/readyz`, `/debug/gangs` and `/debug/capacity`.
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
        .route("/debug/gangs", get(gangs))
        .route("/debug/capacity", get(capacity))
        .route_layer(middleware::from_fn(from_this_host))
        .route("/readyz", get(ready))
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// More bytes than the system keeps for a client that does not read.
    const MOST_BUFFERED: u64 = 64 << 20;

    /// Serves these routes on a port of its own until the test ends.
    async fn served(routes: Router) -> SocketAddr {
        let listener = bind("a test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, routes, CancellationToken::new()));
        address
    }

    /// Everything that the server sends until it closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        // A reset ends it too.
        let _ = stream.read_to_string(&mut text).await;
        text
    }

    #[tokio::test]
    async fn an_address_has_a_limited_number_of_connections() {
        let address = served(Router::new().route("/", get(|| async { "here" }))).await;
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        let mut one_more = TcpStream::connect(address).await.unwrap();
        assert_eq!(rest(&mut one_more).await, "");
        open.clear();
        let request = b"GET / HTTP/1.1\r\nhost: setu\r\nconnection: close\r\n\r\n";
        let mut answer = String::new();
        while !answer.ends_with("here") {
            let mut again = TcpStream::connect(address).await.unwrap();
            again.write_all(request).await.unwrap();
            answer = rest(&mut again).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_request_is_disconnected() {
        let address = served(Router::new()).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"GET / HT").await.unwrap();
        let began = tokio::time::Instant::now();
        rest(&mut silent).await;
        assert!((STALLED..STALLED * 2).contains(&began.elapsed()), "after {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let zeros = || futures::stream::repeat_with(|| Ok::<_, io::Error>(vec![0_u8; 1 << 16]));
        let endless = move || async move { axum::body::Body::from_stream(zeros()) };
        let address = served(Router::new().route("/", get(endless))).await;
        let mut deaf = TcpStream::connect(address).await.unwrap();
        deaf.write_all(b"GET / HTTP/1.1\r\nhost: setu\r\n\r\n").await.unwrap();
        tokio::time::sleep(STALLED * 2).await;
        let mut sent = Vec::new();
        let _ = deaf.take(MOST_BUFFERED).read_to_end(&mut sent).await;
        assert!(
            sent.starts_with(b"HTTP/1.1 200") && sent.len() > 1 << 16,
            "it was not served: {}",
            sent.len()
        );
        assert!((sent.len() as u64) < MOST_BUFFERED, "it is still served");
    }

    #[tokio::test(start_paused = true)]
    async fn the_liveness_probe_fails_once_the_main_loop_hangs() {
        let routes = liveness(Heartbeat::start());
        let probe = async || {
            let request = Request::get("/healthz").body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(routes.clone(), request).await.unwrap().status()
        };
        assert_eq!(probe().await, StatusCode::OK);
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(probe().await, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn what_names_workloads_is_only_for_clients_on_this_host() {
        let routes = Router::new().route("/", get(|| async { "named" }));
        let routes = routes.route_layer(middleware::from_fn(from_this_host));
        for (client, status) in [
            ("127.0.0.1:1", StatusCode::OK),
            ("[::1]:1", StatusCode::OK),
            ("[::ffff:127.0.0.1]:1", StatusCode::OK),
            ("10.0.0.7:1", StatusCode::FORBIDDEN),
        ] {
            let client: SocketAddr = client.parse().unwrap();
            let routes = routes.clone().layer(Extension(ConnectInfo(client)));
            let request = Request::new(axum::body::Body::empty());
            let answer = tower::ServiceExt::oneshot(routes, request).await.unwrap();
            assert_eq!(answer.status(), status, "{client}");
        }
    }

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
