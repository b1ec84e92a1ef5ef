//! Reasons why a NodeClaim that is coming up is not ready yet.

use std::fmt;

/// The problem if Karpenter has not touched a claim, and its remedy.
pub const UNTOUCHED: &str =
    "has not touched its NodeClaim: check that it runs, and the chart's karpenter.namespace";

/// The reason why a claim's node cannot run its pods yet. The text follows "waits for".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Karpenter, which has not touched the claim.
    Karpenter,
    /// The provider to launch the instance; with the reason why it has not, if known.
    Launch(String),
    /// Its Node to register; with the reason why it has not, if known.
    Registration(String),
    /// Its Node to be initialized; with the reason why it is not, if known.
    Initialization(String),
    /// Its Node, of this name, to come up again after a reboot.
    Reboot(String),
    /// Its Node to appear.
    Node,
    /// Its Node to become usable.
    Readiness {
        /// Name of the Node.
        node: String,
        /// The problem.
        lack: NodeProblem,
    },
    /// The device plugins of its Node.
    Devices {
        /// Name of the Node.
        node: String,
        /// The resource that it does not offer yet, with figures.
        resource: String,
    },
    /// The drivers of its Node's devices to publish them.
    ResourceSlices {
        /// Name of the Node.
        node: String,
        /// The lack and where it is, in words that follow "waits for".
        lack: String,
    },
    /// Pods of others to leave its Node.
    OtherPods {
        /// Name of the Node.
        node: String,
        /// The resource that they leave too little of, with figures.
        resource: String,
    },
    /// Room on its Node: pods of DaemonSets that could not be foreseen leave too little.
    DaemonSets {
        /// Name of the Node.
        node: String,
        /// The resource that they leave too little of, with figures.
        resource: String,
    },
    /// The gang's label on a Node that was kept.
    Mark,
    /// The end of the buffer time, for which its Node must be ready.
    BufferTime,
}

/// A problem that keeps a Node from running the pods of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeProblem {
    /// It is being deleted.
    Deleted,
    /// It is not Ready.
    NotReady,
    /// It is cordoned.
    Cordoned,
    /// It has a taint with this key that its claim does not state.
    Taint(String),
    /// It lacks a label with this key, and with this value unless that is empty.
    Label(String, String),
    /// It does not report a condition of this type with this status.
    Condition(String, String),
}

impl WaitsFor {
    /// Whether the claim may have a Node by now.
    pub const fn may_have_node(&self) -> bool {
        !matches!(self, Self::Karpenter | Self::Launch(_) | Self::Registration(_))
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = |f: &mut fmt::Formatter<'_>, phase: &str, why: &str| match why {
            "" => f.write_str(phase),
            why => write!(f, "{phase} ({why})"),
        };
        match self {
            Self::Karpenter => write!(f, "Karpenter, which {UNTOUCHED}"),
            Self::Launch(why) => phase(f, "launch", why),
            Self::Registration(why) => phase(f, "registration", why),
            Self::Initialization(why) => phase(f, "initialization", why),
            Self::Reboot(node) => write!(f, "node {node} to come up after a reboot"),
            Self::Node => f.write_str("its Node to appear"),
            Self::Readiness { node, lack } => match lack {
                NodeProblem::Deleted => write!(f, "node {node}, which is being deleted"),
                NodeProblem::NotReady => write!(f, "node {node} to be Ready"),
                NodeProblem::Cordoned => write!(f, "node {node} to be uncordoned"),
                NodeProblem::Taint(key) => write!(f, "taint {key} to leave node {node}"),
                NodeProblem::Label(key, value) if value.is_empty() => write!(f, "label {key} on node {node}"),
                NodeProblem::Label(key, value) => write!(f, "label {key}={value} on node {node}"),
                NodeProblem::Condition(kind, status) => write!(f, "condition {kind}={status} of node {node}"),
            },
            Self::Devices { node, resource } => write!(f, "node {node} to offer enough {resource}"),
            Self::ResourceSlices { lack, .. } => f.write_str(lack),
            Self::OtherPods { node, resource } => {
                write!(f, "other pods to free {resource} on node {node}")
            }
            Self::DaemonSets { node, resource } => {
                write!(f, "more {resource} on node {node}, whose DaemonSet and static pods take too much")
            }
            Self::Mark => f.write_str("the gang's label on its Node"),
            Self::BufferTime => f.write_str("the buffer time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_claim_that_waits_for_launch_or_registration_has_no_node() {
        let node = || "n".to_owned();
        let all = [
            WaitsFor::Launch(String::new()),
            WaitsFor::Registration("launch".to_owned()),
            WaitsFor::Initialization(String::new()),
            WaitsFor::Reboot(node()),
            WaitsFor::Node,
            WaitsFor::Readiness { node: node(), lack: NodeProblem::NotReady },
            WaitsFor::Devices { node: node(), resource: String::new() },
            WaitsFor::ResourceSlices { node: node(), lack: String::new() },
            WaitsFor::OtherPods { node: node(), resource: String::new() },
            WaitsFor::DaemonSets { node: node(), resource: String::new() },
            WaitsFor::Mark,
            WaitsFor::BufferTime,
        ];
        let without: Vec<&WaitsFor> = all.iter().filter(|w| !w.may_have_node()).collect();
        assert_eq!(without, [&all[0], &all[1]]);
    }

    #[test]
    fn the_text_has_the_reason() {
        let in_words = |waits: &WaitsFor| waits.to_string();
        assert_eq!(in_words(&WaitsFor::Launch("LaunchFailed".to_owned())), "launch (LaunchFailed)");
        assert_eq!(in_words(&WaitsFor::Registration(String::new())), "registration");
        let label = |value: &str| WaitsFor::Readiness {
            node: "n".to_owned(),
            lack: NodeProblem::Label("a".to_owned(), value.to_owned()),
        };
        assert_eq!(
            (in_words(&label("b")), in_words(&label(""))),
            ("label a=b on node n".into(), "label a on node n".into())
        );
    }
}
