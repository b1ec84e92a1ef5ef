//! The queue of reconciles: which object is next, how many run at once, and when to requeue.
//!
//! Each object has one reconcile at a time. An object that changes during its reconcile, or in the pause that the
//! reconcile asks for, is reconciled again afterwards. Flows take turns and each has a limit, so that one tenant with
//! many objects, or large ones, does not hold up the others.

use crate::cluster::fair_queue::FairQueue;
use futures::stream::{self, FuturesUnordered, Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Namespace and name of what is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl QueueKey {
    /// The key of an object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }

    /// The flow of an object without a LocalQueue: its namespace.
    pub fn flow(&self) -> String {
        self.namespace.clone()
    }

    /// A reference to the object of this key.
    pub fn object<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let object = ObjectRef::new(&self.name);
        if self.namespace.is_empty() { object } else { object.within(&self.namespace) }
    }
}

impl<K: Resource<DynamicType = ()>> From<ObjectRef<K>> for QueueKey {
    fn from(object: ObjectRef<K>) -> Self {
        Self { namespace: object.namespace.unwrap_or_default(), name: object.name }
    }
}

/// An object to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The object.
    pub key: QueueKey,
    /// How long it may wait, so that more changes are reconciled together.
    pub within: Duration,
}

impl From<QueueKey> for Wake {
    fn from(key: QueueKey) -> Self {
        Self { key, within: Duration::ZERO }
    }
}

impl<K: Resource<DynamicType = ()>> From<ObjectRef<K>> for Wake {
    fn from(object: ObjectRef<K>) -> Self {
        QueueKey::from(object).into()
    }
}

/// How many reconciles run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// In total.
    pub all: usize,
    /// In one flow.
    pub flow: usize,
    /// Places beyond `all` for flows in which nothing runs, so that long reconciles of other flows do not hold them up.
    pub first: usize,
}

/// When to reconcile again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    wait: Option<Duration>,
    pause: Duration,
}

impl Action {
    /// After this long, unless the object changes first.
    pub const fn requeue(wait: Duration) -> Self {
        Self { wait: Some(wait), pause: Duration::ZERO }
    }

    /// When the object changes.
    pub const fn await_change() -> Self {
        Self { wait: None, pause: Duration::ZERO }
    }

