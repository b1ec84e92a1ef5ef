//! Follows the API server's time: a client that corrects the clock by the `Date` of every answer.

use http::Request;
use http::header::DATE;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use setu_clock::Clock;
use tower::service_fn;

/// A correction that the administrator should know about.
const WORTH_A_WARNING: SignedDuration = SignedDuration::from_secs(5);

/// This client. Its answers correct the clock.
pub fn timed(client: &Client, clock: &Clock) -> Client {
    let (inner, clock) = (client.clone(), clock.clone());
    let namespace = client.default_namespace().to_owned();
    let send = move |request: Request<Body>| {
        let (inner, clock) = (inner.clone(), clock.clone());
        async move {
            let asked = clock.ask();
            let answer = inner.send(request).await?;
            let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(parsed) {
                let step = clock.adjust(asked, date);
                if step.abs() > WORTH_A_WARNING {
                    tracing::warn!(
                        seconds = step.as_secs(),
                        "this machine's clock disagrees with the API server's, which is followed"
                    );
                }
            }
            Ok::<_, kube::Error>(answer)
        }
    };
    Client::new(service_fn(send), namespace)
}

/// Parses a time in HTTP's format.
fn parsed(date: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::parse(date).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_an_answer_is_read() {
        assert_eq!(parsed("Thu, 01 Jan 2026 00:00:07 GMT"), "2026-01-01T00:00:07Z".parse().ok());
        assert_eq!(parsed("yesterday"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_clock_is_corrected_by_the_first_answer() {
        let true_time: Timestamp = "2026-01-01T00:00:07Z".parse().unwrap();
        let server = service_fn(|_: Request<Body>| async {
            let answer = http::Response::builder().header(DATE, "Thu, 01 Jan 2026 00:00:07 GMT");
            Ok::<_, std::convert::Infallible>(answer.body(Body::empty()).unwrap())
        });
        let clock = Clock::starting_at(true_time).skewed(SignedDuration::from_hours(1));
        let client = timed(&Client::new(server, "default"), &clock);
        client.send(Request::new(Body::empty())).await.unwrap();
        assert!(clock.now().duration_since(true_time).abs() <= SignedDuration::from_secs(1));
    }
}
