//! Scenarios: sequences of events in a cluster and of conditions that must hold.
//!
//! A scenario is a YAML file. It is played unchanged on the embedded cluster and on a real control
//! plane; both are a [`Theatre`].

mod check;
mod conditions;
mod expect;
mod file;
mod fill;
mod library;
mod play;
mod runs;
mod world;

pub use check::check;
pub use conditions::Expect;
pub use file::{KarpenterProvider, Scenario, ScenarioStep};
pub use library::{find, names};
pub use play::{nothing_is_left, paths_are_lawful, play, take};
pub use runs::{Run, parse, read, read_file};
pub use world::{ScenarioWorld, controller_name, controller_name_of, objects, policy};

use anyhow::Result;
use jiff::Timestamp;
use kube::Client;
use kube::discovery::{ApiResource, Scope};
use serde_json::Value;

/// The cluster that a scenario is played on, and its Setu.
#[allow(async_fn_in_trait, reason = "nobody needs the futures to be Send")]
pub trait Theatre {
    /// A client with administrator rights.
    fn client(&self) -> Client;
    /// Converts an object for Karpenter's kwok provider to one for this provider.
    fn provided(&self, object: Value, provider: KarpenterProvider) -> Result<Value>;
    /// How the cluster serves a kind.
    fn kind(&self, kind: &str) -> Option<(ApiResource, Scope)>;
    /// Changes the weather in a cluster that does not read it from its ConfigMap. Each rule names its NodePool.
    fn weather(&self, _rules: &[Value]) -> Result<()> {
        Ok(())
    }
    /// Replaces Karpenter's metrics page. Returns once Setu has read it.
    async fn karpenter_says(&mut self, page: &str) -> Result<()>;
    /// Factor for the durations in a scenario, on a cluster where real work takes time.
    fn time_factor(&self) -> u64 {
        1
    }
    /// The cluster's current time.
    fn now(&self) -> Timestamp;
    /// Starts Setu. With `kill_after`, it dies right after that write.
    fn start_setu(&mut self, kill_after: Option<u64>) -> Result<()>;
    /// Kills Setu, like a power failure.
    fn kill_setu(&mut self);
    /// Restarts Setu if it died because of `kill_after`. Any other end is an error.
    fn revive_setu(&mut self) -> Result<()>;
    /// Number of writes since Setu's last start.
    fn writes(&self) -> Result<u64>;
    /// The last lines of Setu's log, if there is one.
    fn log_tail(&self) -> String;
    /// Stops the API server for some seconds.
    async fn api_server_gone(&mut self, seconds: u64) -> Result<()>;
}
