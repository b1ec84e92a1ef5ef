//! `setu plan`: what Setu would create for a Workload, and why; in the cluster's terms or from files alone.

mod admission;
mod documents;
mod flavors;
mod from_cluster;
mod indirect;
mod inputs;
pub mod manifest;
mod misfit;
mod node_class;
mod objects;
pub mod pod_group;
mod pod_sets;
mod show;
mod spark;

use super::cluster::Connection;
use super::karpenter_metrics::KarpenterMetrics;
use super::policy_flags::PolicyFlags;
use super::{CliError, Format, print, render};
use crate::api::parameters::{GateMode, PackingMode};
use crate::gang::identity::gang_label;
use crate::plan::catalogue;
use crate::plan::policy_warnings::{absurd_money, oversized};
use crate::plan::{self, Obstacle, OptionSelection, Outcome, Plan, PlanRequest, PlanSnapshot};
use crate::policy::overrides::Ignored;
use crate::policy::{Policy, Settings};
use crate::words::counted;
use admission::Admitted;
use inputs::Inputs;
use kube::ResourceExt;
use objects::Objects;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Shows what Setu would create for a Workload, or for a Job or another kind that Kueue makes Workloads of, and what would be
/// in the way.
///
/// With NodePools among the files nothing is read from a cluster; else what the files do not hold comes
/// from it.
///
/// Example: setu plan -f job.yaml -f nodepools.yaml -f queues.yaml --config policy.yaml
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A Workload in the cluster, or the Job that it was made for, instead of one in a file.
    workload: Option<String>,
    /// YAML files: the Workload, Job or the like, and the NodePools, queues, flavors and the like.
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The AdmissionCheck to plan for, if the ClusterQueue has several. Default: the first by name that provides nodes.
    #[arg(long)]
    check: Option<String>,
    /// The ResourceFlavor to plan for, where Kueue has not chosen one yet.
    #[arg(long)]
    flavor: Option<String>,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Print the NodeClaims themselves, as YAML.
    #[arg(long, conflicts_with = "output")]
    node_claims: bool,
    #[command(flatten)]
    karpenter: KarpenterMetrics,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    connection: Connection,
}

impl Args {
    /// Plans and prints.
    pub async fn run(self) -> Result<(), CliError> {
        let settings = self.policy.settings()?;
        if self.policy.file().is_none() {
            render::remark(
                "Planned with the default policy. Name the policy file that Setu runs with by --config.",
            );
        }
        let objects = self.objects().await?;
        let (check, flavor) = (self.check.as_deref(), self.flavor.as_deref());
        let admitted = admission::admit(&objects, check, flavor, &self.connection.controller_name)?;
        let policy = policy_of(&admitted, &objects, &settings)?;
        // This label marks the gang's own nodes, which do not count as another's.
        let gang = gang_label(&admitted.workload, &admitted.check);
        let request = PlanRequest {
            workload: &admitted.workload,
            check: &admitted.check,
            our_checks: &admitted.our_checks,
            answered_checks: &admitted.our_checks,
            gang_label: &gang,
            policy: &policy,
            selection: OptionSelection::From(0),
        };
        let market = self.karpenter.market().await?;
        let inputs = Inputs::of(&objects, &admitted, &request, market);
        let cluster = inputs.cluster(&objects, &admitted, &settings.file.guards);
        let outcome = plan::plan(&cluster, &request);
        if self.node_claims {
            if let Some(plan) = outcome.plan() {
                print(&show::node_claims(plan)?);
            }
        } else {
            let options = plan::option_reports(&cluster, &request).unwrap_or_default();
            let mut view = show::View::new(&admitted, cluster.prices(&policy), &outcome, &options);
            view.add_notes(admitted.by_request());
            view.add_notes(admitted.on_existing_nodes());
            view.add_notes(admitted.fewer().into_iter().chain(admitted.other_checks()));
            view.add_notes(otherwise(&cluster, &request, &outcome));
            view.add_notes(oversized(&policy.shapes).iter().map(ToString::to_string));
            view.add_notes(absurd_money(&policy.budget));
            let outdated = catalogue::outdated_of(&objects.plan.node_pools, cluster.now);
            view.add_notes(outdated.collect::<BTreeSet<_>>());
            view.add_notes(node_class::notes(
                &objects.node_classes,
                &objects.plan.node_pools,
                outcome.plan(),
            ));
            print(&if self.output == Format::Json { super::json(&view)? } else { view.table() });
        }
        ending(outcome, self.node_claims)
    }

