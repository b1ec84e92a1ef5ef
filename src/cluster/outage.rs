//! Logs an outage of the API server in two lines: when it stops answering, and when it answers again.
//!
//! Rule: the caller logs an unanswered call at debug level. Otherwise an outage of a minute fills the log.

use super::lock;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tower::service_fn;

/// How long calls must go unanswered before that counts as an outage: one broken connection does not.
const GRACE: Duration = Duration::from_secs(3);
/// A call that was given up after this long got no answer. The shortest time limit of a call is five seconds.
const GIVEN_UP: Duration = Duration::from_secs(4);
/// A failure this long after the last one counts as a new one.
const APART: Duration = Duration::from_mins(1);

/// Whether the API server answers. Clones share what they see.
#[derive(Clone, Debug, Default)]
pub struct Outage(Arc<Mutex<Option<Failing>>>);

/// Unanswered calls, with no answered call since.
#[derive(Clone, Copy, Debug)]
struct Failing {
    /// When the first of them was made.
    since: Instant,
    /// When the last of them failed.
    last: Instant,
    is_reported: bool,
}

impl Outage {
    /// This client, with its answers observed.
    pub fn observe(&self, client: &Client) -> Client {
        let (inner, outage) = (client.clone(), self.clone());
        let send = move |request: Request<Body>| {
            let (inner, mut call) = (inner.clone(), Call::of(&outage));
            async move {
                let answer = inner.send(request).await;
                call.ends(answer.as_ref().is_ok_and(|a| is_answer(a.status())));
                answer
            }
        };
        Client::new(service_fn(send), client.default_namespace())
    }

    /// Whether an outage was logged and is not over.
    pub fn is_on(&self) -> bool {
        lock(&self.0).is_some_and(|failing| failing.is_reported)
    }

    fn failed(&self, asked: Instant) {
        let mut known = lock(&self.0);
        let now = Instant::now();
        let failing = known.get_or_insert(Failing { since: asked, last: now, is_reported: false });
        if !failing.is_reported && failing.last + APART < asked {
            failing.since = asked;
        }
        failing.last = now;
        if !failing.is_reported && failing.since.elapsed() >= GRACE {
            failing.is_reported = true;
            tracing::warn!("the API server does not answer; Setu goes on once it does");
        }
    }

    fn answered(&self) {
        let Some(failing) = lock(&self.0).take() else { return };
        if failing.is_reported {
            let seconds = failing.since.elapsed().as_secs();
            tracing::info!(seconds, "the API server answers again");
        }
    }
}

/// Whether the API server itself has answered, and not a proxy in its place.
fn is_answer(status: StatusCode) -> bool {
    let in_its_place =
        [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    !in_its_place.contains(&status)
}

/// One call. Dropped without an answer, it was given up by its caller.
struct Call {
    outage: Outage,
    asked: Instant,
    is_over: bool,
}

impl Call {
    fn of(outage: &Outage) -> Self {
        Self { outage: outage.clone(), asked: Instant::now(), is_over: false }
    }

    fn ends(&mut self, answered: bool) {
        self.is_over = true;
        if answered {
            self.outage.answered();
        } else {
            self.outage.failed(self.asked);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_over && self.asked.elapsed() >= GIVEN_UP {
            self.outage.failed(self.asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A client whose calls fail from the second one to this one, each after this time.
    fn client(outage: &Outage, last: u32, answers_after: Duration) -> Client {
        let calls = AtomicU32::new(0);
        let server = service_fn(move |_: Request<Body>| {
            let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                if (2..=last).contains(&call) {
                    tokio::time::sleep(answers_after).await;
                    return Err(io::Error::other("no route to host"));
                }
                Ok(Response::builder().status(404).body(Body::empty()).unwrap())
            }
        });
        outage.observe(&Client::new(server, "default"))
    }

    /// Whether an outage was on after each of this many calls, one each second, with a limit of five seconds.
    async fn calls(client: &Client, outage: &Outage, count: u32) -> Vec<bool> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let call = client.send(Request::new(Body::empty()));
            let _ = tokio::time::timeout(Duration::from_secs(5), call).await;
            seen.push(outage.is_on());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_after_three_seconds_of_failures_and_ends_with_any_answer() {
        let outage = Outage::default();
        let client = client(&outage, 6, Duration::ZERO);
        let seen = calls(&client, &outage, 7).await;
        assert_eq!(seen, [false, false, false, false, true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_is_no_outage_but_one_unanswered_call_is() {
        let outage = Outage::default();
        let short = client(&outage, 2, Duration::ZERO);
        assert_eq!(calls(&short, &outage, 3).await, [false; 3]);
        let silent = client(&outage, 2, Duration::from_hours(1));
        assert_eq!(calls(&silent, &outage, 3).await, [false, true, false]);
    }
}
