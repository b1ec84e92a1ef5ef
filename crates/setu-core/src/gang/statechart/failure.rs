//! Why an attempt failed: a closed set of classes, with a message for the user.

use crate::listed::listed;
use crate::plan::{Obstacle, ObstacleReason};
use serde::de::IntoDeserializer;
use serde::de::value::StringDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

listed! {
    /// The class of a failure. The names appear in the journal, in events and in metrics.
    #[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum FailureClass {
        /// The provider has no capacity for such an instance now.
        InsufficientCapacity,
        /// The NodeClass is not ready.
        NodeClassNotReady,
        /// The NodeClass does not exist.
        NodeClassMissing,
        /// The provider refused to launch for another reason.
        LaunchFailed,
        /// Not launched in time.
        LaunchTimeout,
        /// Launched, but its Node did not register in time.
        RegistrationTimeout,
        /// Registered, but not initialized or not ready in time.
        InitializationTimeout,
        /// The attempt as a whole took too long.
        GangTimeout,
        /// The API server refused a NodeClaim.
        Refused,
        /// A node exists but has less than its pods need.
        NodeTooSmall,
        /// A node existed and was lost.
        Interrupted,
        /// A NodeClaim was deleted, but not by Setu.
        DeletedByOther,
        /// The plan changed while its claims were being created.
        PlanChanged,
        /// The plan cannot be carried out, permanently or for too long.
        NotPlannable,
        /// Ready, but not admitted by Kueue in time.
        NotAdmitted,
        /// A claim was deleted before its launch, and no event says why. Karpenter deletes such claims for lack of capacity.
        /// Its event may be late or lost, because it publishes the events of a large gang one by one.
        Unknown,
    }
}

/// A class of a later release reads as [`FailureClass::Unknown`], so that the journal can still be read.
impl<'de> Deserialize<'de> for FailureClass {
    fn deserialize<D: Deserializer<'de>>(written: D) -> Result<Self, D::Error> {
        let word = String::deserialize(written)?;
        Ok(Self::ALL.into_iter().find(|class| class.to_string() == word).unwrap_or(Self::Unknown))
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How far a failure is evidence of a shortage of the provider's capacity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ShortageEvidence {
    /// Nothing.
    None,
    /// These nodes are not available now; another tier may have some.
    OfTheseNodes,
    /// As `OfTheseNodes`. The requested types are also assumed to be short.
    Suspected,
    /// The requested offerings are known to be short: a loss shows it, or how late a launch is. `step::planning` reads which.
    Certain,
}

/// The consequences of a class.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct ClassTraits {
    may_have_had_node: bool,
    node_loss: bool,
    needs_quorum: bool,
    rests_on_plan: bool,
    blames_nodes: bool,
    shortage: ShortageEvidence,
}

impl ClassTraits {
    /// No consequences.
    const NOTHING: Self = Self {
        may_have_had_node: true,
        node_loss: false,
        needs_quorum: false,
        rests_on_plan: false,
        blames_nodes: true,
        shortage: ShortageEvidence::None,
    };
    /// Of a class that needs a quorum read.
    const NEEDS_QUORUM: Self = Self { needs_quorum: true, ..Self::NOTHING };
    /// Of a class that needs a quorum read, for a claim that never had a Node.
    const WITHOUT_NODE: Self = Self { may_have_had_node: false, ..Self::NEEDS_QUORUM };
}

impl FailureClass {
    /// The one place that defines what follows from each class.
    const fn traits(self) -> ClassTraits {
        use ShortageEvidence::{Certain, OfTheseNodes, Suspected};
        match self {
            Self::InsufficientCapacity => ClassTraits { shortage: Certain, ..ClassTraits::NOTHING },
            Self::LaunchTimeout => ClassTraits { shortage: Certain, ..ClassTraits::WITHOUT_NODE },
            Self::Unknown => ClassTraits { shortage: Suspected, ..ClassTraits::NEEDS_QUORUM },
            Self::LaunchFailed => ClassTraits { shortage: OfTheseNodes, ..ClassTraits::WITHOUT_NODE },
            Self::NodeClassNotReady | Self::NodeClassMissing => {
                ClassTraits { shortage: OfTheseNodes, ..ClassTraits::NOTHING }
            }
            Self::RegistrationTimeout => ClassTraits::WITHOUT_NODE,
            Self::InitializationTimeout | Self::GangTimeout | Self::NodeTooSmall => ClassTraits::NEEDS_QUORUM,
            Self::PlanChanged | Self::NotPlannable => {
                ClassTraits { rests_on_plan: true, ..ClassTraits::NEEDS_QUORUM }
            }
            Self::NotAdmitted => ClassTraits { blames_nodes: false, ..ClassTraits::NEEDS_QUORUM },
            Self::Interrupted | Self::DeletedByOther => {
                ClassTraits { node_loss: true, ..ClassTraits::NOTHING }
            }
            Self::Refused => ClassTraits::NOTHING,
        }
    }

