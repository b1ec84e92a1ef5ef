//! Whether nodes live as long as their pods may run.
//!
//! Rule: this only adds notes and never refuses. Karpenter removes a node at the age `expireAfter`, whatever runs there, but a Job may
//! end long before its limit.

use super::claim::Draft;
use super::demand::PodSetDemand;
use crate::api::duration::Span;
use crate::api::workload::PodSet;
use crate::api::{NodeClaim, Workload};
use jiff::Timestamp;
use std::time::Duration;

/// One note for each pod set that may outlive its nodes. Nodes may be `older` than their pods when these start.
pub fn notes(
    workload: &Workload,
    demand: &[PodSetDemand<'_>],
    drafts: &[Draft],
    older: Duration,
) -> Vec<String> {
    let note = |(set, draft): (&PodSetDemand<'_>, &Draft)| {
        // `Never` is no span, so nothing is compared.
        let life: Span = draft.expire_after().parse().ok()?;
        let runs = longest(workload, set.pod_set)?;
        (runs.0.saturating_add(older) > life.0).then(|| {
            format!(
                "pod set {} may run for {runs} on nodes that may already be {} old, but NodePool {} expires nodes after \
                 {life}; raise its expireAfter",
                set.pod_set.name,
                Span(older),
                draft.node_pool
            )
        })
    };
    demand.iter().zip(drafts).filter_map(note).collect()
}

/// How long the pods of a Workload may run. `None` if a pod set has no limit.
pub fn of_job(workload: &Workload) -> Option<Span> {
    let sets = workload.spec.pod_sets.iter().map(|set| longest(workload, set));
    sets.collect::<Option<Vec<Span>>>()?.into_iter().max()
}

/// Whether Karpenter keeps an existing node for as long as the Job may run. A Job without a limit needs half the life of a new
/// node.
pub fn lasts(claim: &NodeClaim, job: Option<Span>, now: Timestamp) -> bool {
    let born = claim.metadata.creation_timestamp.as_ref().map(|t| t.0);
    // `Never` is no span, so the node lasts.
    let Some(life) = claim.spec.expire_after.as_deref().and_then(|life| life.parse::<Span>().ok()) else {
        return true;
    };
    let needed = job.unwrap_or(Span(life.0 / 2)).signed();
    let end = born.and_then(|born| born.checked_add(life.signed()).ok());
    end.is_none_or(|end| end.duration_since(now) >= needed)
}

/// How long a pod of this set may run. `None` if nothing limits it.
fn longest(workload: &Workload, set: &PodSet) -> Option<Span> {
    let whole = workload.spec.maximum_execution_time_seconds.map(u64::from);
    let each = set.template.spec.active_deadline_seconds.and_then(|s| u64::try_from(s).ok());
    whole.into_iter().chain(each).min().map(Span::seconds)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, patched, pool};
    use crate::api::Workload;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn notes(expire_after: &Value, maximum: &Value, deadline: &Value) -> Vec<String> {
        let mut world = Fixture::new();
        let mut workload = serde_json::to_value(&world.workload).unwrap();
        workload = patched(workload, &json!({"spec": {"maximumExecutionTimeSeconds": maximum}}));
        let mut workload: Workload = serde_json::from_value(workload).unwrap();
        for set in &mut workload.spec.pod_sets {
            set.template.spec.active_deadline_seconds = deadline.as_i64();
        }
        world.workload = workload;
        let expiry = json!({"spec": {"template": {"spec": {"expireAfter": expire_after}}}});
        world.objects.node_pools = vec![Arc::clone(&pool("gpu", &expiry))];
        world.provisioned().notes
    }

    #[test]
    fn a_job_that_may_outlive_its_nodes_gets_a_note() {
        let day = json!("24h");
        let found = notes(&day, &json!(90_000), &json!(null));
        let note = "pod set main may run for 25h on nodes that may already be 45m old, but NodePool gpu expires nodes \
                    after 24h; raise its expireAfter";
        assert_eq!(found, [note]);
        assert_eq!(notes(&day, &json!(null), &json!(90_000)).len(), 1);
        // The lowest limit counts; a Job without a limit gets no note.
        assert!(notes(&day, &json!(90_000), &json!(600)).is_empty());
        // 45 minutes may pass from a node's creation until its pods start.
        assert!(notes(&day, &json!(83_700), &json!(null)).is_empty());
        assert_eq!(notes(&day, &json!(86_400), &json!(null)).len(), 1);
        assert!(notes(&day, &json!(null), &json!(null)).is_empty());
        assert!(notes(&json!("Never"), &json!(90_000_000), &json!(null)).is_empty());
        assert_eq!(notes(&json!(null), &json!(2_600_000), &json!(null)).len(), 1, "Karpenter's own default");
    }
}
