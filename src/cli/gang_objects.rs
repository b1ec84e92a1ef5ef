//! The objects of one gang: the only place where commands read its journal and take its snapshot.
//!
//! `explain` and `inspect` explain the gang from them, and `repair` rebuilds its journal.
//!
//! Rule: what could not be read is not counted. The controller's own words stand in its place.

use super::cluster::ClusterObjects;
use crate::api::workload::Verdict;
use crate::api::{NodeClaim, Pod, Workload};
use crate::gang::report::explain::{SlotPhase, SlotView, WHEN_THAT_CHANGES};
use crate::gang::snapshot::observed::Observed;
use crate::gang::statechart::journal::JournalError;
use crate::gang::workload::journal_load::stored_journal;
use crate::gang::workload::queueing::is_out_after_refusal;
use crate::gang::workload::repair::rebuild_journal;
use crate::gang::{
    AdmittedPods, ClaimView, EffectivePolicy, Ending, Explanation, Forecast, GangIdentity, Journal, Nodes,
    Refusal, Reservation, Snapshot, SnapshotParts, State, StateName, UnboundPods,
};
use crate::names;
use crate::plan::taints::is_named_by_templates;
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Deadlines this far off are those of a policy that is not known.
const UNKNOWN_DEADLINE: SignedDuration = SignedDuration::from_hours(50 * 365 * 24);

/// A kind of object without which the nodes of a gang cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadKind {
    /// Without NodeClaims, nothing is known of its nodes.
    NodeClaims,
    /// Without Nodes, it is not known which of the initialized nodes are ready.
    Nodes,
}

impl fmt::Display for UnreadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NodeClaims => "NodeClaims",
            Self::Nodes => "Nodes",
        })
    }
}

/// The explanation of a gang, as far as the objects show it.
#[derive(Clone, Debug, PartialEq)]
pub struct GangView {
    explanation: Explanation,
    /// The kind that was not read and would be needed to count its nodes.
    pub unread: Option<UnreadKind>,
}

impl GangView {
    /// How many of its nodes are ready, if that is known.
    pub fn known_ready(&self) -> Option<u32> {
        self.unread.is_none().then_some(self.explanation.ready)
    }

    /// How many of its NodeClaims exist, if that is known.
    pub fn known_created(&self) -> Option<u32> {
        (self.unread != Some(UnreadKind::NodeClaims)).then_some(self.explanation.created)
    }

    /// Ready and wanted nodes as `2/4`; as `?/4` if it is not known how many are ready.
    pub fn ready_of_all(&self) -> String {
        let ready = self.known_ready().map_or_else(|| "?".to_owned(), |ready| ready.to_string());
        format!("{ready}/{}", self.explanation.slots)
    }

    /// Whether this node may be ready. Its Node was not read.
    pub fn may_be_ready(&self, slot: &SlotView) -> bool {
        self.unread == Some(UnreadKind::Nodes) && is_initialized(slot)
    }
}

impl Deref for GangView {
    type Target = Explanation;

    fn deref(&self) -> &Explanation {
        &self.explanation
    }
}

impl Serialize for GangView {
    /// Writes the explanation without the counts that are not known.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.unread.is_none() {
            return self.explanation.serialize(serializer);
        }
        let mut written = serde_json::to_value(&self.explanation).map_err(S::Error::custom)?;
        let counts = [("ready", self.known_ready()), ("created", self.known_created())];
        if let Some(fields) = written.as_object_mut() {
            for (field, _) in counts.into_iter().filter(|(_, count)| count.is_none()) {
                fields.remove(field);
            }
        }
        written.serialize(serializer)
    }
}

/// Whether Karpenter has initialized a node that is not known to be ready.
fn is_initialized(slot: &SlotView) -> bool {
    slot.phase == SlotPhase::Settling
}

/// Whether the sentence about a gang in this state counts its nodes.
fn counts_nodes(state: &State) -> bool {
    match state {
        State::Provisioning | State::WaitingReady | State::RollingBack { .. } => true,
        State::Approved { nodes } => *nodes != Nodes::Unneeded,
        State::Validating | State::BackingOff { .. } | State::Yielded | State::Rejected | State::Released => {
            false
        }
    }
}

/// A gang among the objects that were read.
pub struct GangObjects<'o> {
    /// All objects.
    pub objects: &'o ClusterObjects,
    /// Its Workload.
    pub workload: &'o Workload,
    /// Its identity.
    pub identity: GangIdentity,
    /// Its NodeClaims, as far as they may be read.
    pub claims: Vec<Arc<NodeClaim>>,
    journal: Option<Result<Journal, JournalError>>,
}

