//! Faults between a replica and the API server, and their rates.
//!
//! This module has faults of single writes, reads and watches. Other faults are moves or scenes of a drama:
//!
//! | fault | played by |
//! |---|---|
//! | a role lacks a verb, a policy refuses one slot or all patches, a webhook the status, the API the Events | moves `Deny…`, `HangWebhook` |
//! | a NodePool is deleted, or its template changes; a NodeClass is deleted | moves `DeletePool`, `ChangePool`, `DeleteClass` |
//! | others use up a NodePool's limits | move `TakeLimit` |
//! | an AdmissionCheck is deleted | move `DeleteCheck` |
//! | a tenant attacks | the moves of tenants; `moves/list.rs` lists attacks without a move |
//! | the finalizer of a NodeClaim hangs | move `HoldFinalizer` |
//! | the policy file changes, possibly to an invalid one | scene `Policy` |
//! | the policy file is invalid at the start | not played: the process exits before it does anything (`tests/commands/cli.rs`) |
//! | a journal has a newer version | move `NewerJournal` |
//! | the trace collector does not answer | `traced` of a drama |
//! | metrics are not scraped | not played: metrics are pulled, and nothing waits for a scrape |
//! | many gangs arrive at once after an outage | `tests/dramas/fixed.rs`; ten thousand in `benches/big` |
//! | Kueue is paused, also between a Ready and its admission | move `StopKueue` |
//! | the clock of a replica is permanently wrong, or jumps | `replicas` of a drama, scene `Clock` |
//! | a watch sends a change twice | not played: a list after a closed watch repeats everything anyway |
//! | another check is pending, or rejects after Setu's Ready | moves `SecondCheck`, `OtherRejects` |

use super::chance::Chance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The replica of the API server that may be stale.
pub const STALE_REPLICA: usize = 1;

/// A fault of one write.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteFault {
    /// The replica dies before the request is sent.
    CrashBefore,
    /// The replica dies after the write is committed, before it gets the answer.
    CrashAfter,
    /// The request never arrives; the connection breaks.
    RequestLost,
    /// The write is committed; the connection breaks before the answer.
    ReplyLost,
    /// The write is committed; the answer is 504.
    Timeout,
    /// The write arrives twice; the answer is that of the second one.
    AppliedTwice,
    /// The API server is overloaded: 429 with Retry-After.
    TooManyRequests,
    /// The API server fails: 500; nothing is committed.
    ServerError,
    /// The API server is unavailable: 503 with Retry-After.
    Unavailable,
    /// Another client was faster: 409; nothing is committed.
    Conflict,
    /// The request arrives 30 seconds late.
    Delayed,
    /// Like `CrashAfter`, and the replica restarts against an API server replica that has been stale since before
    /// that write.
    StaleRestart,
}

impl WriteFault {
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
}

impl fmt::Display for WriteFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A fault of a read, or of the start of a watch.
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
    /// The request arrives 30 seconds late.
    ReadDelayed,
}

impl ReadFault {
    /// Every fault.
    pub const ALL: [Self; 5] =
        [Self::ReadLost, Self::ReadTimeout, Self::ReadRefused, Self::ReadUnavailable, Self::ReadDelayed];

    /// The corresponding fault of a write.
    pub const fn of_write(self) -> WriteFault {
        match self {
            Self::ReadLost => WriteFault::RequestLost,
            Self::ReadTimeout => WriteFault::Timeout,
            Self::ReadRefused => WriteFault::TooManyRequests,
            Self::ReadUnavailable => WriteFault::Unavailable,
            Self::ReadDelayed => WriteFault::Delayed,
        }
    }
}

/// A fault of a watch.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchFault {
    /// The stream ends.
    Cut,
    /// The version has expired: 410.
    Expired,
    /// The stream stays open but delivers nothing more.
    Silent,
}

impl WatchFault {
    /// Every fault.
    pub const ALL: [Self; 3] = [Self::Cut, Self::Expired, Self::Silent];
}

/// Rates of faults per thousand requests or frames.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// Per write and fault.
    pub writes: BTreeMap<WriteFault, u64>,
    /// Per read.
    #[serde(default)]
    pub reads: Vec<(ReadFault, u64)>,
    /// Per frame of a watch.
    pub watches: Vec<(WatchFault, u64)>,
    /// Maximum lag of a watch in milliseconds.
    pub lag: u64,
}

impl Rates {
    /// No faults.
    pub fn none() -> Self {
        Self { lag: 5, ..Self::default() }
    }

    /// A random subset of all faults, each at a random rate.
    pub fn swarm(chance: &mut Chance) -> Self {
        let mut writes = BTreeMap::new();
        for fault in WriteFault::ALL {
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
