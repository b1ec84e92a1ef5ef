//! Inputs of a gang's plan that are not in the stores: read past the caches, once for each reconcile.

use super::Gang;
use super::scope::GangScope;
use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload};
use crate::controllers::plan_objects::GangPlanObjects;
use crate::controllers::{admission_check, plans, storage};
use crate::effects::{claims, warm};
use crate::error::Error;
use crate::gang::identity::gang_of;
use crate::gang::ledger::refused::Causes;
use crate::gang::{Freshness, State};
use crate::plan::pool_claims::PoolClaims;
use crate::plan::pools::needs_all_claims;
use crate::plan::reservations::held;
use crate::plan::volumes::Storage;
use crate::plan::warm::{free_for, key};
use crate::policy::Policy;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

/// Live reads for a plan.
#[derive(Default)]
pub(super) struct OwnedLiveReads {
    /// The claims of the NodePools whose claims must all be known.
    pub pool_claims: Option<Arc<PoolClaims>>,
    /// The objects that the volumes of its pods depend on.
    pub storage: Option<Storage>,
    /// The objects that plans are made from, read past the caches.
    pub plan_objects: Option<GangPlanObjects>,
    /// Kept nodes that the gang may take over.
    pub warm: Option<Vec<NodeClaim>>,
    /// The possible causes of a refusal, taken before `plan_objects` was read.
    pub causes: Option<Causes>,
}

impl OwnedLiveReads {
    /// How the objects that plans are made from were read.
    pub(super) fn freshness(&self) -> Freshness {
        if self.plan_objects.is_some() { Freshness::Quorum } else { Freshness::Cached }
    }

    /// Reads the claims that a plan depends on: those of NodePools, and those that the gang may take over. Which capacity reservation a
    /// node gets depends on them even after its plan was accepted.
    pub(super) async fn read_claims(
        &mut self,
        scope: &GangScope<'_>,
        state: &State,
        policy: &Policy,
        workload: &Workload,
    ) -> Result<(), Error> {
        let context = scope.context;
        let is_accepted = context.gang_state.ledger().accepted(&scope.id).is_some();
        let chooses = state.chooses_nodes() && !is_accepted;
        let holds = state.needs_plan() && held::is_needed(policy);
        if !(chooses || holds) || self.pool_claims.is_some() {
            return Ok(());
        }
        let node_pools = context.stores.plan.node_pools.state();
        let needed = node_pools.iter().filter(|pool| needs_all_claims(policy, pool));
        let pools: Vec<String> = needed.map(|pool| pool.name_any()).collect();
        if pools.is_empty() {
            self.pool_claims = Some(Arc::default());
        } else {
            let read = async {
                let claims = claims::of_pools(scope.client, &pools).await?;
                let claims: Vec<_> = claims.into_iter().map(Arc::new).collect();
                plans::learn(context, &claims);
                Ok(Arc::new(PoolClaims::of(claims, gang_of)))
            };
            self.pool_claims = Some(context.pool_claims.read(pools.clone(), read).await?);
        }
        self.read_warm(scope, policy, workload).await
    }

    /// Reads which kept nodes the gang may take over.
    pub(super) async fn read_warm(
        &mut self,
        scope: &GangScope<'_>,
        policy: &Policy,
        workload: &Workload,
    ) -> Result<(), Error> {
        if policy.release == Release::Warm && self.warm.is_none() {
            let key = key(&workload.local_queue(), &scope.identity.check);
            let read = async { Ok(warm::kept(scope.client, &key).await?.into()) };
            let kept = scope.context.kept.read(key.clone(), read).await?;
            let node = |name: &str| scope.context.stores.nodes.get(&ObjectRef::new(name));
            self.warm = Some(free_for(workload, kept.iter(), node, scope.now()));
        }
        Ok(())
    }

    /// Reads what the volumes of the pods depend on.
    pub(super) async fn read_storage(
        &mut self,
        scope: &GangScope<'_>,
        state: &State,
        workload: &Workload,
        refused_by: Option<Causes>,
    ) -> Result<(), Error> {
        // A refused gang is planned anew where something has changed.
        let has_changed =
            |causes| scope.context.gang_state.ledger().refused.changed(&scope.id, causes).is_some();
        if self.storage.is_none() && (state.needs_plan() || refused_by.is_some_and(has_changed)) {
            self.storage = Some(storage::read(scope.client, workload).await?);
        }
        Ok(())
    }
}

impl Gang<'_> {
    /// Reads past the caches what decides whether the gang is given up, ended or refused, and notes the causes of a refusal.
    pub(super) async fn read_plan_objects(&mut self, workload: &Workload) -> Result<(), Error> {
        let (context, identity) = (self.scope.context, &self.scope.identity);
        // What changes from now on may allow a gang that is refused.
        let causes = context.causes_of_refusal(workload);
        // Faults of the parameters are reported by the policy.
        let read = Box::pin(async {
            let plan_objects =
                context.plan_objects.read(&context.client, &context.stores, &identity.namespace);
            tokio::try_join!(plan_objects, admission_check::refresh(context, &identity.check))
        });
        let (plan_objects, _) = read.await?;
        (self.live_reads.causes, self.live_reads.plan_objects) = (Some(causes), Some(plan_objects));
        Ok(())
    }
}
