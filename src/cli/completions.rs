//! `setu completions`: prints shell completions.

use super::{Cli, CliError};
use clap::{CommandFactory, ValueEnum};

/// Prints completions for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  source <(setu completions bash)
  setu completions zsh > \"${fpath[1]}/_setu\"
  setu completions fish > ~/.config/fish/completions/setu.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Args {
    /// Prints the completions.
    pub fn run(self) -> Result<(), CliError> {
        use clap_complete::Shell as Target;
        let shell = match self.shell {
            Shell::Bash => Target::Bash,
            Shell::Zsh => Target::Zsh,
            Shell::Fish => Target::Fish,
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "setu", &mut text);
        super::print(&String::from_utf8_lossy(&text));
        Ok(())
    }
}
