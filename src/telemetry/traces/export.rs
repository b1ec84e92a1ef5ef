//! Takes spans out of the queue and sends them to the collector in batches.
//!
//! A span is exported under the replica whose work it was, also if another replica sends it again. A collector then sees
//! the same span twice, resource and all, and keeps one.

use super::settings::{BadSetting, TraceSettings, Transport};
use super::{Traces, metrics};
use crate::gang::trace::{AttributeValue, SpanStatus, TraceSpan};
use crate::telemetry::metrics::Unsent;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status as OtelStatus, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{
    SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the shutdown waits for spans that are not sent yet.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// The running export.
#[derive(Debug)]
pub struct Exporting {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Exporting {
    /// Sends waiting spans, for a few seconds at most, and ends the export.
    pub async fn finish(self) {
        self.stop.cancel();
        if tokio::time::timeout(FLUSH_LIMIT, self.task).await.is_err() {
            tracing::warn!("the last spans did not reach the collector in time");
        }
    }
}

/// Starts the export. An unreachable collector is not an error.
///
/// # Errors
/// A setting that can never work, such as an invalid certificate.
pub fn start(settings: &TraceSettings) -> Result<(Traces, Exporting), BadSetting> {
    let (traces, queue) = Traces::channel(settings.sampler.clone(), settings.queue);
    Ok((traces, export(settings, queue, of_gang)?))
}

/// Starts the export of the spans of this replica's own work.
pub(super) fn start_own(
    settings: &TraceSettings,
    replica: &str,
) -> Result<(Sender<SpanData>, Exporting), BadSetting> {
    let (sender, queue) = channel(settings.queue.max(1));
    let replica = replica.to_owned();
    Ok((sender, export(settings, queue, move |span| (replica.clone(), span))?))
}

/// Exports what is queued. `convert` gives the replica of a span, and the span for the exporter.
fn export<S: Send + 'static>(
    settings: &TraceSettings,
    queue: Receiver<S>,
    convert: impl Fn(S) -> (String, SpanData) + Send + Sync + 'static,
) -> Result<Exporting, BadSetting> {
    let exporter = exporter(settings)?;
    let stop = CancellationToken::new();
    let courier = Courier { exporter, settings: settings.clone(), failing: false };
    let task = tokio::spawn(courier.work(queue, stop.clone(), convert));
    Ok(Exporting { task, stop })
}

fn exporter(settings: &TraceSettings) -> Result<Otlp, BadSetting> {
    let endpoint = settings.endpoint.as_deref().unwrap_or_default();
    let refused =
        |e: &dyn Display| BadSetting::new("the OTLP endpoint", endpoint, format!("cannot be used: {e}"));
    match settings.transport {
        Transport::Grpc => {
            let mut builder = Otlp::builder().with_tonic();
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            // By default, the exporter trusts no authority.
            if settings.tls || settings.authorities.is_some() || settings.identity.is_some() {
                builder = builder.with_tls_config(grpc_tls(settings)?);
            }
            builder.build().map_err(|e| refused(&e))
        }
        Transport::Http => {
            let https = HttpsConnectorBuilder::new().with_tls_config(http_tls(settings)?);
            let connector = https.https_or_http().enable_http1().build();
            let client = HyperClient::new(connector, settings.limit, None);
            let mut builder = Otlp::builder().with_http().with_http_client(client);
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder.build().map_err(|e| refused(&e))
        }
    }
}

fn file(path: &Path) -> Result<Vec<u8>, BadSetting> {
    std::fs::read(path)
        .map_err(|e| BadSetting::new("the file", &path.display().to_string(), format!("cannot be read: {e}")))
}

fn grpc_tls(settings: &TraceSettings) -> Result<ClientTlsConfig, BadSetting> {
    let mut tls = ClientTlsConfig::new();
    if let Some(path) = &settings.authorities {
        tls = tls.ca_certificate(Certificate::from_pem(file(path)?));
    } else {
        tls = tls.with_native_roots();
    }
    if let Some((certificate, key)) = &settings.identity {
        tls = tls.identity(Identity::from_pem(file(certificate)?, file(key)?));
    }
    Ok(tls)
}

fn http_tls(settings: &TraceSettings) -> Result<rustls::ClientConfig, BadSetting> {
    use hyper_rustls::ConfigBuilderExt as _;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let bad = |path: &Path, e: &dyn Display| {
        BadSetting::new(
            "the file",
            &path.display().to_string(),
            format!("is not a PEM that can be used: {e}"),
        )
    };
    let certificates = |path: &Path| {
        let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        all.map_err(|e| bad(path, &e))
    };
    let builder = rustls::ClientConfig::builder();
    let builder = match &settings.authorities {
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| bad(path, &e))?;
            }
            builder.with_root_certificates(roots)
        }
        None if settings.tls => builder
            .with_native_roots()
            .map_err(|e| BadSetting::new("the system's", "certificates", format!("cannot be read: {e}")))?,
        // Without TLS no authority is needed, and an image may have none.
        None => builder.with_root_certificates(rustls::RootCertStore::empty()),
    };
    match &settings.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let own = PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, &e))?;
            builder.with_client_auth_cert(certificates(certificate)?, own).map_err(|e| bad(certificate, &e))
        }
    }
}

