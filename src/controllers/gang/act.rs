//! Carries out a gang's decisions: writes the journal first, then creates or deletes claims.

use super::scope::GangScope;
use super::{Gang, warm};
use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload};
use crate::effects::warm::keep_all;
use crate::effects::{claims, handover, journal as journal_write};
use crate::error::{Class, Error};
use crate::gang::release::custody::Dispositions;
use crate::gang::release::undeletable::{are_given_up, mark_as_deleting};
use crate::gang::snapshot::observed::Observed;
use crate::gang::step::commit::Permitted;
use crate::gang::step::new_claims::{NewClaims, fills_slot_of};
use crate::gang::{Commit, Effect, Freshness, Reservation, report::notice};
use crate::plan::warm::KeptFor;
use crate::planted::planted;
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Gang<'_> {
    pub(super) async fn commit_and_act(
        &mut self,
        workload: &mut Workload,
        effects: Vec<Effect>,
    ) -> Result<(), Error> {
        let committed =
            if planted!(CreateWithoutJournal) { Ok(Commit::Unneeded) } else { self.commit(workload).await };
        let commit = match &committed {
            Ok(commit) => *commit,
            Err(Error::Conflict { .. }) => Commit::Conflict,
            Err(_) => Commit::Unanswered,
        };
        let reservation = Reservation::of(workload, &self.scope.identity.check);
        let permitted = Permitted::after(commit, &reservation, effects);
        if permitted.needs_confirmation {
            let text = self.journal().encode();
            let entry = self.entry_of(&text, "");
            journal_write::confirm(self.scope.client, workload, &entry).await?;
        }
        self.act(workload, permitted.effects).await?;
        committed.map(drop)
    }

    async fn act(&mut self, workload: &Workload, effects: Vec<Effect>) -> Result<(), Error> {
        // A read before a write proves nothing about the time after it.
        let freshness = std::mem::replace(&mut self.observed.freshness, Freshness::Cached);
        let mut writes = false;
        for effect in effects {
            match effect {
                Effect::CreateClaims(slots) => {
                    writes = true;
                    self.create(workload, &slots).await?;
                }
                Effect::DeleteClaims(names) => writes |= self.give_up_claims(workload, &names).await?,
            }
        }
        if !writes {
            self.observed.freshness = freshness;
        }
        Ok(())
    }

    async fn create(&mut self, workload: &Workload, slots: &[u32]) -> Result<(), Error> {
        let Some(plan) = self.planned.plan() else {
            return Ok(());
        };
        let wanted = self.new_claims().of_slots(plan, slots, self.scope.now());
        let wanted = self.take_over(workload, wanted).await?;
        let created = claims::create(self.scope.client, wanted).await;
        self.note_replacements(workload, created.claims.len());
        for claim in created.claims {
            self.scope.context.claim_records.saw(&claim, self.scope.now());
            self.observed.note(claim);
        }
        self.observed.note_capacity_type();
        if let Some(error) = created.refused {
            tracing::warn!(workload = self.scope.identity.workload_ref(), error = %error.in_full(), "a NodeClaim was refused");
            self.observed.create_refused = Some(reason_of(&error).to_owned());
            return Ok(());
        }
        created.later.map_or(Ok(()), Err)
    }

    /// Takes over kept nodes for as many of these claims as possible. Returns the claims that are still to be created.
    ///
    /// The derived name of a claim keeps a second replica from creating it again, but a claim that was taken over has
    /// another name. So the gang's claims are read after the kept ones, and a slot that another replica filled first gets
    /// nothing in this reconcile.
    async fn take_over(
        &mut self,
        workload: &Workload,
        mut wanted: Vec<NodeClaim>,
    ) -> Result<Vec<NodeClaim>, Error> {
        if self.effective.policy.release == Release::Warm {
            self.live_reads.read_warm(&self.scope, &self.effective.policy, workload).await?;
            self.read_quorum(workload).await?;
            self.observed.freshness = Freshness::Cached;
            wanted.retain(|wanted| !self.observed.claims.iter().any(|claim| fills_slot_of(claim, wanted)));
        }
        let kept = self.live_reads.warm.take().unwrap_or_default();
        if kept.is_empty() {
            return Ok(wanted);
        }
        let others = warm::take_over(&self.scope, &mut self.observed, kept, wanted).await?;
        warm::mark_nodes(&self.scope, &self.stored.loaded.journal, &mut self.observed).await?;
        Ok(others)
    }

    /// Records replacements in the ledger.
    fn note_replacements(&self, workload: &Workload, claims: usize) {
        if self.new_claims().are_uncounted() {
            let claims = u32::try_from(claims).unwrap_or(u32::MAX);
            let mut ledger = self.scope.context.gang_state.ledger();
            ledger.note_created(&workload.local_queue(), claims, self.scope.now());
        }
    }

    /// Deletes, hands back or keeps the claims of these names, as the policy says. Returns false if none could be
    /// released.
    async fn give_up_claims(&mut self, workload: &Workload, names: &[String]) -> Result<bool, Error> {
        if self.effective.policy.release != Release::Delete {
            // The cache may still show claims that this gang has released and another gang owns now.
            self.read_quorum(workload).await?;
            self.observed.freshness = Freshness::Cached;
        }
        let parts = self.parts(workload);
        let leaving = self.observed.claims.iter().map(|c| &**c).filter(|c| names.contains(&c.name_any()));
        let snapshot = self.snapshot(&parts, workload);
        let dispositions = Dispositions::of(self.journal(), &snapshot, &self.scope.identity, leaving);
        let stays: Vec<String> = dispositions.staying().map(ResourceExt::name_any).collect();
        let Dispositions { hand_back, keep_warm, delete: gone } = dispositions;
        // A failed hand-back must not block deletions.
        let gone = gone.iter().map(target).collect();
        let going: Vec<String> = names.iter().filter(|name| !stays.contains(name)).cloned().collect();
        let deleted = delete(&self.scope, &mut self.observed, &going, gone).await;
        let back = handover::hand_back_all(self.scope.client, hand_back).await;
        let keeping =
            KeptFor::of(workload, &self.scope.identity.check, &self.effective.policy, self.scope.now());
        let kept = keep_all(self.scope.client, keep_warm, &keeping).await;
        let forbidden = [back.forbidden, kept.forbidden].concat();
        self.delete_forbidden(workload, &forbidden).await?;
        if let Some(error) = back.failed.or(kept.failed) {
            return Err(error);
        }
        let is_forbidden = |c: &NodeClaim| forbidden.iter().any(|f| f.uid() == c.uid());
        self.observed.claims.retain(|c| !stays.contains(&c.name_any()) || is_forbidden(c));
        Ok(deleted? || !stays.is_empty())
    }

    /// Deletes claims that Setu may neither hand back nor keep. Nothing else would remove them.
    async fn delete_forbidden(&mut self, workload: &Workload, claims: &[NodeClaim]) -> Result<(), Error> {
        let Some(nodes) = u32::try_from(claims.len()).ok().filter(|nodes| *nodes > 0) else {
            return Ok(());
        };
        self.scope.publish(workload, self.journal().seq, self.scope.now(), &notice::of_forbidden(nodes));
        let names: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
        delete(&self.scope, &mut self.observed, &names, claims.iter().map(target).collect()).await?;
        Ok(())
    }

    /// The data shared by all claims that the gang creates now.
    fn new_claims(&self) -> NewClaims<'_> {
        NewClaims {
            identity: &self.scope.identity,
            gang_label: &self.scope.label,
            owner: self.scope.owner.as_deref(),
            journal: self.journal(),
            policy: &self.effective.policy,
        }
    }
}

