//! Backpressure: how many writes may be in flight at once, and which write is next.
//!
//! Rule: flows take turns, one write each, so that a gang of a thousand nodes does not hold up another LocalQueue's.
//! Reports wait for all flows, but not forever. While the API server asks to be left alone (`Retry-After`), there are no
//! writes. Leases are exempt: a busy replica must not lose them.

use super::fair_queue::FairQueue;
use super::lock;
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

/// Writes in flight: a sixth of the 200 changes that an API server works on at a time.
const IN_FLIGHT: usize = 32;
/// Of this many permits, one goes to low priority, whatever else waits: otherwise a replica that is always busy would
/// never report anything.
const LOW_PRIORITY_EVERY: u32 = 16;
/// The longest time for which a `Retry-After` is honoured.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Hands out permits to write. Cheap to clone; all clones share the same permits.
#[derive(Clone, Debug)]
pub struct WriteLimiter(Arc<Mutex<LimiterState>>);

#[derive(Debug)]
struct LimiterState {
    free: usize,
    flows: FairQueue<oneshot::Sender<WritePermit>>,
    /// Writes of low priority, first come first served.
    low_priority: VecDeque<oneshot::Sender<WritePermit>>,
    /// How often in a row they were passed over.
    passed: u32,
    /// Until when the API server asks to be left alone.
    rest: Option<Instant>,
}

/// Permission for one write while this lives.
#[derive(Debug)]
pub struct WritePermit(Option<WriteLimiter>);

/// Where a write waits.
#[derive(Clone, Debug)]
enum Priority {
    /// In a flow.
    Flow(String),
    /// Behind all flows, where reports wait.
    Low,
}

tokio::task_local! {
    static PRIORITY: (WriteLimiter, Priority);
}

impl Default for WriteLimiter {
    fn default() -> Self {
        Self::new(IN_FLIGHT)
    }
}

impl WriteLimiter {
    /// Allows at most this many writes at the same time.
    pub fn new(in_flight: usize) -> Self {
        let state = LimiterState {
            free: in_flight,
            flows: FairQueue::default(),
            low_priority: VecDeque::new(),
            passed: 0,
            rest: None,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        lock(&self.0)
    }

    /// Makes everything that `work` writes through [`permit`] wait in this flow.
    pub async fn within<T>(&self, flow: &str, work: impl Future<Output = T>) -> T {
        PRIORITY.scope((self.clone(), Priority::Flow(flow.to_owned())), work).await
    }

    /// Runs `work` at low priority: what it writes through [`permit`] waits until no flow does, or for every sixteenth permit.
    pub async fn low_priority<T>(&self, work: impl Future<Output = T>) -> T {
        PRIORITY.scope((self.clone(), Priority::Low), work).await
    }

    /// Waits for a permit.
    async fn permit(&self, of: Priority) -> WritePermit {
        let (granted, permit) = oneshot::channel();
        {
            let mut state = self.state();
            match of {
                Priority::Flow(flow) => state.flows.push(flow, granted),
                Priority::Low => state.low_priority.push_back(granted),
            }
            self.grant(&mut state);
        }
        // A sender is never dropped unused.
        let permit = permit.await.unwrap_or(WritePermit(None));
        while let Some(rest) = self.rest() {
            sleep_until(rest).await;
        }
        permit
    }

    fn grant(&self, state: &mut LimiterState) {
        while state.free > 0
            && let Some(granted) = state.next()
        {
            match granted.send(WritePermit(Some(self.clone()))) {
                Ok(()) => state.free -= 1,
                // The waiter is gone; its permit must not come back here.
                Err(mut permit) => permit.0 = None,
            }
        }
    }

    fn rest(&self) -> Option<Instant> {
        self.state().rest.filter(|rest| *rest > Instant::now())
    }

    /// Pauses all writes for this long.
    pub fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait.min(LONGEST_REST);
        let mut state = self.state();
        state.rest = state.rest.max(Some(until));
    }

    /// This client. The limiter obeys the `Retry-After` of its answers.
    pub fn limit(&self, client: &Client) -> Client {
        let (inner, limiter) = (client.clone(), self.clone());
        let send = move |request: Request<Body>| {
            let (inner, limiter) = (inner.clone(), limiter.clone());
            async move {
                let answer = inner.send(request).await?;
                let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
                let asked = answer.headers().get(RETRY_AFTER).filter(|_| busy.contains(&answer.status()));
                if let Some(seconds) = asked.and_then(|after| after.to_str().ok()?.parse().ok()) {
                    tracing::debug!(seconds, "API server sent Retry-After, pausing writes");
                    limiter.pause(Duration::from_secs(seconds));
                }
                Ok::<_, kube::Error>(answer)
            }
        };
        Client::new(service_fn(send), client.default_namespace())
    }
}

