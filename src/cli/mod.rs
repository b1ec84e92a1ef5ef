//! What a user types. One file per subcommand; parsing here, meaning in `app`.

pub mod crds;
pub mod demo;
pub mod plan;
pub mod policy;
mod policy_flags;
pub mod run;
pub mod statechart;

use clap::{Parser, Subcommand};

/// All the nodes of a gang or none, for Kueue and Karpenter.
#[derive(Parser, Debug)]
#[command(name = "setu", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(Box<run::Args>),
    Demo(demo::Args),
    Plan(Box<plan::Args>),
    Policy(policy::Args),
    Statechart(statechart::Args),
    Crds(crds::Args),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What the user gave cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// It was right, and did not work.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// Whether the user has to change something, which is exit code 2.
    pub fn is_invalid_input(&self) -> bool {
        matches!(self, Self::Invalid(_))
    }
}

impl Cli {
    /// Runs the command to its end.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Run(args) => args.run().await,
            Command::Demo(args) => args.run().await,
            Command::Plan(args) => args.run().await,
            Command::Policy(args) => args.run(),
            Command::Statechart(args) => args.run(),
            Command::Crds(args) => args.run(),
        }
    }
}

/// Prints to standard output; a reader that has gone away is no failure.
fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
