//! Which fault or move met a gang in which state: a pair that never happens is not tested.

use crate::gang::StateName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// States in which a gang is under way.
const STATES: [StateName; 6] = [
    StateName::Validating,
    StateName::Provisioning,
    StateName::WaitingReady,
    StateName::BackingOff,
    StateName::Approved,
    StateName::RollingBack,
];

/// A table of how often each fault or move met a gang in each state.
pub fn coverage(met: &BTreeMap<(StateName, String), u64>) -> String {
    let faults: BTreeSet<&str> = met.keys().map(|(_, fault)| fault.as_str()).collect();
    let mut table = format!("{:<16}", "met in");
    // Writing to a String cannot fail.
    for state in STATES {
        let _ = write!(table, "{:>14}", state.to_string());
    }
    table.push('\n');
    for fault in &faults {
        let _ = write!(table, "{fault:<16}");
        for state in STATES {
            let times = met.get(&(state, (*fault).to_owned())).copied().unwrap_or_default();
            let _ = write!(table, "{times:>14}");
        }
        table.push('\n');
    }
    table
}

/// Pairs that never happened, of the faults and moves that happened at all.
pub fn gaps(met: &BTreeMap<(StateName, String), u64>) -> Vec<(StateName, String)> {
    let faults: BTreeSet<&String> = met.keys().map(|(_, fault)| fault).collect();
    let pairs = faults.iter().flat_map(|fault| STATES.iter().map(|state| (*state, (*fault).clone())));
    pairs.filter(|pair| !met.contains_key(pair)).collect()
}
