//! One candidate's part in the election for one shard: watches the lease, takes it when it is free, renews it while it is
//! held, hands it over to a replica that has fewer, and gives it up at shutdown.
//!
//! Rule: every write names the version it replaces, so that of several candidates one wins. A term is counted from before
//! the request that began it.

use super::evaluate::{LeaseState, ObservedRecord, evaluate};
use super::lost::Lost;
use super::record::{held_by, is_overtaken, params, version, without_request};
use super::share::{Share, takeover_delay};
use super::{ElectionSettings, Leadership, Shards, Term};
use crate::cluster::backoff::Doubling;
use crate::cluster::watch::WATCH_SECONDS;
use crate::error::{in_words, is_unanswered};
use crate::names::WANTED_BY;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use setu_clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long the shutdown waits for the lease to be given up.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
/// How long the shutdown waits for the answer to a write under way.
const LAST_ANSWER: Duration = Duration::from_millis(200);

/// A candidate.
pub struct Elector {
    api: Api<Lease>,
    settings: Arc<ElectionSettings>,
    shard: usize,
    /// Name of the shard's lease.
    name: String,
    share: Arc<Share>,
    clock: Clock,
    known: Option<KnownLease>,
    /// When the lease was first seen to be missing.
    missing: Instant,
    term: watch::Sender<Option<Term>>,
    /// How many terms were won.
    terms: AtomicU64,
}

/// The lease as last seen, whole.
struct KnownLease {
    lease: Lease,
    observed: ObservedRecord,
}

impl Elector {
    /// Enters the elections for all shards. Nothing happens before [`Elector::run`].
    pub fn enter(client: &Client, settings: ElectionSettings, clock: &Clock) -> (Vec<Self>, Shards) {
        let share = Arc::new(Share::new(settings.shards));
        let settings = Arc::new(settings);
        let candidate = |shard| {
            let (term, leadership) = Leadership::channel(None);
            let elector = Self {
                api: Api::namespaced(client.clone(), &settings.namespace),
                name: settings.lease(shard),
                settings: Arc::clone(&settings),
                shard,
                share: Arc::clone(&share),
                clock: clock.clone(),
                known: None,
                missing: Instant::now(),
                term,
                terms: AtomicU64::new(0),
            };
            (elector, leadership)
        };
        let (first, leadership) = candidate(0);
        let (others, leaderships): (Vec<Self>, Vec<_>) = (1..settings.shards).map(candidate).unzip();
        let electors = std::iter::once(first).chain(others).collect();
        (electors, Shards::new(leadership, leaderships))
    }

