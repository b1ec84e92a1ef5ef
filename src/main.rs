//! The `setu` binary: parses the command line, runs it, and turns errors into exit codes.

use mimalloc::MiMalloc;
use setu::cli::{Cli, CliError, printable};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match run(Cli::from_arguments(std::env::args_os())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("setu: {}", printable(&format!("{error:#}")));
            let invalid = error.downcast_ref::<CliError>().is_some_and(CliError::is_invalid_input);
            ExitCode::from(if invalid { 2 } else { 1 })
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(cli.run())?)
}
