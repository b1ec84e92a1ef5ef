//! Passes nodes that are kept warm from one gang of a LocalQueue to the next.

use super::Gang;
use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload};
use crate::effects::handover::LetGo;
use crate::effects::warm::{self as effects, Keeping};
use crate::error::Error;
use crate::gang::Freshness;
use crate::names;
use crate::plan::lifetime;
use crate::plan::warm::{key, matches};
use crate::telemetry::metrics::{self, Kept};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// The most claims that are taken over at once.
const PARALLEL: usize = 32;

impl Gang<'_> {
    /// Reads which kept nodes the gang may take over, once per reconcile.
    pub(super) async fn fetch_warm(&mut self, workload: &Workload) -> Result<(), Error> {
        if self.judgement.policy.release == Release::Warm && self.inputs.warm.is_none() {
            let key = key(&workload.local_queue(), &self.identity.check);
            self.inputs.warm =
                Some(effects::free(self.client, &key, lifetime::of_job(workload), self.context.now()).await?);
        }
        Ok(())
    }

    /// Takes over kept nodes for as many of these claims as possible. Returns the claims that are still to be created.
    ///
    /// The derived name of a claim keeps a second replica from creating it again, but a claim that was taken over has
    /// another name. So the gang's claims are read after the kept ones, and a slot that another replica filled first gets
    /// nothing in this reconcile.
    pub(super) async fn take_over(
        &mut self,
        workload: &Workload,
        mut wanted: Vec<NodeClaim>,
    ) -> Result<Vec<NodeClaim>, Error> {
        self.fetch_warm(workload).await?;
        if self.judgement.policy.release == Release::Warm {
            self.read_quorum(workload).await?;
            self.observed.freshness = Freshness::Cached;
            wanted
                .retain(|wanted| !self.observed.claims.iter().any(|claim| fills_the_place_of(claim, wanted)));
        }
        let kept = self.inputs.warm.take().unwrap_or_default();
        if kept.is_empty() {
            return Ok(wanted);
        }
        let found = matches((0..).zip(&wanted), &kept);
        let found: Vec<Option<NodeClaim>> =
            (0_u32..).zip(&wanted).map(|(index, _)| found.get(&index).map(|c| (*c).clone())).collect();
        let (client, now) = (self.client, self.context.now());
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
                        metrics::kept_warm(&kept, Kept::Reused, now);
                    }
                    self.context.tombstones.saw(&claim, now);
                    self.observed.claims.retain(|c| c.name_any() != claim.name_any());
                    self.observed.claims.push(claim);
                }
                Ok(None) => others.push(wanted),
                Err(error) if error.is_forbidden() => {
                    tracing::warn!(error = %error.in_full(), "a kept NodeClaim may not be taken over, and another is made");
                    others.push(wanted);
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        first?;
        self.mark_nodes().await?;
        Ok(others)
    }

    /// Marks the Nodes of taken-over claims as the gang's where they are not yet. Records those that could not be marked.
    pub(super) async fn mark_nodes(&mut self) -> Result<(), Error> {
        if !self.journal.state.wants_claims() {
            return Ok(());
        }
        let taken = |c: &&NodeClaim| c.taken_over().is_some() && c.metadata.deletion_timestamp.is_none();
        let unmarked: Vec<NodeClaim> =
            self.observed.claims.iter().filter(taken).filter(|c| !self.is_marked(c)).cloned().collect();
        let client = self.client;
        let mut answers = stream::iter(unmarked)
            .map(|claim| async move { (claim.name_any(), effects::mark_node(client, &claim).await) })
            .buffer_unordered(PARALLEL);
        let mut first = Ok(());
        while let Some((claim, answer)) = answers.next().await {
            if answer.is_err() {
                self.observed.unmarked.insert(claim);
            }
            first = first.and(answer);
        }
        first
    }

    fn is_marked(&self, claim: &NodeClaim) -> bool {
        let node = claim.node_name().and_then(|name| self.context.stores.nodes.get(&ObjectRef::new(name)));
        let label = node.as_ref().and_then(|n| n.metadata.labels.as_ref()?.get(names::WORKLOAD_UID));
        label.is_some_and(|uid| uid == claim.label(names::WORKLOAD_UID))
    }

    /// Keeps these nodes for the next gang of the same LocalQueue.
    pub(super) async fn keep_warm(&self, workload: &Workload, claims: Vec<NodeClaim>) -> LetGo {
        let (since, queue) = (self.context.now(), workload.local_queue());
        let until = since.checked_add(self.judgement.policy.warm_for.signed()).unwrap_or(Timestamp::MAX);
        let keeping = Keeping { key: key(&queue, &self.identity.check), queue, since, until };
        effects::keep_all(self.client, claims, &keeping).await
    }
}

/// Whether this claim of the gang already fills the slot of the wanted one.
fn fills_the_place_of(claim: &NodeClaim, wanted: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && claim.label(names::ATTEMPT) == wanted.label(names::ATTEMPT)
        && claim.slot() == wanted.slot()
}
