//! Leader election flags of `setu run`.

use super::CliError;
use crate::cluster::lease::{ElectionSettings, Timing};
use std::time::Duration;

/// File that holds the namespace of the pod.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Namespace of the Lease for a process outside a pod.
const DEFAULT_NAMESPACE: &str = "kueue-system";

/// Leader election between replicas.
#[derive(clap::Args, Debug)]
#[group(skip)]
#[command(next_help_heading = "Leader election")]
pub struct Args {
    /// Act only while holding a Lease, so that several replicas can run.
    #[arg(long = "leader-elect", env = "SETU_LEADER_ELECT", num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", default_value = "false", action = clap::ArgAction::Set)]
    elect: bool,
    /// Namespace of the Lease; without it the pod's own, or else kueue-system.
    #[arg(long = "leader-election-namespace", env = "SETU_LEADER_ELECTION_NAMESPACE")]
    namespace: Option<String>,
    /// Name of the Lease, with several shards followed by -0, -1, …. Installations with different controller
    /// names need different ones.
    #[arg(long = "leader-election-id", env = "SETU_LEADER_ELECTION_ID", default_value = "setu")]
    id: String,
    /// How long other replicas wait for a leader that has fallen silent.
    #[arg(long = "leader-election-lease-duration", env = "SETU_LEADER_ELECTION_LEASE_DURATION", value_name = "DURATION", default_value = "15s", value_parser = humantime::parse_duration)]
    lease_duration: Duration,
    /// How long a leader that cannot renew its Lease goes on; shorter than the lease duration.
    #[arg(long = "leader-election-renew-deadline", env = "SETU_LEADER_ELECTION_RENEW_DEADLINE", value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    renew_deadline: Duration,
    /// Time between renewals of the Lease, and between attempts to acquire it.
    #[arg(long = "leader-election-retry-period", env = "SETU_LEADER_ELECTION_RETRY_PERIOD", value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    retry_period: Duration,
    /// Spread the gangs over this many shards, so that as many replicas work at once: each shard has a Lease, and
    /// whoever holds it acts for its gangs. The same at all replicas; more than 1 needs --leader-elect.
    #[arg(long = "shards", env = "SETU_SHARDS", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    shards: u8,
}

impl Args {
    /// The requested settings; `None` if this replica runs alone.
    pub fn settings(&self) -> Result<Option<ElectionSettings>, CliError> {
        let timing = Timing {
            lease: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry: self.retry_period,
        };
        if let Some(fault) = timing.fault() {
            return Err(CliError::Invalid(format!("leader election cannot work like this: {fault}")));
        }
        if !self.elect && self.shards > 1 {
            return Err(CliError::Invalid(
                "--shards needs --leader-elect: without it, one replica handles every gang".to_owned(),
            ));
        }
        if !self.elect {
            return Ok(None);
        }
        let given = self.namespace.clone();
        let own = || std::fs::read_to_string(OWN_NAMESPACE).ok().map(|n| n.trim().to_owned());
        Ok(Some(ElectionSettings {
            namespace: given.or_else(own).unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            name: self.id.clone(),
            shards: self.shards.into(),
            identity: identity(),
            timing,
            jitter: Box::new(fastrand::f64),
        }))
    }
}

/// The pod's name with a suffix that is unique to this process.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|h| !h.is_empty());
    format!("{}_{:016x}", host.as_deref().unwrap_or("setu"), fastrand::u64(..))
}
