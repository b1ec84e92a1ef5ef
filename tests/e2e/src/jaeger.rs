//! How Jaeger is started: collector, memory and query in one process, OTLP in, JSON out.

use crate::ports::Ports;
use crate::process::{Launch, Program};

pub(crate) fn launch(ports: Ports) -> Launch {
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
    ];
    Launch::new(Program::Jaeger, arguments)
}

/// OTLP by gRPC, OTLP by HTTP, queries.
pub(crate) fn addresses(ports: Ports) -> [String; 3] {
    let [grpc, http, query, ..] = ports.jaeger;
    [grpc, http, query].map(|port| format!("http://127.0.0.1:{port}"))
}

/// The port on which it says whether it is up.
pub(crate) fn health(ports: Ports) -> u16 {
    let [_, _, _, admin, ..] = ports.jaeger;
    admin
}
