//! Reads of different things that can be made as one: few at a time go alone, the others together.
//!
//! A list that is made past the API server's cache costs it as much for one gang as for a hundred, and where its cache is
//! behind it reads all there is for each. Rule: nobody is given what was read before it asked, and a read that fails fails
//! for nobody but the one who made it: the others ask again, fewer together than before.

use super::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Reads under way at the same time; whoever asks meanwhile waits for the next one, which is made for all who wait.
const AT_ONCE: usize = 4;
/// Most things that one read is made for: their names have to go into a URL.
const TOGETHER: usize = 100;

/// Joins reads of `K` that come to `T` for all whom they were made for.
#[derive(Debug)]
pub struct Batched<K, T>(Arc<Mutex<Pending<K, T>>>);

#[derive(Debug)]
struct Pending<K, T> {
    under_way: usize,
    /// How many a read is made for at most.
    together: usize,
    waiting: VecDeque<Waiter<K, T>>,
}

#[derive(Debug)]
struct Waiter<K, T> {
    key: K,
    told: oneshot::Sender<Told<K, T>>,
}

/// What whoever waits is told.
#[derive(Debug)]
enum Told<K, T> {
    /// What was read.
    Read(Arc<T>),
    /// It is to read, for these too.
    Lead(Place<K, T>, Vec<Waiter<K, T>>),
}

type Wait<K, T> = oneshot::Receiver<Told<K, T>>;

/// One of the reads under way. However it ends, the next one begins.
#[derive(Debug)]
struct Place<K, T>(Arc<Mutex<Pending<K, T>>>);

impl<K, T> Default for Batched<K, T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Pending { under_way: 0, together: TOGETHER, waiting: VecDeque::new() })))
    }
}

impl<K: Clone, T> Batched<K, T> {
    /// What `read` comes to for this key, and maybe others with it, or the same read of another one who waited too.
    ///
    /// # Errors
    /// What the read failed with that was made here.
    pub async fn read<F, E>(&self, key: K, read: impl FnOnce(Vec<K>) -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let (place, followers) = loop {
            match self.enter(key.clone()) {
                Ok(place) => break (place, Vec::new()),
                Err(told) => match told.await {
                    Ok(Told::Read(found)) => return Ok(found),
                    Ok(Told::Lead(place, followers)) => break (place, followers),
                    // The read that was made for this one failed, or was given up.
                    Err(_) => {}
                },
            }
        };
        let keys = followers.iter().map(|follower| follower.key.clone());
        let answer = read(std::iter::once(key).chain(keys).collect()).await;
        if !followers.is_empty() {
            place.learn(answer.is_ok());
        }
        drop(place);
        let found = Arc::new(answer?);
        for follower in followers {
            // One that is not there any more needs no answer.
            let _ = follower.told.send(Told::Read(Arc::clone(&found)));
        }
        Ok(found)
    }

    /// Enters the line: a place, or what to wait for.
    fn enter(&self, key: K) -> Result<Place<K, T>, Wait<K, T>> {
        let mut line = lock(&self.0);
        if line.under_way < AT_ONCE {
            line.under_way += 1;
            return Ok(Place(Arc::clone(&self.0)));
        }
        let (told, wait) = oneshot::channel();
        line.waiting.push_back(Waiter { key, told });
        Err(wait)
    }
}

impl<K, T> Place<K, T> {
    /// After a read that failed half as many are read for together, maybe they were too many; after one that did not,
    /// twice as many.
    fn learn(&self, works: bool) {
        let mut line = lock(&self.0);
        let together = if works { line.together * 2 } else { line.together / 2 };
        line.together = together.clamp(1, TOGETHER);
    }
}

impl<K, T> Drop for Place<K, T> {
    fn drop(&mut self) {
        let mut line = lock(&self.0);
        line.waiting.retain(|waiter| !waiter.told.is_closed());
        let Some(first) = line.waiting.pop_front() else {
            line.under_way -= 1;
            return;
        };
        let together = line.waiting.len().min(line.together - 1);
        let followers = line.waiting.drain(..together).collect();
        drop(line);
        // Should it go at this very moment, the place goes with what it was sent, and another one is next.
        let _ = first.told.send(Told::Lead(Self(Arc::clone(&self.0)), followers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    const READ: Duration = Duration::from_millis(10);

    /// What can be read, and for whom it was.
    #[derive(Default)]
    struct World {
        reads: Mutex<Vec<Vec<u32>>>,
        batched: Batched<u32, Vec<u32>>,
    }

    impl World {
        /// Reads ten times the key; nobody may read of 13.
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
    async fn a_read_that_fails_fails_for_whoever_made_it_and_fewer_go_together_after_it() {
        let world = World::default();
        let all = join_all((1..=40).map(|key| world.read(key))).await;
        let failed: Vec<u32> =
            (1..).zip(&all).filter(|(_, found)| found.is_err()).map(|(key, _)| key).collect();
        // Whoever led a read in which the unlucky one was has failed with it, and at last the unlucky one alone.
        assert!(failed.contains(&13) && failed.len() < 10, "{failed:?}");
        assert!(all.iter().zip(1..).all(|(found, key)| failed.contains(&key) || *found == Ok(key * 10)));
        let together = lock(&world.batched.0).together;
        assert!(together < TOGETHER, "{together}");
        assert_eq!(world.read(5).await, Ok(50));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_given_up_holds_up_nobody() {
        let world = World::default();
        let given_up = join_all((1..=4).map(|key| timeout(READ / 2, world.read(key))));
        // It is to lead the second round, and goes before.
        let leader = timeout(READ / 3, world.read(5));
        let (given_up, leader, others) =
            tokio::join!(given_up, leader, join_all([6, 7].map(|key| world.read(key))));
        assert!(given_up.iter().all(Result::is_err) && leader.is_err());
        assert_eq!(others, [Ok(60), Ok(70)]);
        // One that leads is given up, and whom it reads for reads again.
        let first = join_all((1..=4).map(|key| world.read(key)));
        let leader = timeout(READ * 3 / 2, world.read(5));
        let (_, leader, other) = tokio::join!(first, leader, world.read(6));
        assert!(leader.is_err());
        assert_eq!(other, Ok(60));
        assert_eq!(lock(&world.batched.0).under_way, 0, "no place is lost");
    }
}