impl<'o> GangObjects<'o> {
    /// The gang of this Workload under this check.
    pub fn of(objects: &'o ClusterObjects, workload: &'o Workload, check: &str) -> Self {
        let identity = GangIdentity::of(workload, check);
        let claims = objects
            .claims
            .iter()
            .flatten()
            .filter(|claim| identity.is_of_gang(claim))
            .cloned()
            .map(Arc::new)
            .collect();
        let journal = stored_journal(workload, &identity, objects.now);
        Self { objects, workload, identity, claims, journal }
    }

    /// When its Workload was created.
    pub fn created(&self) -> Timestamp {
        self.workload.metadata.creation_timestamp.as_ref().map_or(self.objects.now, |t| t.0)
    }

    /// The annotation that holds its journal.
    pub fn annotation(&self) -> Option<&'o str> {
        self.workload.annotations().get(&names::journal_key(&self.identity.check)).map(String::as_str)
    }

    /// Its journal, or why it cannot be used; `None` if there is none.
    pub fn journal(&self) -> Option<Result<&Journal, &JournalError>> {
        self.journal.as_ref().map(Result::as_ref)
    }

    /// Whether Setu keeps it out of Kueue's queue.
    pub fn is_out_after_refusal(&self, journal: &Journal) -> bool {
        is_out_after_refusal(journal, &self.reservation(), self.reported())
    }

    /// Explains it as far as the objects show it, with the controller's own words where only the controller knows.
    pub fn view(&self, journal: &Journal) -> GangView {
        let mut explanation = self.explain(journal);
        let unread = self.unread(&explanation);
        match unread {
            Some(UnreadKind::NodeClaims) => explanation.nodes.clear(),
            Some(UnreadKind::Nodes) => {
                let initialized = explanation.nodes.iter_mut().filter(|slot| is_initialized(slot));
                initialized.for_each(|slot| slot.detail.clear());
            }
            None => {}
        }
        let known = |at: &Timestamp| *at < self.objects.now + UNKNOWN_DEADLINE;
        explanation.nodes.iter_mut().for_each(|node| node.until = node.until.filter(known));
        explanation.otherwise = explanation.otherwise.filter(|o| known(&o.at));
        let word = self.word_of_controller(journal);
        if explanation.state == StateName::Validating {
            // Whether the wait for a plan ends depends on the obstacle, which the controller's own message states.
            explanation.otherwise = None;
            if word.is_some() {
                WHEN_THAT_CHANGES.clone_into(&mut explanation.next);
            }
        }
        let is_for_controller = match journal.state {
            State::Validating | State::Approved { nodes: Nodes::Unneeded } => true,
            State::Yielded => self.is_out_after_refusal(journal),
            _ => unread.is_some(),
        };
        if let Some(word) = word.filter(|_| is_for_controller) {
            word.clone_into(&mut explanation.sentence);
        } else if let Some(kind) = unread.filter(|_| counts_nodes(&journal.state)) {
            explanation.sentence = format!("{kind} may not be read, so the state of its nodes is not known");
        }
        GangView { explanation, unread }
    }

    /// The kind that was not read and would be needed to count the nodes of this explanation.
    fn unread(&self, explanation: &Explanation) -> Option<UnreadKind> {
        if self.objects.claims.is_none() {
            return Some(UnreadKind::NodeClaims);
        }
        let needs_nodes = explanation.nodes.iter().any(is_initialized);
        (self.objects.nodes.is_none() && needs_nodes).then_some(UnreadKind::Nodes)
    }

    /// The controller's last message: that of the check, or the text of the state annotation.
    fn word_of_controller(&self, journal: &Journal) -> Option<&'o str> {
        let (workload, check) = (self.workload, &self.identity.check);
        let entry = workload.check(check).map(|c| c.message.as_str());
        let state = format!("{}: ", journal.state.name());
        let note = || workload.annotations().get(&names::state_key(check))?.strip_prefix(&state);
        entry.filter(|m| !m.is_empty()).or_else(note)
    }

    /// Explains it by the snapshot that decides its next step, as if all objects had been read.
    fn explain(&self, journal: &Journal) -> Explanation {
        let (policy, now) = (self.policy(journal), self.objects.now);
        let views = self.observed().views(journal, &policy, now, |_| None);
        let parts = SnapshotParts::of(self.workload, &self.identity.check, views, now);
        let unbound = self.unbound_pods().filter(|_| Nodes::of(journal.memory.slots) != Nodes::Unneeded);
        let snapshot = Snapshot {
            refusal: self.is_out_after_refusal(journal).then_some(Refusal { until: now, again_at: now }),
            forecast: Forecast { unbound: unbound.as_ref(), ..Forecast::default() },
            ..parts.snapshot(&policy)
        };
        Explanation::of(journal, &snapshot, &self.claims)
    }

    /// Its journal as the controller would rebuild it.
    ///
    /// # Errors
    /// The ending, if Kueue is taking its Workload down.
    pub fn rebuild_journal(&self) -> Result<Journal, Ending> {
        let (policy, now) = (Policy::default(), self.objects.now);
        let view = |claim: &Arc<NodeClaim>| ClaimView::of(claim, None, &policy, now, None);
        let views: Vec<ClaimView> = self.claims.iter().map(view).collect();
        let known = self.journal().and_then(Result::ok);
        rebuild_journal(self.workload, &self.identity, &views, known, now)
    }

    /// The policy that judges it.
    fn policy(&self, journal: &Journal) -> Arc<Policy> {
        EffectivePolicy::of(journal, &self.claims, self.objects.policy(&self.identity.check), None).policy
    }

    fn reservation(&self) -> Reservation {
        Reservation::of(self.workload, &self.identity.check)
    }

    fn reported(&self) -> Verdict {
        self.workload.check(&self.identity.check).map(|entry| entry.state).unwrap_or_default()
    }

    /// What the objects show of its claims and their Nodes. Nothing is known of other pods there.
    fn observed(&self) -> Observed {
        let named: BTreeSet<&str> = self.claims.iter().filter_map(|claim| claim.node_name()).collect();
        let nodes = self.objects.nodes.iter().flatten().filter_map(|node| {
            let name = node.metadata.name.as_deref().filter(|name| named.contains(name))?;
            Some((name.to_owned(), Arc::new(node.clone())))
        });
        let mut observed = Observed::cached(self.claims.clone(), nodes.collect());
        let mut tolerated = observed.added_taints();
        tolerated.retain(|taint| is_named_by_templates(self.workload, taint));
        observed.ignore_taints(&tolerated);
        let with_devices = observed.nodes_with_devices(self.reported());
        Observed { resource_slices: self.objects.resource_slices.on(&with_devices), ..observed }
    }

    /// Its unbound pods once it is admitted, if pods were read.
    fn unbound_pods(&self) -> Option<UnboundPods> {
        let namespace = self.workload.namespace();
        let pods = self.objects.pods.as_ref()?.iter().filter(|pod| pod.metadata.namespace == namespace);
        let pods: Vec<Pod> = pods.cloned().collect();
        AdmittedPods::of(self.workload, &self.identity.check)?.find(&pods, self.objects.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::AdmissionId;
    use crate::gang::snapshot::resource_slices::NodeResourceSlices;
    use serde_json::{Value, json};

    /// An initialized NodeClaim of the gang.
    fn claim(slot: u32) -> NodeClaim {
        let conditions: Vec<Value> = ["Launched", "Registered", "Initialized"]
            .iter()
            .map(|kind| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": format!("claim-{slot}"),
                "labels": {(names::WORKLOAD_UID): "u", (names::ATTEMPT): "1"},
                "annotations": {(names::CHECK): "c", (names::SLOT): slot.to_string()},
            },
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    /// A gang of two nodes in this state, whose check has this message.
    fn view(objects: &ClusterObjects, state: State, message: &str) -> GangView {
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ns", "name": "w", "uid": "u"}, "spec": {},
            "status": {"admissionChecks": [{"name": "c", "message": message}]},
        }))
        .unwrap();
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), objects.now, None);
        journal.state = state;
        (journal.memory.attempt, journal.memory.slots) = (1, 2);
        GangObjects::of(objects, &workload, "c").view(&journal)
    }

    /// The counts in JSON: ready and created.
    fn counts(view: &GangView) -> [Option<u64>; 2] {
        let written = serde_json::to_value(view).unwrap();
        assert_eq!(written["slots"], 2, "{written}");
        ["ready", "created"].map(|field| written.get(field).and_then(Value::as_u64))
    }

    #[test]
    fn without_node_claims_the_counts_of_a_gang_are_not_known() {
        let unread = ClusterObjects::default();
        for state in [State::Provisioning, State::WaitingReady, State::Approved { nodes: Nodes::Held }] {
            let shown = view(&unread, state.clone(), "");
            assert_eq!((shown.ready_of_all().as_str(), counts(&shown)), ("?/2", [None, None]));
            assert!(shown.nodes.is_empty());
            assert_eq!(shown.sentence, "NodeClaims may not be read, so the state of its nodes is not known");
            assert_eq!(view(&unread, state, "1/2 nodes ready").sentence, "1/2 nodes ready");
        }
        let read = ClusterObjects { claims: Some(Vec::new()), ..ClusterObjects::default() };
        let shown = view(&read, State::WaitingReady, "");
        assert_eq!((shown.ready_of_all().as_str(), counts(&shown)), ("0/2", [Some(0), Some(0)]));
    }

    #[test]
    fn without_nodes_an_initialized_claim_is_neither_ready_nor_missing() {
        let claims = Some(vec![claim(0), claim(1)]);
        let unread = ClusterObjects { claims, ..ClusterObjects::default() };
        let shown = view(&unread, State::WaitingReady, "");
        assert_eq!((shown.ready_of_all().as_str(), counts(&shown)), ("?/2", [None, Some(2)]));
        assert!(shown.nodes.iter().all(|slot| shown.may_be_ready(slot) && slot.detail.is_empty()));
        assert_eq!(shown.sentence, "Nodes may not be read, so the state of its nodes is not known");
        let read = ClusterObjects { nodes: Some(Vec::new()), ..unread.clone() };
        let shown = view(&read, State::WaitingReady, "");
        assert_eq!((shown.ready_of_all().as_str(), counts(&shown)), ("0/2", [Some(0), Some(2)]));
        assert!(!shown.may_be_ready(&shown.nodes[0]) && shown.sentence.contains("its Node to appear"));
        // Without initialized claims, Nodes would show nothing.
        let early = ClusterObjects { claims: Some(Vec::new()), ..unread };
        assert_eq!(view(&early, State::WaitingReady, "").known_ready(), Some(0));
    }

    #[test]
    fn a_node_with_a_tolerated_taint_is_ready_once_its_devices_are_published_or_its_gang_was_ready() {
        let (taint, other) =
            (json!({"key": "gpu", "effect": "NoSchedule"}), json!({"key": "b", "effect": "NoSchedule"}));
        let published = |node: &str| {
            let slice = json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
                "spec": {
                    "driver": "gpu", "nodeName": node, "devices": [{"name": "gpu-0"}],
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                },
            });
            NodeResourceSlices::Read(vec![serde_json::from_value(slice).unwrap()])
        };
        let ready = |taints: &[&Value], state: &str, resource_slices: &NodeResourceSlices| {
            let mut claim = claim(0);
            claim.status.as_mut().unwrap().node_name = "n".to_owned();
            let devices = json!([{"deviceClass": "gpu", "driver": "gpu", "count": 1}]).to_string();
            claim.metadata.annotations.get_or_insert_default().insert(names::DEVICES.to_owned(), devices);
            let node = serde_json::from_value(json!({
                "metadata": {"name": "n"}, "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }));
            let tolerations = json!([{"key": "gpu", "operator": "Exists"}]);
            let pods = json!({"spec": {"containers": [], "tolerations": tolerations}});
            let workload: Workload = serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": "w", "uid": "u"},
                "spec": {"podSets": [{"name": "main", "count": 1, "template": pods}]},
                "status": {"admissionChecks": [{"name": "c", "state": state}]},
            }))
            .unwrap();
            let objects = ClusterObjects {
                now: "2026-02-01T00:00:00Z".parse().unwrap(),
                claims: Some(vec![claim]),
                nodes: Some(vec![node.unwrap()]),
                resource_slices: resource_slices.clone(),
                ..ClusterObjects::default()
            };
            let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), objects.now, None);
            journal.state = State::WaitingReady;
            (journal.memory.attempt, journal.memory.slots) = (1, 1);
            GangObjects::of(&objects, &workload, "c").view(&journal).known_ready()
        };
        assert_eq!(ready(&[&taint], "Pending", &NodeResourceSlices::Unread), Some(1));
        assert_eq!(ready(&[&taint, &other], "Pending", &NodeResourceSlices::Unread), Some(0));
        assert_eq!(ready(&[&taint], "Pending", &published("other")), Some(0));
        assert_eq!(ready(&[&taint], "Pending", &published("n")), Some(1));
        assert_eq!(ready(&[&taint], "Ready", &published("other")), Some(1));
    }
}