/// Name and UID of a claim to delete.
type ClaimTarget = (String, String);

fn target(claim: &NodeClaim) -> ClaimTarget {
    (claim.name_any(), claim.uid().unwrap_or_default())
}

/// Deletes claims. Returns false if they cannot be deleted: those that are left of these names then count as being deleted.
async fn delete(
    scope: &GangScope<'_>,
    observed: &mut Observed,
    names: &[String],
    targets: Vec<ClaimTarget>,
) -> Result<bool, Error> {
    let (records, now) = (&scope.context.claim_records, scope.now());
    let noted = |name: &str, uid: &str| records.deleted(name, uid);
    let (gone, error) = claims::delete_all(scope.client, targets.clone(), noted).await;
    let (may, mut since) = (error.is_none(), BTreeMap::new());
    if let Some(error) = error {
        if error.code().is_some() {
            records.could_not_delete(&targets);
        }
        since = records.undeletable(now);
        let uids = targets.iter().map(|(_, uid)| uid.as_str());
        // The API server may recover soon, but claims that stay undeletable are given up.
        let is_given_up = error.code().is_some() && are_given_up(uids, &since, now);
        if error.class() != Class::Refused && !is_given_up {
            return Err(error);
        }
        tracing::warn!(workload = scope.identity.workload_ref(), error = %error.in_full(), "cannot delete a NodeClaim");
    }
    observed.claims.retain(|c| !gone.contains(&c.name_any()));
    for claim in observed.claims.iter_mut().filter(|c| names.contains(&c.name_any())) {
        mark_as_deleting(Arc::make_mut(claim), &since, now);
    }
    Ok(may)
}

/// The API server's reason. The message may come from another component, so it stays in the log.
fn reason_of(error: &Error) -> &str {
    match error {
        Error::Api { cause, .. } => match cause.as_ref() {
            kube::Error::Api(status) if !status.reason.is_empty() => &status.reason,
            _ => "no reason given",
        },
        Error::Timeout { .. } | Error::Conflict { .. } => "no reason given",
    }
}
