//! `setu uninstall`: releases what Setu holds in a cluster.

use super::CliError;
use super::cluster::Access;
use crate::api::{NodeClaim, Workload};
use crate::app::uninstall;
use crate::gang::release::uninstall::{RunningNodes, UninstallPlan};
use crate::names;
use crate::telemetry::logs;
use kube::ResourceExt;
use std::fmt::Write as _;
use std::time::Duration;

/// Releases what Setu holds, before it is taken out of a cluster.
///
/// Nodes of gangs that run are handed back to Karpenter, which removes them when their pods are done; all
/// other NodeClaims of Setu are deleted. Workloads that wait for Setu give their quota back, and lose
/// Setu's finalizer. ProvisioningRequests that wait for Setu fail. Without --yes it only says what it would do.
///
/// Example: setu uninstall --deployment kueue-system/setu --yes
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Delete the nodes of running gangs too, and all journals.
    #[arg(long)]
    delete_nodeclaims: bool,
    /// Do it, instead of saying what would be done.
    #[arg(long)]
    yes: bool,
    /// Scale this Deployment to zero first, so that the controller stands still.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = deployment)]
    deployment: Option<(String, String)>,
    /// `spec.controllerName` of the AdmissionChecks to leave.
    #[arg(long, env = "SETU_CONTROLLER_NAME", default_value = names::CONTROLLER_NAME)]
    controller_name: String,
    /// How long to wait for the controller to stop, and for NodeClaims to be gone.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    access: Access,
}

fn deployment(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

impl Args {
    /// Prints what would be done, or does it.
    pub async fn run(self) -> Result<(), CliError> {
        logs::init(logs::Format::default(), "warn", None).map_err(|e| CliError::Invalid(e.to_string()))?;
        let (client, _) = self.access.connect().await?;
        let nodes = if self.delete_nodeclaims { RunningNodes::Delete } else { RunningNodes::HandBack };
        if self.yes
            && let Some((namespace, name)) = &self.deployment
        {
            uninstall::stop(&client, namespace, name, self.timeout).await.map_err(CliError::Failed)?;
        }
        let plan = uninstall::plan(&client, &self.controller_name, nodes)
            .await
            .map_err(|e| CliError::Failed(e.in_full().to_string()))?;
        super::print(&in_words(&plan, self.yes));
        if self.yes {
            uninstall::carry_out(&client, &self.controller_name, plan, nodes, self.timeout)
                .await
                .map_err(CliError::Failed)?;
            super::print("done\n");
        }
        Ok(())
    }
}

/// The plan as text.
fn in_words(plan: &UninstallPlan, doing: bool) -> String {
    let mut text = String::new();
    let mut lines = |what: &str, names: Vec<String>| {
        for name in names {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{what} {name}");
        }
    };
    let request = |mirror: &Workload| {
        let name = mirror.request_name().unwrap_or_default();
        format!("{}/{name}", mirror.namespace().unwrap_or_default())
    };
    let back_to_karpenter = |claim: &NodeClaim| format!("{} back to Karpenter", claim.name_any());
    lines("close AdmissionCheck", plan.checks.iter().map(ResourceExt::name_any).collect());
    lines("give back the quota of Workload", plan.waiting.iter().map(Workload::full_name).collect());
    lines("delete Workload", plan.created.iter().map(Workload::full_name).collect());
    let until_deleted = |workload: &Workload| {
        format!("{}, which holds quota for pods that run: delete it when they are done", workload.full_name())
    };
    lines("keep Workload", plan.kept.iter().map(until_deleted).collect());
    lines("fail ProvisioningRequest", plan.open_requests.iter().map(request).collect());
    lines("put back into Kueue's queue Workload", plan.kept_out.iter().map(Workload::full_name).collect());
    lines("hand NodeClaim", plan.hand_back.iter().map(back_to_karpenter).collect());
    lines("delete NodeClaim", plan.delete.iter().map(ResourceExt::name_any).collect());
    lines("release Workload", plan.marked.iter().map(Workload::full_name).collect());
    lines("release ProvisioningRequest", plan.marked_requests.iter().map(request).collect());
    match (text.is_empty(), doing) {
        (true, _) => "nothing to do\n".to_owned(),
        (false, true) => text,
        (false, false) => format!("{text}nothing was changed: add --yes to do this\n"),
    }
}
