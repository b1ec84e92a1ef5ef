//! Passes nodes that are kept warm from one gang of a LocalQueue to the next.

use super::scope::GangScope;
use crate::api::NodeClaim;
use crate::effects::warm as effects;
use crate::error::Error;
use crate::gang::Journal;
use crate::gang::snapshot::observed::Observed;
use crate::names;
use crate::plan::warm::matches;
use crate::telemetry::metrics::{self, WarmResult};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

/// The most claims that are taken over at once.
const PARALLEL: usize = 32;

/// Takes over kept nodes for these claims where they match. Returns the claims that are still to be created.
pub(super) async fn take_over(
    scope: &GangScope<'_>,
    observed: &mut Observed,
    kept: Vec<NodeClaim>,
    wanted: Vec<NodeClaim>,
) -> Result<Vec<NodeClaim>, Error> {
    let (client, now) = (scope.client, scope.now());
    let found = matches((0..).zip(&wanted), &kept);
    let found: Vec<Option<NodeClaim>> =
        (0_u32..).zip(&wanted).map(|(index, _)| found.get(&index).map(|c| (*c).clone())).collect();
    let answers: Vec<_> = stream::iter(found.into_iter().zip(wanted))
        .map(|(kept, wanted)| async move {
            let taken = match &kept {
                Some(kept) => effects::take_over(client, kept, &wanted, now).await,
                None => Ok(None),
            };
            (kept, wanted, taken)
        })
        .buffered(PARALLEL)
        .collect()
        .await;
    let (mut others, mut first) = (Vec::new(), Ok(()));
    for (kept, wanted, taken) in answers {
        match taken {
            Ok(Some(claim)) => {
                if let Some(kept) = kept {
                    metrics::kept_warm(&kept, WarmResult::Reused, now);
                }
                scope.context.claim_records.saw(&claim, now);
                observed.note(claim);
            }
            Ok(None) => others.push(wanted),
            Err(error) if error.is_forbidden() => {
                tracing::warn!(error = %error.in_full(), "a kept NodeClaim may not be taken over, and another is made");
                others.push(wanted);
            }
            Err(error) => first = first.and(Err(error)),
        }
    }
    first.map(|()| others)
}

/// Marks the Nodes of taken-over claims as the gang's where they are not yet. Records those that could not be marked.
pub(super) async fn mark_nodes(
    scope: &GangScope<'_>,
    journal: &Journal,
    observed: &mut Observed,
) -> Result<(), Error> {
    if !journal.state.wants_claims() {
        return Ok(());
    }
    let taken = |c: &&Arc<NodeClaim>| c.taken_over().is_some() && !c.is_deleting();
    let taken = observed.claims.iter().filter(taken);
    let unmarked: Vec<Arc<NodeClaim>> = taken.filter(|c| !is_marked(scope, c)).cloned().collect();
    let mut answers = stream::iter(unmarked)
        .map(|claim| async move { (claim.name_any(), effects::mark_node(scope.client, &claim).await) })
        .buffer_unordered(PARALLEL);
    let mut first = Ok(());
    while let Some((claim, answer)) = answers.next().await {
        if answer.is_err() {
            observed.unmarked.insert(claim);
        }
        first = first.and(answer);
    }
    first
}

fn is_marked(scope: &GangScope<'_>, claim: &NodeClaim) -> bool {
    let node = claim.node_name().and_then(|name| scope.context.stores.nodes.get(&ObjectRef::new(name)));
    let label = node.as_ref().and_then(|n| n.metadata.labels.as_ref()?.get(names::WORKLOAD_UID));
    label.is_some_and(|uid| uid == claim.label(names::WORKLOAD_UID))
}
