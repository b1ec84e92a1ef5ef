//! Overrides that a Job asks for in annotations, if the policy allows it.
//!
//! Rule: a key that the policy does not open has no effect, whatever its value, and neither has a value out of bounds.
//! Accepted requirements are added to those of the policy, so they only narrow.

use super::Policy;
use super::file::{ChoiceBounds, JobOverrides};
use crate::api::duration::Span;
use crate::api::node_claim::Requirement;
use crate::names;
use std::collections::BTreeMap;

/// An annotation without effect, and the reason for the user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ignored {
    /// The annotation's key.
    pub key: String,
    /// Why, and what is allowed.
    pub why: String,
}

/// The policy with the annotations that it allows, and the ignored ones.
pub fn apply(
    mut policy: Policy,
    open: &JobOverrides,
    annotations: &BTreeMap<String, String>,
) -> (Policy, Vec<Ignored>) {
    let mut ignored = Vec::new();
    for (annotation, value) in annotations {
        let Some(key) = annotation.strip_prefix(names::JOB_OVERRIDE_PREFIX) else { continue };
        if names::TRACEPARENT.contains(&annotation.as_str()) {
            continue;
        }
        let done = match key {
            "maxWait" => max_wait(&mut policy, open, value),
            "capacityType" => choice(&mut policy, open.capacity_type.as_ref(), names::CAPACITY_TYPE, value),
            "zone" => choice(&mut policy, open.zone.as_ref(), names::ZONE, value),
            _ => Err("it is not known; known are maxWait, capacityType and zone".to_owned()),
        };
        if let Err(why) = done {
            // Repeats only as much of a tenant's text as is needed to find it.
            let key: String = annotation.chars().take(120).collect();
            ignored.push(Ignored { key, why });
        }
    }
    (policy, ignored)
}

const CLOSED: &str = "the administrator's policy does not open it under jobOverrides";

fn max_wait(policy: &mut Policy, open: &JobOverrides, value: &str) -> Result<(), String> {
    let bounds = open.max_wait.as_ref().ok_or(CLOSED)?;
    let span: Span =
        value.parse().map_err(|_| "its value is not a valid duration such as 90s or 15m".to_owned())?;
    if span > bounds.max || span == Span::default() {
        return Err(format!("its value must be more than zero and at most {}", bounds.max));
    }
    let buffer = policy.buffer_time;
    if span <= buffer {
        return Err(format!("nodes count as ready only after {buffer}, so its value must be longer"));
    }
    policy.deadlines.gang = span;
    Ok(())
}

fn choice(
    policy: &mut Policy,
    bounds: Option<&ChoiceBounds>,
    label: &str,
    value: &str,
) -> Result<(), String> {
    let bounds = bounds.ok_or(CLOSED)?;
    let values: Vec<String> = value.split(',').map(|v| v.trim().to_owned()).collect();
    if !values.iter().all(|v| bounds.values.contains(v)) {
        return Err(format!(
            "its value must be one or more of {}, separated by commas",
            bounds.values.join(", ")
        ));
    }
    let key = label.to_owned();
    policy.requirements.push(Requirement { key, operator: "In".to_owned(), values, min_values: None });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> JobOverrides {
        serde_yaml::from_str("{maxWait: {max: 4h}, zone: {values: [a, b]}}").unwrap()
    }

    fn asked(open: &JobOverrides, key: &str, value: &str) -> Result<Policy, String> {
        let annotations = [(format!("{}{key}", names::JOB_OVERRIDE_PREFIX), value.to_owned())].into();
        let (policy, ignored) = apply(Policy::default(), open, &annotations);
        match ignored.into_iter().next() {
            None => Ok(policy),
            Some(ignored) => {
                assert_eq!(policy, Policy::default(), "what is ignored changes nothing");
                Err(ignored.why)
            }
        }
    }

    #[test]
    fn a_key_the_policy_opens_acts_within_its_bounds_alone() {
        assert_eq!(asked(&open(), "maxWait", "4h").unwrap().deadlines.gang, Span::minutes(240));
        assert_eq!(asked(&open(), "maxWait", "1m").unwrap().deadlines.gang, Span::minutes(1));
        for value in ["4h1s", "0s", "soon", "", "-1h"] {
            assert!(asked(&open(), "maxWait", value).is_err(), "{value}");
        }
        let zones = asked(&open(), "zone", "b, a").unwrap().requirements;
        assert_eq!((zones[0].key.as_str(), zones[0].values.len()), (names::ZONE, 2));
        for value in ["c", "a,c", ""] {
            assert!(asked(&open(), "zone", value).is_err(), "{value}");
        }
    }

    #[test]
    fn a_closed_key_is_ignored_with_the_reason() {
        assert_eq!(asked(&open(), "capacityType", "spot").unwrap_err(), CLOSED);
        assert_eq!(asked(&JobOverrides::default(), "maxWait", "1m").unwrap_err(), CLOSED);
        assert!(asked(&open(), "nodePoolName", "gpu").unwrap_err().contains("known are maxWait"));
    }

    #[test]
    fn a_wait_that_ends_before_nodes_count_as_ready_is_ignored() {
        let policy = Policy { buffer_time: Span::minutes(5), ..Policy::default() };
        let asked = |wait: &str| {
            let annotations = [(format!("{}maxWait", names::JOB_OVERRIDE_PREFIX), wait.to_owned())].into();
            let (asked, ignored) = apply(policy.clone(), &open(), &annotations);
            (asked.deadlines.gang, ignored.len())
        };
        assert_eq!(asked("5m"), (policy.deadlines.gang, 1));
        assert_eq!(asked("6m"), (Span::minutes(6), 0));
    }

    #[test]
    fn other_annotations_are_none_of_its_concern() {
        for key in ["provreq.kueue.x-k8s.io/maxRunDurationSeconds", names::TRACEPARENT[1]] {
            let annotations = [(key.to_owned(), "9".to_owned())].into();
            assert_eq!(apply(Policy::default(), &open(), &annotations), (Policy::default(), Vec::new()));
        }
    }
}
