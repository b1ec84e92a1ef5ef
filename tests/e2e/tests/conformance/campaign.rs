//! Runs many sequences on two servers in parallel, and shrinks those that show a difference. The rule: one
//! smallest sequence for each sort of difference, even if many sequences found it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::runtime::Runtime;

use crate::compare::{self, Difference};
use crate::generate;
use crate::play::play;
use crate::server::Server;
use crate::shrink;
use crate::step::Sequence;

/// Sequences that run at the same time.
const AT_ONCE: usize = 12;
/// The maximum number of tries to shrink one failing sequence.
const SHRINKS: u32 = 300;
/// The maximum number of sorts of difference to shrink.
const SORTS: usize = 25;

/// Two servers that should give the same answers.
#[derive(Clone)]
pub struct Pair {
    pub left: Server,
    pub right: Server,
    pub runtime: Arc<Runtime>,
}

/// Many sequences on a pair.
pub struct Campaign {
    pub pair: Pair,
    /// The first letter of its namespaces, unique to the campaign.
    pub letter: char,
    /// The folder for shrunk sequences.
    pub keep: Option<PathBuf>,
    pub seed: u64,
    pub count: u32,
}

/// The result of a campaign.
pub struct Report {
    pub played: u32,
    pub requests: u64,
    pub took: Duration,
    /// The differences found, by sort.
    pub differences: BTreeMap<String, Found>,
}

pub struct Found {
    pub times: u32,
    pub smallest: Sequence,
    pub difference: Difference,
}

impl Pair {
    /// Runs a sequence on both. Their namespaces must be new and have the same length, so that the sort order is the same.
    pub fn play(&self, sequence: &Sequence, name: &str) -> Result<Option<Difference>> {
        let (left, right) = (format!("{name}l"), format!("{name}r"));
        let (one, other) = (self.left.anew(), self.right.anew());
        let (left, right) = self
            .runtime
            .block_on(async { tokio::join!(play(&one, sequence, &left), play(&other, sequence, &right)) });
        let left = left.context("playing on the first server")?;
        let right = right.context("playing on the second server")?;
        Ok(compare::first_difference(&left, &right))
    }
}

impl Campaign {
    pub fn run(&self) -> Result<Report> {
        let (next, requests) = (AtomicU32::new(0), Mutex::new(0));
        let found: Mutex<BTreeMap<String, Option<Found>>> = Mutex::default();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..AT_ONCE).map(|_| scope.spawn(|| self.work(&next, &requests, &found))).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|_| anyhow::bail!("a worker panicked")))
        })?;
        let differences = found.into_inner().unwrap_or_default();
        let requests = requests.into_inner().unwrap_or_default();
        let differences = differences.into_iter().filter_map(|(sort, found)| Some((sort, found?))).collect();
        Ok(Report { played: self.count, requests, took: start.elapsed(), differences })
    }

    fn work(
        &self,
        next: &AtomicU32,
        requests: &Mutex<u64>,
        found: &Mutex<BTreeMap<String, Option<Found>>>,
    ) -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return Ok(());
            }
            let mut runner = TestRunner::new_with_rng(Config::default(), self.random(index));
            let tree = generate::sequence().new_tree(&mut runner);
            let tree = tree.map_err(|reason| anyhow::anyhow!("generating a sequence: {reason}"))?;
            let sequence = tree.current();
            if let Ok(mut requests) = requests.lock() {
                *requests += sequence.steps.len() as u64;
            }
            let played = self.pair.play(&sequence, &format!("{}{index:05}", self.letter));
            let Some(difference) =
                played.with_context(|| format!("sequence {index}:\n{}", shown(&sequence)))?
            else {
                continue;
            };
            let sort = difference.sort();
            {
                let Ok(mut found) = found.lock() else { return Ok(()) };
                let sorts = found.len();
                match found.get_mut(&sort) {
                    Some(Some(known)) => {
                        known.times += 1;
                        continue;
                    }
                    Some(None) => continue,
                    None if sorts >= SORTS => continue,
                    None => drop(found.insert(sort.clone(), None)),
                }
            }
            let (smallest, difference) = self.shrink(sequence, index, difference)?;
            if let Some(folder) = &self.keep {
                keep(folder, &smallest, &difference)?;
            }
            if let Ok(mut found) = found.lock() {
                found.insert(sort, Some(Found { times: 1, smallest, difference }));
            }
        }
    }

    /// The random generator for one sequence.
    fn random(&self, index: u32) -> TestRng {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&index.to_le_bytes());
        TestRng::from_seed(RngAlgorithm::ChaCha, &seed)
    }

    /// Finds the smallest sequence with the same sort of difference.
    fn shrink(
        &self,
        mut smallest: Sequence,
        index: u32,
        mut shown: Difference,
    ) -> Result<(Sequence, Difference)> {
        let sort = shown.sort();
        smallest.steps.truncate(shown.step + 1);
        let (mut tries, mut at) = (0, 0);
        // The list of smaller forms is rebuilt after each success; `at` skips those already tried without success.
        while tries < SHRINKS
            && let Some(smaller) = shrink::smaller(&smallest, at)
        {
            tries += 1;
            let found = self.pair.play(&smaller, &format!("{}{index:05}x{tries:04}", self.letter))?;
            match found.filter(|found| found.sort() == sort) {
                Some(found) => (smallest, shown) = (smaller, found),
                None => at += 1,
            }
        }
        Ok((smallest, shown))
    }
}

fn keep(folder: &std::path::Path, sequence: &Sequence, difference: &Difference) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut name: String = difference.sort().to_lowercase();
    name = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
    let name = name.split_whitespace().take(9).collect::<Vec<_>>().join("-");
    let sequence = Sequence { about: Some(difference.to_string()), ..sequence.clone() };
    let path = folder.join(format!("{name}.yaml"));
    std::fs::write(&path, shown(&sequence)).with_context(|| format!("writing {}", path.display()))
}

fn shown(sequence: &Sequence) -> String {
    serde_yaml::to_string(sequence).unwrap_or_else(|error| error.to_string())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found: Vec<&Found> = self.differences.values().collect();
        found.sort_by_key(|found| std::cmp::Reverse(found.times));
        for found in found {
            writeln!(f, "--- {} times\n{}\n{}", found.times, found.difference, shown(&found.smallest))?;
        }
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "{} sequences, {} requests to each server in {seconds:.1} s, {} sorts of difference",
            self.played,
            self.requests,
            self.differences.len()
        )
    }
}
