//! What can go wrong between a replica and the API server, and when it does.
//!
//! Faults of single writes and of watches are here. What goes wrong elsewhere is a move or a scene of a drama:
//!
//! | what goes wrong | where it is played |
//! |---|---|
//! | a role lacks a verb, a policy refuses one slot, a webhook the status, the API the Events | moves `Deny…`, `HangWebhook` |
//! | a NodePool is deleted, or its template changes | moves `DeletePool`, `ChangePool` |
//! | a NodeClass is deleted | not played: to Setu it is one that is not ready, as in `BreakNodeClass` |
//! | the policy file changes, also to one that cannot be used | scene `Policy` |
//! | the policy file cannot be used at the start | not played: the process ends before it does anything (`tests/cli.rs`) |
//! | a journal is of a newer version | move `NewerJournal` |
//! | the collector of spans does not answer | `traced` of a drama |
//! | nobody reads the metrics | not played: they are fetched, and nothing waits for who fetches them |
//! | many gangs come at once after an outage | `tests/dramas/fixed.rs`; ten thousand in `benches/big.rs` |
//! | Kueue stands still, between our Ready and its admission too | move `StopKueue` |
//! | another check is pending, or rejects after our Ready | moves `SecondCheck`, `OtherRejects` |

use super::chance::Chance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc::UnboundedSender};

/// One thing that goes wrong with one write.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The replica dies before the request is sent.
    CrashBefore,
    /// The replica dies after the write is committed, before it hears of it.
    CrashAfter,
    /// The request never arrives; the connection breaks.
    RequestLost,
    /// The write is committed; the connection breaks before the answer.
    ReplyLost,
    /// The write is committed; the answer is 504.
    Timeout,
    /// The write arrives twice; the answer is that to the second.
    AppliedTwice,
    /// The API server is overloaded: 429.
    TooManyRequests,
    /// The API server fails: 500, nothing is committed.
    ServerError,
    /// Somebody else was faster: 409, nothing is committed.
    Conflict,
    /// The request arrives half a minute late.
    Delayed,
    /// As `CrashAfter`, and the next life starts with what a lagging replica of the API server shows.
    StaleRestart,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 11] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::RequestLost,
        Self::ReplyLost,
        Self::Timeout,
        Self::AppliedTwice,
        Self::TooManyRequests,
        Self::ServerError,
        Self::Conflict,
        Self::Delayed,
        Self::StaleRestart,
    ];

    /// Whether it ends the life of the replica.
    pub const fn is_deadly(self) -> bool {
        matches!(self, Self::CrashBefore | Self::CrashAfter | Self::StaleRestart)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What goes wrong with watches.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchFault {
    /// The stream ends.
    Cut,
    /// The server has forgotten the version: 410.
    Expired,
    /// The stream stays open and tells of nothing more.
    Silent,
}

impl WatchFault {
    /// Every fault.
    pub const ALL: [Self; 3] = [Self::Cut, Self::Expired, Self::Silent];
}

/// How often what goes wrong, per thousand requests or frames.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// Per write and fault.
    pub writes: BTreeMap<Fault, u64>,
    /// Per frame of a watch.
    pub watches: Vec<(WatchFault, u64)>,
    /// Longest lag of a watch, in milliseconds.
    pub lag: u64,
}

impl Rates {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self { lag: 5, ..Self::default() }
    }

    /// A random half of everything that can go wrong, each at a random rate.
    pub fn swarm(chance: &mut Chance) -> Self {
        let mut writes = BTreeMap::new();
        for fault in Fault::ALL {
            if chance.happens(500) {
                writes.insert(fault, 1 + chance.below(40));
            }
        }
        let mut watches = Vec::new();
        for fault in WatchFault::ALL {
            if chance.happens(500) {
                watches.push((fault, 1 + chance.below(10)));
            }
        }
        let lag = if chance.happens(300) { chance.below(20_000) } else { 20 };
        Self { writes, watches, lag }
    }
}

/// Whether a replica can reach the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// It can.
    Up,
    /// It stands still: what it sends and hears waits.
    Paused,
    /// It is dead.
    Dead,
}

/// A write that a replica made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// `POST`, `PATCH`, …
    pub verb: String,
    /// The path.
    pub path: String,
}

/// What the wire of one replica does to what it carries.
pub struct Wire {
    line: Mutex<Line>,
    /// Wakes in the order in which it was asked, which tokio's watch channel leaves to chance.
    moved: Notify,
    state: Mutex<State>,
    died: UnboundedSender<Fault>,
    struck: Struck,
}

