//! Asks of every NodeClaim of ours whether somebody still wants it: the guarantee that none outlives
//! its Workload or its hold, whatever was missed meanwhile and whoever is gone.
//!
//! Rule: what speaks for a claim is read from the API server, compared by UID, and found missing twice
//! before the claim is deleted. Claims that are wanted are the business of their gang.

use super::context::Context;
use super::glance::{ClaimGlance, Phase, WorkloadGlance};
use super::memory::{lock, workload_of};
use super::queue::Action;
use crate::api::{NodeClaim, Workload};
use crate::cluster::guard::Guarded;
use crate::effects::{call, claims, handover};
use crate::error::Error;
use crate::gang::custody::{Kin, Orphaned, hold_ends, is_warm, orphaned};
use crate::gang::identity::{gang_of, pin};
use crate::names;
use crate::planted::planted;
use crate::telemetry::metrics::{self, Kept};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Period of the sweep: how often each claim is looked at of which nothing was heard.
const SWEEP: Duration = Duration::from_mins(5);
/// Time between the two looks.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Most claims that are remembered of one kind.
const REMEMBERED: usize = 10_000;

/// Claims of which something was seen once.
#[derive(Debug, Default)]
pub struct Suspects(Mutex<BTreeSet<String>>);

impl Suspects {
    /// Notes the claim; returns whether it was noted before.
    fn again(&self, uid: &str) -> bool {
        let mut noted = lock(&self.0);
        if noted.len() >= REMEMBERED {
            noted.clear();
        }
        !noted.insert(uid.to_owned())
    }

    fn clear(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }
}

/// What this loop works on.
pub struct Sweeper {
    /// What the controllers share.
    pub context: Arc<Context>,
    /// Claims found unwanted once.
    pub suspects: Suspects,
    /// Kept claims whose end was counted.
    pub parted: Suspects,
}

impl Sweeper {
    /// Has every claim looked at, once a period until `stop`, of which it is not plain that it is used: there may
    /// be thousands of the others, and nothing is kept of them in between.
    pub async fn sweep(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
            let context = &self.context;
            for claim in context.stores.claims.those(|claim| !is_used(context, claim)) {
                // Fails only while the process ends.
                let _ = context.wake.claim.send(claim);
            }
        }
    }
}

/// Looks at one claim.
pub async fn reconcile(object: ObjectRef<NodeClaim>, sweeper: Arc<Sweeper>) -> Result<Action, Error> {
    let context = &sweeper.context;
    let Some(known) = context.stores.claims.glimpse(&object) else {
        return Ok(Action::await_change());
    };
    if !context.acts_for(&known.workload_uid) {
        return Ok(Action::await_change());
    }
    if is_used(context, &known) {
        sweeper.suspects.clear(&known.uid);
        return Ok(Action::await_change());
    }
    let Some(claim) = known.object() else { return Ok(Action::await_change()) };
    let of_workload = claim.label(names::WORKLOAD_UID);
    let (name, uid) = (claim.name_any(), claim.uid().unwrap_or_default());
    let now = context.now();
    if claim.metadata.deletion_timestamp.is_some() && is_ours(&claim) && is_warm(&claim) {
        // Whoever deletes it, Karpenter shows it once more before it is gone.
        if !sweeper.parted.again(&uid) {
            metrics::kept_warm(&claim, Kept::Unused, now);
        }
        return Ok(Action::await_change());
    }
    if claim.metadata.deletion_timestamp.is_some() || !is_ours(&claim) {
        return Ok(Action::await_change());
    }
    if orphaned_now(context, &claim, now).await?.is_none() {
        sweeper.suspects.clear(&uid);
        return Ok(next_look(&claim, now));
    }
    if !sweeper.suspects.again(&uid) {
        return Ok(Action::requeue(SECOND_LOOK));
    }
    sweeper.suspects.clear(&uid);
    // It may have been handed back since it was seen last, or its gang has deleted it.
    let current = claims::current(&context.client, &name).await?;
    let stays = |c: &NodeClaim| c.metadata.deletion_timestamp.is_none() && is_ours(c);
    let Some(current) = current.filter(|c| c.metadata.uid == claim.metadata.uid && stays(c)) else {
        return Ok(Action::await_change());
    };
    let Some(reason) = orphaned_now(context, &current, now).await? else {
        return Ok(Action::await_change());
    };
    if current.is_handing_back() {
        // Pods of others may be on its Node.
        let left = handover::hand_back_all(context.client_of(of_workload), vec![current]).await;
        return left.failed.map_or(Ok(Action::await_change()), Err);
    }
    tracing::info!(
        nodeclaim = name,
        workload = claim.annotation(names::WORKLOAD),
        reason = reason.name(),
        "deleting an orphaned NodeClaim"
    );
    claims::delete(context.client_of(of_workload), &name, &uid).await?;
    context.necrology.deleted(&name, &uid);
    metrics::swept(reason);
    Ok(Action::await_change())
}

