//! Traces: the gangs' spans, on their way to a collector that speaks OTLP.
//!
//! Rule: nothing here can hold up or change what the controllers do. The queue is bounded, what does not
//! fit is dropped and counted, and a collector that is down, slow or wrong costs one log line.

mod export;
mod settings;

pub use export::{Exporting, start};
pub use settings::{BadSetting, Settings, Transport};

use super::metrics::{self, Unsent};
use crate::gang::Span;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _};
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Where spans go. Cheap to clone; the default leads nowhere.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    /// `None` where nobody can take them.
    sender: Option<Sender<Span>>,
    sampler: Sampler,
}

impl Traces {
    /// A way for at most `capacity` spans that wait, and its other end.
    pub fn channel(sampler: Sampler, capacity: usize) -> (Self, Receiver<Span>) {
        let (sender, receiver) = channel(capacity.max(1));
        (Self(Some(Arc::new(Queue { sender: Some(sender), sampler }))), receiver)
    }

    /// No way: every span counts as unsent.
    pub fn lost() -> Self {
        Self(Some(Arc::new(Queue { sender: None, sampler: Sampler::AlwaysOn })))
    }

    /// Whether spans lead anywhere.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Sends spans on their way, and never waits: what does not fit is dropped and counted.
    pub fn send(&self, spans: Vec<Span>) {
        let Some(queue) = &self.0 else { return };
        for span in spans {
            if !queue.takes(&span) {
                continue;
            }
            match &queue.sender {
                None => metrics::spans_unsent(Unsent::Setting, 1),
                Some(sender) if sender.try_send(span).is_err() => metrics::spans_unsent(Unsent::Queue, 1),
                Some(_) => {}
            }
        }
    }
}

impl Queue {
    /// Whether the span's trace is sampled. That depends on the trace's id alone, so that all replicas
    /// keep the same traces.
    fn takes(&self, span: &Span) -> bool {
        let id = TraceId::from_bytes(span.trace);
        let result = self.sampler.should_sample(None, id, span.name, &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use crate::gang::Span;
    use crate::gang::trace::Status;

    /// A span of a gang, sent by this replica.
    pub(crate) fn span(by: &str) -> Span {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Span {
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
            by: by.to_owned(),
        }
    }
}