/// Is told of every fault at the moment at which it strikes, by its name.
pub type Struck = Arc<dyn Fn(&str) + Send + Sync>;

/// A fault that waits for a write of its kind.
struct Doom {
    verb: &'static str,
    path: &'static str,
    left: usize,
    fault: Fault,
}

impl Doom {
    fn strikes(&mut self, verb: &str, path: &str) -> Option<Fault> {
        if verb == self.verb && path.ends_with(self.path) {
            self.left = self.left.checked_sub(1)?;
            return (self.left == 0).then_some(self.fault);
        }
        None
    }
}

struct State {
    chance: Chance,
    rates: Rates,
    plan: Option<(usize, Fault)>,
    doom: Option<Doom>,
    written: Vec<Written>,
}

impl Wire {
    /// A wire on which nothing goes wrong yet. Deaths are told to `died`.
    pub fn new(chance: Chance, died: UnboundedSender<Fault>, struck: Struck) -> Arc<Self> {
        let state = State { chance, rates: Rates::none(), plan: None, doom: None, written: Vec::new() };
        Arc::new(Self {
            line: Mutex::new(Line::Up),
            moved: Notify::new(),
            state: Mutex::new(state),
            died,
            struck,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this goes wrong at random.
    pub fn set_rates(&self, rates: Rates) {
        self.state().rates = rates;
    }

    /// This goes wrong with the write of this number, counted from 0.
    pub fn plan(&self, write: usize, fault: Fault) {
        self.state().plan = Some((write, fault));
    }

    /// This goes wrong with the write from now on of this number, counted from 1, among those with this
    /// verb and this end of their path.
    pub fn doom(&self, (verb, path): (&'static str, &'static str), number: usize, fault: Fault) {
        self.state().doom = Some(Doom { verb, path, left: number, fault });
    }

    /// Every write that was sent, in order.
    pub fn written(&self) -> Vec<Written> {
        self.state().written.clone()
    }

    /// Sets the line.
    pub fn set_line(&self, line: Line) {
        {
            let mut old = self.line();
            if *old == Line::Dead {
                return;
            }
            *old = line;
        }
        self.moved.notify_waiters();
    }

    /// Whether the replica is dead.
    pub fn is_dead(&self) -> bool {
        *self.line() == Line::Dead
    }

    /// Waits until the replica can reach the server; for ever if it is dead.
    pub async fn up(&self) {
        loop {
            let moved = self.moved.notified();
            if *self.line() == Line::Up {
                return;
            }
            moved.await;
        }
    }

    /// How long a message takes.
    pub fn latency(&self) -> Duration {
        self.state().chance.millis(1, 8)
    }

    /// How far a watch lags right now.
    pub fn lag(&self) -> Duration {
        let mut state = self.state();
        let most = state.rates.lag;
        state.chance.millis(0, most)
    }

    /// What goes wrong with this write.
    pub fn strikes(&self, verb: &str, path: &str) -> Option<Fault> {
        let mut state = self.state();
        let number = state.written.len();
        state.written.push(Written { verb: verb.to_owned(), path: path.to_owned() });
        let planned = state.plan.filter(|(write, _)| *write == number).map(|(_, fault)| fault);
        let planned = planned.or_else(|| state.doom.as_mut()?.strikes(verb, path));
        let rates = state.rates.writes.clone();
        let random =
            || rates.into_iter().find(|(_, rate)| state.chance.happens(*rate)).map(|(fault, _)| fault);
        let fault = planned.or_else(random);
        drop(state);
        if let Some(fault) = fault {
            (self.struck)(&fault.to_string());
        }
        fault
    }

    /// What goes wrong with a watch at this frame.
    pub fn breaks(&self) -> Option<WatchFault> {
        let mut state = self.state();
        let rates = state.rates.watches.clone();
        let fault = rates.into_iter().find(|(_, rate)| state.chance.happens(*rate)).map(|(fault, _)| fault);
        drop(state);
        if let Some(fault) = fault {
            (self.struck)(&format!("{fault:?}"));
        }
        fault
    }

    /// The replica dies.
    pub fn die(&self, of: Fault) {
        self.set_line(Line::Dead);
        // Nobody listens any more once the run is over.
        let _ = self.died.send(of);
    }
}
