//! `setu completions`: prints shell completions, and completes words for kubectl.

use super::{Cli, CliError};
use clap::{Arg, Command, CommandFactory, ValueEnum};

/// Script that kubectl runs to complete the words after `kubectl setu`.
const FOR_KUBECTL: &str = "#!/bin/sh\nexec kubectl setu completions kubectl -- \"$@\"\n";
/// Tells kubectl to offer these words and no files.
const NO_FILES: &str = ":4";
/// Tells kubectl to offer these words and files.
const FILES: &str = ":0";

/// Prints completions for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  source <(setu completions bash)
  setu completions zsh > \"${fpath[1]}/_setu\"
  setu completions fish > ~/.config/fish/completions/setu.fish

For the kubectl plugin, put a script of this name into a folder of PATH:
  setu completions kubectl > ~/.cargo/bin/kubectl_complete-setu
  chmod +x ~/.cargo/bin/kubectl_complete-setu")]
pub struct Args {
    /// The shell, or kubectl.
    #[arg(value_enum)]
    shell: Shell,
    /// Words to complete, from kubectl.
    #[arg(last = true, hide = true)]
    words: Vec<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Kubectl,
}

impl Args {
    /// Prints the completions.
    pub fn run(self) -> Result<(), CliError> {
        use clap_complete::Shell as Target;
        let shell = match self.shell {
            Shell::Bash => Target::Bash,
            Shell::Zsh => Target::Zsh,
            Shell::Fish => Target::Fish,
            Shell::Kubectl if self.words.is_empty() => {
                super::print(FOR_KUBECTL);
                return Ok(());
            }
            Shell::Kubectl => {
                super::print(&completed(&self.words));
                return Ok(());
            }
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "setu", &mut text);
        super::print(&String::from_utf8_lossy(&text));
        Ok(())
    }
}

/// Completions of these words, of which the last is incomplete: one candidate a line, then a line for kubectl about files.
fn completed(words: &[String]) -> String {
    let mut root = Cli::command();
    root.build();
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let command = before.iter().fold(&root, |command, word| command.find_subcommand(word).unwrap_or(command));
    let value_of = before.last().and_then(|word| option(command, word));
    let candidates = match value_of {
        Some(option) => values(option),
        None if last.starts_with('-') => options(command),
        None => {
            let positional = command.get_positionals().flat_map(values);
            command.get_subcommands().map(|command| command.get_name().to_owned()).chain(positional).collect()
        }
    };
    let files = if candidates.is_empty() { FILES } else { NO_FILES };
    let fitting = candidates.into_iter().filter(|candidate| candidate.starts_with(last));
    fitting.chain([files.to_owned()]).map(|line| line + "\n").collect()
}

/// The option of this name, if it takes a value.
fn option<'c>(command: &'c Command, word: &str) -> Option<&'c Arg> {
    let is_named = |arg: &&Arg| {
        let short = arg.get_short().map(|short| format!("-{short}"));
        let long = arg.get_long().map(|long| format!("--{long}"));
        short.as_deref() == Some(word) || long.as_deref() == Some(word)
    };
    command.get_arguments().find(|arg| arg.get_action().takes_values() && is_named(arg))
}

fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(Arg::get_long).map(|long| format!("--{long}")).collect()
}

fn values(arg: &Arg) -> Vec<String> {
    if !arg.get_action().takes_values() {
        return Vec::new();
    }
    arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_completes_commands_options_and_their_values() {
        let lines = |words: &[&str]| {
            let words: Vec<String> = words.iter().copied().map(str::to_owned).collect();
            completed(&words).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&["ins"]), ["inspect", ":4"]);
        assert_eq!(lines(&["policy", "ch"]), ["check", ":4"]);
        assert_eq!(lines(&["inspect", "--all"]), ["--all-namespaces", ":4"]);
        assert_eq!(lines(&["inspect", "--output", ""]), ["table", "wide", "json", "yaml", ":4"]);
        assert_eq!(lines(&["inspect", "-o", "j"]), ["json", ":4"]);
        assert_eq!(lines(&["plan", "-f", "exa"]), [":0"], "a file's name");
        assert_eq!(lines(&["what", "--ever", "-x"]), [":4"]);
    }
}
