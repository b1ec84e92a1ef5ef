//! Reads the constraints of one pod set: which pods each covers, and what it asks for.
//!
//! Called by `topology`. Rule: a constraint that involves pods or nodes outside the gang is refused, because it cannot be checked
//! here.

use super::{Constraint, DomainRule, refused};
use crate::api::parameters::Pinning;
use crate::api::pod::PodSpec;
use crate::api::requirements::normalized;
use crate::api::workload::PodSet;
use crate::names;
use crate::plan::demand::PodSetDemand;
use crate::plan::host_anti_affinity::{may_select, surely_selects};
use crate::plan::volumes::claims_of_set;
use crate::plan::{Obstacle, PlanRequest, PlanSnapshot};
use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::{BTreeMap, BTreeSet};

/// The input for reading constraints.
pub(super) struct ConstraintReader<'a> {
    pub(super) cluster: &'a PlanSnapshot<'a>,
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) demand: &'a [PodSetDemand<'a>],
}

impl ConstraintReader<'_> {
    pub(super) fn spreads(
        &self,
        own: usize,
        spec: &PodSpec,
    ) -> impl Iterator<Item = Result<Option<Constraint>, Obstacle>> {
        let hard = |c: &&TopologySpreadConstraint| c.when_unsatisfiable == "DoNotSchedule";
        let not_host = |c: &&TopologySpreadConstraint| c.topology_key != names::HOSTNAME;
        spec.topology_spread_constraints
            .iter()
            .filter(hard)
            .filter(not_host)
            .map(move |c| self.spread(own, c))
    }

    fn spread(&self, own: usize, c: &TopologySpreadConstraint) -> Result<Option<Constraint>, Obstacle> {
        let key = normalized(&c.topology_key).to_owned();
        let text = format!("pod set {} spreads over {key} (topologySpreadConstraints)", self.name(own));
        let counted = self.selected(c.label_selector.as_ref());
        let mut members = counted.clone();
        members.insert(own);
        // Without counted pods there is no skew, and a single pod has nothing to spread.
        if counted.is_empty() || self.pods(&members) < 2 {
            return Ok(None);
        }
        let everywhere = c.node_affinity_policy.as_deref() == Some("Ignore");
        if everywhere || self.request.policy.pinning == Pinning::None {
            let why = if everywhere { "nodeAffinityPolicy: Ignore" } else { "pinning: None" };
            return Err(refused(format!(
                "{text}; with {why} the nodes of others count as well, and Setu cannot guarantee the skew"
            )));
        }
        Ok(Some(Constraint {
            text,
            key,
            rule: DomainRule::Even,
            members,
            counted,
            max_skew: u32::try_from(c.max_skew).unwrap_or(0),
            min_domains: c.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
        }))
    }

    pub(super) fn affinities(&self, own: usize, spec: &PodSpec) -> Vec<Result<Option<Constraint>, Obstacle>> {
        let affinity = spec.affinity.as_ref();
        let to = affinity.and_then(|a| a.pod_affinity.as_ref());
        let to = to.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let from = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let from = from.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let apart = from.into_iter().flatten().filter(|term| term.topology_key != names::HOSTNAME);
        let together = to.into_iter().flatten().map(|term| self.affinity(own, term, DomainRule::Together));
        together.chain(apart.map(|term| self.affinity(own, term, DomainRule::Apart))).collect()
    }

    fn affinity(
        &self,
        own: usize,
        term: &PodAffinityTerm,
        rule: DomainRule,
    ) -> Result<Option<Constraint>, Obstacle> {
        let key = normalized(&term.topology_key).to_owned();
        let (asks, field) = match rule {
            DomainRule::Together => ("wants to run in the same", "podAffinity"),
            DomainRule::Apart | DomainRule::Even => ("wants to run in another", "podAntiAffinity"),
        };
        let text = format!("pod set {} {asks} {key} as the pods selected by its {field}", self.name(own));
        let is_near = self.is_in_namespace(term) && !self.excludes_own(own, term);
        let selector = term.label_selector.as_ref().filter(|_| is_near);
        let mut selected = self.selected(selector);
        if rule == DomainRule::Together {
            // Pods that lack the selected label in their template may not be the ones that are meant.
            selected.retain(|index| {
                let labels = self.demand.get(*index).map(|set| &set.pod_set.template.metadata.labels);
                selector.zip(labels).is_some_and(|(selector, labels)| surely_selects(selector, labels))
            });
        }
        if term.label_selector.is_none() && rule == DomainRule::Apart {
            return Ok(None);
        }
        let elsewhere = self.unplanned().find(|set| selects(selector, set));
        if selected.is_empty() || elsewhere.is_some() {
            return Err(refused(format!(
                "{text}; these are not all pods that Setu makes nodes for, and it is not known where they run: take the \
                 affinity off, or make it a preferred one"
            )));
        }
        let members: BTreeSet<usize> = selected.iter().copied().chain([own]).collect();
        if self.pods(&members) < 2 {
            return Ok(None);
        }
        Ok(Some(Constraint { text, key, rule, members, counted: selected, max_skew: 0, min_domains: 1 }))
    }

    /// Pods that share a volume that is created where the first of them runs. No other zone can use it.
    ///
    /// # Errors
    /// If pods without nodes from Setu share it, because they may run anywhere.
    pub(super) fn shared_volumes(&self) -> Result<impl Iterator<Item = Constraint>, Obstacle> {
        let mut users: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (index, set) in self.demand.iter().enumerate() {
            for claim in claims_of_set(set.pod_set) {
                users.entry(claim).or_default().insert(index);
            }
        }
        let follows = |claim: &str| self.cluster.storage.is_some_and(|s| s.follows_first_pod(claim));
        users.retain(|claim, _| follows(claim));
        let mut others =
            self.unplanned().flat_map(|set| claims_of_set(set).map(move |claim| (claim, &set.name)));
        if let Some((claim, other)) = others.find(|(claim, _)| users.contains_key(claim)) {
            return Err(refused(format!(
                "PersistentVolumeClaim {claim} (ReadWriteOnce) has no volume yet, and gets it where the first of its pods runs; \
                 pod set {other} uses it too, and it is not known where its pods run, as Setu makes no nodes for them: bind \
                 the claim to a volume first, or have Setu make nodes for all its pods (managedResources)"
            )));
        }
        users.retain(|_, members| self.pods(members) > 1);
        Ok(users.into_iter().map(|(claim, members)| Constraint {
            text: format!(
                "PersistentVolumeClaim {claim} (ReadWriteOnce) has no volume yet, which all pods that share it can use in \
                 one zone only"
            ),
            key: names::ZONE.to_owned(),
            rule: DomainRule::Together,
            counted: members.clone(),
            members,
            max_skew: 0,
            min_domains: 1,
        }))
    }

    pub(super) fn name(&self, set: usize) -> &str {
        self.demand.get(set).map_or("", |set| set.pod_set.name.as_str())
    }

    pub(super) fn pods(&self, sets: &BTreeSet<usize>) -> u32 {
        sets.iter().filter_map(|set| self.demand.get(*set)).map(|set| set.pods).fold(0, u32::saturating_add)
    }

    /// Pod sets of the demand whose pods the selector may select. None without a selector.
    pub(super) fn selected(&self, selector: Option<&LabelSelector>) -> BTreeSet<usize> {
        let sets = self.demand.iter().enumerate();
        sets.filter(|(_, set)| selects(selector, set.pod_set)).map(|(index, _)| index).collect()
    }

    /// Pod sets of the Workload whose nodes are not planned here.
    pub(super) fn unplanned(&self) -> impl Iterator<Item = &PodSet> {
        let planned: BTreeSet<&str> = self.demand.iter().map(|set| set.pod_set.name.as_str()).collect();
        let sets = self.request.workload.spec.pod_sets.iter();
        sets.filter(move |set| set.count > 0 && !planned.contains(set.name.as_str()))
    }

    /// Whether the term covers pods of the gang's namespace.
    fn is_in_namespace(&self, term: &PodAffinityTerm) -> bool {
        let own = self.request.workload.metadata.namespace.as_deref().unwrap_or_default();
        let listed = term.namespaces.iter().flatten().any(|namespace| namespace == own);
        let labels = self.cluster.namespace_labels;
        match &term.namespace_selector {
            Some(selector) => listed || labels.is_none_or(|labels| may_select(selector, labels)),
            None => listed || term.namespaces.iter().flatten().next().is_none(),
        }
    }

    /// Whether the term excludes all pods that share a label value with this pod set.
    fn excludes_own(&self, own: usize, term: &PodAffinityTerm) -> bool {
        let labels = self.demand.get(own).map(|set| &set.pod_set.template.metadata.labels);
        let mut keys = term.mismatch_label_keys.iter().flatten();
        keys.any(|key| labels.is_some_and(|labels| labels.contains_key(key)))
    }
}

fn selects(selector: Option<&LabelSelector>, set: &PodSet) -> bool {
    selector.is_some_and(|selector| may_select(selector, &set.template.metadata.labels))
}
