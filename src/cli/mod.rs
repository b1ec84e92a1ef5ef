//! The command line. One file per subcommand; parsing is here, behaviour is in `app`.

pub mod cluster;
pub mod completions;
pub mod crds;
#[cfg(feature = "demo")]
pub mod demo;
mod election;
pub mod explain;
pub mod find;
mod frameworks;
mod gang_objects;
pub mod inspect;
mod karpenter_metrics;
pub mod known;
pub mod plan;
pub mod policy;
mod policy_flags;
mod queued;
pub mod render;
pub mod repair;
pub mod report;
mod requests;
pub mod run;
pub mod statechart;
pub mod summary;
pub mod top;
pub mod trace;
pub mod uninstall;
pub mod watch;
mod workload_phase;

use crate::app::AppError;
use crate::policy::{Policy, whole};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::Path;

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
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    Plan(Box<plan::Args>),
    Policy(policy::Args),
    Inspect(Box<inspect::Args>),
    Explain(Box<explain::Args>),
    Trace(Box<trace::Args>),
    Top(Box<top::Args>),
    Statechart(statechart::Args),
    Crds(crds::Args),
    Completions(completions::Args),
    Repair(Box<repair::Args>),
    Uninstall(uninstall::Args),
}

/// How a result is printed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// A result as JSON.
fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|e| CliError::Failed(format!("rendering the result: {e}")))
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The user's input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The input was valid, but the command failed.
    #[error("{0}")]
    Failed(String),
}

impl From<AppError> for CliError {
    fn from(error: AppError) -> Self {
        match error {
            AppError::Invalid(why) => Self::Invalid(why),
            AppError::Failed(why) => Self::Failed(why),
        }
    }
}

impl CliError {
    /// Whether the user's input is invalid, which is exit code 2.
    pub fn is_invalid_input(&self) -> bool {
        matches!(self, Self::Invalid(_))
    }
}

impl Cli {
    /// Parses the arguments. Prints help or an error and exits if there is nothing to run.
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let program = arguments.first().map(Path::new).and_then(Path::file_stem);
        // kubectl runs its plugins under this name, and help should show what the user typed.
        let typed = if program.is_some_and(|name| name == "kubectl-setu") { "kubectl setu" } else { "setu" };
        let matches = Self::command().name(typed).bin_name(typed).get_matches_from(arguments);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command to its end.
    pub async fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Run(args) => Box::pin(args.run()).await,
            #[cfg(feature = "demo")]
            Command::Demo(args) => args.run().await,
            Command::Plan(args) => args.run().await,
            Command::Policy(args) => args.run(),
            Command::Inspect(args) => args.run().await,
            Command::Explain(args) => args.run().await,
            Command::Trace(args) => args.run().await,
            Command::Top(args) => args.run().await,
            Command::Statechart(args) => args.run(),
            Command::Crds(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Repair(args) => args.run().await,
            Command::Uninstall(args) => args.run().await,
        }
    }
}

/// Refuses a policy with which no gang can get nodes.
fn usable(check: &str, policy: &Policy) -> Result<(), CliError> {
    whole::usable(policy)
        .map_err(|why| CliError::Invalid(format!("the policy of check {check} cannot be used: {why}")))
}

/// Text for a terminal, without characters that move the cursor or change colors. Line breaks stay.
pub fn printable(text: &str) -> String {
    text.split('\n').map(render::clean).collect::<Vec<_>>().join("\n")
}

/// Prints to standard output. A closed pipe is not a failure.
fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
