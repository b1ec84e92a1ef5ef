//! Backpressure: how many writes may be on their way at the same time, and whose turn is next.
//!
//! Rule: lanes take turns, one write each, so that a gang of a thousand nodes does not hold up another
//! LocalQueue's. Where the API server asks to be left alone (`Retry-After`), nobody writes until then.
//! Leases are not paced: a replica that is busy must not lose them.

use super::lanes::Lanes;
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

/// Writes in flight: a sixth of the 200 changes that an API server works on at a time.
const IN_FLIGHT: usize = 32;
/// Longest time for which a `Retry-After` is honoured.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Hands out turns to write. Cheap to clone; all clones share the same turns.
#[derive(Clone, Debug)]
pub struct Pace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    lanes: Lanes<oneshot::Sender<Turn>>,
    /// Until when the API server wants to be left alone.
    rest: Option<Instant>,
}

/// One write may be made as long as this lives.
#[derive(Debug)]
pub struct Turn(Option<Pace>);

tokio::task_local! {
    static LANE: (Pace, String);
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(IN_FLIGHT)
    }
}

impl Pace {
    /// At most so many writes at the same time.
    pub fn new(in_flight: usize) -> Self {
        let state = State { free: in_flight, lanes: Lanes::default(), rest: None };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everything that `work` writes through [`turn`] wait in this lane.
    pub async fn within<T>(&self, lane: &str, work: impl Future<Output = T>) -> T {
        LANE.scope((self.clone(), lane.to_owned()), work).await
    }

    /// Waits for this lane's turn.
    pub async fn turn(&self, lane: &str) -> Turn {
        let (granted, turn) = oneshot::channel();
        {
            let mut state = self.state();
            state.lanes.push(lane.to_owned(), granted);
            self.grant(&mut state);
        }
        // Nobody drops a sender without having used it.
        let turn = turn.await.unwrap_or(Turn(None));
        while let Some(rest) = self.rest() {
            sleep_until(rest).await;
        }
        turn
    }

    fn grant(&self, state: &mut State) {
        while state.free > 0
            && let Some((_, granted)) = state.lanes.next(|_| true)
        {
            match granted.send(Turn(Some(self.clone()))) {
                Ok(()) => state.free -= 1,
                // Whoever waited has gone; its turn must not come back here.
                Err(mut turn) => turn.0 = None,
            }
        }
    }

    fn rest(&self) -> Option<Instant> {
        self.state().rest.filter(|rest| *rest > Instant::now())
    }

    /// Nobody writes for this long.
    pub fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait.min(LONGEST_REST);
        let mut state = self.state();
        state.rest = state.rest.max(Some(until));
    }

    /// The same client, whose answers this pace heeds.
    pub fn heeding(&self, client: &Client) -> Client {
        let (inner, pace) = (client.clone(), self.clone());
        let send = move |request: Request<Body>| {
            let (inner, pace) = (inner.clone(), pace.clone());
            async move {
                let answer = inner.send(request).await?;
                let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
                let asked = answer.headers().get(RETRY_AFTER).filter(|_| busy.contains(&answer.status()));
                if let Some(seconds) = asked.and_then(|after| after.to_str().ok()?.parse().ok()) {
                    tracing::debug!(seconds, "the API server asks to be left alone");
                    pace.pause(Duration::from_secs(seconds));
                }
                Ok::<_, kube::Error>(answer)
            }
        };
        Client::new(service_fn(send), client.default_namespace())
    }
}

/// Waits for the turn of the lane this runs in; outside of any lane there is nothing to wait for.
pub async fn turn() -> Option<Turn> {
    let (pace, lane) = LANE.try_with(Clone::clone).ok()?;
    Some(pace.turn(&lane).await)
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(pace) = self.0.take() {
            let mut state = pace.state();
            state.free += 1;
            pace.grant(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use std::convert::Infallible;

    const WRITE: Duration = Duration::from_millis(10);

    /// Makes so many writes at once and returns when the last of them was done.
    async fn writes(pace: Pace, lane: &'static str, count: usize) -> Instant {
        let one = || async {
            let _turn = turn().await;
            tokio::time::sleep(WRITE).await;
        };
        pace.within(lane, futures::future::join_all(std::iter::repeat_with(one).take(count))).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_take_turns_whatever_waits_in_them() {
        let pace = Pace::new(4);
        let start = Instant::now();
        let large = tokio::spawn(writes(pace.clone(), "large", 1_000));
        tokio::time::sleep(WRITE / 2).await;
        let small = writes(pace.clone(), "small", 2).await;
        assert!(small - start < WRITE * 3, "{:?}", small - start);
        let took = large.await.unwrap() - start;
        assert!(took >= WRITE * 250 && took <= WRITE * 252, "four at a time: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_takes_any_more_is_not_lost() {
        let pace = Pace::new(1);
        let first = pace.turn("a").await;
        for lane in ["b", "c"] {
            let waits = tokio::time::timeout(WRITE, pace.turn(lane)).await;
            assert!(waits.is_err());
        }
        drop(first);
        drop(pace.turn("d").await);
        let state = pace.state();
        assert_eq!((state.free, state.lanes.is_empty()), (1, true));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_writes_while_the_api_server_wants_to_be_left_alone() {
        let pace = Pace::new(2);
        let server = service_fn(|_: Request<Body>| async {
            let answer = Response::builder().status(429).header(RETRY_AFTER, "7").body(Body::empty());
            Ok::<_, Infallible>(answer.unwrap())
        });
        let client = pace.heeding(&Client::new(server, "default"));
        client.send(Request::new(Body::empty())).await.unwrap();
        let start = Instant::now();
        drop(pace.turn("a").await);
        assert!(start.elapsed() >= Duration::from_secs(7));
        pace.pause(Duration::from_hours(1));
        let start = Instant::now();
        drop(pace.turn("a").await);
        assert!(start.elapsed() <= LONGEST_REST + WRITE);
    }

    #[tokio::test]
    async fn outside_of_a_lane_there_is_nothing_to_wait_for() {
        assert!(turn().await.is_none());
    }
}
