//! The wire of one replica: whether it reaches the API server, and which faults hit its requests.

use super::chance::Chance;
use super::faults::{Rates, WatchFault, WriteFault};
use axum::body::Bytes;
use http::{Method, Request};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::sync::{Notify, mpsc::UnboundedSender};
use tokio::time::Instant;

/// Whether a replica can reach the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// It can.
    Up,
    /// It is paused like a stopped process: it does nothing, and incoming messages wait. Requests that it has already
    /// sent still arrive.
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

/// The connection of one replica, which injects faults.
pub struct Wire {
    line: Mutex<Line>,
    /// Wakes waiters in FIFO order; tokio's watch channel wakes them in random order.
    moved: Notify,
    /// Tasks that are suspended while the replica is paused.
    gated: Mutex<Vec<Waker>>,
    state: Mutex<WireState>,
    died: UnboundedSender<WriteFault>,
    on_fault: FaultWatcher,
    asked: Mutex<Option<RequestObserver>>,
}

/// Callback for every request when it is sent.
pub type RequestObserver = Arc<dyn Fn(&Request<Bytes>) + Send + Sync>;

/// Callback for every fault when it hits: the fault's name, and the request that it hits,
/// if any.
pub type FaultWatcher = Arc<dyn Fn(&str, Option<&Request<Bytes>>) + Send + Sync>;

/// A fault for a future write of a given kind.
struct Doom {
    verb: &'static str,
    path: &'static str,
    left: usize,
    fault: WriteFault,
}

impl Doom {
    fn fault(&mut self, verb: &str, path: &str) -> Option<WriteFault> {
        if verb == self.verb && path.ends_with(self.path) {
            self.left = self.left.checked_sub(1)?;
            return (self.left == 0).then_some(self.fault);
        }
        None
    }
}

