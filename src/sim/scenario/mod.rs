//! Scenarios: what happens to a cluster, and what must be true meanwhile and at the end.
//!
//! A scenario is a YAML file and is played unchanged on the embedded cluster and on a real control
//! plane; a [`Theatre`] is either.

mod check;
mod file;
mod library;
mod play;
mod runs;
mod world;

pub use check::check;
pub use file::{Expect, Provider, Scenario, Step};
pub use library::{find, names};
pub use play::{nothing_is_left, paths_are_lawful, play, take};
pub use runs::{Run, parse, read, read_file};
pub use world::{World, controller_name, controller_name_of, objects, policy};

use anyhow::Result;
use jiff::Timestamp;
use kube::Client;
use kube::discovery::{ApiResource, Scope};
use serde_json::Value;

/// The cluster that a scenario is played on, and the Setu that plays in it.
#[allow(async_fn_in_trait, reason = "nobody needs the futures to be Send")]
pub trait Theatre {
    /// An administrator's way to the API server.
    fn client(&self) -> Client;
    /// An object, which is written for Karpenter's kwok provider, as this provider has it.
    fn provided(&self, object: Value, provider: Provider) -> Result<Value>;
    /// How a kind is served there.
    fn kind(&self, kind: &str) -> Option<(ApiResource, Scope)>;
    /// The weather changes, where nobody reads it from its ConfigMap. Each rule names the NodePool that it is for.
    fn weather(&self, _rules: &[Value]) -> Result<()> {
        Ok(())
    }
    /// This is Karpenter's metrics page from now on. Returns once Setu has read it.
    async fn karpenter_says(&mut self, page: &str) -> Result<()>;
    /// How many times as long as a scenario says things may take, where the machine's own work takes time.
    fn patience(&self) -> u64 {
        1
    }
    /// The time there.
    fn now(&self) -> Timestamp;
    /// Starts Setu. With `kill_after` it dies right after that write.
    fn start_setu(&mut self, kill_after: Option<u64>) -> Result<()>;
    /// Kills Setu as a power failure would.
    fn kill_setu(&mut self);
    /// Starts Setu again if it died of `kill_after`. An end of any other kind is an error.
    fn revive_setu(&mut self) -> Result<()>;
    /// Writes that this life of Setu has made.
    fn writes(&self) -> Result<u64>;
    /// The last lines of Setu's log, where there is one.
    fn log_tail(&self) -> String;
    /// The API server is away for so many seconds.
    async fn api_server_gone(&mut self, seconds: u64) -> Result<()>;
}
