//! A NodePool or option that gives a gang no nodes, and the reason.

use serde::Serialize;

/// A NodePool that a gang gets no nodes from, or an option on one that it does not take.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// Name of the NodePool, or of the option by tier, capacity type and place.
    pub node_pool: String,
    /// The reason.
    pub reason: String,
}

impl PassedOver {
    /// Adds those that are not listed yet.
    pub fn add(all: &mut Vec<Self>, more: impl IntoIterator<Item = Self>) {
        for one in more {
            if !all.iter().any(|known| known.node_pool == one.node_pool) {
                all.push(one);
            }
        }
    }
}

/// Most NodePools that are listed with reasons.
const NAMED: usize = 3;

/// Message clause after a semicolon: the NodePools with their reasons. Empty if there are none.
pub fn clause(all: &[PassedOver]) -> String {
    let named: Vec<String> =
        all.iter().take(NAMED).map(|one| format!("{} ({})", one.node_pool, one.reason)).collect();
    let more = all.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    if all.is_empty() { String::new() } else { format!("; passed over: {}{more}", named.join(", ")) }
}
