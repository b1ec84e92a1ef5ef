//! Starts Jaeger with collector, in-memory storage and query in one process: OTLP in, JSON out. It accepts
//! plaintext gRPC, and HTTP over TLS with the API server's certificate.

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};

pub(crate) fn launch(identity: &Identity, ports: Ports) -> ProgramCommand {
    let [grpc, http, query, admin, others @ ..] = ports.jaeger;
    let [query_grpc, collector_grpc, collector_http] = others;
    let address = |flag: &str, port: u16| format!("--{flag}.host-port=127.0.0.1:{port}");
    let arguments = [
        address("collector.otlp.grpc", grpc),
        address("collector.otlp.http", http),
        address("query.http-server", query),
        address("admin.http", admin),
        address("query.grpc-server", query_grpc),
        address("collector.grpc-server", collector_grpc),
        address("collector.http-server", collector_http),
        "--collector.otlp.http.tls.enabled".to_owned(),
        format!("--collector.otlp.http.tls.cert={}", identity.certificate().display()),
        format!("--collector.otlp.http.tls.key={}", identity.certificates.join("apiserver.key").display()),
    ];
    ProgramCommand::new(Program::Jaeger, arguments)
}

/// The addresses for OTLP over gRPC, OTLP over HTTPS, and queries.
pub(crate) fn addresses(ports: Ports) -> [String; 3] {
    let [grpc, http, query, ..] = ports.jaeger;
    [("http", grpc), ("https", http), ("http", query)]
        .map(|(scheme, port)| format!("{scheme}://127.0.0.1:{port}"))
}

/// The port of the health check.
pub(crate) fn health(ports: Ports) -> u16 {
    let [_, _, _, admin, ..] = ports.jaeger;
    admin
}
