//! Reads Karpenter's own metrics page, each minute: which offerings Karpenter considers out of capacity, and what they
//! cost.
//!
//! Rule: a page that cannot be read changes only a metric and one log line. The last page stays valid for a few more
//! minutes.

use crate::cluster::page::Page;
use crate::controllers::Context;
use crate::plan::market::Market;
use crate::telemetry::metrics;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// As often as Karpenter updates these metrics.
pub const PERIOD: Duration = Duration::from_mins(1);

/// The page as it is now, or why it cannot be read.
pub async fn read(page: &Page, now: Timestamp) -> Result<Market, String> {
    let text = page.read().await.map_err(|e| e.to_string())?;
    Market::read(&text, now).map_err(|e| e.to_string())
}

/// Reads the page for a controller.
pub struct Follower {
    page: Page,
    context: Arc<Context>,
    /// Whether the last read succeeded.
    readable: Option<bool>,
    /// Whether the last page had absurd prices.
    doubted: bool,
}

impl Follower {
    /// A follower that has read nothing yet.
    pub fn new(page: Page, context: Arc<Context>) -> Self {
        Self { page, context, readable: None, doubted: false }
    }

    /// Reads the page each minute until `stop`.
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

    /// Logs absurd prices, once while there are any.
    fn warn_of_absurd_prices(&mut self, market: &Market) {
        let doubt = market.price_warning();
        let was_doubted = std::mem::replace(&mut self.doubted, doubt.is_some());
        if let Some(doubt) = doubt.filter(|_| !was_doubted) {
            tracing::warn!(doubt, "prices of Karpenter's metrics come from elsewhere where they are absurd");
        }
    }
}
