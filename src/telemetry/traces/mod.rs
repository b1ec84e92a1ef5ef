//! Traces: sends the gangs' spans to a collector that speaks OTLP.
//!
//! Rule: nothing here can hold up or change what the controllers do. The queue is bounded. Spans that do not fit are
//! dropped and counted, and a collector that is down, slow or wrong costs one log line.

mod export;
pub mod own;
mod settings;

pub use export::{Exporting, start};
pub use settings::{BadSetting, TraceSettings, Transport};

use super::metrics::{self, Unsent};
use crate::gang::TraceSpan;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The sender of spans. Cheap to clone; the default drops them.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    /// `None` if spans cannot be exported.
    sender: Option<Sender<TraceSpan>>,
    sampler: Sampler,
    /// Set when dropped spans are logged, until half of the queue is free.
    is_full: AtomicBool,
}

impl Traces {
    /// A sender for at most `capacity` waiting spans, and its receiver.
    pub fn channel(sampler: Sampler, capacity: usize) -> (Self, Receiver<TraceSpan>) {
        let (sender, receiver) = channel(capacity.max(1));
        (Self(Some(Arc::new(Queue::new(Some(sender), sampler)))), receiver)
    }

    /// A sender that counts every span as unsent.
    pub fn lost() -> Self {
        Self(Some(Arc::new(Queue::new(None, Sampler::AlwaysOn))))
    }

    /// Whether traces are configured.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Sends spans without waiting. What does not fit is dropped and counted.
    pub fn send(&self, spans: Vec<TraceSpan>) {
        let Some(queue) = &self.0 else { return };
        for span in spans {
            if !queue.samples(&span) {
                continue;
            }
            match &queue.sender {
                None => metrics::spans_unsent(Unsent::Setting, 1),
                Some(sender) => queue.send(sender, span),
            }
        }
    }
}

impl Queue {
    fn new(sender: Option<Sender<TraceSpan>>, sampler: Sampler) -> Self {
        Self { sender, sampler, is_full: AtomicBool::new(false) }
    }

    fn send(&self, sender: &Sender<TraceSpan>, span: TraceSpan) {
        if sender.try_send(span).is_err() {
            metrics::spans_unsent(Unsent::Queue, 1);
            if !self.is_full.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    room = sender.max_capacity(),
                    "spans come faster than the collector takes them; those without room are dropped"
                );
            }
        } else if 2 * sender.capacity() >= sender.max_capacity() {
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the span's trace is sampled. That depends only on the trace's id, so that all replicas keep the same
    /// traces.
    fn samples(&self, span: &TraceSpan) -> bool {
        let id = TraceId::from_bytes(span.trace);
        let result = self.sampler.should_sample(None, id, span.name, &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use crate::gang::TraceSpan;
    use crate::gang::trace::SpanStatus;

    /// A span of a gang, sent by this replica.
    pub(crate) fn span(by: &str) -> TraceSpan {
        let now = jiff::Timestamp::UNIX_EPOCH;
        TraceSpan {
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
            by: by.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::span;
    use super::*;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dropped_spans_are_counted_and_logged_once_until_there_is_room_again() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let recorder = metrics::recorder().unwrap();
        let logged = || {
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            text.matches("spans come faster than the collector takes them").count()
        };
        tracing::subscriber::with_default(log, || {
            ::metrics::with_local_recorder(&recorder, || {
                let (traces, mut sent) = Traces::channel(Sampler::AlwaysOn, 4);
                let some = |count: usize| vec![span("a"); count];
                traces.send(some(6));
                assert_eq!(logged(), 1);
                // One is taken, so there is room for one more and no further.
                sent.try_recv().unwrap();
                traces.send(some(3));
                assert_eq!(logged(), 1);
                while sent.try_recv().is_ok() {}
                traces.send(some(6));
                assert_eq!(logged(), 2);
            });
        });
        let page = recorder.handle().render();
        assert!(page.contains("setu_trace_export_failures_total{reason=\"queue_full\"} 6"), "{page}");
    }
}
