//! Checks the merged policy of a check as it is in force: values of different layers that contradict each
//! other.

use super::path::{Finding, Path, in_words};
use super::terms::{TERMS_LIMIT, Terms};
use super::{Policy, RetryStrategy};
use crate::api::duration::Span;
use crate::api::parameters::{Allocatable, CapacityType, ColocationMode, PackingMode, Release};

/// Shortest wait before a retry: a shorter one would cause a storm of requests.
pub const LEAST_WAIT: Span = Span::seconds(1);

/// Refuses a policy under which no gang can get its nodes, with all problems in one line.
pub fn usable(policy: &Policy) -> Result<(), String> {
    let found = faults(policy);
    if found.is_empty() { Ok(()) } else { Err(in_words(&found)) }
}

/// The problems of a policy as a whole, by path from its spec.
pub fn faults(policy: &Policy) -> Vec<Finding> {
    let retry = Path::default().key("retry");
    let in_check = of_retry(&retry.key("inCheck"), policy.in_check);
    let yielding = of_retry(&retry.key("yield"), policy.yielding);
    let found = [
        in_check,
        yielding,
        buffer_time(policy),
        release(policy),
        capacity_types(policy),
        mixed_tiers_and_colocation(policy),
        mixed_tiers_and_packing(policy),
        allocatable(policy),
        terms(policy),
    ];
    found.into_iter().flatten().collect()
}

fn buffer_time(policy: &Policy) -> Option<Finding> {
    let (buffer, gang, hold) = (policy.buffer_time, policy.deadlines.gang, policy.hold_limit);
    let message = if buffer == Span::default() {
        return None;
    } else if buffer >= gang {
        format!(
            "{buffer} is not shorter than deadlines.gang, {gang}: every gang would be given up before its nodes count as ready"
        )
    } else if buffer >= hold {
        format!(
            "{buffer} is not shorter than custody.holdLimit, {hold}: nodes would be let go before they count as ready"
        )
    } else {
        return None;
    };
    Some((Path::default().key("strategy").key("bufferTime"), message))
}

fn release(policy: &Policy) -> Option<Finding> {
    (policy.release == Release::Warm && policy.warm_for == Span::default()).then(|| {
        let message = "Warm needs warmFor: how long nodes wait for the next gang";
        (Path::default().key("custody").key("release"), message.to_owned())
    })
}

fn capacity_types(policy: &Policy) -> Option<Finding> {
    let reserved = policy.tiers.iter().find(|tier| !tier.reservations.is_empty())?;
    let types = &policy.capacity_types;
    (!types.is_empty() && !types.contains(&CapacityType::Reserved)).then(|| {
        let name = &reserved.name;
        let message = format!("leaves out reserved, which the reservations of tier {name} need; list it");
        (Path::default().key("capacityTypes"), message)
    })
}

fn mixed_tiers_and_colocation(policy: &Policy) -> Option<Finding> {
    let is_required = policy.colocation.as_ref().is_some_and(|c| c.mode == ColocationMode::Required);
    (policy.mixed_tiers && is_required).then(|| {
        let message =
            "cannot be combined with colocation.mode Required: another tier may have room elsewhere alone";
        (Path::default().key("mixedTiers"), message.to_owned())
    })
}

fn mixed_tiers_and_packing(policy: &Policy) -> Option<Finding> {
    (policy.mixed_tiers && policy.packing == PackingMode::Fill).then(|| {
        let message = "cannot be combined with packing.mode Fill: a node of another tier may hold other pods";
        (Path::default().key("mixedTiers"), message.to_owned())
    })
}

fn allocatable(policy: &Policy) -> Option<Finding> {
    (policy.packing == PackingMode::Fill && policy.readiness.allocatable != Allocatable::Exact).then(|| {
        let message =
            "must be Exact with packing.mode Fill: a node that does not hold its pods would count as ready";
        (Path::default().key("readiness").key("allocatable"), message.to_owned())
    })
}

fn terms(policy: &Policy) -> Option<Finding> {
    let tiers = u32::try_from(policy.tiers.len()).unwrap_or_default().max(1);
    (0..tiers).any(|tier| Terms::of(policy, tier).is_none()).then(|| {
        let message = format!(
            "has more labels and conditions than a journal has room for: with deadlines and retries they may take {TERMS_LIMIT} bytes"
        );
        (Path::default().key("readiness"), message)
    })
}