    /// Takes part until `stop`, then gives the lease up.
    pub async fn run(mut self, stop: CancellationToken) {
        let selector =
            watcher::Config::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_SECONDS);
        let events = watcher(self.api.clone(), selector).backoff(Doubling::default());
        futures::pin_mut!(events);
        self.refresh().await;
        loop {
            let Some(wait) = self.act_until(&stop).await else { break };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // No event came for this long: the watch may be broken, so the lease is read.
                () = sleep(wait) => if self.term.borrow().is_none() { self.refresh().await },
                event = events.next() => self.on_event(event).await,
            }
        }
        self.shut_down().await;
    }

    /// Does what is due; `None` at `stop`. A write under way by then may make the lease ours, and without its answer we
    /// cannot give the lease up.
    async fn act_until(&mut self, stop: &CancellationToken) -> Option<Duration> {
        if stop.is_cancelled() {
            return None;
        }
        let answered = {
            let act = self.act();
            futures::pin_mut!(act);
            tokio::select! {
                biased;
                wait = &mut act => return Some(wait),
                () = stop.cancelled() => timeout(LAST_ANSWER, act).await.is_ok(),
            }
        };
        if !answered {
            // If this gets no answer either, `shut_down` uses what was known before.
            let _ = timeout(GIVE_UP_LIMIT, self.refresh()).await;
        }
        None
    }

    /// Does what is due now, and returns how long nothing more is due.
    async fn act(&mut self) -> Duration {
        let timing = self.settings.timing;
        // Only what this replica leads: another holder may lead on for a while after its lease has changed hands.
        if let Some(asker) = self.asker()
            && self.holds()
            && self.share.grants(&self.settings.identity, &asker)
        {
            self.hand_over(asker).await;
        }
        let now = Instant::now();
        let observed = self.known.as_ref().map(|k| &k.observed).ok_or(self.missing);
        match evaluate(observed, &self.settings.identity, timing.retry, now) {
            LeaseState::Taken { until } => {
                self.lose(Lost::Taken);
                self.ask().await;
                (until - now).min(self.spread(timing.retry))
            }
            LeaseState::Ours { renew_at } if renew_at > now && self.leads() => renew_at - now,
            LeaseState::Free { since } if now < since + self.takeover_delay() => {
                since + self.takeover_delay() - now
            }
            LeaseState::Ours { .. } | LeaseState::Free { .. } => {
                if self.write(now).await {
                    return timing.retry;
                }
                let pause = self.spread(timing.retry / 2);
                match self.term_ends() {
                    Some(until) if until <= Instant::now() => {
                        self.lose(Lost::Expired);
                        pause
                    }
                    Some(until) => pause.min(until - Instant::now()),
                    None => pause,
                }
            }
        }
    }

    /// Takes or renews the lease. Returns whether it is ours now.
    async fn write(&mut self, started: Instant) -> bool {
        let before =
            self.known.as_ref().and_then(|k| k.lease.spec.as_ref()?.renew_time.as_ref().map(|t| t.0));
        let lease = self.record();
        let params = params();
        let name = self.name.clone();
        let limit = match self.term_ends() {
            Some(until) => CALL_LIMIT.min(until.saturating_duration_since(started)),
            None => CALL_LIMIT,
        };
        let answer = if lease.metadata.resource_version.is_some() {
            timeout(limit, self.api.replace(&name, &params, &lease)).await
        } else {
            timeout(limit, self.api.create(&params, &lease)).await
        };
        match answer {
            Ok(Ok(written)) => {
                self.note(written, started);
                self.lead_until(started + self.settings.timing.renew_deadline, before);
                true
            }
            Ok(Err(kube::Error::Api(status))) if is_overtaken(status.code, &lease) => {
                tracing::debug!(lease = name, "the lease changed meanwhile");
                self.refresh().await;
                false
            }
            Ok(Err(error)) => {
                report(&name, "writing the lease", &error);
                false
            }
            Err(_) => {
                tracing::debug!(lease = name, "no answer while writing the lease");
                // It may have been written anyway.
                self.refresh().await;
                false
            }
        }
    }

    /// The lease as we want it.
    fn record(&self) -> Lease {
        held_by(&self.settings, &self.name, self.known.as_ref().map(|known| &known.lease), self.clock.now())
    }

    /// How long a free lease is left to others.
    fn takeover_delay(&self) -> Duration {
        takeover_delay(self.share.held(&self.settings.identity), self.settings.timing.retry)
    }

    /// Whether this replica has the lease and leads.
    fn holds(&self) -> bool {
        let holder = self.known.as_ref().and_then(|known| known.observed.holder.as_ref());
        holder == Some(&self.settings.identity) && self.leads()
    }

    /// The replica that asks for this lease.
    fn asker(&self) -> Option<String> {
        let annotations = self.known.as_ref()?.lease.metadata.annotations.as_ref()?;
        annotations.get(WANTED_BY).cloned()
    }

    /// Asks for the lease if that would even out the shares. It asks only once: the holder answers with its next write.
    async fn ask(&mut self) {
        let identity = &self.settings.identity;
        if self.share.wanted(identity) != Some(self.shard) || self.asker().is_some() {
            return;
        }
        let Some(mut lease) = self.known.as_ref().map(|k| k.lease.clone()) else { return };
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(WANTED_BY.to_owned(), identity.clone());
        match timeout(CALL_LIMIT, self.api.replace(&self.name, &params(), &lease)).await {
            Ok(Ok(written)) => self.note(written, Instant::now()),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
            Ok(Err(error)) => report(&self.name, "asking for a shard", &error),
            Err(_) => tracing::debug!(lease = self.name, "no answer while asking for a shard"),
        }
    }

    /// Hands the lease to another replica, after this one has stopped leading.
    async fn hand_over(&mut self, to: String) {
        self.lose(Lost::HandedOver);
        let mut lease = self.record();
        if let Some(spec) = lease.spec.as_mut() {
            spec.acquire_time.clone_from(&spec.renew_time);
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1));
            spec.holder_identity = Some(to);
        }
        match timeout(CALL_LIMIT, self.api.replace(&self.name, &params(), &lease)).await {
            Ok(Ok(written)) => self.note(written, Instant::now()),
            Ok(Err(_)) | Err(_) => self.refresh().await,
        }
    }

    /// Reads the lease.
    async fn refresh(&mut self) {
        let name = &self.name;
        let now = Instant::now();
        match timeout(CALL_LIMIT, self.api.get_opt(name)).await {
            Ok(Ok(Some(lease))) => self.note(lease, now),
            Ok(Ok(None)) => {
                if self.known.take().is_some() {
                    self.missing = now;
                }
                self.share.note(self.shard, None);
            }
            Ok(Err(error)) => report(name, "reading the lease", &error),
            Err(_) => tracing::debug!(lease = name, "no answer while reading the lease"),
        }
    }

    async fn on_event(&mut self, event: Option<Result<Event<Lease>, watcher::Error>>) {
        match event {
            Some(Ok(Event::Apply(lease) | Event::InitApply(lease))) => {
                let known = self.known.as_ref().and_then(|k| version(&k.lease));
                // The watch may lag behind our own writes.
                if known.zip(version(&lease)).is_none_or(|(known, seen)| seen > known) {
                    self.note(lease, Instant::now());
                }
            }
            Some(Ok(Event::Delete(_))) => self.refresh().await,
            Some(Ok(Event::Init | Event::InitDone)) | None => {}
            Some(Err(error)) => tracing::debug!(error = %error, "the watch on the lease broke"),
        }
    }

    fn note(&mut self, lease: Lease, now: Instant) {
        // A request by another replica is no sign that the holder is alive.
        let same = self
            .known
            .as_ref()
            .filter(|k| k.lease.spec == lease.spec && k.lease.metadata.uid == lease.metadata.uid);
        let since = same.map_or(now, |k| k.observed.since);
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|s| s.holder_identity.clone()).filter(|h| !h.is_empty());
        let lasts = spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        let lasts = lasts.filter(|s| *s > 0).map_or(self.settings.timing.lease, Duration::from_secs);
        self.share.note(self.shard, holder.as_deref());
        self.known = Some(KnownLease { lease, observed: ObservedRecord { holder, lasts, since } });
    }

    fn term_ends(&self) -> Option<Instant> {
        self.term.borrow().map(|term| term.until)
    }

    fn leads(&self) -> bool {
        self.term_ends().is_some_and(|until| Instant::now() < until)
    }

    /// `before` is when the lease was last renewed. A lapsed term counts as won again: the controllers had stopped.
    fn lead_until(&self, until: Instant, before: Option<Timestamp>) {
        let won = self.term.send_if_modified(|term| {
            let current = term.filter(|term| Instant::now() < term.until);
            let won =
                || Term { number: self.terms.fetch_add(1, Ordering::Relaxed) + 1, until, after: before };
            *term = Some(current.map_or_else(won, |term| Term { until, ..term }));
            current.is_none()
        });
        if won {
            tracing::info!(lease = self.name, identity = self.settings.identity, "became leader");
        }
    }

    fn lose(&self, lost: Lost) {
        let led = self.term.send_if_modified(|term| term.take().is_some());
        let (lease, identity, reason) = (&self.name, &self.settings.identity, lost.name());
        if led && lost.is_meant() {
            tracing::info!(lease, identity, reason, "stopped leading");
        } else if led {
            tracing::warn!(lease, identity, reason, "stopped leading");
        }
    }

    /// A time between `base` and twice that.
    fn spread(&mut self, base: Duration) -> Duration {
        base + base.mul_f64((self.settings.jitter)().clamp(0.0, 1.0))
    }

    /// Gives the lease up, so that another replica can lead at once.
    async fn shut_down(mut self) {
        self.lose(Lost::Stopping);
        let given_up = match timeout(GIVE_UP_LIMIT, self.give_up()).await {
            Ok(done) => done,
            Err(_) => Err("no answer".to_owned()),
        };
        match given_up {
            Ok(true) => tracing::info!(lease = self.name, "gave up the lease"),
            Ok(false) => {}
            Err(why) => tracing::warn!(lease = self.name, why, "could not give up the lease"),
        }
    }

    /// Returns whether there was something to give up.
    async fn give_up(&mut self) -> Result<bool, String> {
        let params = params();
        for again in [false, true] {
            let known = self.known.as_ref();
            let ours = known.filter(|k| k.observed.holder.as_ref() == Some(&self.settings.identity));
            let Some(mut lease) = ours.map(|k| k.lease.clone()) else {
                return Ok(false);
            };
            lease = without_request(lease);
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(self.clock.now()));
            match self.api.replace(&self.name, &params, &lease).await {
                Ok(_) => return Ok(true),
                // A renewal of ours that was cancelled may have been written.
                Err(kube::Error::Api(status)) if status.code == 409 && !again => self.refresh().await,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(false)
    }
}

/// Logs a failed call. A call without an answer is logged at debug level, as the outage is logged once.
fn report(lease: &str, action: &str, error: &kube::Error) {
    let words = in_words(error);
    if is_unanswered(error) {
        tracing::debug!(lease, action, error = words, "a call for a lease got no answer");
    } else {
        tracing::warn!(lease, action, error = words, "a call for a lease failed");
    }
}

#[cfg(test)]
mod tests;
