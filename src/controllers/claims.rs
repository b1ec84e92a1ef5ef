//! Asks of every NodeClaim of ours whether somebody still wants it: the guarantee that none outlives
//! its Workload, whatever was missed meanwhile.
//!
//! Rule: the Workload is read from the API server, compared by UID, and found gone twice before a
//! claim is deleted. Claims of living Workloads are the business of their gang.

use super::context::Context;
use super::memory::workload_of;
use super::queue::Action;
use crate::api::{NodeClaim, Workload};
use crate::effects::{call, claims};
use crate::error::Error;
use crate::names;
use crate::planted::planted;
use crate::telemetry::metrics;
use kube::api::PartialObjectMeta;
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Period of the sweep.
const SWEEP: Duration = Duration::from_mins(5);
/// Time between the two looks.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Claims whose Workload was found gone once.
#[derive(Debug, Default)]
pub struct Suspects(Mutex<BTreeSet<String>>);

impl Suspects {
    /// Notes the claim; returns whether it was noted before.
    fn again(&self, uid: &str) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned())
    }

    fn clear(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// What this loop works on.
pub struct Sweeper {
    /// What the controllers share.
    pub context: Arc<Context>,
    /// Claims found ownerless once.
    pub suspects: Suspects,
}

/// Looks at one claim.
pub async fn reconcile(claim: Arc<NodeClaim>, sweeper: Arc<Sweeper>) -> Result<Action, Error> {
    let context = &sweeper.context;
    if !context.leadership.leads() {
        return Ok(Action::await_change());
    }
    let (name, uid) = (claim.name_any(), claim.uid().unwrap_or_default());
    if claim.metadata.deletion_timestamp.is_some() || claim.label(names::MANAGED_BY) != names::SETU {
        return Ok(Action::await_change());
    }
    if lives(context, &claim).await? {
        sweeper.suspects.clear(&uid);
        return Ok(Action::requeue(SWEEP));
    }
    if !sweeper.suspects.again(&uid) {
        return Ok(Action::requeue(SECOND_LOOK));
    }
    tracing::info!(nodeclaim = name, workload = claim.annotation(names::WORKLOAD), "its Workload is gone");
    claims::delete(&context.client, &name, &uid).await?;
    sweeper.suspects.clear(&uid);
    metrics::swept("workload_gone");
    Ok(Action::await_change())
}

/// Whether the Workload of a claim exists. A claim that names none belongs to nobody.
async fn lives(context: &Context, claim: &NodeClaim) -> Result<bool, Error> {
    let Some(object) = workload_of(claim) else {
        return Ok(false);
    };
    let wanted = claim.label(names::WORKLOAD_UID);
    if context.stores.workloads.get(&object).is_some_and(|w| w.uid().is_some_and(|uid| uid == wanted)) {
        return Ok(true);
    }
    if planted!(SweepBeforeStores) {
        return Ok(false);
    }
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let api: Api<PartialObjectMeta<Workload>> = Api::namespaced(context.client.clone(), namespace);
    let found = call("reading Workload", &object.name, api.get_metadata_opt(&object.name)).await?;
    Ok(found.is_some_and(|w| w.uid().is_some_and(|uid| uid == wanted)))
}
