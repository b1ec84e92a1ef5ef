//! Setu's own work as traces: each reconcile with what it waited for, from spans of `tracing` with the target [`TARGET`].
//!
//! Whether a trace is kept is decided when its reconcile has ended. Most reconciles are of no interest, so the default keeps none.

use super::export::{Exporting, start_own};
use super::{BadSetting, TraceSettings, metrics};
use crate::gang::TraceContext;
use crate::telemetry::metrics::Unsent;
use clap::ValueEnum;
use opentelemetry::trace::{
    SpanContext, SpanId, Status as OtelStatus, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    TracerProvider as _,
};
use opentelemetry::{Context as OtelContext, InstrumentationScope};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan, SpanData, SpanProcessor};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tracing::Span;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::Registry;

/// The target of all these spans.
pub const TARGET: &str = "setu::work";

/// A reconcile that takes longer counts as slow.
const SLOW: Duration = Duration::from_secs(1);
/// The most reconciles whose spans are kept until they end. More do not run at once.
const MOST_TRACES: usize = 2_000;
/// The most spans of one reconcile. A gang of a thousand nodes has a call for each.
const MOST_SPANS: usize = 2_000;

/// Which traces of its own work Setu sends.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnTraces {
    /// None.
    #[default]
    Off,
    /// Reconciles that failed, or took longer than a second.
    Slow,
    /// All reconciles.
    All,
}

/// The layer that makes spans of `tracing` known to OpenTelemetry.
pub type OwnLayer = OpenTelemetryLayer<Registry, SdkTracer>;

/// Starts to send the traces of this replica's own work; `None` if none are wanted or no collector is configured.
///
/// # Errors
/// A setting that can never work, such as an invalid certificate.
pub fn start(
    keep: OwnTraces,
    settings: Option<&TraceSettings>,
    replica: &str,
) -> Result<Option<(OwnLayer, Exporting)>, BadSetting> {
    let Some(settings) = settings.filter(|_| keep != OwnTraces::Off) else { return Ok(None) };
    let (sender, exporting) = start_own(settings, replica)?;
    let ended = EndedSpans { keep, sender, open: Mutex::default() };
    let provider = SdkTracerProvider::builder().with_span_processor(ended).build();
    let scope = InstrumentationScope::builder("setu").with_version(env!("CARGO_PKG_VERSION")).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer_with_scope(scope))
        .with_location(false)
        .with_threads(false)
        .with_target(false);
    Ok(Some((layer, exporting)))
}

/// Records the id of this span's trace, for log lines. Does nothing while own traces are off.
pub fn identify(span: &Span) {
    if !span.is_disabled() {
        let id = span.context().span().span_context().trace_id();
        span.record("trace_id", id.to_string());
    }
}

/// Links the reconcile that runs to a gang's trace.
pub fn link(gang: &str, trace: &TraceContext) {
    let span = Span::current();
    if span.metadata().is_none_or(|metadata| metadata.target() != TARGET) {
        return;
    }
    let (id, root) = (TraceId::from_bytes(trace.trace), SpanId::from_bytes(trace.root));
    span.add_link(SpanContext::new(id, root, TraceFlags::SAMPLED, true, TraceState::NONE));
    span.set_attribute("setu.gang.id", gang.to_owned());
    span.set_attribute("setu.gang.trace_id", id.to_string());
}

/// Marks a span as failed.
pub fn failed(span: &Span, error: &impl ToString) {
    if !span.is_disabled() {
        span.set_status(OtelStatus::error(error.to_string()));
    }
}

/// Collects the spans of each trace, and sends those of traces that are kept.
#[derive(Debug)]
struct EndedSpans {
    keep: OwnTraces,
    sender: Sender<SpanData>,
    /// Spans of reconciles that run, by trace.
    open: Mutex<HashMap<TraceId, Vec<SpanData>>>,
}

impl EndedSpans {
    /// Adds a span. Returns all spans of its trace if that has ended with it.
    fn collect(&self, span: SpanData) -> Option<Vec<SpanData>> {
        let (trace, is_root) = (span.span_context.trace_id(), span.parent_span_id == SpanId::INVALID);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST_TRACES && !open.contains_key(&trace) {
            let lost: usize = open.drain().map(|(_, spans)| spans.len()).sum();
            metrics::spans_unsent(Unsent::Queue, u64::try_from(lost).unwrap_or(u64::MAX));
        }
        let spans = open.entry(trace).or_default();
        if spans.len() < MOST_SPANS || is_root {
            spans.push(span);
        } else {
            metrics::spans_unsent(Unsent::Queue, 1);
        }
        if is_root { open.remove(&trace) } else { None }
    }

