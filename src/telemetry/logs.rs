//! Logs: key/value lines as text or JSON, to standard error.

use super::traces::own::{OwnLayer, TARGET};
use clap::ValueEnum;
use std::io::IsTerminal as _;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How a log line is written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter that others replace only by naming the same targets. The client would log each broken connection, and an outage is
/// logged once elsewhere.
const BASE: &str =
    "error,kube_runtime=error,kube_client=warn,kube_client::client=error,kube_client::client::builder=off";

/// A level or filter that is not understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "--log-level {level:?} is not understood: {cause}; use error, warn, info, debug, trace or a filter such as setu=debug"
)]
pub struct BadLevel {
    level: String,
    #[source]
    cause: tracing_subscriber::filter::ParseError,
}

fn filter(level: &str, has_own_traces: bool) -> Result<EnvFilter, BadLevel> {
    let read =
        |text: String| EnvFilter::try_new(text).map_err(|cause| BadLevel { level: level.to_owned(), cause });
    let is_quiet = read(level.to_owned())?.max_level_hint().is_some_and(|most| most <= LevelFilter::ERROR);
    let base = if is_quiet { String::new() } else { format!("{BASE},") };
    let own = if has_own_traces { String::new() } else { format!(",{TARGET}=off") };
    read(format!("{base}{level}{own}"))
}

/// Starts logging, and own traces if there is a layer for them. Called once.
pub fn init(format: Format, level: &str, own: Option<OwnLayer>) -> Result<(), BadLevel> {
    let filter = filter(level, own.is_some())?;
    let of_own = Targets::new().with_target(TARGET, LevelFilter::INFO);
    let registry = tracing_subscriber::registry();
    // A second call, as in tests, keeps the first subscriber. An absent layer would keep its spans enabled.
    let _ = match own {
        Some(own) => registry.with(own.with_filter(of_own)).with(lines(format, filter)).try_init(),
        None => registry.with(lines(format, filter)).try_init(),
    };
    Ok(())
}

/// The layer that writes lines.
fn lines<S>(format: Format, filter: EnvFilter) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        Format::Text => lines.with_filter(filter).boxed(),
        Format::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_replaces_only_what_it_names() {
        let shown = |level: &str| filter(level, true).unwrap().to_string();
        let has = |filter: &str, directive: &str| filter.split(',').any(|part| part == directive);
        let debug = shown("debug");
        assert!(has(&debug, "debug") && has(&debug, "kube_client=warn"), "{debug}");
        let named = shown("info,kube_client=trace");
        assert!(has(&named, "kube_client=trace") && !has(&named, "kube_client=warn"), "{named}");
        assert!(!has(&debug, "error"), "{debug}");
        for quiet in ["", "error", "off"] {
            assert!(!has(&shown(quiet), "kube_client=warn"), "{quiet}");
        }
        assert_eq!(filter("what=ever=this", true).unwrap_err().level, "what=ever=this");
    }
}