impl LimiterState {
    /// The waiter whose write is next.
    fn next(&mut self) -> Option<oneshot::Sender<WritePermit>> {
        if (self.low_priority.is_empty() || self.passed < LOW_PRIORITY_EVERY - 1)
            && let Some((_, granted)) = self.flows.next(|_| true)
        {
            self.passed = if self.low_priority.is_empty() { 0 } else { self.passed + 1 };
            return Some(granted);
        }
        self.passed = 0;
        self.low_priority.pop_front()
    }
}

/// Waits for a permit, as `within` or `low_priority` says. Outside of both there is no wait.
pub async fn permit() -> Option<WritePermit> {
    let (limiter, own) = PRIORITY.try_with(Clone::clone).ok()?;
    Some(limiter.permit(own).await)
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        if let Some(limiter) = self.0.take() {
            let mut state = limiter.state();
            state.free += 1;
            limiter.grant(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use std::convert::Infallible;

    const WRITE: Duration = Duration::from_millis(10);

    fn flow(name: &str) -> Priority {
        Priority::Flow(name.to_owned())
    }

    /// Makes this many writes at once and returns when the last one was done.
    async fn writes(limiter: WriteLimiter, flow: &'static str, count: usize) -> Instant {
        let one = || async {
            let _permit = permit().await;
            tokio::time::sleep(WRITE).await;
        };
        limiter.within(flow, futures::future::join_all(std::iter::repeat_with(one).take(count))).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn flows_take_turns_whatever_waits_in_them() {
        let limiter = WriteLimiter::new(4);
        let start = Instant::now();
        let large = tokio::spawn(writes(limiter.clone(), "large", 1_000));
        tokio::time::sleep(WRITE / 2).await;
        let small = writes(limiter.clone(), "small", 2).await;
        assert!(small - start < WRITE * 3, "{:?}", small - start);
        let took = large.await.unwrap() - start;
        assert!(took >= WRITE * 250 && took <= WRITE * 252, "four at a time: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn low_priority_writes_wait_but_not_forever() {
        let limiter = WriteLimiter::new(1);
        let start = Instant::now();
        let done = Arc::new(Mutex::new(Vec::new()));
        let write = |name: &'static str| {
            let done = Arc::clone(&done);
            async move {
                let _permit = permit().await;
                tokio::time::sleep(WRITE).await;
                done.lock().unwrap().push(name);
            }
        };
        // Those of low priority come first, and the first of them meets no competition.
        let reports = limiter.low_priority(futures::future::join_all((0..4).map(|_| write("reports"))));
        let work = ["a", "b"].map(|flow| {
            let writes = futures::future::join_all((0..20).map(|_| write(flow)));
            limiter.within(flow, writes)
        });
        tokio::join!(reports, futures::future::join_all(work));
        let done = done.lock().unwrap();
        let reports: Vec<usize> =
            done.iter().enumerate().filter(|(_, name)| **name == "reports").map(|(at, _)| at).collect();
        assert_eq!(reports, [0, 16, 32, 43], "the last when nobody else waits");
        assert_eq!(start.elapsed(), WRITE * 44, "no permit is left unused");
    }

    #[tokio::test(start_paused = true)]
    async fn the_permit_of_a_waiter_that_is_gone_is_not_lost() {
        let limiter = WriteLimiter::new(1);
        let first = limiter.permit(flow("a")).await;
        for priority in [flow("b"), flow("c"), Priority::Low] {
            let waits = tokio::time::timeout(WRITE, limiter.permit(priority)).await;
            assert!(waits.is_err());
        }
        drop(first);
        drop(limiter.permit(flow("d")).await);
        drop(limiter.permit(Priority::Low).await);
        let state = limiter.state();
        assert_eq!((state.free, state.flows.is_empty(), state.low_priority.is_empty()), (1, true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn no_writes_while_the_api_server_sends_retry_after() {
        let limiter = WriteLimiter::new(2);
        let server = service_fn(|_: Request<Body>| async {
            let answer = Response::builder().status(429).header(RETRY_AFTER, "7").body(Body::empty());
            Ok::<_, Infallible>(answer.unwrap())
        });
        let client = limiter.limit(&Client::new(server, "default"));
        client.send(Request::new(Body::empty())).await.unwrap();
        let start = Instant::now();
        drop(limiter.permit(flow("a")).await);
        assert!(start.elapsed() >= Duration::from_secs(7));
        limiter.pause(Duration::from_hours(1));
        let start = Instant::now();
        drop(limiter.permit(flow("a")).await);
        assert!(start.elapsed() <= LONGEST_REST + WRITE);
    }

    #[tokio::test]
    async fn outside_any_flow_there_is_no_wait() {
        assert!(permit().await.is_none());
    }
}