fn of_retry(at: &Path, RetryStrategy { base, max, .. }: RetryStrategy) -> Option<Finding> {
    if max < LEAST_WAIT {
        let message = format!("{max} is shorter than {LEAST_WAIT}, the least wait between tries");
        return Some((at.key("max"), message));
    }
    (max < base).then(|| (at.key("max"), format!("{max} is shorter than base, {base}")))
}

#[cfg(test)]
mod tests {
    use crate::policy::PolicyFile;

    fn problems(body: &str) -> Vec<String> {
        let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{body}");
        let problems = PolicyFile::parse(&text).err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn readiness_that_does_not_fit_into_a_journal_is_refused() {
        let labels = |count: usize| -> String {
            let label = |n: usize| format!("example.com/label-{n}: {}", "x".repeat(63));
            let labels: Vec<String> = (0..count).map(label).collect();
            format!("defaults: {{readiness: {{nodeLabels: {{{}}}}}}}", labels.join(", "))
        };
        assert_eq!(problems(&labels(10)), Vec::<String>::new());
        let words = problems(&labels(32)).join("\n");
        assert!(
            words.contains("defaults.readiness: has more labels and conditions than a journal has room for"),
            "{words}"
        );
    }

    #[test]
    fn a_contradiction_of_two_layers_is_reported_where_it_is_written() {
        for (body, words) in [
            (
                "defaults: {retry: {inCheck: {max: 0s}}}",
                "3:30: defaults.retry.inCheck.max: 0s is shorter than 1s",
            ),
            (
                "defaults: {retry: {inCheck: {max: 2s}}}",
                "defaults.retry.inCheck.max: 2s is shorter than base, 5s",
            ),
            (
                "defaults: {retry: {yield: {base: 1h}}}",
                "defaults: retry.yield.max 30m is shorter than base, 1h",
            ),
            (
                "defaults: {strategy: {bufferTime: 20m}}",
                "defaults.strategy.bufferTime: 20m is not shorter than deadlines.gang, 15m",
            ),
            (
                "defaults: {strategy: {bufferTime: 10m}}\nchecks: {c: {deadlines: {gang: 5m}}}",
                "checks.c: strategy.bufferTime 10m is not shorter than deadlines.gang, 5m",
            ),
            (
                "defaults: {mixedTiers: true, colocation: {mode: Required}}",
                "defaults.mixedTiers: cannot be combined with colocation.mode Required",
            ),
            (
                "defaults: {mixedTiers: true}\nchecks: {c: {packing: {mode: Fill}}}",
                "checks.c: mixedTiers cannot be combined with packing.mode Fill",
            ),
            (
                "defaults: {retry: {compat: Setu}, strategy: {bufferTime: 12m}}",
                "defaults.strategy.bufferTime: 12m is not shorter than deadlines.gang, 10m",
            ),
            (
                "defaults: {strategy: {bufferTime: 5m}, custody: {holdLimit: 4m}}",
                "defaults.strategy.bufferTime: 5m is not shorter than custody.holdLimit, 4m",
            ),
            (
                "defaults: {packing: {mode: Fill}, readiness: {allocatable: Devices}}",
                "defaults.readiness.allocatable: must be Exact with packing.mode Fill",
            ),
            (
                "defaults: {readiness: {allocatable: None}}\nchecks: {c: {packing: {mode: Fill}}}",
                "checks.c: readiness.allocatable must be Exact with packing.mode Fill",
            ),
            (
                "defaults: {capacityTypes: [spot], tiers: [{name: t, reservations: [{id: cr-1, nodes: 1}]}]}",
                "defaults.capacityTypes: leaves out reserved, which the reservations of tier t need; list it",
            ),
            ("defaults: {custody: {release: Warm}}", "defaults.custody.release: Warm needs warmFor"),
            (
                "defaults: {retry: {compat: Setu}}\nchecks: {c: {retry: {onExhausted: Yield}}}",
                "checks.c.retry.onExhausted: cannot be combined with retry.compat: Setu",
            ),
        ] {
            let found = problems(body);
            assert_eq!(found.len(), 1, "{body}: {found:?}");
            assert!(found[0].contains(words), "{body}: {found:?}");
        }
    }

    #[test]
    fn layers_that_are_valid_only_together_are_accepted() {
        for body in [
            "defaults: {custody: {warmFor: 10m}}\nchecks: {c: {custody: {release: Warm}}}",
            "defaults: {retry: {inCheck: {base: 1s}}}\nchecks: {c: {retry: {inCheck: {max: 2s}}}}",
            "defaults: {strategy: {bufferTime: 10m}}",
        ] {
            assert_eq!(problems(body), Vec::<String>::new(), "{body}");
        }
    }
}
