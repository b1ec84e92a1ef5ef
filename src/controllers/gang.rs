//! Takes one gang as far as it will go now: observe → decide → commit → act, until nothing moves.
//!
//! Rule: the journal is durable before its effects are run; a failed journal write holds up creates
//! but never deletes. Every decision that absence takes part in is made on a quorum read.

use super::context::Context;
use super::plans;
use crate::api::workload::CheckState;
use crate::api::{Node, NodeClaim, Workload, condition};
use crate::effects::{claims, journal as journal_write};
use crate::error::Error;
use crate::gang::claims::{Loss, loss};
use crate::gang::journal::{JournalError, Step};
use crate::gang::observe::wake_at;
use crate::gang::{
    ClaimView, Effect, Event, Facts, Failure, FailureClass, GangIdentity, Journal, Reading, Reservation, Rules, Sight,
    State, StateName, decide, message, observe, verdict,
};
use crate::names;
use crate::plan::{Outcome, Plan, Request, pod_set_updates};
use crate::policy::Policy;
use crate::telemetry::{events, metrics};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;
use std::time::Duration;

/// Turns of one look. A gang needs five at most; the bound only ends what should not happen.
const TURNS: usize = 16;

/// One gang while it is looked at.
pub struct Gang<'a> {
    context: &'a Context,
    identity: GangIdentity,
    id: String,
    our_checks: &'a [String],
    policy: Policy,
    policy_fault: Option<crate::plan::Obstacle>,
    journal: Journal,
    /// The annotation as last read or written.
    stored: Option<String>,
    fresh: bool,
    claims: Vec<NodeClaim>,
    nodes: BTreeMap<String, Node>,
    sight: Sight,
    pool_claims: Vec<NodeClaim>,
    /// Transitions that are committed but not yet told of.
    untold: Vec<Journal>,
    plan: Option<Outcome>,
}

/// What a look at a gang came to.
pub struct Looked {
    /// The entry to write, if it differs.
    pub entry: Option<CheckState>,
    /// Whether that entry only tells of progress.
    pub progress: bool,
    /// Whether the gang was approved in this look.
    pub approved: bool,
    /// When time alone may bring something new.
    pub wake: Option<Timestamp>,
}

/// What one pure turn came to.
enum Turn {
    /// Nothing moves.
    Still,
    /// The cache is not enough.
    LookAgain,
    /// The journal moved, or these are to be done.
    Moved(Vec<Effect>),
}

impl<'a> Gang<'a> {
    /// Opens a gang; `None` if there is nothing to look after, or it must not be touched.
    pub fn open(context: &'a Context, workload: &Workload, check: &str, our_checks: &'a [String]) -> Option<Self> {
        let now = context.now();
        let identity = GangIdentity {
            namespace: workload.namespace().unwrap_or_default(),
            workload: workload.name_any(),
            uid: workload.uid().unwrap_or_default(),
            check: check.to_owned(),
        };
        let id = identity.id();
        let (policy, fault) = plans::policy(context, check);
        let stored = workload.annotations().get(&names::journal_key(check)).cloned();
        let created = workload.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let decoded = match &stored {
            None => Ok(None),
            Some(text) => Journal::decode(text, &identity.uid, created, now).map(Some),
        };
        let known = match decoded {
            Ok(known) => known,
            Err(error @ JournalError::UnknownVersion(_)) => {
                tracing::warn!(workload = identity.workload_ref(), check, error = %error, "left alone a gang whose journal cannot be read");
                return None;
            }
            Err(error) => {
                tracing::warn!(workload = identity.workload_ref(), check, error = %error, "started over without the journal");
                None
            }
        };
        let claims: Vec<NodeClaim> =
            context.stores.claims.state().iter().filter(|c| c.label(names::GANG) == id).map(|c| (**c).clone()).collect();
        let fresh = known.is_none();
        let journal = match (known, Reservation::of(workload, check)) {
            (Some(journal), _) => journal,
            (None, Reservation::Held { epoch, .. }) => {
                let deadline = now.checked_add(policy.deadlines.gang.signed()).ok();
                Journal::new(&identity.uid, epoch, now, deadline)
            }
            (None, Reservation::Gone(_)) if !claims.is_empty() => Journal::released(&identity.uid, now),
            (None, _) => return None,
        };
        let nodes = nodes_of(context, &claims);
        Some(Self {
            context,
            id,
            our_checks,
            policy,
            policy_fault: fault.err(),
            journal,
            stored,
            fresh,
            claims,
            nodes,
            sight: Sight::Cached,
            pool_claims: Vec::new(),
            untold: Vec::new(),
            plan: None,
            identity,
        })
    }

