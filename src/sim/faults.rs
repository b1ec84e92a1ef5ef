//! What can go wrong between a replica and the API server, and when it does.
//!
//! Faults of single writes, of reads and of watches are here. What goes wrong elsewhere is a move or a scene of a drama:
//!
//! | what goes wrong | where it is played |
//! |---|---|
//! | a role lacks a verb, a policy refuses one slot or all patches, a webhook the status, the API the Events | moves `Deny…`, `HangWebhook` |
//! | a NodePool is deleted, or its template changes; a NodeClass is deleted | moves `DeletePool`, `ChangePool`, `DeleteClass` |
//! | others take what is left of a NodePool's limits | move `TakeLimit` |
//! | an AdmissionCheck is deleted | move `DeleteCheck` |
//! | a tenant attacks | the moves of tenants; those that are not played are in `moves/list.rs` |
//! | the finalizer of a NodeClaim hangs | move `HoldFinalizer` |
//! | the policy file changes, also to one that cannot be used | scene `Policy` |
//! | the policy file cannot be used at the start | not played: the process ends before it does anything (`tests/cli.rs`) |
//! | a journal is of a newer version | move `NewerJournal` |
//! | the collector of spans does not answer | `traced` of a drama |
//! | nobody reads the metrics | not played: they are fetched, and nothing waits for who fetches them |
//! | many gangs come at once after an outage | `tests/dramas/fixed.rs`; ten thousand in `benches/big` |
//! | Kueue stands still, between our Ready and its admission too | move `StopKueue` |
//! | the clock of a replica is wrong all along, or jumps | `replicas` of a drama, scene `Clock` |
//! | a watch tells of a change twice | not played: a list after a cut watch tells again of everything there is |
//! | another check is pending, or rejects after our Ready | moves `SecondCheck`, `OtherRejects` |

use super::chance::Chance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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
    /// The API server is overloaded, and says when to come back: 429.
    TooManyRequests,
    /// The API server fails: 500, nothing is committed.
    ServerError,
    /// The API server is not there for anybody, and says when to come back: 503.
    Unavailable,
    /// Somebody else was faster: 409, nothing is committed.
    Conflict,
    /// The request arrives half a minute late.
    Delayed,
    /// As `CrashAfter`, and the next life starts with what a replica of the API server shows that has stood still
    /// since before that write.
    StaleRestart,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 12] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::RequestLost,
        Self::ReplyLost,
        Self::Timeout,
        Self::AppliedTwice,
        Self::TooManyRequests,
        Self::ServerError,
        Self::Unavailable,
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

/// What goes wrong with reads, and with the beginning of watches.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadFault {
    /// The request never arrives; the connection breaks.
    ReadLost,
    /// The answer is 504.
    ReadTimeout,
    /// The answer is 429.
    ReadRefused,
    /// The answer is 503.
    ReadUnavailable,
    /// The request arrives half a minute late.
    ReadDelayed,
}

impl ReadFault {
    /// Every fault.
    pub const ALL: [Self; 5] =
        [Self::ReadLost, Self::ReadTimeout, Self::ReadRefused, Self::ReadUnavailable, Self::ReadDelayed];

    /// What it would be if it struck a write.
    pub const fn of_write(self) -> Fault {
        match self {
            Self::ReadLost => Fault::RequestLost,
            Self::ReadTimeout => Fault::Timeout,
            Self::ReadRefused => Fault::TooManyRequests,
            Self::ReadUnavailable => Fault::Unavailable,
            Self::ReadDelayed => Fault::Delayed,
        }
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
    /// Per read.
    #[serde(default)]
    pub reads: Vec<(ReadFault, u64)>,
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
        let mut reads = Vec::new();
        for fault in ReadFault::ALL {
            if chance.happens(300) {
                reads.push((fault, 1 + chance.below(20)));
            }
        }
        let mut watches = Vec::new();
        for fault in WatchFault::ALL {
            if chance.happens(500) {
                watches.push((fault, 1 + chance.below(10)));
            }
        }
        let lag = if chance.happens(300) { chance.below(20_000) } else { 20 };
        Self { writes, reads, watches, lag }
    }
}