    /// Whether a trace with these spans is sent. The root comes last.
    fn keeps(&self, spans: &[SpanData]) -> bool {
        let took = |span: &SpanData| span.end_time.duration_since(span.start_time).unwrap_or_default();
        let has_failed = |span: &SpanData| matches!(span.status, OtelStatus::Error { .. });
        match self.keep {
            OwnTraces::Off => false,
            OwnTraces::Slow => {
                spans.last().is_some_and(|root| took(root) > SLOW) || spans.iter().any(has_failed)
            }
            OwnTraces::All => true,
        }
    }
}

impl SpanProcessor for EndedSpans {
    fn on_start(&self, _: &mut SdkSpan, _: &OtelContext) {}

    fn on_end(&self, span: SpanData) {
        let Some(spans) = self.collect(span).filter(|spans| self.keeps(spans)) else { return };
        for span in spans {
            if self.sender.try_send(span).is_err() {
                metrics::spans_unsent(Unsent::Queue, 1);
            }
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{Receiver, channel};
    use tracing_subscriber::layer::SubscriberExt as _;

    /// A subscriber that keeps these traces, and what it sends.
    fn subscriber(keep: OwnTraces) -> (impl tracing::Subscriber + Send + Sync, Receiver<SpanData>) {
        let (sender, sent) = channel(100);
        let ended = EndedSpans { keep, sender, open: Mutex::default() };
        let provider = SdkTracerProvider::builder().with_span_processor(ended).build();
        let layer: OwnLayer = tracing_opentelemetry::layer().with_tracer(provider.tracer("setu"));
        (tracing_subscriber::registry().with(layer), sent)
    }

    fn reconcile(fails: bool) {
        let root = tracing::info_span!(target: TARGET, "reconcile", trace_id = tracing::field::Empty);
        identify(&root);
        let _entered = root.enter();
        link("gang", &TraceContext { trace: [7; 16], root: [9; 8] });
        let call = tracing::info_span!(target: TARGET, "call", otel.name = "creating NodeClaim");
        if fails {
            failed(&call, &"the API server refused");
        }
    }

    fn names(sent: &mut Receiver<SpanData>) -> Vec<String> {
        std::iter::from_fn(|| sent.try_recv().ok()).map(|span| span.name.into_owned()).collect()
    }

    #[test]
    fn a_reconcile_is_sent_whole_with_a_link_to_the_trace_of_its_gang() {
        let (subscriber, mut sent) = subscriber(OwnTraces::All);
        tracing::subscriber::with_default(subscriber, || reconcile(false));
        let (call, root) = (sent.try_recv().unwrap(), sent.try_recv().unwrap());
        assert_eq!((call.name.as_ref(), root.name.as_ref()), ("creating NodeClaim", "reconcile"));
        assert_eq!(call.parent_span_id, root.span_context.span_id());
        let linked = &root.links.links[0].span_context;
        assert_eq!(linked.trace_id(), TraceId::from_bytes([7; 16]));
        let gang = root.attributes.iter().find(|pair| pair.key.as_str() == "setu.gang.trace_id").unwrap();
        assert_eq!(gang.value.to_string(), linked.trace_id().to_string());
    }

    #[test]
    fn only_reconciles_that_failed_or_were_slow_are_kept_by_slow() {
        let (subscriber, mut sent) = subscriber(OwnTraces::Slow);
        tracing::subscriber::with_default(subscriber, || {
            reconcile(false);
            assert_eq!(names(&mut sent), Vec::<String>::new());
            reconcile(true);
            assert_eq!(names(&mut sent), ["creating NodeClaim", "reconcile"]);
            let root = tracing::info_span!(target: TARGET, "reconcile");
            std::thread::sleep(SLOW + Duration::from_millis(10));
            drop(root);
            assert_eq!(names(&mut sent), ["reconcile"]);
        });
    }
}
