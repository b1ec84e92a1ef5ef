//! The [`Theatre`] of the embedded cluster: scenarios run in virtual time, within one process.

use super::cluster::{Setu, SimCluster, Start};
use super::scenario::{KarpenterProvider, Theatre};
use crate::app::market;
use crate::plan::market::Market;
use anyhow::Result;
use jiff::Timestamp;
use kube::Client;
use kube::discovery::{ApiResource, Scope};
use serde_json::Value;
use setu_sim::api::kinds;
use setu_sim::faults::WriteFault;
use setu_sim::values::set;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// An embedded cluster with at most one Setu.
pub struct EmbeddedTheatre {
    /// The cluster.
    pub cluster: SimCluster,
    /// How often Setu died of a planned kill.
    pub deaths: usize,
    setu: Option<Setu>,
    client: Client,
    /// Karpenter's metrics page, if set.
    page: Option<String>,
    /// The task that makes Setu read the page periodically.
    reading: Option<JoinHandle<()>>,
}

impl EmbeddedTheatre {
    /// A cluster without Setu.
    pub fn new(cluster: SimCluster) -> Self {
        let client = cluster.client("admin");
        Self { cluster, deaths: 0, setu: None, client, page: None, reading: None }
    }

    /// Makes Setu read the page periodically from now on.
    fn read_page(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
        let (Some(setu), Some(page)) = (&self.setu, self.page.clone()) else { return };
        let context = Arc::clone(&setu.context);
        self.reading = Some(tokio::spawn(async move {
            loop {
                if let Ok(market) = Market::read(&page, context.now()) {
                    context.take_market(market);
                }
                tokio::time::sleep(market::PERIOD).await;
            }
        }));
    }
}

impl Theatre for EmbeddedTheatre {
    fn client(&self) -> Client {
        self.client.clone()
    }

    /// The cloud has the same machines for every kind of NodeClass.
    fn provided(&self, mut object: Value, provider: KarpenterProvider) -> Result<Value> {
        if provider == KarpenterProvider::Aws && object.get("kind").is_some_and(|kind| kind == "NodePool") {
            let class = ["spec", "template", "spec", "nodeClassRef"];
            set(&mut object, &[&class[..], &["group"]].concat(), "karpenter.k8s.aws".into());
            set(&mut object, &[&class[..], &["kind"]].concat(), "EC2NodeClass".into());
        }
        Ok(object)
    }

    fn kind(&self, kind: &str) -> Option<(ApiResource, Scope)> {
        let found = kinds::ALL.iter().find(|k| k.kind == kind)?;
        let resource = ApiResource {
            group: found.group.to_owned(),
            version: found.version.to_owned(),
            api_version: found.api_version(),
            kind: found.kind.to_owned(),
            plural: found.plural.to_owned(),
        };
        Some((resource, if found.namespaced { Scope::Namespaced } else { Scope::Cluster }))
    }

    fn now(&self) -> Timestamp {
        self.cluster.clock.now()
    }

    fn start_setu(&mut self, kill_after: Option<u64>) -> Result<()> {
        let write = kill_after.and_then(|n| usize::try_from(n).ok()?.checked_sub(1));
        let plan = write.map(|write| (write, WriteFault::CrashAfter));
        self.setu = Some(self.cluster.start_setu(&Start { plan, ..Start::default() }));
        self.read_page();
        Ok(())
    }

    fn kill_setu(&mut self) {
        self.setu = None;
        self.read_page();
    }

    async fn karpenter_says(&mut self, page: &str) -> Result<()> {
        self.page = Some(page.to_owned());
        self.read_page();
        // Let the task run once.
        tokio::task::yield_now().await;
        Ok(())
    }

    fn revive_setu(&mut self) -> Result<()> {
        if !self.cluster.deaths().is_empty() {
            self.deaths += 1;
            self.start_setu(None)?;
        }
        Ok(())
    }

    fn writes(&self) -> Result<u64> {
        Ok(self.setu.as_ref().map_or(0, |setu| setu.wire.written().len() as u64))
    }

    fn log_tail(&self) -> String {
        String::new()
    }

    async fn api_server_gone(&mut self, seconds: u64) -> Result<()> {
        self.cluster.set_down(true);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.cluster.set_down(false);
        Ok(())
    }
}