/// Whether pods may run on its node, as far as is known. So it is with most claims, and nothing is to be read.
fn is_used(context: &Context, claim: &ClaimGlance) -> bool {
    let workload = claim.workload.as_ref().and_then(|object| context.stores.workloads.glimpse(object));
    let admitted = |w: &WorkloadGlance| w.uid == claim.workload_uid && w.is_admitted && !w.is_finished;
    claim.phase != Phase::Deleting && !claim.is_warm && workload.is_some_and(|known| admitted(&known))
}

fn is_ours(claim: &NodeClaim) -> bool {
    claim.label(names::MANAGED_BY) == names::SETU
}

/// What is further away than the next sweep is left to it.
fn next_look(claim: &NodeClaim, now: Timestamp) -> Action {
    let due = hold_ends(claim).and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    due.filter(|due| *due < SWEEP).map_or(Action::await_change(), |due| Action::requeue(due.max(SECOND_LOOK)))
}

/// Why nobody wants a claim any more. One that names no Workload belongs to nobody.
async fn orphaned_now(
    context: &Context,
    claim: &NodeClaim,
    now: Timestamp,
) -> Result<Option<Orphaned>, Error> {
    let Some(object) = workload_of(claim).filter(|_| !is_warm(claim)) else {
        return Ok(orphaned(claim, Kin { workload: None, slice_lives: false }, now));
    };
    let is_meant = |w: &Workload| w.metadata.uid.as_deref() == Some(claim.label(names::WORKLOAD_UID));
    let alone = |workload| Kin { workload, slice_lives: false };
    let cached = context.stores.workloads.get(&object).filter(|w| is_meant(w));
    let judged = orphaned(claim, alone(cached.as_deref()), now);
    if judged.is_none() || planted!(SweepBeforeStores) {
        return Ok(judged);
    }
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let api: Api<Guarded<Workload>> = Api::namespaced(context.client.clone(), namespace);
    let found =
        match call("reading Workload", claim.annotation(names::WORKLOAD), api.get_opt(&object.name)).await? {
            // It exists, and what it says cannot be read.
            Some(Guarded(Err(_))) => return Ok(None),
            Some(Guarded(Ok(found))) => Some(found).filter(is_meant),
            None => None,
        };
    let kin = Kin { workload: found.as_ref(), slice_lives: false };
    match orphaned(claim, kin, now) {
        Some(Orphaned::WorkloadGone | Orphaned::SlicesOver) if shares_its_pin(claim) => {
            let kin = Kin { slice_lives: slice_lives(&api, claim).await?, ..kin };
            Ok(orphaned(claim, kin, now))
        }
        judged => Ok(judged),
    }
}

/// Whether the gang's label says that the claim was made for a slice of an elastic Job.
fn shares_its_pin(claim: &NodeClaim) -> bool {
    claim.label(names::GANG) != gang_of(claim)
}

/// Whether a slice of the same elastic Job is not over yet.
async fn slice_lives(api: &Api<Guarded<Workload>>, claim: &NodeClaim) -> Result<bool, Error> {
    let of = claim.annotation(names::WORKLOAD);
    let all = call("listing the slices of Workload", of, api.list(&ListParams::default())).await?;
    let (label, check) = (claim.label(names::GANG), claim.annotation(names::CHECK));
    Ok(all.items.into_iter().any(|found| match found.0 {
        Ok(workload) => !workload.is("Finished") && pin(&workload, check) == label,
        Err(_) => false,
    }))
}
