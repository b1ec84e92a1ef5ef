//! A collector whose certificate was signed by an authority that the system trusts, and that no setting names.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use setu::gang::trace::{Span, Status};
use setu::telemetry::traces::{Settings, start};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Where the process that sends finds the collector, and how it is to speak.
const COLLECTOR: &str = "SETU_TEST_COLLECTOR";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collector").join(name)
}

/// Sends one span, in a process of its own: which authorities the system trusts is said by its environment.
#[tokio::test]
#[ignore = "run by the test below"]
async fn send() {
    // Whoever runs every test that is ignored names none.
    let Ok(collector) = std::env::var(COLLECTOR) else { return };
    let settings = Settings::read(Some(&collector), |name| std::env::var(name).ok()).unwrap().unwrap();
    let (traces, exporting) = start(&settings).unwrap();
    let now = Timestamp::UNIX_EPOCH;
    traces.send(vec![Span {
        trace: [1; 16],
        id: [1; 8],
        parent: None,
        name: "gang",
        start: now,
        end: now,
        attributes: Vec::new(),
        events: Vec::new(),
        links: Vec::new(),
        status: Status::Unset,
        by: "a".to_owned(),
    }]);
    exporting.finish().await;
}

/// Runs [`send`] where the system trusts these authorities.
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

/// Whether whoever sends finishes its handshake with the collector.
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
fn the_authorities_of_the_system_are_trusted_whatever_is_spoken_and_no_others() {
    for protocol in ["grpc", "http/protobuf"] {
        assert!(is_trusted(protocol, &file("certificate.pem")), "{protocol}");
        assert!(!is_trusted(protocol, &file("other.pem")), "{protocol}: nobody signed it");
    }
}

#[test]
fn where_nothing_is_encrypted_no_authority_is_needed() {
    for protocol in ["grpc", "http/protobuf"] {
        // Nobody listens there, which is no reason not to start.
        let ended = sender("http://127.0.0.1:9", protocol, Path::new("/dev/null")).wait().unwrap();
        assert!(ended.success(), "{protocol}");
    }
}