/// Sends batches to the collector.
struct Courier<E> {
    exporter: E,
    settings: TraceSettings,
    /// Whether the last export failed, so that only a change is logged.
    failing: bool,
}

impl<E: SpanExporter> Courier<E> {
    /// Works until it is stopped, then sends what still waits.
    async fn work<S>(
        mut self,
        mut queue: Receiver<S>,
        stop: CancellationToken,
        convert: impl Fn(S) -> (String, SpanData),
    ) {
        let mut batch = Vec::new();
        loop {
            let stopped = tokio::select! {
                biased;
                () = gather(&mut queue, &mut batch, &self.settings) => false,
                () = stop.cancelled() => true,
            };
            if stopped {
                queue.close();
                while let Some(span) = queue.recv().await {
                    batch.push(span);
                }
            }
            let ended = stopped || (batch.is_empty() && queue.is_closed());
            while !batch.is_empty() {
                let rest = batch.split_off(self.settings.batch.min(batch.len()));
                let batch = std::mem::replace(&mut batch, rest);
                self.deliver(batch.into_iter().map(&convert)).await;
            }
            if ended {
                return;
            }
        }
    }

    async fn deliver(&mut self, spans: impl Iterator<Item = (String, SpanData)>) {
        let mut by_replica: BTreeMap<String, Vec<SpanData>> = BTreeMap::new();
        for (replica, span) in spans {
            by_replica.entry(replica).or_default().push(span);
        }
        for (replica, spans) in by_replica {
            let count = spans.len();
            self.exporter.set_resource(&resource(&replica));
            let answer = tokio::time::timeout(self.settings.limit, self.exporter.export(spans)).await;
            let error = match answer {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {:?}", self.settings.limit)),
            };
            self.note(error, count);
        }
    }

    fn note(&mut self, error: Option<String>, spans: usize) {
        match error {
            Some(error) => {
                metrics::spans_unsent(Unsent::Export, u64::try_from(spans).unwrap_or(u64::MAX));
                if !self.failing {
                    tracing::warn!(
                        error,
                        "spans do not reach the collector; they are dropped until they do again"
                    );
                }
                self.failing = true;
            }
            None if self.failing => {
                tracing::info!("spans reach the collector again");
                self.failing = false;
            }
            None => {}
        }
    }
}

/// Waits for a span, and then a little for others to join it.
async fn gather<S>(queue: &mut Receiver<S>, batch: &mut Vec<S>, settings: &TraceSettings) {
    if queue.recv_many(batch, settings.batch).await == 0 {
        return;
    }
    let more = async {
        while batch.len() < settings.batch {
            let room = settings.batch.saturating_sub(batch.len());
            if queue.recv_many(batch, room).await == 0 {
                return;
            }
        }
    };
    // When the wait is over, what is there is sent.
    let _ = tokio::time::timeout(settings.delay, more).await;
}

/// The attributes of a replica for the collector.
fn resource(replica: &str) -> Resource {
    let unnamed = Resource::builder().build();
    let name = unnamed.get(&Key::from_static_str("service.name")).map(|n| n.to_string()).unwrap_or_default();
    let builder = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", replica.to_owned()),
    ]);
    // The SDK's default for a service without a name.
    if name.starts_with("unknown_service") {
        builder.with_service_name("setu").build()
    } else {
        builder.build()
    }
}

/// The replica of a gang's span, and the span for the exporter.
fn of_gang(span: TraceSpan) -> (String, SpanData) {
    (span.by.clone(), convert(span))
}