struct WireState {
    chance: Chance,
    rates: Rates,
    plan: Option<(usize, WriteFault)>,
    doom: Option<Doom>,
    /// How many planned faults have hit.
    fired: usize,
    written: Vec<Written>,
    /// Path suffixes whose watches have been silenced, and when.
    silenced: Vec<(&'static str, Instant)>,
}

impl Wire {
    /// A wire without faults. Deaths of the replica are sent to `died`.
    pub fn new(chance: Chance, died: UnboundedSender<WriteFault>, on_fault: FaultWatcher) -> Arc<Self> {
        let state = WireState {
            chance,
            rates: Rates::none(),
            plan: None,
            doom: None,
            fired: 0,
            written: Vec::new(),
            silenced: Vec::new(),
        };
        Arc::new(Self {
            line: Mutex::new(Line::Up),
            moved: Notify::new(),
            gated: Mutex::default(),
            state: Mutex::new(state),
            died,
            on_fault,
            asked: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, WireState> {
        self.state.lock()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    /// Sets the rates of random faults.
    pub fn set_rates(&self, rates: Rates) {
        self.state().rates = rates;
    }

    /// Plans a fault for the write with this number, counted from 0.
    pub fn plan(&self, write: usize, fault: WriteFault) {
        self.state().plan = Some((write, fault));
    }

    /// Plans a fault for the `number`th write from now on, counted from 1, among those with this
    /// verb and path suffix.
    pub fn doom(&self, (verb, path): (&'static str, &'static str), number: usize, fault: WriteFault) {
        self.state().doom = Some(Doom { verb, path, left: number, fault });
    }

    /// Sets a callback for every request from now on.
    pub fn on_request(&self, asked: RequestObserver) {
        *self.asked.lock() = Some(asked);
    }

    /// Silences the open watches with this path suffix: they deliver nothing more and do not end, as if a firewall had
    /// dropped their connections. Watches that are opened later are not affected.
    pub fn silence(&self, path: &'static str) {
        self.state().silenced.push((path, Instant::now()));
    }

    /// Whether a watch with this path that was opened at that time has been silenced.
    pub fn is_silent(&self, path: &str, opened: Instant) -> bool {
        self.state().silenced.iter().any(|(of, at)| path.ends_with(of) && opened <= *at)
    }

    /// How many planned faults have hit, of [`Self::plan`] and [`Self::doom`].
    pub fn fired(&self) -> usize {
        self.state().fired
    }

    /// All writes that were sent, in order.
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
        // The replica's suspended work runs before it receives new messages.
        let gated = std::mem::take(&mut *self.gated());
        gated.into_iter().for_each(Waker::wake);
        self.moved.notify_waiters();
    }

    /// Whether the replica is dead.
    pub fn is_dead(&self) -> bool {
        *self.line() == Line::Dead
    }

    /// Whether the replica may act. If not, the waker is called when it may again.
    pub fn may_act(&self, waker: &Waker) -> bool {
        let up = *self.line() == Line::Up;
        if !up {
            let mut gated = self.gated();
            if !gated.iter().any(|known| known.will_wake(waker)) {
                gated.push(waker.clone());
            }
        }
        up
    }

    fn gated(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.gated.lock()
    }

    /// Waits until the replica can reach the server; forever if it is dead.
    pub async fn up(&self) {
        loop {
            let moved = self.moved.notified();
            if *self.line() == Line::Up {
                return;
            }
            moved.await;
        }
    }

    /// The latency of a message.
    pub fn latency(&self) -> Duration {
        self.state().chance.millis(1, 8)
    }

    /// The current lag of a watch.
    pub fn lag(&self) -> Duration {
        let mut state = self.state();
        let most = state.rates.lag;
        state.chance.millis(0, most)
    }

    /// The fault that hits this request, if any.
    pub fn fault(&self, request: &Request<Bytes>) -> Option<WriteFault> {
        let asked = self.asked.lock().clone();
        if let Some(asked) = asked {
            asked(request);
        }
        if request.method() == Method::GET { self.read_fault(request) } else { self.write_fault(request) }
    }

    fn read_fault(&self, request: &Request<Bytes>) -> Option<WriteFault> {
        let mut state = self.state();
        let rates = state.rates.reads.clone();
        let (fault, _) = rates.into_iter().find(|(_, rate)| state.chance.happens(*rate))?;
        drop(state);
        (self.on_fault)(&format!("{fault:?}"), Some(request));
        Some(fault.of_write())
    }

    fn write_fault(&self, request: &Request<Bytes>) -> Option<WriteFault> {
        let (verb, path) = (request.method().as_str(), request.uri().path());
        let mut state = self.state();
        let number = state.written.len();
        state.written.push(Written { verb: verb.to_owned(), path: path.to_owned() });
        let planned = state.plan.filter(|(write, _)| *write == number).map(|(_, fault)| fault);
        let planned = planned.or_else(|| state.doom.as_mut()?.fault(verb, path));
        state.fired += usize::from(planned.is_some());
        let rates = state.rates.writes.clone();
        let random =
            || rates.into_iter().find(|(_, rate)| state.chance.happens(*rate)).map(|(fault, _)| fault);
        let fault = planned.or_else(random);
        drop(state);
        if let Some(fault) = fault {
            (self.on_fault)(&fault.to_string(), Some(request));
        }
        fault
    }

    /// The fault that hits a watch at this frame, if any.
    pub fn breaks(&self) -> Option<WatchFault> {
        let mut state = self.state();
        let rates = state.rates.watches.clone();
        let fault = rates.into_iter().find(|(_, rate)| state.chance.happens(*rate)).map(|(fault, _)| fault);
        drop(state);
        if let Some(fault) = fault {
            (self.on_fault)(&format!("{fault:?}"), None);
        }
        fault
    }

    /// Kills the replica.
    pub fn die(&self, of: WriteFault) {
        self.set_line(Line::Dead);
        // The receiver is gone once the run is over.
        let _ = self.died.send(of);
    }
}
