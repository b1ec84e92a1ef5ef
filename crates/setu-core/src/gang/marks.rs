//! Setu's labels and annotations on NodeClaims and Nodes, in one table. What becomes of one when a node is kept, taken over or
//! handed back follows from what it says.

use crate::api::NodeClaim;
use crate::names;

/// A label or an annotation of Setu's.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Its key.
    pub key: &'static str,
    /// The information that it carries.
    pub says: Says,
    /// Whether a Node has it too.
    pub on_node: bool,
}

/// The information that a mark carries. A new mark only needs a line in the tables, unless it says something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// For which check the node was made. A node keeps its check when it passes to another gang.
    Check,
    /// Which gang has the node, as what, and on which terms.
    Gang,
    /// That Karpenter must leave the node alone, and until when.
    Hold,
    /// For whom the node is kept warm.
    Warm,
    /// Something else that holds until the node is handed back, such as that Setu manages it.
    Other,
}

/// The labels. Earlier versions wrote slot and generation as labels.
pub const LABELS: [Mark; 8] = [
    mark(names::MANAGED_BY, Says::Other, true),
    mark(names::GANG, Says::Gang, true),
    mark(names::POD_SETS, Says::Gang, true),
    mark(names::WORKLOAD_UID, Says::Gang, true),
    mark(names::ATTEMPT, Says::Gang, true),
    mark(names::SLOT, Says::Gang, true),
    mark(names::GENERATION, Says::Gang, true),
    mark(names::WARM, Says::Warm, false),
];

/// The annotations.
pub const ANNOTATIONS: [Mark; 16] = [
    mark(names::CHECK, Says::Check, true),
    mark(names::WORKLOAD, Says::Gang, true),
    mark(names::OWNER, Says::Gang, true),
    mark(names::SLOT, Says::Gang, true),
    mark(names::GENERATION, Says::Gang, true),
    mark(names::TERMS, Says::Gang, false),
    mark(names::POD_REQUESTS, Says::Gang, false),
    mark(names::TAKEN_OVER, Says::Gang, false),
    mark(names::HOLD_UNTIL, Says::Hold, true),
    mark(names::DO_NOT_DISRUPT, Says::Hold, true),
    mark(names::DO_NOT_REPAIR, Says::Hold, true),
    mark(names::DEVICES, Says::Other, false),
    mark(names::UNREQUESTED, Says::Other, false),
    mark(names::WARM_QUEUE, Says::Warm, false),
    mark(names::WARM_SINCE, Says::Warm, false),
    mark(names::HANDING_BACK, Says::Other, false),
];

const fn mark(key: &'static str, says: Says, on_node: bool) -> Mark {
    Mark { key, says, on_node }
}

/// Value of a label of a claim; `None` if it has none, or only one of an earlier version.
pub fn label<'c>(claim: &'c NodeClaim, key: &str) -> Option<&'c str> {
    let is_earlier = [names::SLOT, names::GENERATION].contains(&key);
    Some(claim.label(key)).filter(|value| !value.is_empty() && !is_earlier)
}

/// Value of an annotation of a claim, also if an earlier version wrote it as a label; `None` if it has none.
pub fn annotation(claim: &NodeClaim, key: &str) -> Option<String> {
    match key {
        names::SLOT => claim.slot().map(|slot| slot.to_string()),
        names::GENERATION => Some(claim.generation().to_string()),
        _ => Some(claim.annotation(key)).filter(|value| !value.is_empty()).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_setus_own_on_claims_and_nodes_is_in_the_tables() {
        let (mut doc, mut keys) = (String::new(), Vec::new());
        for line in include_str!("../names.rs").lines() {
            if let Some(more) = line.strip_prefix("/// ") {
                doc.push_str(more);
                continue;
            }
            let what = std::mem::take(&mut doc);
            let is_mark = ["Label on", "Annotation on"].iter().any(|kind| what.starts_with(kind));
            let key = line.split_once("&str = \"").and_then(|(_, value)| value.strip_suffix("\";"));
            keys.extend(key.filter(|_| is_mark && what.contains("NodeClaim")));
        }
        assert!(keys.len() > 15, "{keys:?}");
        for key in keys {
            let is_marked = LABELS.iter().chain(&ANNOTATIONS).any(|mark| mark.key == key);
            assert!(is_marked, "{key} is in names.rs, but not in a table here");
        }
    }
}
