//! `setu explain`: shows why a job waits, what happens next, and when.

use super::cluster::{ClusterObjects, Connection};
use super::inspect::GangList;
use super::known::ControllersPolicy;
use super::{CliError, Format, find};
use crate::cli::render::{self, explanation};

/// Explains why a job waits (quota, gates, capacity, a node) and what comes next.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  setu explain job/train -n team-a
  setu explain job/train -n team-a -o json | jq '.gangs[].gang.nodes'")]
pub struct Args {
    /// Name of a Workload or of the Job it was made for, as NAME or KIND/NAME.
    workload: String,
    /// How it is printed; JSON as `setu inspect` has it.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    #[command(flatten)]
    policy: ControllersPolicy,
    #[command(flatten)]
    connection: Connection,
}

impl Args {
    /// Prints the explanation.
    pub async fn run(self) -> Result<(), CliError> {
        let settings = self.policy.settings()?;
        let cluster = self.connection.connect(false).await?;
        let market = self.policy.market().await?;
        let objects = ClusterObjects { settings, market, ..find::read(&cluster, &self.workload).await? };
        objects.notes.iter().for_each(|note| render::remark(note));
        let gangs = find::gangs(&cluster, &objects, &self.workload).await?;
        let text = if self.output == Format::Json {
            super::json(&GangList { gangs: &gangs })?
        } else {
            let texts: Vec<String> =
                gangs.iter().map(|gang| explanation::explain(gang, objects.now)).collect();
            texts.join("\n")
        };
        render::show(&text);
        Ok(())
    }
}
