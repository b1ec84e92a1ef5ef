//! Logs: key/value lines as text or JSON, to standard error.

use super::traces::own::{OwnLayer, TARGET};
use clap::ValueEnum;
use std::io::IsTerminal as _;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
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

/// The default log filter. The client would log each broken connection, and an outage is logged once elsewhere.
pub const DEFAULT: &str =
    "info,kube_runtime=error,kube_client=warn,kube_client::client=error,kube_client::client::builder=off";

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

/// Starts logging, and own traces if there is a layer for them. Called once.
pub fn init(format: Format, level: &str, own: Option<OwnLayer>) -> Result<(), BadLevel> {
    let bad = |cause| BadLevel { level: level.to_owned(), cause };
    let mut filter = EnvFilter::try_new(level).map_err(bad)?;
    if own.is_none() {
        filter = filter.add_directive(format!("{TARGET}=off").parse().map_err(bad)?);
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        Format::Text => lines.with_filter(filter).boxed(),
        Format::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let of_own = Targets::new().with_target(TARGET, LevelFilter::INFO);
    let subscriber = tracing_subscriber::registry().with(own.with_filter(of_own)).with(lines);
    // A second call, as in tests, keeps the first subscriber.
    let _ = subscriber.try_init();
    Ok(())
}
