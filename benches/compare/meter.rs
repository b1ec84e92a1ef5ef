//! The resources that each program uses while gangs are in progress.

use crate::usage;
use setu_e2e::Program;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Columns of the table. Each program counts towards one.
pub const SHARES: [&str; 6] = ["Setu", "Kueue", "Karpenter", "API server and etcd", "others", "this bench"];

/// CPU time of each share and the duration, for this many rounds.
#[derive(Clone, Debug, Default)]
pub struct Used {
    pub rounds: u32,
    pub took: Duration,
    pub cpu: BTreeMap<&'static str, Duration>,
}

impl Used {
    /// Adds other rounds.
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.took += other.took;
        for (share, cpu) in other.cpu {
            *self.cpu.entry(share).or_default() += cpu;
        }
    }
}

/// Processes with their CPU time at the start.
pub struct Meter {
    began: Instant,
    processes: Vec<(&'static str, u32, Duration)>,
}

impl Meter {
    /// Starts measuring.
    pub fn start(programs: Vec<(Program, u32)>, setu: u32) -> Self {
        let programs = programs.into_iter().map(|(program, id)| (share_of(program), id));
        let own = [("Setu", setu), ("this bench", std::process::id())];
        let processes = programs.chain(own).map(|(share, id)| (share, id, usage::cpu(id))).collect();
        Self { began: Instant::now(), processes }
    }

    /// The usage since the start.
    pub fn read(self) -> Used {
        let mut used = Used { rounds: 1, took: self.began.elapsed(), cpu: BTreeMap::new() };
        for (share, id, before) in self.processes {
            *used.cpu.entry(share).or_default() += usage::cpu(id).saturating_sub(before);
        }
        used
    }
}

fn share_of(program: Program) -> &'static str {
    match program {
        Program::Kueue => "Kueue",
        Program::Karpenter => "Karpenter",
        Program::ApiServer | Program::Etcd => "API server and etcd",
        _ => "others",
    }
}