    /// Whether a claim that failed this way may have had a Node. If that is unknown, it may.
    pub fn may_have_had_node(self) -> bool {
        self.traits().may_have_had_node
    }

    /// Whether a node existed and is gone, so that one replacement is enough.
    pub fn is_node_loss(self) -> bool {
        self.traits().node_loss
    }

    /// Whether the provider does not give these nodes now, so that another tier may.
    pub fn is_shortage(self) -> bool {
        self.traits().shortage >= ShortageEvidence::OfTheseNodes
    }

    /// Whether it needs a quorum read: it depends on elapsed time, or on a plan or a node that a watch showed last. The watch may
    /// be stale.
    pub fn needs_quorum(self) -> bool {
        self.traits().needs_quorum
    }

    /// Whether it depends on what the plan is made from, so that this is read past the caches first.
    pub fn rests_on_plan(self) -> bool {
        self.traits().rests_on_plan
    }

    /// Whether the nodes are the cause. If not, they were ready and unused: another try would not help.
    pub fn blames_nodes(self) -> bool {
        self.traits().blames_nodes
    }

    /// Whether what was requested is known to be short, so that every plan of the next minutes avoids it.
    pub fn is_certain_shortage(self) -> bool {
        self.traits().shortage == ShortageEvidence::Certain
    }

    /// Whether what the lost claims requested counts as short from now on. For a claim that was deleted without an event, this
    /// is a guess.
    pub fn counts_as_short(self) -> bool {
        self.traits().shortage >= ShortageEvidence::Suspected
    }
}

/// One failure, as kept in the journal.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its class.
    pub reason: FailureClass,
    /// The obstacle to the plan, if that was the cause.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known")]
    pub obstacle: Option<ObstacleReason>,
    /// Description for the user; at most [`Failure::MESSAGE_LIMIT`] characters.
    pub message: String,
}

impl Failure {
    /// Most characters of a message, so that the journal stays small.
    pub const MESSAGE_LIMIT: usize = 300;

    /// A failure with its message cut to the limit and without control characters.
    pub fn new(reason: FailureClass, message: impl AsRef<str>) -> Self {
        let message =
            message.as_ref().chars().filter(|c| !c.is_control()).take(Self::MESSAGE_LIMIT).collect();
        Self { reason, obstacle: None, message }
    }

    /// The failure for a NodeClaim that the API server refused.
    pub fn refused_claim(reason: &str) -> Self {
        Self::new(FailureClass::Refused, format!("the API server refused a NodeClaim: {reason}"))
    }

    /// The failure for an obstacle that is permanent or lasted too long.
    pub fn of_obstacle(obstacle: &Obstacle) -> Self {
        let failure = Self::new(FailureClass::NotPlannable, &obstacle.message);
        Self { obstacle: Some(obstacle.reason), ..failure }
    }

    /// Whether something was missing that may still appear.
    pub fn may_appear(&self) -> bool {
        self.obstacle.is_some_and(ObstacleReason::may_appear)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.obstacle {
            // The obstacle is more specific than `NotPlannable`.
            Some(obstacle) => write!(f, "{obstacle}: {}", self.message),
            None => write!(f, "{}: {}", self.reason, self.message),
        }
    }
}

/// Reads the kind of an obstacle; `None` for one of a later release.
fn known<'de, D: Deserializer<'de>>(written: D) -> Result<Option<ObstacleReason>, D::Error> {
    let word = Option::<String>::deserialize(written)?;
    let read = |word: String| -> Option<ObstacleReason> {
        let word: StringDeserializer<serde::de::value::Error> = word.into_deserializer();
        ObstacleReason::deserialize(word).ok()
    };
    Ok(word.and_then(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_obstacle_and_ignores_an_unknown_kind() {
        let failure = Failure::of_obstacle(&Obstacle::new(ObstacleReason::NoNodePoolFits, "gpu: no zone"));
        assert_eq!(failure.to_string(), "NoNodePoolFits: gpu: no zone");
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(text, r#"{"reason":"NotPlannable","obstacle":"NoNodePoolFits","message":"gpu: no zone"}"#);
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
        let later: Failure =
            serde_json::from_str(&text.replace("NoNodePoolFits", "OfALaterRelease")).unwrap();
        assert_eq!(later.to_string(), "NotPlannable: gpu: no zone");
    }
}
