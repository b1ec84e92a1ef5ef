//! `setu run`: the controller.

use super::karpenter_metrics::KarpenterMetrics;
use super::policy_flags::PolicyFlags;
use super::{CliError, election};
use crate::app::{self, Config, TraceConfig};
use crate::controllers::context::Options;
use crate::names;
use crate::telemetry::traces::own::{self, OwnTraces};
use crate::telemetry::{logs, traces};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Runs the controller against KUBECONFIG or the cluster it runs in.
///
/// Example: setu run --config policy.yaml --log-format json
#[derive(clap::Args, Debug)]
#[command(mut_arg("config", |arg| {
    arg.help("Policy file; without it all defaults hold. Read again whenever it changes")
}))]
pub struct Args {
    #[command(flatten)]
    policy: PolicyFlags,
    /// `spec.controllerName` of the AdmissionChecks to answer.
    #[arg(long, env = "SETU_CONTROLLER_NAME", default_value = names::CONTROLLER_NAME)]
    controller_name: String,
    /// Address of /metrics, as :port or host:port.
    #[arg(long, env = "SETU_METRICS_BIND_ADDRESS", default_value = ":8080")]
    metrics_bind_address: String,
    /// Address of /healthz, /readyz, /debug/gangs and /debug/capacity, as :port or host:port.
    #[arg(long, env = "SETU_HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    health_probe_bind_address: String,
    /// Collector that takes traces by OTLP, as http://host:4317; unset, OTEL_EXPORTER_OTLP_ENDPOINT counts, and
    /// without either no traces are exported. The other OTEL_… variables hold as well.
    #[arg(long, env = "SETU_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// Traces of Setu's own work to send to the same collector: reconciles, API calls, plans and waits.
    #[arg(long, env = "SETU_TRACE_OWN", value_enum, default_value_t)]
    trace_own: OwnTraces,
    /// Tell the steps of a gang by Events on the Job too, not only on its Workload.
    #[arg(long, env = "SETU_EVENTS_ON_JOB", num_args = 0..=1, require_equals = true, value_name = "BOOL", default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    events_on_job: bool,
    #[command(flatten)]
    on_request: OnRequest,
    /// Serve a read-only page of all gangs as /board on the same address as the probes.
    #[arg(long, env = "SETU_BOARD")]
    board: bool,
    #[command(flatten)]
    karpenter: KarpenterMetrics,
    /// How log lines are written.
    #[arg(long, env = "SETU_LOG_FORMAT", value_enum, default_value_t)]
    log_format: logs::Format,
    /// error, warn, info, debug, trace, or a filter such as setu=debug.
    #[arg(long, env = "SETU_LOG_LEVEL", default_value = "info")]
    log_level: String,
    #[command(flatten)]
    election: election::Args,
}

/// What is done only where it is asked for.
#[derive(clap::Args, Debug)]
struct OnRequest {
    /// Keep Workloads that have nodes until their nodes are gone, so that their last transition is recorded.
    /// A Job that is created again under the same name waits until then.
    #[arg(long, env = "SETU_WORKLOAD_FINALIZER")]
    workload_finalizer: bool,
    /// Answer AdmissionChecks of kueue.x-k8s.io/provisioning-request too, for which alone Kueue puts off the
    /// placement of pods by topology until their nodes are there. Only where ProvisioningRequests are not served.
    #[arg(long, env = "SETU_TAS_COMPAT")]
    tas_compat: bool,
    /// Serve ProvisioningRequests of class atomic.setu.kueue.x-k8s.io, which Kueue's own provisioning check makes.
    #[arg(long, env = "SETU_PROVISIONING_REQUESTS", conflicts_with = "tas_compat")]
    provisioning_requests: bool,
}

impl OnRequest {
    fn options(&self) -> Options {
        Options {
            workload_finalizer: self.workload_finalizer,
            tas_compat: self.tas_compat,
            provisioning_requests: self.provisioning_requests,
        }
    }
}

impl Args {
    /// Runs until a signal stops it.
    pub async fn run(self) -> Result<(), CliError> {
        let (instance, traces) = (app::instance(), self.traces()?);
        // A setting that cannot work is logged where the gangs' traces are exported.
        let settings = traces.as_ref().ok().and_then(Option::as_ref);
        let own = own::start(self.trace_own, settings, &instance).ok().flatten();
        let (layer, exporting) = own.unzip();
        logs::init(self.log_format, &self.log_level, layer).map_err(|e| CliError::Invalid(e.to_string()))?;
        Ok(app::run(self.config(instance, (traces, exporting))?).await?)
    }

    fn config(
        &self,
        instance: String,
        (traces, own_traces): (TraceConfig, Option<traces::Exporting>),
    ) -> Result<Config, CliError> {
        Ok(Config {
            instance,
            policy: self.policy.settings()?,
            policy_file: self.policy.file().cloned(),
            controller_name: self.controller_name.clone(),
            election: self.election.settings()?,
            metrics: address("--metrics-bind-address", &self.metrics_bind_address)?,
            health: address("--health-probe-bind-address", &self.health_probe_bind_address)?,
            traces,
            own_traces,
            options: self.on_request.options(),
            karpenter_metrics: self.karpenter.page()?,
            events_on_job: self.events_on_job,
            board: self.board,
        })
    }

    /// An invalid flag is an error. An invalid environment variable only disables traces.
    fn traces(&self) -> Result<TraceConfig, CliError> {
        let read =
            traces::TraceSettings::read(self.otlp_endpoint.as_deref(), |name| std::env::var(name).ok());
        match read {
            Err(bad) if bad.is_of_flag() => Err(CliError::Invalid(bad.to_string())),
            read => Ok(read),
        }
    }
}

/// Parses `host:port`, or `:port`, which means all addresses of both families.
fn address(flag: &str, text: &str) -> Result<SocketAddr, CliError> {
    let bad =
        || CliError::Invalid(format!("{flag} {text:?} is not a valid address; write :port or host:port"));
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| bad())?;
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    text.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_addresses_are_a_port_or_host_and_port() {
        assert_eq!(address("--x", ":8080").unwrap().to_string(), "[::]:8080");
        assert_eq!(address("--x", "127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        for bad in ["8080", ":", ":99999", ""] {
            let error = address("--x", bad).unwrap_err().to_string();
            assert!(error.contains("write :port or host:port"), "{error}");
        }
    }
}
