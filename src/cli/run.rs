//! `setu run`: the controller.

use super::Failure;
use crate::api::parameters::{Gate, Gates};
use crate::app::{self, Config};
use crate::names;
use crate::policy::PolicyFile;
use crate::telemetry::logs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Runs the controller against KUBECONFIG or the cluster it runs in.
///
/// Example: setu run --config policy.yaml --log-format json
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Policy file; without it all defaults hold.
    #[arg(long, env = "SETU_CONFIG")]
    config: Option<PathBuf>,
    /// `spec.controllerName` of the AdmissionChecks to answer.
    #[arg(long, env = "SETU_CONTROLLER_NAME", default_value = names::CONTROLLER_NAME)]
    controller_name: String,
    /// Refuse to exceed NodePool limits. Karpenter does not check them for claims it did not make.
    #[arg(long, env = "SETU_ENFORCE_CAPACITY", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    enforce_capacity: Option<bool>,
    /// Wait while the NodeClass of the NodePool is not ready.
    #[arg(long, env = "SETU_VALIDATE_NODE_CLASS", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    validate_node_class: Option<bool>,
    /// Address of /metrics, as :port or host:port.
    #[arg(long, env = "SETU_METRICS_BIND_ADDRESS", default_value = ":8080")]
    metrics_bind_address: String,
    /// Address of /healthz, /readyz and /debug/gangs, as :port or host:port.
    #[arg(long, env = "SETU_HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    health_probe_bind_address: String,
    /// How log lines are written.
    #[arg(long, env = "SETU_LOG_FORMAT", value_enum, default_value_t)]
    log_format: logs::Format,
    /// error, warn, info, debug, trace, or a filter such as setu=debug.
    #[arg(long, env = "SETU_LOG_LEVEL", default_value = "info,kube_runtime=warn,kube_client=warn")]
    log_level: String,
}

impl Args {
    /// Runs until a signal ends it.
    pub async fn run(self) -> Result<(), Failure> {
        logs::init(self.log_format, &self.log_level).map_err(|e| Failure::Invalid(e.to_string()))?;
        app::run(self.config()?).await.map_err(|e| match e {
            app::AppError::Invalid(why) => Failure::Invalid(why),
            app::AppError::Failed(why) => Failure::Failed(why),
        })
    }

    fn config(&self) -> Result<Config, Failure> {
        let mut policy = match &self.config {
            Some(path) => PolicyFile::read(path).map_err(|e| Failure::Invalid(e.to_string()))?,
            None => PolicyFile::default(),
        };
        let gate = |enforce: bool| if enforce { Gate::Enforce } else { Gate::Warn };
        let flags = Gates {
            capacity: self.enforce_capacity.map(gate),
            node_class: self.validate_node_class.map(gate),
            ..Gates::default()
        };
        // A flag wins over the file, for every check.
        for spec in std::iter::once(&mut policy.defaults).chain(policy.checks.values_mut()) {
            let gates = spec.gates.get_or_insert_default();
            gates.capacity = flags.capacity.or(gates.capacity);
            gates.node_class = flags.node_class.or(gates.node_class);
        }
        Ok(Config {
            policy,
            controller_name: self.controller_name.clone(),
            metrics: address("--metrics-bind-address", &self.metrics_bind_address)?,
            health: address("--health-probe-bind-address", &self.health_probe_bind_address)?,
        })
    }
}

/// Reads `:port` or `host:port`.
fn address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let bad = || Failure::Invalid(format!("{flag} {text:?} is no address; write :port or host:port"));
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| bad())?;
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    text.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_host_and_port() {
        assert_eq!(address("--x", ":8080").unwrap().to_string(), "0.0.0.0:8080");
        assert_eq!(address("--x", "127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        for bad in ["8080", ":", ":99999", ""] {
            let error = address("--x", bad).unwrap_err().to_string();
            assert!(error.contains("write :port or host:port"), "{error}");
        }
    }
}
