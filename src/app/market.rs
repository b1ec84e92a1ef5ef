//! Reads Karpenter's own metrics page, each minute: which offerings it holds for out of capacity, and what they cost.
//!
//! Rule: a page that cannot be read changes nothing but a metric and one log line; what was read before holds for a few
//! minutes more.

use crate::cluster::page::Page;
use crate::controllers::Context;
use crate::plan::market::Market;
use crate::telemetry::metrics;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// As often as Karpenter sets these metrics anew.
pub const PERIOD: Duration = Duration::from_mins(1);

/// What the page says now, or why nobody knows.
pub async fn read(page: &Page, now: Timestamp) -> Result<Market, String> {
    let text = page.read().await.map_err(|e| e.to_string())?;
    Market::read(&text, now).map_err(|e| e.to_string())
}

/// Reads the page for a controller.
pub struct Follower {
    page: Page,
    context: Arc<Context>,
    /// Whether the page could be read last.
    readable: Option<bool>,
    /// Whether prices on it were absurd when it was read last.
    doubted: bool,
}

impl Follower {
    /// Nothing is read yet.
    pub fn new(page: Page, context: Arc<Context>) -> Self {
        Self { page, context, readable: None, doubted: false }
    }

    /// Reads the page each minute until the process ends.
    pub async fn follow(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.read().await;
        }
    }

    /// Reads the page once.
    pub async fn read(&mut self) {
        let market = read(&self.page, self.context.now()).await;
        metrics::karpenter_page(market.is_ok());
        match market {
            Ok(market) => {
                if self.readable.replace(true) != Some(true) {
                    tracing::info!("Karpenter's metrics are read");
                }
                self.warn_of_absurd_prices(&market);
                self.context.take_market(market);
            }
            Err(error) => {
                if self.readable.replace(false) != Some(false) {
                    tracing::warn!(
                        error,
                        "cannot read Karpenter's metrics; prices and availability come from elsewhere"
                    );
                }
            }
        }
    }

    /// Logs that prices are absurd, once while some are.
    fn warn_of_absurd_prices(&mut self, market: &Market) {
        let doubt = market.doubt();
        let was_doubted = std::mem::replace(&mut self.doubted, doubt.is_some());
        if let Some(doubt) = doubt.filter(|_| !was_doubted) {
            tracing::warn!(doubt, "prices of Karpenter's metrics come from elsewhere where they are absurd");
        }
    }
}
