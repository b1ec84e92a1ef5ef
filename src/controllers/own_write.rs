//! How far the cache of a Workload lags behind this replica's own writes.

use crate::api::Workload;
use kube::ResourceExt;
use std::time::Duration;
use tokio::time::Instant;

/// How long a cache may lag behind a write of ours before the Workload is read by name. A watch takes milliseconds. A
/// silent watch is noticed only after a minute, and a gang must not stand still for that long.
const CACHE_LAG: Duration = Duration::from_secs(3);

/// The resourceVersion that the cache must reach: of our last write, or of the write that made ours fail. An older
/// cache is not acted on.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnWrite(Option<AwaitedVersion>);

#[derive(Clone, Copy, Debug)]
struct AwaitedVersion {
    version: u64,
    /// When it was written, or when the Workload was last read because the cache lagged.
    since: Instant,
}

/// How a cached Workload compares with our last write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLag {
    /// It shows that write.
    Current,
    /// It does not show it yet.
    Behind,
    /// It lags so long that the Workload must be read by name, once per [`CACHE_LAG`].
    Overdue,
}

impl OwnWrite {
    /// Whether the cache does not show it yet.
    pub fn is_awaited(&self) -> bool {
        self.0.is_some()
    }

    /// Records the Workload as one of our writes returned it.
    pub fn note(&mut self, workload: &Workload) {
        if let Some(version) = version(workload) {
            self.0 = Some(AwaitedVersion { version, since: Instant::now() });
        }
    }

    /// Records that a write failed because someone else wrote the Workload. Unless the cache shows that by the next
    /// reconcile, the Workload is read by name. Otherwise the same write would fail for as long as the watch is silent.
    pub fn note_conflict(&mut self, workload: &Workload) {
        let Some(seen) = version(workload) else { return };
        let overdue = Instant::now().checked_sub(CACHE_LAG).unwrap_or_else(Instant::now);
        let known = self.0.map_or(seen, |written| written.version.max(seen));
        self.0 = Some(AwaitedVersion { version: known.saturating_add(1), since: overdue });
    }

    /// Records the Workload as read by name: a cache that shows this version is current.
    pub fn was_read(&mut self, workload: &Workload) {
        if let (Some(version), Some(written)) = (version(workload), &mut self.0) {
            written.version = version;
        }
    }

    /// How this view of the Workload compares with our last write to it. What it shows is not waited for again.
    pub fn advance_cache_lag(&mut self, workload: &Workload) -> CacheLag {
        let (Some(seen), Some(written)) = (version(workload), &mut self.0) else {
            return CacheLag::Current;
        };
        if written.version <= seen {
            self.0 = None;
            return CacheLag::Current;
        }
        if written.since.elapsed() < CACHE_LAG {
            return CacheLag::Behind;
        }
        written.since = Instant::now();
        CacheLag::Overdue
    }
}

fn version(workload: &Workload) -> Option<u64> {
    workload.resource_version().and_then(|v| v.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_lagging_cache_is_overdue_once_every_three_seconds() {
        let view = |version: &str| -> Workload {
            let metadata = json!({"name": "w", "namespace": "n", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
        };
        let mut writes = OwnWrite::default();
        writes.note(&view("7"));
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.push(writes.advance_cache_lag(&view("6")) == CacheLag::Overdue);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(seen, [false, false, false, true, false, false, true, false]);
        assert_eq!(writes.advance_cache_lag(&view("7")), CacheLag::Current);
        assert_eq!(
            writes.advance_cache_lag(&view("6")),
            CacheLag::Current,
            "what was shown is not waited for again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_conflict_the_cache_is_overdue_until_it_shows_what_was_read() {
        tokio::time::advance(Duration::from_mins(1)).await;
        let view = |version: &str| -> Workload {
            let metadata = json!({"name": "w", "namespace": "n", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
        };
        let mut writes = OwnWrite::default();
        writes.was_read(&view("9"));
        assert!(!writes.is_awaited(), "nothing is waited for");
        writes.note_conflict(&view("6"));
        assert_eq!(writes.advance_cache_lag(&view("6")), CacheLag::Overdue);
        writes.was_read(&view("9"));
        assert_eq!(writes.advance_cache_lag(&view("8")), CacheLag::Behind);
        assert_eq!(writes.advance_cache_lag(&view("9")), CacheLag::Current);
        writes.note(&view("7"));
        writes.note_conflict(&view("6"));
        assert_eq!(
            writes.advance_cache_lag(&view("7")),
            CacheLag::Overdue,
            "the conflict came after our own write"
        );
        writes.was_read(&view("7"));
        assert_eq!(
            writes.advance_cache_lag(&view("7")),
            CacheLag::Current,
            "nobody has written it after all"
        );
    }
}
