//! Coverage: which fault or move met a gang in which state. A pair that never occurs is not tested.

use crate::cluster::lock;
use crate::gang::StateName;
use crate::sim::cluster::SimCluster;
use crate::sim::invariants::InvariantChecker;
use crate::sim::moves::Move;
use http::Method;
use setu_sim::faults::{ReadFault, WatchFault, WriteFault};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// How often each fault or move has met a gang in each state. Clones count together.
#[derive(Clone, Default)]
pub struct Met(Arc<Mutex<BTreeMap<(StateName, String), u64>>>);

impl Met {
    /// Records the states of gangs that a fault or move met.
    pub fn note(&self, states: &[StateName], what: &str) {
        let mut met = lock(&self.0);
        for state in states {
            *met.entry((*state, what.to_owned())).or_default() += 1;
        }
    }

    /// Records every fault that occurs in this cluster.
    pub fn note_faults(&self, cluster: &mut SimCluster, checker: &InvariantChecker) {
        let (met, checker) = (self.clone(), checker.clone());
        cluster.on_fault(Arc::new(move |fault, request| {
            let meant = request.map(|request| (checker.meant_by(request), request.method()));
            let states = match meant {
                // A fault of a watch or a list of everything meets all known gangs.
                None => checker.states(),
                Some((meant, &Method::GET)) if meant.is_empty() => checker.states(),
                Some((meant, _)) => checker.state_of(&meant).into_iter().collect(),
            };
            met.note(&states, fault);
        }));
    }

    /// The counts so far.
    pub fn counts(&self) -> BTreeMap<(StateName, String), u64> {
        lock(&self.0).clone()
    }
}

/// A table of how often each fault or move met a gang in each state.
pub fn coverage(met: &BTreeMap<(StateName, String), u64>) -> String {
    let mut table = format!("{:<16}", "met in");
    // Writing to a String cannot fail.
    for state in StateName::ALL {
        let _ = write!(table, "{:>14}", state.to_string());
    }
    table.push('\n');
    for fault in everything() {
        let _ = write!(table, "{fault:<16}");
        for state in StateName::ALL {
            let times = met.get(&(state, fault.clone())).copied().unwrap_or_default();
            let _ = write!(table, "{times:>14}");
        }
        table.push('\n');
    }
    table
}

/// All faults, moves and scenes of a drama.
fn everything() -> BTreeSet<String> {
    let faults = WriteFault::ALL.iter().map(ToString::to_string);
    let reads = ReadFault::ALL.iter().map(|fault| format!("{fault:?}"));
    let watches = WatchFault::ALL.iter().map(|fault| format!("{fault:?}"));
    let moves = Move::ALL.iter().map(|what| format!("{what:?}"));
    let scenes = ["Kill", "Sleep", "Clock", "Upgrade", "Policy"].map(str::to_owned);
    faults.chain(reads).chain(watches).chain(moves).chain(scenes).collect()
}

/// Pairs that never occurred.
pub fn gaps(met: &BTreeMap<(StateName, String), u64>) -> Vec<(StateName, String)> {
    let pairs = everything().into_iter().flat_map(|fault| StateName::ALL.map(|state| (state, fault.clone())));
    pairs.filter(|pair| !met.contains_key(pair)).collect()
}