fn convert(span: TraceSpan) -> SpanData {
    let context = |trace, id| {
        let (trace, id) = (TraceId::from_bytes(trace), SpanId::from_bytes(id));
        SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE)
    };
    let attributes = |all: Vec<(&'static str, AttributeValue)>| -> Vec<KeyValue> {
        let pair = |(key, value)| match value {
            AttributeValue::Text(text) => KeyValue::new(key, text),
            AttributeValue::Number(number) => KeyValue::new(key, number),
        };
        all.into_iter().map(pair).collect()
    };
    let mut events = SpanEvents::default();
    events.events = span
        .events
        .into_iter()
        .map(|moment| Event::new(moment.name, SystemTime::from(moment.at), attributes(moment.attributes), 0))
        .collect();
    let mut links = SpanLinks::default();
    links.links = span.links.iter().map(|l| Link::new(context(l.trace, l.root), Vec::new(), 0)).collect();
    SpanData {
        span_context: context(span.trace, span.id),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: span.start.into(),
        end_time: span.end.into(),
        attributes: attributes(span.attributes),
        dropped_attributes_count: 0,
        events,
        links,
        status: match span.status {
            SpanStatus::Unset => OtelStatus::Unset,
            SpanStatus::Good => OtelStatus::Ok,
            SpanStatus::Failed(why) => OtelStatus::error(why),
        },
        instrumentation_scope: InstrumentationScope::builder("setu")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::traces::fixtures::span;
    use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
    use opentelemetry_sdk::trace::Sampler;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    /// A collector that accepts, refuses, or never answers.
    #[derive(Debug, Clone, Default)]
    struct Collector {
        mood: Arc<AtomicUsize>,
        took: Arc<Mutex<Vec<(String, usize)>>>,
        replica: String,
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            match self.mood.load(Ordering::SeqCst) {
                0 => self.took.lock().unwrap().push((self.replica.clone(), batch.len())),
                1 => return Err(OTelSdkError::InternalFailure("refused".into())),
                _ => std::future::pending().await,
            }
            Ok(())
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.replica = resource.get(&Key::new("service.instance.id")).unwrap().to_string();
        }
    }

    fn settings() -> TraceSettings {
        let env = |name: &str| (name == "OTEL_BSP_MAX_QUEUE_SIZE").then(|| "4".to_owned());
        TraceSettings::read(Some("http://127.0.0.1:4317"), env).unwrap().unwrap()
    }

    fn begin(collector: &Collector) -> (Traces, Exporting) {
        let (traces, queue) = Traces::channel(Sampler::AlwaysOn, settings().queue);
        let stop = CancellationToken::new();
        let courier = Courier { exporter: collector.clone(), settings: settings(), failing: false };
        let task = tokio::spawn(courier.work(queue, stop.clone(), of_gang));
        (traces, Exporting { task, stop })
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_spans_are_sent_at_the_end_under_their_own_replica() {
        let collector = Collector::default();
        let (traces, exporting) = begin(&collector);
        traces.send(vec![span("b"), span("a"), span("b")]);
        exporting.finish().await;
        assert_eq!(*collector.took.lock().unwrap(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_never_answers_blocks_neither_senders_nor_shutdown() {
        let collector = Collector::default();
        collector.mood.store(2, Ordering::SeqCst);
        let (traces, exporting) = begin(&collector);
        let started = tokio::time::Instant::now();
        // More than the queue holds; sending does not wait.
        traces.send((0..100).map(|_| span("a")).collect());
        assert_eq!(started.elapsed(), Duration::ZERO);
        exporting.finish().await;
        assert!(started.elapsed() <= FLUSH_LIMIT, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_the_next_spans_are_sent() {
        let collector = Collector::default();
        collector.mood.store(1, Ordering::SeqCst);
        let (traces, exporting) = begin(&collector);
        traces.send(vec![span("a")]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        collector.mood.store(0, Ordering::SeqCst);
        traces.send(vec![span("b")]);
        exporting.finish().await;
        assert_eq!(*collector.took.lock().unwrap(), [("b".to_owned(), 1)]);
    }

    #[tokio::test]
    async fn an_invalid_certificate_is_refused_at_the_start_with_its_file_name() {
        let folder = std::env::temp_dir();
        let none = folder.join("setu-no-such-file.pem");
        let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        for url in ["https://127.0.0.1:4317", "https://127.0.0.1:4318"] {
            assert!(start(&TraceSettings::read(Some(url), |_| None).unwrap().unwrap()).is_ok());
            let mut settings = TraceSettings::read(Some(url), |_| None).unwrap().unwrap();
            settings.authorities = Some(none.clone());
            let error = start(&settings).unwrap_err().to_string();
            assert!(error.contains("setu-no-such-file.pem"), "{error}");
            settings.authorities = None;
            settings.identity = Some((broken.clone(), broken.clone()));
            let error = start(&settings).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("cannot be used") || error.contains("not a PEM"), "{error}");
        }
    }

    #[test]
    fn all_spans_of_a_trace_are_kept_or_none() {
        let (traces, mut queue) = Traces::channel(Sampler::TraceIdRatioBased(0.5), 1_000);
        for trace in 0..100_u8 {
            let of = |id: u8| TraceSpan { trace: [trace.wrapping_mul(37); 16], id: [id; 8], ..span("a") };
            traces.send(vec![of(1), of(2), of(3)]);
        }
        let mut kept: BTreeMap<[u8; 16], usize> = BTreeMap::new();
        while let Ok(span) = queue.try_recv() {
            *kept.entry(span.trace).or_default() += 1;
        }
        assert!(kept.values().all(|spans| *spans == 3));
        assert!((20..80).contains(&kept.len()), "{}", kept.len());
    }
}