    /// Takes the gang as far as it will go, and says what Kueue is to be told.
    pub async fn look(mut self, workload: &mut Workload) -> Result<Looked, Error> {
        let before = self.journal.state.name();
        for _ in 0..TURNS {
            self.fetch_pool_claims().await?;
            match self.turn(workload) {
                Turn::Still => break,
                Turn::LookAgain => self.look_again().await?,
                Turn::Moved(effects) => self.commit_and_act(workload, effects).await?,
            }
        }
        self.commit(workload).await?;
        Ok(self.report(workload, before))
    }

    /// One pure turn: observe, decide, and keep the ledger, all under its lock.
    fn turn(&mut self, workload: &Workload) -> Turn {
        let context = self.context;
        let now = context.now();
        let mut pages = context.ledger.open();
        self.plan = self.needs_plan().then(|| self.make_plan(workload, &pages));
        let reservation = Reservation::of(workload, &self.identity.check);
        let (views, losses) = (self.views(now), self.losses(now));
        let facts = self.facts(now, &reservation, &views, &losses);
        let seen = match observe(&self.journal, &facts) {
            Reading::LookAgain => return Turn::LookAgain,
            Reading::Events(seen) => seen,
        };
        let rules = Rules::new(&self.policy, now, self.identity.jitter(self.journal.memory.attempt));
        let mut effects = Vec::new();
        let mut moved = false;
        for event in seen {
            let decision = decide(&self.journal, &event, &rules);
            let stepped = decision.journal.seq != self.journal.seq;
            moved |= decision.journal != self.journal;
            self.journal = decision.journal;
            effects.extend(decision.effects);
            if stepped {
                self.untold.push(self.journal.clone());
                if matches!(event, Event::Failed(Failure { reason: FailureClass::InsufficientCapacity, .. })) {
                    pages.note_shortage(&self.id, now);
                }
                break;
            }
        }
        let freed = match (&self.journal.state, &self.plan) {
            (State::Provisioning, Some(Outcome::Provision(plan))) => {
                pages.enter(&self.id, plan.reservations(&self.id));
                false
            }
            (State::Provisioning | State::WaitingReady, _) => false,
            _ => pages.strike(&self.id),
        };
        drop(pages);
        if freed {
            context.next_turn();
        }
        if moved || !effects.is_empty() { Turn::Moved(effects) } else { Turn::Still }
    }

    fn needs_plan(&self) -> bool {
        match self.journal.state {
            State::Validating | State::Provisioning => true,
            State::Approved => self.journal.memory.slots == 0,
            _ => false,
        }
    }

    fn make_plan(&self, workload: &Workload, pages: &super::memory::LedgerPages) -> Outcome {
        if let Some(fault) = &self.policy_fault {
            return Outcome::Wait(fault.clone());
        }
        let request = Request {
            workload,
            check: &self.identity.check,
            our_checks: self.our_checks,
            gang: &self.id,
            policy: &self.policy,
        };
        plans::outcome(self.context, &request, pages, &self.pool_claims)
    }

    async fn fetch_pool_claims(&mut self) -> Result<(), Error> {
        if self.journal.state == State::Validating && self.pool_claims.is_empty() {
            let pools = plans::limited_pools(self.context);
            if !pools.is_empty() {
                self.pool_claims = claims::of_pools(&self.context.client, &pools).await?;
            }
        }
        Ok(())
    }

    async fn look_again(&mut self) -> Result<(), Error> {
        let (claims, nodes) = claims::read(&self.context.client, &self.id).await?;
        self.claims = claims;
        self.nodes = nodes.into_iter().map(|n| (n.name_any(), n)).collect();
        self.sight = Sight::Quorum;
        Ok(())
    }

