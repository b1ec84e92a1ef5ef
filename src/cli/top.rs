//! `setu top`: shows which nodes gangs hold and waste, and which gangs wait longest.

use super::cluster::{ClusterObjects, Connection, Scope};
use super::known::ControllersPolicy;
use super::summary::summary;
use super::{CliError, Format, report};
use crate::cli::render;

/// Shows the nodes that gangs hold, how many of them are idle or wasted, and the slowest gangs.
#[derive(clap::Args, Debug)]
#[command(mut_arg("namespace", |arg| arg.help("Namespace of the Workloads. Default: all namespaces")))]
#[command(after_help = "Example:
  setu top --slowest 20

RUNNING carry an admitted gang, or a slice of an elastic Job that goes on; COMING are not ready yet; IDLE are ready
and wait for the rest of their gang or for Kueue; WASTED serve nobody: they are being deleted, or left over. UNKNOWN,
if there are any, may be in use: what says so could not be read. UNUSED TIME sums up, over idle and wasted nodes, how
long they have been so.")]
pub struct Args {
    /// How many of the slowest gangs are listed.
    #[arg(long, default_value_t = 10, value_name = "N")]
    slowest: usize,
    /// How it is printed.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    #[command(flatten)]
    policy: ControllersPolicy,
    #[command(flatten)]
    connection: Connection,
}

impl Args {
    /// Prints the summary.
    pub async fn run(self) -> Result<(), CliError> {
        let settings = self.policy.settings()?;
        let cluster = self.connection.connect_widely().await?;
        let market = self.policy.market().await?;
        let mut objects = ClusterObjects { settings, market, ..cluster.read().await? };
        if let Scope::Namespace(namespace) = &cluster.scope {
            objects.keep_claims_of(namespace);
        }
        objects.notes.iter().for_each(|note| render::remark(note));
        let gangs = report::gangs_in(&objects, &cluster.scope);
        let summary = summary(&objects, gangs, self.slowest);
        let text = if self.output == Format::Json {
            super::json(&summary)?
        } else {
            render::summary::top(&summary, objects.now, render::terminal_width())
        };
        render::show(&text);
        Ok(())
    }
}
