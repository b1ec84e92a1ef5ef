//! Requirements of pods on their node's labels: node selector and required node affinity.
//!
//! Rule: from each set of alternative terms, one is chosen so that everything can be met together.

use crate::api::node_claim::Requirement;
use crate::api::pod::PodSpec;
use crate::api::requirements::{Clash, Requirements, Values, is_well_known, normalized};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use std::collections::BTreeSet;

/// Narrows a node's requirements to those of a pod: its node selector, and the first term of its required node affinity that can
/// be met.
pub fn constrained(node: &Requirements, spec: &PodSpec) -> Result<Requirements, Clash> {
    let terms = affinity_terms(spec)?;
    with_one_of_each(&selected(node, spec)?, &[&terms]).map_err(|(_, clash)| clash)
}

/// Narrows a node's requirements to the node selector of a pod.
pub(super) fn selected(node: &Requirements, spec: &PodSpec) -> Result<Requirements, Clash> {
    let mut node = node.clone();
    for (key, value) in &spec.node_selector {
        let key = normalized(key);
        // Karpenter cannot give a node a label that nothing defines.
        if !is_well_known(key) && node.get(key).is_none() {
            return Err(undefined(key, value));
        }
        node.add(key, &Values::one(value))?;
    }
    Ok(node)
}

/// The field that selects Nodes by name.
pub const NODE_NAME: &str = "metadata.name";

/// A node's requirements, narrowed to those of a pod: once for each term of its required node affinity that can be met.
pub(super) fn each_constrained(node: &Requirements, spec: &PodSpec) -> Vec<Requirements> {
    let (Ok(selected), Ok(terms)) = (selected(node, spec), affinity_terms(spec)) else { return Vec::new() };
    if terms.is_empty() {
        return vec![selected];
    }
    terms.iter().filter_map(|term| with_term(&selected, term).ok()).collect()
}

/// The label keys that a pod selects on.
pub fn keys(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let terms = spec
        .affinity
        .iter()
        .filter_map(|a| {
            a.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
        })
        .flat_map(|selector| &selector.node_selector_terms);
    let expressions = terms.flat_map(|term| term.match_expressions.iter().flatten()).map(|e| e.key.as_str());
    spec.node_selector.keys().map(String::as_str).chain(expressions).map(normalized)
}

/// The terms of a pod's required node affinity; its node must meet one of them. Terms that name Nodes are skipped because the
/// name of a new node is not known. Empty terms are skipped because they match no node.
///
/// # Errors
/// If no term is left.
pub(super) fn affinity_terms(spec: &PodSpec) -> Result<Vec<Vec<NodeSelectorRequirement>>, Clash> {
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return Ok(Vec::new()) };
    let may_be_new = |term: &&NodeSelectorTerm| {
        let mut fields = term.match_fields.iter().flatten();
        let is_empty = term.match_fields.iter().chain(&term.match_expressions).all(Vec::is_empty);
        !is_empty && fields.all(|field| field.operator == "NotIn")
    };
    let about_new = required.node_selector_terms.iter().filter(may_be_new);
    let terms: Vec<_> = about_new.map(|term| term.match_expressions.clone().unwrap_or_default()).collect();
    if terms.is_empty() {
        let fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
        let names: Vec<&str> =
            fields.flat_map(|field| field.values.iter().flatten()).map(String::as_str).collect();
        return Err(Clash {
            key: NODE_NAME.to_owned(),
            asked: format!("[{}]", names.join(" ")),
            offered: "new nodes alone, whose names nobody knows yet".to_owned(),
        });
    }
    Ok(joined(terms))
}

/// Merges terms that only list values of the same label into one term with all values.
pub(super) fn joined(terms: Vec<Vec<NodeSelectorRequirement>>) -> Vec<Vec<NodeSelectorRequirement>> {
    let mut values = BTreeSet::new();
    let mut key = None;
    for term in &terms {
        let [only] = term.as_slice() else { return terms };
        let same = key.get_or_insert_with(|| normalized(&only.key).to_owned()) == normalized(&only.key);
        if only.operator != "In" || !same {
            return terms;
        }
        values.extend(only.values.iter().flatten().cloned());
    }
    let Some(key) = key else { return terms };
    let values = Some(values.into_iter().collect());
    vec![vec![NodeSelectorRequirement { key, operator: "In".to_owned(), values }]]
}

/// Most combinations that are kept from one choice to the next.
const COMBINATIONS: usize = 64;

/// Narrows a node's requirements to one term of each choice: the first combination that can be met. A choice without terms is
/// skipped.
///
/// # Errors
/// The index of the choice that cannot be met, and why.
pub(super) fn with_one_of_each(
    node: &Requirements,
    choices: &[&[Vec<NodeSelectorRequirement>]],
) -> Result<Requirements, (usize, Clash)> {
    let last = choices.iter().rposition(|terms| !terms.is_empty());
    let mut combinations = vec![node.clone()];
    for (index, terms) in choices.iter().enumerate().filter(|(_, terms)| !terms.is_empty()) {
        let mut next = Vec::new();
        let mut clash = None;
        for combined in combinations.iter().flat_map(|one| terms.iter().map(move |term| with_term(one, term)))
        {
            match combined {
                Ok(combined) if Some(index) == last => return Ok(combined),
                Ok(combined) if next.len() < COMBINATIONS && !next.contains(&combined) => next.push(combined),
                Ok(_) => {}
                Err(why) => clash = clash.or(Some(why)),
            }
        }
        if let (true, Some(why)) = (next.is_empty(), clash) {
            // Report a choice that cannot be met by itself as such.
            let mut alone = terms.iter().map(|term| with_term(node, term).err());
            let alone = alone.next().flatten().filter(|_| alone.all(|clash| clash.is_some()));
            return Err((index, alone.unwrap_or(why)));
        }
        combinations = next;
    }
    Ok(node.clone())
}

fn with_term(node: &Requirements, term: &[NodeSelectorRequirement]) -> Result<Requirements, Clash> {
    let mut node = node.clone();
    for expression in term {
        let key = normalized(&expression.key);
        let needs_label = ["In", "Exists", "Gt", "Lt"].contains(&expression.operator.as_str());
        if needs_label && !is_well_known(key) && node.get(key).is_none() {
            return Err(undefined(key, &expression.values.clone().unwrap_or_default().join(" ")));
        }
        node.add_all(&[Requirement {
            key: key.to_owned(),
            operator: expression.operator.clone(),
            values: expression.values.clone().unwrap_or_default(),
            min_values: None,
        }])?;
    }
    Ok(node)
}

/// The clash for a label that no NodePool, policy or flavor defines.
pub(super) fn undefined(key: &str, value: &str) -> Clash {
    Clash {
        key: key.to_owned(),
        asked: format!("[{value}]"),
        offered: "no such label; add it to the template there".to_owned(),
    }
}
