//! `setu explain`: why a job waits, what comes next and when.

use super::cluster::Connection;
use super::{Failure, find};
use crate::cli::render::{self, explanation};

/// Says why a job waits: quota, gates, short capacity, the node that misses something; and what is next.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  setu explain job/train -n team-a")]
pub struct Args {
    /// Name of a Workload or of the Job it was made for, as NAME or KIND/NAME.
    workload: String,
    #[command(flatten)]
    connection: Connection,
}

impl Args {
    /// Prints it.
    pub async fn run(self) -> Result<(), Failure> {
        let cluster = self.connection.connect(false).await?;
        let snapshot = find::read(&cluster, &self.workload).await?;
        snapshot.notes.iter().for_each(|note| render::remark(note));
        let gangs = find::gangs(&cluster, &snapshot, &self.workload).await?;
        let texts: Vec<String> = gangs.iter().map(|gang| explanation::explain(gang, snapshot.now)).collect();
        render::show(&texts.join("\n"));
        Ok(())
    }
}
