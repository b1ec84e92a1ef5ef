//! Compares the embedded API server with the real one: sends the same requests to both and compares the answers.
//!
//! Kept sequences run first; each is the smallest that once showed a difference. Generated ones follow:
//! `SETU_SEQUENCES` sets their number (2,000), `SETU_SEED` the random seed. A sequence that shows a
//! difference is shrunk and written to `tests/e2e/conformance/`.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
#![allow(missing_docs, reason = "the format is described where it is declared")]

mod campaign;
mod compare;
mod generate;
mod kinds;
mod mask;
mod play;
mod reading;
mod server;
mod shrink;
mod step;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use campaign::{Campaign, Pair};
use libtest_mimic::{Arguments, Failed, Trial};
use server::Server;
use setu_e2e::{Stack, StackOptions, StackScope, definitions};
use step::Sequence;
use tokio::runtime::Runtime;

/// The number of sequences that compare the embedded server with the real one.
const SEQUENCES: u32 = 2_000;

/// The number of sequences that compare the real server with itself. A difference there is a bug in the mask.
const WITH_ITSELF: u32 = 100;

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // In order: past differences are the most likely to return.
    arguments.test_threads = Some(1);
    let runtime = Arc::new(Runtime::new()?);
    let stack = runtime
        .block_on(Stack::start(StackOptions { scope: StackScope::ApiServer, ..StackOptions::default() }))?;
    runtime.block_on(definitions::install(&stack.client()?))?;
    let real = Server::Real(stack.client()?);
    let itself = Campaign {
        pair: Pair { left: real.clone(), right: real.clone(), runtime: Arc::clone(&runtime) },
        letter: 'i',
        keep: None,
        seed: number("SETU_SEED", 1)?,
        count: number("SETU_SELF", WITH_ITSELF)?,
    };
    let embedded = Campaign {
        pair: Pair { left: real, right: Server::embedded(), runtime: Arc::clone(&runtime) },
        letter: 'e',
        keep: Some(kept_folder()),
        seed: number("SETU_SEED", 1)?,
        count: number("SETU_SEQUENCES", SEQUENCES)?,
    };
    let mut trials = kept(&embedded)?;
    trials.extend([
        Trial::test("the real server answers as itself", move || run(&itself)),
        Trial::test("the embedded server answers as the real one", move || run(&embedded)),
    ]);
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed() {
        drop(stack);
    } else {
        stack.stop();
    }
    conclusion.exit()
}

/// A trial for each kept sequence.
fn kept(campaign: &Campaign) -> Result<Vec<Trial>> {
    let folder = kept_folder();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    files.sort();
    let trial = |(index, file): (usize, PathBuf)| {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let sequence: Sequence =
            serde_yaml::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
        let title = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let pair = campaign.pair.clone();
        Ok(Trial::test(title, move || match pair.play(&sequence, &format!("k{index:05}")) {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => Err(Failed::from(difference.to_string())),
            Err(error) => Err(Failed::from(format!("{error:#}"))),
        }))
    };
    files.into_iter().enumerate().map(trial).collect()
}

fn run(campaign: &Campaign) -> Result<(), Failed> {
    let report = campaign.run().map_err(|error| Failed::from(format!("{error:#}")))?;
    eprintln!("{report}");
    if report.differences.is_empty() { Ok(()) } else { Err("the two servers differ, see above".into()) }
}

fn number<T: std::str::FromStr>(name: &str, otherwise: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name} must be a number, not {text:?}")),
        Err(_) => Ok(otherwise),
    }
}

/// The folder of kept sequences.
fn kept_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("conformance")
}