    fn facts<'f>(
        &'f self,
        now: Timestamp,
        reservation: &'f Reservation,
        views: &'f [ClaimView],
        losses: &'f BTreeMap<u32, Loss>,
    ) -> Facts<'f> {
        Facts {
            now,
            fresh: self.fresh,
            reservation,
            plan: self.plan.as_ref(),
            claims: views,
            losses,
            sight: self.sight,
            policy: &self.policy,
        }
    }

    fn views(&self, now: Timestamp) -> Vec<ClaimView> {
        let node = |c: &NodeClaim| c.status.as_ref().and_then(|s| self.nodes.get(&s.node_name));
        let mut views: Vec<ClaimView> =
            self.claims.iter().map(|c| ClaimView::of(c, node(c), &self.policy, now)).collect();
        views.sort_by_key(|v| v.slot);
        views
    }

    /// What became of slots whose claim is missing, or going although the gang wants it.
    fn losses(&self, now: Timestamp) -> BTreeMap<u32, Loss> {
        if !matches!(self.journal.state, State::Provisioning | State::WaitingReady | State::Approved) {
            return BTreeMap::new();
        }
        let attempt = self.journal.memory.attempt;
        let lost = |slot: &u32| {
            let name = self.identity.claim_name(attempt, *slot);
            let claim = self.claims.iter().find(|c| c.name_any() == name);
            if claim.is_some_and(|c| c.metadata.deletion_timestamp.is_none()) {
                return None;
            }
            if claim.is_none() && self.journal.state == State::Provisioning {
                return None;
            }
            let (obituary, pool) = self.context.necrology.missed(&name, now);
            Some((*slot, loss(*slot, claim, &obituary, self.pool_fault(&pool).as_deref(), now)))
        };
        (0..self.journal.memory.slots).filter_map(|slot| lost(&slot)).collect()
    }

    fn pool_fault(&self, pool: &str) -> Option<String> {
        let pool = self.context.stores.pools.get(&ObjectRef::new(pool))?;
        let ready = condition::find(pool.conditions(), "NodeClassReady")?;
        (ready.status == "False").then(|| format!("NodePool {}: {} {}", pool.name_any(), ready.reason, ready.message))
    }

    async fn commit_and_act(&mut self, workload: &mut Workload, effects: Vec<Effect>) -> Result<(), Error> {
        if effects.is_empty() {
            return Ok(());
        }
        let committed = self.commit(workload).await;
        for effect in effects {
            match effect {
                Effect::CreateClaims(slots) if committed.is_ok() => self.create(&slots).await?,
                Effect::CreateClaims(_) => {}
                Effect::DeleteClaims(names) => self.delete(&names).await?,
            }
        }
        committed
    }

    async fn create(&mut self, slots: &[u32]) -> Result<(), Error> {
        let Some(Outcome::Provision(plan)) = &self.plan else { return Ok(()) };
        let hold = self.context.now().checked_add(self.policy.hold_limit.signed()).unwrap_or(Timestamp::MAX);
        let attempt = self.journal.memory.attempt;
        let wanted = slots.iter().filter_map(|slot| claim(plan, &self.identity, attempt, *slot, hold)).collect();
        let created = claims::create(&self.context.client, wanted).await;
        for claim in created.claims {
            self.context.necrology.saw(&claim, self.context.now());
            self.claims.retain(|c| c.name_any() != claim.name_any());
            self.claims.push(claim);
        }
        if let Some(error) = created.refused {
            let message = format!("the API server refused a NodeClaim: {}", reason_of(&error));
            let rules = Rules::new(&self.policy, self.context.now(), self.identity.jitter(attempt));
            let event = Event::Failed(Failure::new(FailureClass::Refused, message));
            self.journal = decide(&self.journal, &event, &rules).journal;
            self.untold.push(self.journal.clone());
            return Ok(());
        }
        created.later.map_or(Ok(()), Err)
    }

    async fn delete(&mut self, names: &[String]) -> Result<(), Error> {
        let uid = |c: &NodeClaim| (c.name_any(), c.uid().unwrap_or_default());
        let targets = self.claims.iter().filter(|c| names.contains(&c.name_any()) && self.owns(c)).map(uid).collect();
        let (gone, error) = claims::delete_all(&self.context.client, targets).await;
        self.claims.retain(|c| !gone.contains(&c.name_any()));
        for claim in self.claims.iter_mut().filter(|c| names.contains(&c.name_any())) {
            claim.metadata.deletion_timestamp.get_or_insert_with(|| {
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now())
            });
        }
        error.map_or(Ok(()), Err)
    }

    /// Whether a claim was made for this very Workload. Nothing else is ever deleted.
    fn owns(&self, claim: &NodeClaim) -> bool {
        claim.label(names::MANAGED_BY) == names::SETU && claim.label(names::WORKLOAD_UID) == self.identity.uid
    }

    /// Makes the journal durable, if it changed, and tells of its transitions.
    async fn commit(&mut self, workload: &mut Workload) -> Result<(), Error> {
        let text = self.journal.encode();
        let unsaved = self.journal.seq > 0 || self.journal.state == State::Validating;
        if !unsaved || self.stored.as_ref() == Some(&text) {
            return Ok(());
        }
        let now = self.context.now();
        let reservation = Reservation::of(workload, &self.identity.check);
        let (views, losses) = (self.views(now), self.losses(now));
        let headline = message::headline(&self.journal, &self.facts(now, &reservation, &views, &losses));
        let entry = journal_write::Entry {
            check: &self.identity.check,
            old: self.stored.as_deref(),
            journal: &text,
            headline: &headline,
        };
        *workload = journal_write::commit(&self.context.client, workload, &entry).await?;
        self.context.own_writes.note(workload);
        self.stored = Some(text);
        self.fresh = false;
        self.tell(workload, &headline);
        Ok(())
    }

    /// Logs, counts and publishes what was committed.
    fn tell(&mut self, workload: &Workload, headline: &str) {
        let mut since = None;
        for journal in std::mem::take(&mut self.untold) {
            let Some(Step { from, to, at, reason, .. }) = journal.history.last() else { continue };
            let stayed = since.replace(*at).map_or(Duration::ZERO, |s| elapsed(s, *at));
            metrics::transition(*from, *to, reason.to_string(), stayed);
            let failure = journal.memory.last_failure.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!(
                workload = self.identity.workload_ref(), check = self.identity.check, seq = journal.seq, from = %from,
                to = %to, reason = %reason, attempt = journal.memory.attempt, slots = journal.memory.slots,
                last_failure = failure, "a gang moved on"
            );
            let text = headline.split_once(": ").map_or(headline, |(_, text)| text);
            events::publish(&self.context.recorder, workload, &journal, text);
        }
    }

    /// What Kueue and the board are to be told.
    fn report(&self, workload: &Workload, before: StateName) -> Looked {
        let now = self.context.now();
        let reservation = Reservation::of(workload, &self.identity.check);
        let (views, losses) = (self.views(now), self.losses(now));
        let facts = self.facts(now, &reservation, &views, &losses);
        let state = self.journal.state.name();
        let text = message::explain(&self.journal, &facts);
        self.context.board().note(&self.id, workload, &self.identity.check, &self.journal, &text);
        let approved = state == StateName::Approved && before != StateName::Approved;
        if approved {
            self.count_ready();
        }
        let looked = Looked { entry: None, progress: false, approved, wake: wake_at(&self.journal, &facts) };
        let Some(old) = workload.check(&self.identity.check) else { return looked };
        let Some(desired) = verdict::desired(&self.journal, &facts, old, self.updates(workload)) else { return looked };
        Looked { progress: desired.is_progress(old), entry: desired.entry(old, now), ..looked }
    }

    fn updates(&self, workload: &Workload) -> Vec<crate::api::workload::PodSetUpdate> {
        if self.journal.memory.slots == 0 {
            return Vec::new();
        }
        let pod_sets = plans::covered(self.context, workload, &self.identity.check, self.our_checks);
        pod_set_updates(&pod_sets, &self.id, self.journal.memory.pinning)
    }

    fn count_ready(&self) {
        for claim in &self.claims {
            let created = claim.metadata.creation_timestamp.as_ref().map(|t| t.0);
            if let (Some(created), Some(ready)) = (created, claim.since("Initialized")) {
                metrics::claim_ready(claim.label(names::NODEPOOL), elapsed(created, ready));
            }
        }
    }
}

