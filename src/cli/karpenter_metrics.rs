//! `--karpenter-metrics`, a flag of every command that plans or shows the cost of nodes.

use super::{CliError, render};
use crate::app::market;
use crate::cluster::page::Page;
use crate::plan::market::Market;
use jiff::Timestamp;

/// Where Karpenter says what its offerings cost, and which are out of capacity.
#[derive(clap::Args, Debug)]
#[allow(rustdoc::bare_urls, reason = "the text is also the flag's help")]
pub struct KarpenterMetrics {
    /// Karpenter's metrics page, such as http://karpenter.kube-system:8080/metrics: Setu uses its prices, and does not
    /// request what it reports as unavailable.
    #[arg(long = "karpenter-metrics", env = "SETU_KARPENTER_METRICS", value_name = "URL")]
    url: Option<String>,
}

impl KarpenterMetrics {
    /// The metrics page, if one is named.
    pub fn page(&self) -> Result<Option<Page>, CliError> {
        let page = |url: &String| {
            Page::at(url).map_err(|e| {
                CliError::Invalid(format!(
                    "--karpenter-metrics {url:?} cannot be used: {e}; write http://SERVICE.NAMESPACE:PORT/metrics"
                ))
            })
        };
        self.url.as_ref().filter(|url| !url.is_empty()).map(page).transpose()
    }

    /// Reads the page, if one is named. Warns if it cannot be read or if its prices are absurd.
    pub async fn market(&self) -> Result<Option<Market>, CliError> {
        let Some(page) = self.page()? else { return Ok(None) };
        let url = self.url.as_deref().unwrap_or_default();
        let market = market::read(&page, Timestamp::now()).await;
        let unread = |e: &String| {
            render::remark(&format!(
                "reading Karpenter's metrics at {url}: {e}; prices and availability come from elsewhere"
            ));
        };
        let doubted = |market: &Market| {
            if let Some(doubt) = market.price_warning() {
                render::remark(&format!(
                    "Karpenter's metrics at {url}: {doubt}; prices come from elsewhere there"
                ));
            }
        };
        Ok(market.inspect(doubted).inspect_err(unread).ok())
    }
}