    /// Waits at least this long, however often the object changes.
    #[must_use]
    pub const fn pausing(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

/// Reconciles the objects that `wakes` names, and again when a reconcile asks for it, until `stop`. Then finishes the
/// running reconciles.
pub async fn work<F>(
    wakes: impl Stream<Item = impl Into<Wake>>,
    limits: QueueLimits,
    flow_of: impl Fn(&QueueKey) -> String,
    reconcile: impl Fn(QueueKey) -> F,
    stop: &CancellationToken,
) where
    F: Future<Output = Action>,
{
    let mut wakes = pin!(wakes);
    let mut scheduler = Scheduler::new(flow_of);
    let mut running_now = FuturesUnordered::new();
    let mut timer = pin!(tokio::time::sleep_until(Instant::now()));
    loop {
        scheduler.wake_due(Instant::now());
        while running_now.len() < limits.all + limits.first
            && !stop.is_cancelled()
            && let Some(key) = scheduler.next(if running_now.len() < limits.all { limits.flow } else { 1 })
        {
            let reconcile = reconcile(key.clone());
            running_now.push(async move { (key, reconcile.await) });
        }
        if stop.is_cancelled() && running_now.is_empty() {
            return;
        }
        let due = scheduler.first_due();
        if let Some(due) = due.filter(|due| *due != timer.deadline()) {
            timer.as_mut().reset(due);
        }
        tokio::select! {
            biased;
            () = stop.cancelled(), if !stop.is_cancelled() => {}
            Some((key, again)) = running_now.next(), if !running_now.is_empty() => scheduler.done(key, again),
            wake = wakes.next(), if !stop.is_cancelled() => match wake {
                Some(wake) => scheduler.wake_within(wake.into()),
                // Nothing can wake us any more: the process ends.
                None => stop.cancelled().await,
            },
            () = &mut timer, if due.is_some() && !stop.is_cancelled() => {}
        }
    }
}

/// Buffers the keys of `wakes` until `opened` completes. Then passes on each buffered key once, and every later one.
///
/// `wakes` is read from the start, so that nothing piles up.
pub fn buffered_until(
    wakes: impl Stream<Item = Wake>,
    opened: impl Future<Output = ()>,
) -> impl Stream<Item = Wake> {
    let wakes = Box::pin(wakes);
    let waits = async move {
        let (mut wakes, mut opened) = (wakes, pin!(opened));
        let (mut known, mut held) = (BTreeSet::new(), Vec::new());
        loop {
            tokio::select! {
                biased;
                () = &mut opened => break,
                Some(Wake { key, .. }) = wakes.next() => if known.insert(key.clone()) {
                    held.push(Wake::from(key));
                },
                else => break,
            }
        }
        stream::iter(held).chain(wakes)
    };
    stream::once(waits).flatten()
}

/// Keys that wait, that run and that are due later.
struct Scheduler<L> {
    /// Which flow a key waits in.
    flow_of: L,
    flows: FairQueue<QueueKey>,
    waiting: BTreeSet<QueueKey>,
    /// With the flow that each runs in.
    running: BTreeMap<QueueKey, String>,
    /// How many run in each flow.
    busy: BTreeMap<String, usize>,
    /// Changed while being reconciled.
    again: BTreeSet<QueueKey>,
    /// Changed while being reconciled, and may wait until then.
    later: BTreeMap<QueueKey, Instant>,
    due: BTreeMap<(Instant, u64), QueueKey>,
    due_at: BTreeMap<QueueKey, (Instant, u64)>,
    /// Until when recently reconciled objects are left alone.
    pauses: BTreeMap<QueueKey, Instant>,
    count: u64,
}

impl<L: Fn(&QueueKey) -> String> Scheduler<L> {
    fn new(flow_of: L) -> Self {
        Self {
            flow_of,
            flows: FairQueue::default(),
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            busy: BTreeMap::new(),
            again: BTreeSet::new(),
            later: BTreeMap::new(),
            due: BTreeMap::new(),
            due_at: BTreeMap::new(),
            pauses: BTreeMap::new(),
            count: 0,
        }
    }

    fn wake_within(&mut self, Wake { key, within }: Wake) {
        if within.is_zero() {
            self.wake(key);
            return;
        }
        let at = after(within);
        if self.running.contains_key(&key) {
            self.later.entry(key).or_insert(at);
        } else if !self.waiting.contains(&key) && self.due_at.get(&key).is_none_or(|(due, _)| at < *due) {
            self.put_off(key, at);
        }
    }

    fn wake(&mut self, key: QueueKey) {
        if let Some(until) = self.pauses.get(&key).copied().filter(|until| *until > Instant::now()) {
            self.put_off(key, until);
            return;
        }
        self.pauses.remove(&key);
        self.forget_due(&key);
        if self.running.contains_key(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.flows.push((self.flow_of)(&key), key);
        }
    }

    /// Makes a key due then, and at no other time.
    fn put_off(&mut self, key: QueueKey, at: Instant) {
        self.forget_due(&key);
        self.count = self.count.wrapping_add(1);
        let due = (at, self.count);
        self.due.insert(due, key.clone());
        self.due_at.insert(key, due);
    }

    fn forget_due(&mut self, key: &QueueKey) {
        if let Some(due) = self.due_at.remove(key) {
            self.due.remove(&due);
        }
    }

    fn wake_due(&mut self, now: Instant) {
        while self.first_due().is_some_and(|due| due <= now)
            && let Some((_, key)) = self.due.pop_first()
        {
            self.due_at.remove(&key);
            self.wake(key);
        }
    }

    fn first_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next key. Flows take turns, and those that run `most` already are skipped.
    fn next(&mut self, most: usize) -> Option<QueueKey> {
        let has_room = |flow: &str| self.busy.get(flow).is_none_or(|busy| *busy < most);
        let (flow, key) = self.flows.next(has_room)?;
        self.waiting.remove(&key);
        *self.busy.entry(flow.clone()).or_default() += 1;
        self.running.insert(key.clone(), flow);
        Some(key)
    }

    fn done(&mut self, key: QueueKey, action: Action) {
        let flow = self.running.remove(&key).unwrap_or_default();
        if let Some(busy) = self.busy.get_mut(&flow) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&flow);
            }
        }
        if !action.pause.is_zero() {
            self.pauses.insert(key.clone(), after(action.pause));
        }
        let later = self.later.remove(&key);
        if self.again.remove(&key) {
            self.wake(key);
        } else if let Some(due) =
            action.wait.map(|wait| after(wait.max(action.pause))).into_iter().chain(later).min()
        {
            self.put_off(key, due);
        }
    }
}

fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn key(name: &str) -> QueueKey {
        QueueKey { namespace: name.chars().take(1).collect(), name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn flows_take_turns_and_nothing_is_reconciled_twice_at_once() {
        let stop = CancellationToken::new();
        let seen = RefCell::new(Vec::new());
        let names = ["a1", "a2", "a3", "b1", "a1"].map(key);
        let wakes = futures::stream::iter(names).chain(futures::stream::pending());
        let reconcile = |key: QueueKey| {
            seen.borrow_mut().push(key.name.clone());
            let (stop, count) = (stop.clone(), seen.borrow().len());
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if count == 6 {
                    stop.cancel();
                }
                let again = key.name == "b1" && count < 5;
                if again { Action::requeue(Duration::from_secs(9)) } else { Action::await_change() }
            }
        };
        let started = Instant::now();
        work(wakes, QueueLimits { all: 1, flow: 1, first: 0 }, QueueKey::flow, reconcile, &stop).await;
        assert_eq!(*seen.borrow(), ["a1", "b1", "a2", "a3", "a1", "b1"]);
        assert!(started.elapsed() >= Duration::from_secs(11), "the second reconcile of b1 was due after 9 s");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_flow_is_not_held_up_by_long_reconciles_of_others() {
        let stop = CancellationToken::new();
        let started = Instant::now();
        let seen = RefCell::new(BTreeMap::new());
        let long = ["a1", "a2", "a3", "b1", "b2", "b3"].map(key);
        let wakes = futures::stream::iter(long).chain(futures::stream::once(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            key("c1")
        }));
        let reconcile = |key: QueueKey| {
            seen.borrow_mut().insert(key.name, started.elapsed().as_secs());
            let (stop, count) = (stop.clone(), seen.borrow().len());
            async move {
                tokio::time::sleep(Duration::from_mins(1)).await;
                if count == 7 {
                    stop.cancel();
                }
                Action::await_change()
            }
        };
        let limits = QueueLimits { all: 4, flow: 2, first: 1 };
        work(wakes.chain(futures::stream::pending()), limits, QueueKey::flow, reconcile, &stop).await;
        let at = |name: &str| seen.borrow().get(name).copied();
        assert_eq!(["a1", "a2", "b1", "b2"].map(at), [Some(0); 4]);
        assert_eq!(at("c1"), Some(1), "it does not wait for one of the four");
        assert_eq!(["a3", "b3"].map(at), [Some(60); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_reconciled_once_after_its_pause_however_often_it_changed() {
        let stop = CancellationToken::new();
        let (started, seen) = (Instant::now(), RefCell::new(Vec::new()));
        // Changed during its reconcile of a second, twice in the pause after it, once in the next, and never again.
        let touches = [(500, "a"), (1_200, "a"), (1_250, "b"), (1_400, "a"), (5_000, "a")];
        let touches = touches.map(|(at, name)| {
            let touch = async move {
                tokio::time::sleep_until(started + Duration::from_millis(at)).await;
                key(name)
            };
            futures::stream::once(touch).boxed_local()
        });
        let wakes = futures::stream::iter([key("a")]).chain(futures::stream::select_all(touches));
        let reconcile = |key: QueueKey| {
            seen.borrow_mut().push((key.name.clone(), started.elapsed().as_millis()));
            let (stop, count) = (stop.clone(), seen.borrow().len());
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if count == 5 {
                    stop.cancel();
                }
                let again = if count < 4 { Duration::from_mins(1) } else { Duration::from_millis(1) };
                let pause = if key.name == "a" { Duration::from_secs(2) } else { Duration::ZERO };
                Action::requeue(again).pausing(pause)
            }
        };
        let limits = QueueLimits { all: 2, flow: 2, first: 0 };
        work(wakes.chain(futures::stream::pending()), limits, QueueKey::flow, reconcile, &stop).await;
        let at = |name: &str, at| (name.to_owned(), at);
        assert_eq!(
            *seen.borrow(),
            [at("a", 0), at("b", 1_250), at("a", 3_000), at("a", 6_000), at("a", 9_000)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_may_wait_are_reconciled_together_or_with_one_that_may_not() {
        let stop = CancellationToken::new();
        let (started, seen) = (Instant::now(), RefCell::new(Vec::new()));
        let wake = |key, within| Wake { key, within: Duration::from_millis(within) };
        // Two that may wait for a second; one during the reconcile that follows; two that may wait and one that may not.
        let touches = [(0, 1_000), (600, 1_000), (1_050, 1_000), (5_000, 1_000), (5_200, 1_000), (5_300, 0)];
        let touches = touches.map(|(at, within)| {
            let touch = async move {
                tokio::time::sleep_until(started + Duration::from_millis(at)).await;
                wake(key("a"), within)
            };
            futures::stream::once(touch).boxed_local()
        });
        let reconcile = |_| {
            seen.borrow_mut().push(started.elapsed().as_millis());
            let (stop, count) = (stop.clone(), seen.borrow().len());
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if count == 4 {
                    stop.cancel();
                }
                Action::requeue(if count < 3 { Duration::from_hours(1) } else { Duration::from_secs(2) })
            }
        };
        let wakes = futures::stream::select_all(touches).chain(futures::stream::pending());
        work(wakes, QueueLimits { all: 2, flow: 2, first: 0 }, QueueKey::flow, reconcile, &stop).await;
        assert_eq!(*seen.borrow(), [1_000, 2_050, 5_300, 7_400]);
    }

    #[tokio::test]
    async fn held_back_keys_come_once_in_order_and_later_keys_as_they_come() {
        let (opens, opened) = tokio::sync::oneshot::channel();
        let early = futures::stream::iter(["b", "a", "b"].map(key));
        let late = futures::stream::once(async {
            opens.send(()).unwrap();
            key("c")
        });
        let late = late.chain(futures::stream::iter(["a", "a"].map(key)));
        let wakes = early.chain(late).map(Wake::from);
        let opened = async { opened.await.unwrap() };
        let seen: Vec<String> = buffered_until(wakes, opened).map(|wake| wake.key.name).collect().await;
        assert_eq!(seen, ["b", "a", "c", "a", "a"]);
    }
}
