//! Coverage: which fault or move met a gang in which state. A pair that never occurs is not tested.

use crate::gang::StateName;
use crate::sim::faults::{Fault, ReadFault, WatchFault};
use crate::sim::moves::Move;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

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
    let faults = Fault::ALL.iter().map(ToString::to_string);
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