fn nodes_of(context: &Context, claims: &[NodeClaim]) -> BTreeMap<String, Node> {
    let names = claims.iter().filter_map(|c| c.status.as_ref()).map(|s| s.node_name.as_str()).filter(|n| !n.is_empty());
    names
        .filter_map(|name| context.stores.nodes.get(&ObjectRef::new(name)).map(|n| (name.to_owned(), (*n).clone())))
        .collect()
}

/// The NodeClaim of one slot.
fn claim(plan: &Plan, identity: &GangIdentity, attempt: u32, slot: u32, hold: Timestamp) -> Option<NodeClaim> {
    let mut claim = plan.slots.iter().find(|s| s.index == slot).map(|s| (*s.template).clone())?;
    claim.metadata.name = Some(identity.claim_name(attempt, slot));
    let labels = claim.metadata.labels.get_or_insert_default();
    for (key, value) in [
        (names::MANAGED_BY, names::SETU.to_owned()),
        (names::GANG, identity.id()),
        (names::WORKLOAD_UID, identity.uid.clone()),
        (names::ATTEMPT, attempt.to_string()),
        (names::SLOT, slot.to_string()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(names::WORKLOAD.to_owned(), identity.workload_ref());
    annotations.insert(names::CHECK.to_owned(), identity.check.clone());
    annotations.insert(names::HOLD_UNTIL.to_owned(), hold.round(jiff::Unit::Second).unwrap_or(hold).to_string());
    Some(claim)
}

/// What the API server said, without what was being done.
fn reason_of(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
