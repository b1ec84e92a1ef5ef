//! A collector whose certificate is signed by an authority of the system, which no setting names.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use setu::gang::trace::{SpanStatus, TraceSpan};
use setu::telemetry::traces::{TraceSettings, start};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The environment variable with the collector's address, and the one with its protocol.
const COLLECTOR: &str = "SETU_TEST_COLLECTOR";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collector").join(name)
}

/// Sends one span, in a process of its own: its environment sets the authorities that the system trusts.
#[tokio::test]
#[ignore = "run by the test below"]
async fn send() {
    // The variable is not set when someone runs all ignored tests.
    let Ok(collector) = std::env::var(COLLECTOR) else { return };
    let settings = TraceSettings::read(Some(&collector), |name| std::env::var(name).ok()).unwrap().unwrap();
    let (traces, exporting) = start(&settings).unwrap();
    let now = Timestamp::UNIX_EPOCH;
    traces.send(vec![TraceSpan {
        trace: [1; 16],
        id: [1; 8],
        parent: None,
        name: "gang",
        start: now,
        end: now,
        attributes: Vec::new(),
        events: Vec::new(),
        links: Vec::new(),
        status: SpanStatus::Unset,
        by: "a".to_owned(),
    }]);
    exporting.finish().await;
}

/// Runs [`send`] in a process that trusts these authorities.
fn sender(collector: &str, protocol: &str, authorities: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "send", "--ignored"])
        .env(COLLECTOR, collector)
        .env(PROTOCOL, protocol)
        .env("SSL_CERT_FILE", authorities)
        .env_remove("SSL_CERT_DIR")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Whether the sender finishes its handshake with the collector.
fn is_trusted(protocol: &str, authorities: &Path) -> bool {
    let certificate = CertificateDer::from_pem_file(file("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let mut sender = sender(&url, protocol, authorities);
    let (mut stream, _) = listener.accept().unwrap();
    let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
    let mut trusted = true;
    while trusted && connection.is_handshaking() {
        trusted = connection.complete_io(&mut stream).is_ok();
    }
    drop((stream, listener));
    sender.wait().unwrap();
    trusted
}

#[test]
fn only_the_systems_authorities_are_trusted_with_each_protocol() {
    for protocol in ["grpc", "http/protobuf"] {
        assert!(is_trusted(protocol, &file("certificate.pem")), "{protocol}");
        assert!(!is_trusted(protocol, &file("other.pem")), "{protocol}: nobody signed it");
    }
}

#[test]
fn no_authority_is_needed_without_tls() {
    for protocol in ["grpc", "http/protobuf"] {
        // Nothing listens there, but that does not prevent the start.
        let ended = sender("http://127.0.0.1:9", protocol, Path::new("/dev/null")).wait().unwrap();
        assert!(ended.success(), "{protocol}");
    }
}
