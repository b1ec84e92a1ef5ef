//! Carries out a gang's decisions: writes the journal first, then creates or deletes claims.

use super::Gang;
use crate::api::parameters::Release;
use crate::api::{NodeClaim, Workload};
use crate::effects::events::Moment;
use crate::effects::journal::Guard;
use crate::effects::{claims, handover, journal as journal_write};
use crate::error::{Class, Error};
use crate::gang::claims::is_stuck;
use crate::gang::custody::{Parting, parting};
use crate::gang::{Effect, Freshness, Reservation, State, message, notice};
use crate::names;
use crate::plan::{Outcome, Plan};
use crate::planted::planted;
use crate::words::to_the_second;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::collections::BTreeMap;

impl Gang<'_> {
    pub(super) async fn commit_and_act(
        &mut self,
        workload: &mut Workload,
        effects: Vec<Effect>,
    ) -> Result<(), Error> {
        if effects.is_empty() {
            return Ok(());
        }
        let before = self.stored.clone();
        let committed = if planted!(CreateWithoutJournal) { Ok(()) } else { self.commit(workload).await };
        let held = matches!(Reservation::of(workload, &self.identity.check), Reservation::Held { .. });
        match committed {
            Err(Error::Conflict { .. }) if planted!(ActOnConflict) => {}
            // Someone else changed the Workload meanwhile, so this decision is out of date.
            Err(Error::Conflict { .. }) => return committed,
            // Until the journal is durable, another replica may decide otherwise and report Ready to Kueue.
            Err(_) if held => return committed,
            Ok(()) | Err(_) => {}
        }
        let skips = planted!(ActOnStaleJournal) || planted!(CreateWithoutJournal) || planted!(ActOnConflict);
        if self.stored == before && !skips {
            let text = self.journal.encode();
            journal_write::confirm(self.client, workload, &self.entry(&text, "")).await?;
        }
        // A read before a write proves nothing about the time after it.
        let freshness = std::mem::replace(&mut self.observed.freshness, Freshness::Cached);
        let mut writes = false;
        for effect in effects {
            match effect {
                Effect::CreateClaims(slots) if committed.is_ok() => {
                    writes = true;
                    self.create(workload, &slots).await?;
                }
                Effect::CreateClaims(_) => {}
                Effect::DeleteClaims(names) => writes |= self.part(workload, &names).await?,
            }
        }
        if !writes {
            self.observed.freshness = freshness;
        }
        committed
    }

    pub(super) async fn create(&mut self, workload: &Workload, slots: &[u32]) -> Result<(), Error> {
        let Some(Outcome::Provision(plan)) = &self.plan else {
            return Ok(());
        };
        let hold = self
            .context
            .now()
            .checked_add(self.judgement.policy.hold_limit.signed())
            .unwrap_or(Timestamp::MAX);
        let wanted = slots.iter().filter_map(|slot| self.claim(plan, *slot, hold)).collect();
        let wanted = self.take_over(workload, wanted).await?;
        let created = claims::create(self.client, wanted).await;
        self.note_replacements(workload, created.claims.len());
        for claim in created.claims {
            self.context.tombstones.saw(&claim, self.context.now());
            self.observed.claims.retain(|c| c.name_any() != claim.name_any());
            self.observed.claims.push(claim);
        }
        self.tier = super::view::tier_of(&self.observed.claims);
        if let Some(error) = created.refused {
            tracing::warn!(workload = self.identity.workload_ref(), error = %error.in_full(), "a NodeClaim was refused");
            self.create_refused = Some(reason_of(&error).to_owned());
            return Ok(());
        }
        created.later.map_or(Ok(()), Err)
    }

    /// Records replacements in the ledger; no entered plan counts them.
    fn note_replacements(&self, workload: &Workload, claims: usize) {
        if self.journal.memory.generation > 0 && !self.journal.is_mixed(&self.judgement.policy) {
            let claims = u32::try_from(claims).unwrap_or(u32::MAX);
            self.context.of_gangs.ledger.open().note_created(
                &workload.local_queue(),
                claims,
                self.context.now(),
            );
        }
    }

    /// Deletes, hands back or keeps the claims of these names, as the policy says. Returns false if none could be
    /// released.
    async fn part(&mut self, workload: &Workload, names: &[String]) -> Result<bool, Error> {
        if self.judgement.policy.release != Release::Delete {
            // The cache may still show claims that this gang has released and another gang owns now.
            self.read_quorum(workload).await?;
            self.observed.freshness = Freshness::Cached;
        }
        let parts = self.parts(workload);
        let snapshot = self.snapshot(&parts);
        let (mut back, mut kept, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for claim in self.observed.claims.iter().filter(|c| names.contains(&c.name_any()) && self.owns(c)) {
            let view = snapshot.claims.iter().find(|v| v.uid == claim.uid().unwrap_or_default());
            if claim.is_handing_back() {
                back.push(claim.clone());
                continue;
            }
            match parting(&self.journal, snapshot.reservation, view, snapshot.policy) {
                Parting::HandBack => back.push(claim.clone()),
                Parting::KeepWarm => kept.push(claim.clone()),
                Parting::Delete => gone.push((claim.name_any(), claim.uid().unwrap_or_default())),
            }
        }
        // A failed hand-back must not block deletions.
        let stays: Vec<String> = back.iter().chain(&kept).map(ResourceExt::name_any).collect();
        let going: Vec<String> = names.iter().filter(|name| !stays.contains(name)).cloned().collect();
        let deleted = self.delete(&going, gone).await;
        let back = handover::hand_back_all(self.client, back).await;
        let kept = self.keep_warm(workload, kept).await;
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
        let moment = Moment { check: &self.identity.check, seq: self.journal.seq, at: self.context.now() };
        self.context.events.publish(workload, moment, &notice::of_forbidden(nodes));
        let names: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
        let uids = claims.iter().map(|c| c.uid().unwrap_or_default());
        self.delete(&names, names.iter().cloned().zip(uids).collect()).await?;
        Ok(())
    }

    /// Deletes claims. Returns false if they cannot be deleted.
    async fn delete(&mut self, names: &[String], targets: Vec<(String, String)>) -> Result<bool, Error> {
        let noted = |name: &str, uid: &str| self.context.tombstones.deleted(name, uid);
        let (gone, error) = claims::delete_all(self.client, targets.clone(), noted).await;
        let (now, may) = (self.context.now(), error.is_none());
        let mut since = BTreeMap::new();
        if let Some(error) = error {
            if error.code().is_some() {
                self.context.tombstones.could_not_delete(&targets);
            }
            since = self.context.tombstones.undeletable(now);
            let is_left = |(_, uid): &(String, String)| since.get(uid).is_some_and(|at| !is_stuck(*at, now));
            // The API server may recover soon, but claims that stay undeletable are given up.
            let is_given_up = error.code().is_some() && !targets.iter().any(is_left);
            if error.class() != Class::Refused && !is_given_up {
                return Err(error);
            }
            tracing::warn!(workload = self.identity.workload_ref(), error = %error.in_full(), "cannot delete a NodeClaim");
        }
        self.observed.claims.retain(|c| !gone.contains(&c.name_any()));
        for claim in self.observed.claims.iter_mut().filter(|c| names.contains(&c.name_any())) {
            // A refused delete will be refused next time too: treat the claim as stuck in deletion.
            let since = since.get(claim.metadata.uid.as_deref().unwrap_or_default()).copied().unwrap_or(now);
            claim.metadata.deletion_timestamp.get_or_insert(Time(since));
        }
        Ok(may)
    }

    /// The NodeClaim of one slot. Identical slots differ only in name and annotations.
    fn claim(&self, plan: &Plan, slot: u32, hold: Timestamp) -> Option<NodeClaim> {
        let (identity, memory) = (&self.identity, &self.journal.memory);
        let mut claim = plan.slots.iter().find(|s| s.index == slot).map(|s| (*s.template).clone())?;
        claim.metadata.name = Some(identity.replacement_name(memory.attempt, memory.generation, slot));
        let labels = claim.metadata.labels.get_or_insert_default();
        for (key, value) in [
            (names::MANAGED_BY, names::SETU.to_owned()),
            (names::GANG, self.pin.clone()),
            (names::WORKLOAD_UID, identity.uid.clone()),
            (names::ATTEMPT, memory.attempt.to_string()),
        ] {
            labels.insert(key.to_owned(), value);
        }
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.insert(names::SLOT.to_owned(), slot.to_string());
        annotations.insert(names::GENERATION.to_owned(), memory.generation.to_string());
        annotations.insert(names::WORKLOAD.to_owned(), identity.workload_ref());
        annotations.insert(names::CHECK.to_owned(), identity.check.clone());
        annotations.insert(names::HOLD_UNTIL.to_owned(), to_the_second(hold));
        if let Some(owner) = &self.owner {
            annotations.insert(names::OWNER.to_owned(), owner.clone());
        }
        if let Some(terms) = &memory.terms {
            annotations.insert(names::TERMS.to_owned(), terms.digest());
        }
        Some(claim)
    }

    /// Whether a claim was made for this Workload. Setu deletes no others.
    pub(super) fn owns(&self, claim: &NodeClaim) -> bool {
        claim.label(names::MANAGED_BY) == names::SETU && claim.label(names::WORKLOAD_UID) == self.identity.uid
    }

    /// Writes the journal if it changed, and reports its transitions.
    pub(super) async fn commit(&mut self, workload: &mut Workload) -> Result<(), Error> {
        let text = self.journal.encode();
        let unsaved = self.journal.seq > 0 || self.journal.state == State::Validating;
        if !unsaved || self.is_stored(&text) {
            return Ok(());
        }
        let sentence = message::explain(&self.journal, &self.snapshot(&self.parts(workload)));
        let headline = message::headline(&self.journal, &sentence);
        let entry = self.entry(&text, &headline);
        let answer = journal_write::commit(self.client, workload, &entry).await;
        match answer {
            Ok(written) => *workload = written,
            Err(error) => {
                self.keep_unreported(workload, text, sentence);
                return Err(error);
            }
        }
        self.context.of_gangs.own_writes.note(workload);
        self.stored = Some(text);
        self.fresh = false;
        self.report_transitions(workload, &sentence);
        Ok(())
    }

    /// Whether the Workload already has this journal, apart from the option index. Each replica uses its own index, so
    /// two replicas that both believe they lead would overwrite each other forever.
    fn is_stored(&self, text: &String) -> bool {
        let (reported, gone) = self.option_index;
        let option = self.journal.memory.option;
        let same_way = || {
            let mut journal = self.journal.clone();
            journal.memory.option.index = reported;
            journal.encode()
        };
        self.stored.as_ref() == Some(text)
            || (reported != gone && option.index == gone && self.stored == Some(same_way()))
    }

    /// Whether the write requires an unchanged Workload. It does when an approval is taken back or the gang is given up,
    /// because the Workload may have been admitted or changed meanwhile.
    fn needs_workload_as_seen(&self) -> bool {
        self.journal.revokes() || matches!(self.journal.state, State::Yielded | State::Rejected)
    }

    fn entry<'e>(&'e self, journal: &'e str, headline: &'e str) -> journal_write::Entry<'e> {
        journal_write::Entry {
            check: &self.identity.check,
            old: self.stored.as_deref(),
            journal,
            headline,
            guard: if self.needs_workload_as_seen() { Guard::Workload } else { Guard::Journal },
        }
    }
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
