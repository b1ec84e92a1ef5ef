//! Logs: key/value lines as text or JSON, to standard error.

use clap::ValueEnum;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

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

/// Starts logging. Called once.
pub fn init(format: Format, level: &str) -> Result<(), BadLevel> {
    let filter = EnvFilter::try_new(level).map_err(|cause| BadLevel { level: level.to_owned(), cause })?;
    let color = std::io::stderr().is_terminal();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color);
    // A second call, as in tests, keeps the first subscriber.
    let _ = match format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
