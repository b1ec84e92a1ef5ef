//! Actors that simulate the other components of a cluster: Kueue, Karpenter, the scheduler and so on.
//!
//! Each actor is notified of every change, in order, and has timers. It decides from the current
//! objects, so duplicate or late notifications do no harm.

pub mod drivers;
pub mod karpenter;
pub mod kueue;
pub mod machines;
mod scheduler;

use super::api::kinds::ServedKind;
use super::api::{ApiServer, Change, Observer};
use super::chance::Chance;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use setu_clock::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// An object that was written.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// Its kind.
    pub kind: &'static ServedKind,
    /// The object as it was written, or as it last was.
    pub object: Arc<Value>,
    /// Whether it is gone.
    pub gone: bool,
}

/// The environment of an actor.
pub struct Stage<T> {
    /// The API server.
    pub server: ApiServer,
    /// The clock.
    pub clock: Clock,
    /// The source of randomness.
    pub chance: Chance,
    timers: BTreeMap<(Timestamp, u64), T>,
    count: u64,
}

impl<T> Stage<T> {
    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Calls the actor back after `wait`.
    pub fn after(&mut self, wait: Duration, what: T) {
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        self.at(self.now().checked_add(wait).unwrap_or(Timestamp::MAX), what);
    }

    /// Calls the actor back at this time.
    pub fn at(&mut self, at: Timestamp, what: T) {
        self.count = self.count.wrapping_add(1);
        self.timers.insert((at, self.count), what);
    }

    /// Calls the actor back after a random number of milliseconds.
    pub fn soon(&mut self, from: u64, to: u64, what: T) {
        let wait = self.chance.millis(from, to);
        self.after(wait, what);
    }

    fn due(&mut self) -> Option<T> {
        let now = self.now();
        let first = self.timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn next(&self) -> Option<Duration> {
        let ((at, _), _) = self.timers.first_key_value()?;
        Some(Duration::try_from(at.duration_since(self.now())).unwrap_or_default())
    }
}

/// A simulated component of the cluster.
pub trait Actor: Send + 'static {
    /// The payload of its timers.
    type Timer: Send;
    /// Its name: its API server user and its random stream.
    const NAME: &'static str;

    /// An object was written.
    fn seen(&mut self, touched: &ObjectChange, stage: &mut Stage<Self::Timer>);
    /// A timer ran out.
    fn due(&mut self, what: Self::Timer, stage: &mut Stage<Self::Timer>);
}

/// How often a paused actor checks whether it may go on.
const STANDSTILL: Duration = Duration::from_millis(100);

/// Starts an actor. It ends with the server, and is paused while the returned flag is true.
pub fn start<A: Actor>(mut actor: A, server: &ApiServer, clock: &Clock, seed: u64) -> Arc<AtomicBool> {
    let (sender, mut changes) = unbounded_channel();
    server.observe(Box::new(Bus(sender)));
    let mut stage = Stage {
        server: server.clone(),
        clock: clock.clone(),
        chance: Chance::new(seed, A::NAME),
        timers: BTreeMap::new(),
        count: 0,
    };
    let stands = Arc::new(AtomicBool::new(false));
    let halted = Arc::clone(&stands);
    tokio::spawn(async move {
        while let Some(step) = step(&mut changes, &mut stage).await {
            while halted.load(Ordering::Relaxed) {
                tokio::time::sleep(STANDSTILL).await;
            }
            match step {
                ActorStep::Seen(touched) => actor.seen(&touched, &mut stage),
                ActorStep::Due(what) => actor.due(what, &mut stage),
            }
        }
    });
    stands
}

enum ActorStep<T> {
    Seen(ObjectChange),
    Due(T),
}

async fn step<T>(
    changes: &mut UnboundedReceiver<ObjectChange>,
    stage: &mut Stage<T>,
) -> Option<ActorStep<T>> {
    loop {
        if let Some(what) = stage.due() {
            return Some(ActorStep::Due(what));
        }
        let wait = stage.next().unwrap_or(Duration::from_hours(24));
        tokio::select! {
            biased;
            touched = changes.recv() => return touched.map(ActorStep::Seen),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Sends every change to one actor.
struct Bus(UnboundedSender<ObjectChange>);

impl Observer for Bus {
    fn committed(&mut self, change: &Change) {
        let gone = change.after.is_none();
        if let Some(object) = change.after.as_ref().or(change.before.as_ref()) {
            // Fails only while the cluster shuts down.
            let _ = self.0.send(ObjectChange { kind: change.kind, object: Arc::clone(object), gone });
        }
    }
}