    /// The objects of the files, completed from the cluster unless the files have NodePools.
    async fn objects(&self) -> Result<Objects, CliError> {
        let mut objects = Objects::read(&self.files)?;
        objects.remarks.iter().for_each(|remark| render::remark(remark));
        if self.workload.is_some() && !objects.plan.node_pools.is_empty() {
            return Err(CliError::Invalid(
                "a Workload of the cluster cannot be planned with NodePools from files: give its manifest with -f, or leave \
                 the NodePools out"
                    .to_owned(),
            ));
        }
        if objects.plan.node_pools.is_empty() {
            objects.complete(&self.connection, self.workload.as_deref()).await?;
        } else if let Some(namespace) = self.connection.named_namespace() {
            objects.put_into(namespace)?;
        }
        Ok(objects)
    }
}

/// The policy that counts for the Workload, with its own overrides.
fn policy_of(admitted: &Admitted, objects: &Objects, settings: &Settings) -> Result<Policy, CliError> {
    let Admitted { workload, check, .. } = admitted;
    let parameters = if workload.front_end().has_own_checks() { objects.parameters_of(check)? } else { None };
    // An override may hide what is wrong with the policy.
    super::usable(check, &settings.policy(check, parameters.as_ref()))?;
    let (mut policy, ignored) = settings.policy_of(workload.annotations(), check, parameters.as_ref());
    for Ignored { key, why } in ignored {
        render::remark(&format!("annotation {key} is ignored: {why}"));
    }
    if admitted.queue_is_made_up {
        policy.quota_gate = GateMode::Off;
    }
    Ok(policy)
}

/// Notes on what the same option would cost in another packing mode, if that differs. If a budget or a limit refuses the plan, the
/// packing that would stay within it.
fn otherwise(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, outcome: &Outcome) -> Vec<String> {
    let with = |(packing, name): (PackingMode, &str)| {
        let policy = Policy { packing, ..request.policy.clone() };
        let request = PlanRequest { policy: &policy, ..*request };
        let (nodes, cost) = match outcome {
            Outcome::Provision(plan) => {
                let options = plan::option_reports(cluster, &request).ok()?;
                let other = options.into_iter().nth(usize::try_from(plan.option_index).ok()?)?.plan.ok()?;
                let amounts = |plan: &Plan| (plan.nodes(), plan.cost.at_least, plan.cost.at_most);
                let differs = amounts(&other) != amounts(plan);
                differs.then(|| (other.nodes(), other.cost.instead_of(&plan.cost)))?
            }
            Outcome::Refuse(_) | Outcome::Wait(_) => match plan::plan(cluster, &request) {
                Outcome::Provision(other) => (other.nodes(), other.cost.clause()),
                _ => return None,
            },
            Outcome::NothingNeeded(_) | Outcome::Never(_) => return None,
        };
        Some(format!("packing.mode {name} would take {}{cost}", counted(nodes, "node")))
    };
    let modes = [(PackingMode::PerPod, "PerPod"), (PackingMode::Fill, "Fill")];
    modes.into_iter().filter(|(mode, _)| *mode != request.policy.packing).filter_map(with).collect()
}

/// A plan that cannot be carried out is a failure of the command, with the sentence that helps where it was not shown.
fn ending(outcome: Outcome, prints_claims: bool) -> Result<(), CliError> {
    let failed = |o: Obstacle| {
        let why = if prints_claims { &o.message } else { "no node would be created; the reason is above" };
        Err(CliError::Failed(format!("{}: {why}", o.reason)))
    };
    match outcome {
        Outcome::Provision(_) | Outcome::NothingNeeded(_) => Ok(()),
        Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) | Outcome::Never(obstacle) => failed(obstacle),
    }
}
