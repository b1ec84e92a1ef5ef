//! The acts of the play, with their times.

/// An event in the play.
pub struct Act {
    /// Seconds after the start.
    pub at: u64,
    /// The announcement; empty if it belongs to the previous act.
    pub says: &'static str,
    /// The action.
    pub does: Deed,
}

/// The action of an act.
pub enum Deed {
    /// Submits a Job with this many pods that run for this many seconds.
    Submit { job: &'static str, pods: u32, runs: u64 },
    /// Changes the weather of the cloud.
    Weather(&'static str),
    /// Kueue evicts a Job.
    Evict(&'static str),
    /// Kills the leader right after it has created this many NodeClaims.
    DoomLeader(usize),
}

const fn act(at: u64, says: &'static str, does: Deed) -> Act {
    Act { at, says, does }
}

const fn job(job: &'static str, pods: u32, runs: u64) -> Deed {
    Deed::Submit { job, pods, runs }
}

/// The play.
pub const ACTS: [Act; 10] = [
    act(1, "a Job of four pods comes: the plain case", job("steady", 4, 25)),
    act(3, "a Job of three pods comes; the leader will die after two of its NodeClaims", Deed::DoomLeader(2)),
    act(3, "", job("resumed", 3, 15)),
    act(
        14,
        "spot capacity runs out",
        Deed::Weather("[{\"nodePool\": \"demo\", \"capacityType\": \"spot\", \"capacity\": 8}]"),
    ),
    act(
        15,
        "a Job of three pods comes: spot has room for one of them, the next tier for all",
        job("hungry", 3, 15),
    ),
    act(16, "a Job of two pods comes", job("evicted", 2, 15)),
    act(
        26,
        "Kueue evicts the Job of two pods and reserves for it again at once: its nodes are kept for it",
        Deed::Evict("evicted"),
    ),
    act(
        46,
        "from now on the cloud has six nodes in all",
        Deed::Weather("[{\"nodePool\": \"demo\", \"capacity\": 6}]"),
    ),
    act(
        47,
        "two Jobs of four pods come: who does not get all four nodes gives back what it got, and tries again",
        job("rival-a", 4, 10),
    ),
    act(47, "", job("rival-b", 4, 10)),
];
