//! Where a figure about a node comes from: a shape or a price.

use jiff::Timestamp;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// The source of a shape or a price.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Source {
    /// The policy states it.
    Policy,
    /// A Node showed it.
    Node {
        /// Its name.
        name: String,
        /// When it was seen.
        seen: Timestamp,
    },
    /// The provider expected it of a NodeClaim.
    NodeClaim {
        /// Its name.
        name: String,
        /// When it was seen.
        seen: Timestamp,
    },
    /// Karpenter's metrics.
    Metrics {
        /// When they were read.
        read: Timestamp,
    },
    /// The embedded catalogue.
    Catalogue {
        /// Day of the catalogue.
        date: Arc<str>,
        /// Day on which region prices were compared, if the figure is a price estimated from another region.
        #[serde(rename = "estimatedBy", skip_serializing_if = "Option::is_none")]
        estimated_by: Option<Arc<str>>,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |seen: &Timestamp| seen.round(jiff::Unit::Second).unwrap_or(*seen);
        match self {
            Self::Policy => f.write_str("the policy"),
            Self::Node { name, seen } => write!(f, "Node {name}, seen {}", at(seen)),
            Self::NodeClaim { name, seen } => write!(f, "NodeClaim {name}, seen {}", at(seen)),
            Self::Metrics { read } => write!(f, "Karpenter's metrics, read {}", at(read)),
            Self::Catalogue { date, estimated_by: None } => write!(f, "the catalogue of {date}"),
            Self::Catalogue { date, estimated_by: Some(day) } => {
                write!(f, "the catalogue of {date} (estimates, by how prices of regions differed on {day})")
            }
        }
    }
}
