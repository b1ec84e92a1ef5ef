//! `setu statechart`: prints the statechart, generated from the code.

use super::CliError;
use crate::gang::statechart::diagram;
use clap::ValueEnum;

/// Prints the statechart of a gang.
///
/// Example: setu statechart --format dot | dot -Tsvg > gang.svg
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Language of the chart.
    #[arg(long, value_enum, default_value_t = Format::Mermaid)]
    format: Format,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Format {
    Mermaid,
    Scxml,
    Dot,
}

impl Args {
    /// Prints the chart.
    pub fn run(self) -> Result<(), CliError> {
        super::print(&match self.format {
            Format::Mermaid => diagram::mermaid(),
            Format::Scxml => diagram::scxml(),
            Format::Dot => diagram::dot(),
        });
        Ok(())
    }
}
