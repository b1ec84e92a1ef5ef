//! Waits with a deadline. Every wait names its condition; on timeout, the error includes the last
//! reason why the condition was not met.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use kube::{Client, Config};
use tokio::time::{Instant, sleep};

const INTERVAL: Duration = Duration::from_millis(100);

/// Tries `attempt` until it succeeds or `limit` has passed.
pub(crate) async fn until<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(reason) if Instant::now() >= deadline => {
                return Err(reason).with_context(|| format!("waited {} s until {what}", limit.as_secs()));
            }
            Err(_) => sleep(INTERVAL).await,
        }
    }
}

/// Succeeds when `server` answers `path` with a success status. Certificates are not verified.
pub(crate) async fn answers(server: &str, path: &str) -> Result<()> {
    let url = format!("{server}{path}");
    let mut config = Config::new(server.parse().with_context(|| format!("reading the address {server}"))?);
    config.accept_invalid_certs = true;
    config.read_timeout = Some(Duration::from_secs(2));
    let client = Client::try_from(config).with_context(|| format!("making a client for {url}"))?;
    let request = Request::get(path).body(Vec::new()).context("making the request")?;
    client.request_text(request).await.with_context(|| format!("asking {url}"))?;
    Ok(())
}
