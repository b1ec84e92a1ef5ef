//! Shared reads: what several callers want at the same time is read once for all of them.
//!
//! Rule: no caller gets what was read before it asked, because the read must show what the caller has seen happen. A
//! caller that asks during a read waits for the next one, together with all others that do. A failed read fails for all of
//! them, so that at most one read of a thing is under way even while the API server is in trouble.

use super::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Reads by what is read. Results are kept only while a caller waits for them.
#[derive(Debug)]
pub struct Joined<K, T: ?Sized, E> {
    /// Counts calls and reads, to know which came first.
    moments: AtomicU64,
    rounds: Mutex<BTreeMap<K, Weak<SharedRound<T, E>>>>,
}

/// A round that all callers for the same thing wait for.
type SharedRound<T, E> = tokio::sync::Mutex<Round<T, E>>;

/// The last read of something.
#[derive(Debug)]
struct Round<T: ?Sized, E> {
    /// When it began; 0 before the first.
    began: u64,
    /// Its result; `None` if it was cancelled.
    answer: Option<Result<Arc<T>, E>>,
}

impl<K, T: ?Sized, E> Default for Joined<K, T, E> {
    fn default() -> Self {
        Self { moments: AtomicU64::new(0), rounds: Mutex::default() }
    }
}

impl<K: Ord, T: ?Sized, E: Clone> Joined<K, T, E> {
    /// The result of `read`, or of another caller's read of the same thing that began after this call.
    ///
    /// # Errors
    /// The error of that read.
    pub async fn read(&self, of: K, read: impl Future<Output = Result<Arc<T>, E>>) -> Result<Arc<T>, E> {
        let asked = self.moment();
        let round = self.round(of);
        let mut last = round.lock().await;
        if last.began > asked
            && let Some(answer) = &last.answer
        {
            return answer.clone();
        }
        *last = Round { began: self.moment(), answer: None };
        let answer = read.await;
        last.answer = Some(answer.clone());
        answer
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn round(&self, of: K) -> Arc<SharedRound<T, E>> {
        let mut rounds = lock(&self.rounds);
        if let Some(round) = rounds.get(&of).and_then(Weak::upgrade) {
            return round;
        }
        rounds.retain(|_, round| round.strong_count() > 0);
        let round = Arc::new(tokio::sync::Mutex::new(Round { began: 0, answer: None }));
        rounds.insert(of, Arc::downgrade(&round));
        round
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::time::Duration;

    const READ: Duration = Duration::from_millis(10);

    /// A value to read, and how often it was read.
    #[derive(Default)]
    struct World {
        reads: AtomicU64,
        value: AtomicU64,
        joined: Joined<&'static str, u64, &'static str>,
    }

    impl World {
        /// Reads the value as of the start of the read.
        async fn read(&self, of: &'static str) -> Result<u64, &'static str> {
            let read = async {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let value = self.value.load(Ordering::Relaxed);
                tokio::time::sleep(READ).await;
                if value == 13 { Err("unlucky") } else { Ok(Arc::new(value)) }
            };
            self.joined.read(of, read).await.map(|value| *value)
        }

        fn reads(&self) -> u64 {
            self.reads.swap(0, Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_concurrent_callers_cause_two_reads_and_one_alone_causes_one() {
        let world = World::default();
        assert!(join_all((0..50).map(|_| world.read("a"))).await.iter().all(Result::is_ok));
        assert_eq!(world.reads(), 2);
        for _ in 0..3 {
            world.read("a").await.unwrap();
        }
        assert_eq!(world.reads(), 3);
        tokio::join!(world.read("a"), world.read("b")).0.unwrap();
        assert_eq!(world.reads(), 2, "what is read of something else is no answer");
        let kept = world.joined.rounds.lock().unwrap();
        assert!(kept.values().all(|round| round.strong_count() == 0), "nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_gets_what_was_read_before_it_asked() {
        let world = World::default();
        let late = async {
            tokio::time::sleep(READ / 2).await;
            world.value.store(7, Ordering::Relaxed);
            join_all((0..3).map(|_| world.read("a"))).await
        };
        let (early, late) = tokio::join!(world.read("a"), late);
        assert_eq!((early, late), (Ok(0), vec![Ok(7); 3]));
        assert_eq!(world.reads(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_callers_that_wait_for_a_failing_read_share_the_next_one() {
        let world = World::default();
        world.value.store(13, Ordering::Relaxed);
        let all = join_all((0..100).map(|_| world.read("a"))).await;
        assert_eq!(all, [Err("unlucky"); 100]);
        assert_eq!(world.reads(), 2);
        world.value.store(1, Ordering::Relaxed);
        assert_eq!(world.read("a").await, Ok(1), "an error is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_read_is_made_by_the_next_waiting_caller() {
        let world = World::default();
        world.value.store(1, Ordering::Relaxed);
        let cancelled = tokio::time::timeout(READ / 2, world.read("a"));
        let (cancelled, others) = tokio::join!(cancelled, join_all((0..3).map(|_| world.read("a"))));
        assert!(cancelled.is_err());
        assert_eq!(others, [Ok(1); 3]);
    }
}
