//! Batched reads: a few at a time are made for one caller each, the next ones for many waiting callers.
//!
//! A list past the API server's cache costs as much for one gang as for a hundred, and if that cache is behind, the server
//! reads everything for each list. Rule: no caller gets what was read before it asked. A failed read fails only for the
//! caller that made it; the others ask again, in smaller batches.

use super::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Reads under way at the same time. A caller that asks meanwhile waits for the next one, which is made for all that
/// wait.
const AT_ONCE: usize = 4;
/// The most keys that one read is made for: they have to fit into a URL.
const TOGETHER: usize = 100;

/// Joins reads of `K` that return `T` for all their callers.
#[derive(Debug)]
pub struct Batched<K, T>(Arc<Mutex<Pending<K, T>>>);

#[derive(Debug)]
struct Pending<K, T> {
    under_way: usize,
    /// The most keys that one read is made for now.
    together: usize,
    waiting: VecDeque<Waiter<K, T>>,
}

#[derive(Debug)]
struct Waiter<K, T> {
    key: K,
    reply: oneshot::Sender<Reply<K, T>>,
}

/// The reply to a waiting caller.
#[derive(Debug)]
enum Reply<K, T> {
    /// The result.
    Read(Arc<T>),
    /// The caller itself has to read, for these waiters too.
    Lead(ReadInFlight<K, T>, Vec<Waiter<K, T>>),
}

type Wait<K, T> = oneshot::Receiver<Reply<K, T>>;

/// One of the reads under way. However it ends, the next one begins.
#[derive(Debug)]
struct ReadInFlight<K, T>(Arc<Mutex<Pending<K, T>>>);

impl<K, T> Default for Batched<K, T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Pending { under_way: 0, together: TOGETHER, waiting: VecDeque::new() })))
    }
}

impl<K: Clone, T> Batched<K, T> {
    /// The result of `read` for this key and maybe others, or of another caller's read that included it.
    ///
    /// # Errors
    /// The error of the read that was made here.
    pub async fn read<F, E>(&self, key: K, read: impl FnOnce(Vec<K>) -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let (lead, followers) = loop {
            match self.enter(key.clone()) {
                Ok(lead) => break (lead, Vec::new()),
                Err(reply) => match reply.await {
                    Ok(Reply::Read(found)) => return Ok(found),
                    Ok(Reply::Lead(lead, followers)) => break (lead, followers),
                    // The read that was made for this caller failed, or was cancelled.
                    Err(_) => {}
                },
            }
        };
        let keys = followers.iter().map(|follower| follower.key.clone());
        let answer = read(std::iter::once(key).chain(keys).collect()).await;
        if !followers.is_empty() {
            lead.learn(answer.is_ok());
        }
        drop(lead);
        let found = Arc::new(answer?);
        for follower in followers {
            // A caller that is gone needs no answer.
            let _ = follower.reply.send(Reply::Read(Arc::clone(&found)));
        }
        Ok(found)
    }

    /// Joins the line: returns a lead, or what to wait for.
    fn enter(&self, key: K) -> Result<ReadInFlight<K, T>, Wait<K, T>> {
        let mut line = lock(&self.0);
        if line.under_way < AT_ONCE {
            line.under_way += 1;
            return Ok(ReadInFlight(Arc::clone(&self.0)));
        }
        let (reply, wait) = oneshot::channel();
        line.waiting.push_back(Waiter { key, reply });
        Err(wait)
    }
}

impl<K, T> ReadInFlight<K, T> {
    /// Halves the batch size after a failed read, which may have been too large, and doubles it after a successful one.
    fn learn(&self, works: bool) {
        let mut line = lock(&self.0);
        let together = if works { line.together * 2 } else { line.together / 2 };
        line.together = together.clamp(1, TOGETHER);
    }
}

impl<K, T> Drop for ReadInFlight<K, T> {
    fn drop(&mut self) {
        let mut line = lock(&self.0);
        line.waiting.retain(|waiter| !waiter.reply.is_closed());
        let Some(first) = line.waiting.pop_front() else {
            line.under_way -= 1;
            return;
        };
        let together = line.waiting.len().min(line.together - 1);
        let followers = line.waiting.drain(..together).collect();
        drop(line);
        // If that caller goes away at this very moment, the lead is dropped with the message, and the next caller gets it.
        let _ = first.reply.send(Reply::Lead(Self(Arc::clone(&self.0)), followers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    const READ: Duration = Duration::from_millis(10);

    /// Values to read, and the keys of each read.
    #[derive(Default)]
    struct World {
        reads: Mutex<Vec<Vec<u32>>>,
        batched: Batched<u32, Vec<u32>>,
    }

    impl World {
        /// Reads ten times the key; key 13 fails.
        async fn read(&self, key: u32) -> Result<u32, &'static str> {
            let read = |keys: Vec<u32>| async move {
                lock(&self.reads).push(keys.clone());
                sleep(READ).await;
                if keys.contains(&13) { Err("unlucky") } else { Ok(keys.iter().map(|k| k * 10).collect()) }
            };
            let all = self.batched.read(key, read).await?;
            all.iter().copied().find(|found| *found == key * 10).ok_or("not read")
        }

        fn sizes(&self) -> Vec<usize> {
            std::mem::take(&mut *lock(&self.reads)).iter().map(Vec::len).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_read_alone_and_the_others_together() {
        let world = World::default();
        let all = join_all((20..350).map(|key| world.read(key))).await;
        assert!(all.iter().zip(20..).all(|(found, key)| *found == Ok(key * 10)), "each has its own");
        assert_eq!(world.sizes(), [1, 1, 1, 1, 100, 100, 100, 26]);
        world.read(7).await.unwrap();
        assert_eq!(world.sizes(), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_read_fails_only_its_caller_and_shrinks_the_next_batches() {
        let world = World::default();
        let all = join_all((1..=40).map(|key| world.read(key))).await;
        let failed: Vec<u32> =
            (1..).zip(&all).filter(|(_, found)| found.is_err()).map(|(key, _)| key).collect();
        // Every caller that led a read with the failing key has failed with it, and finally that key alone.
        assert!(failed.contains(&13) && failed.len() < 10, "{failed:?}");
        assert!(all.iter().zip(1..).all(|(found, key)| failed.contains(&key) || *found == Ok(key * 10)));
        let together = lock(&world.batched.0).together;
        assert!(together < TOGETHER, "{together}");
        assert_eq!(world.read(5).await, Ok(50));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_read_blocks_no_other() {
        let world = World::default();
        let given_up = join_all((1..=4).map(|key| timeout(READ / 2, world.read(key))));
        // It is to lead the second round, and is cancelled before.
        let leader = timeout(READ / 3, world.read(5));
        let (given_up, leader, others) =
            tokio::join!(given_up, leader, join_all([6, 7].map(|key| world.read(key))));
        assert!(given_up.iter().all(Result::is_err) && leader.is_err());
        assert_eq!(others, [Ok(60), Ok(70)]);
        // A caller that leads is cancelled, and the one that it reads for reads again.
        let first = join_all((1..=4).map(|key| world.read(key)));
        let leader = timeout(READ * 3 / 2, world.read(5));
        let (_, leader, other) = tokio::join!(first, leader, world.read(6));
        assert!(leader.is_err());
        assert_eq!(other, Ok(60));
        assert_eq!(lock(&world.batched.0).under_way, 0, "no lead is lost");
    }
}
