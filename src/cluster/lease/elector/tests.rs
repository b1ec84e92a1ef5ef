//! Elections with paused time, against an API server that knows one Lease.

use super::*;
use crate::cluster::lease::Timing;
use futures::FutureExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

type Answer = Response<UnsyncBoxBody<bytes::Bytes, Infallible>>;

/// An API server with one Lease, and how it behaves.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    watchers: Vec<mpsc::UnboundedSender<Value>>,
    weather: Weather,
    /// Holders in the order in which they came, `-` for none.
    holders: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Weather {
    #[default]
    Fine,
    /// No watch event is sent.
    NoWatch,
    /// No request is answered.
    Silent,
    /// Writes happen, but their answers are lost.
    AnswersLost,
}

#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<Server>>);

impl Cluster {
    fn client(&self) -> Client {
        let cluster = self.clone();
        let serve = move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move { Ok::<_, Infallible>(cluster.serve(request).await) }
        };
        Client::new(tower::service_fn(serve), "default")
    }

    async fn serve(self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let weather = self.0.lock().unwrap().weather;
        if weather == Weather::Silent {
            std::future::pending::<()>().await;
        }
        if parts.uri.query().is_some_and(|q| q.contains("watch=true")) {
            return self.watch(weather);
        }
        let answer = self.answer(&parts.method, parts.uri.path(), &body);
        if weather == Weather::AnswersLost && parts.method != Method::GET {
            std::future::pending::<()>().await;
        }
        answer
    }

    fn watch(&self, weather: Weather) -> Answer {
        let (send, receive) = mpsc::unbounded_channel();
        if weather != Weather::NoWatch {
            self.0.lock().unwrap().watchers.push(send.clone());
        }
        // A watch without events stays open.
        let lines = futures::stream::unfold((receive, send), |(mut receive, send)| async move {
            let event: Value = receive.recv().await?;
            let frame = http_body::Frame::data(format!("{event}\n").into_bytes().into());
            Some((Ok::<_, Infallible>(frame), (receive, send)))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Answer {
        let mut server = self.0.lock().unwrap();
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        let current = server.lease.clone();
        match (method, current) {
            (&Method::GET, current) if path.ends_with("/leases") => {
                let items: Vec<Value> = current.into_iter().collect();
                reply(&json!({"metadata": {"resourceVersion": server.version.to_string()}, "items": items}))
            }
            (&Method::GET, Some(lease)) => reply(&lease),
            (&Method::POST, Some(_)) => failure(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::PUT, Some(old))
                if sent()["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"] =>
            {
                failure(StatusCode::CONFLICT, "Conflict")
            }
            (&Method::POST, None) | (&Method::PUT, Some(_)) => reply(&server.store(sent())),
            _ => failure(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    fn weather(&self, weather: Weather) {
        self.0.lock().unwrap().weather = weather;
    }

    fn holder(&self) -> String {
        self.0.lock().unwrap().holders.last().cloned().unwrap_or_default()
    }

    fn holders(&self) -> Vec<String> {
        self.0.lock().unwrap().holders.clone()
    }

    /// Edits the lease by hand.
    fn edit(&self, holder: &str) {
        let mut server = self.0.lock().unwrap();
        let mut lease = server.lease.clone().unwrap();
        lease["spec"]["holderIdentity"] = json!(holder);
        server.store(lease);
    }

    fn delete(&self) {
        let mut server = self.0.lock().unwrap();
        let lease = server.lease.take().unwrap();
        server.version += 1;
        server.send_event("DELETED", &lease);
    }
}

impl Server {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["uid"] = json!("u");
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or("-").to_owned();
        if self.holders.last() != Some(&holder) {
            self.holders.push(holder);
        }
        self.lease = Some(lease.clone());
        self.send_event("MODIFIED", &lease);
        lease
    }

    fn send_event(&mut self, what: &str, lease: &Value) {
        let mut object = lease.clone();
        object["apiVersion"] = json!("coordination.k8s.io/v1");
        object["kind"] = json!("Lease");
        self.watchers.retain(|w| w.send(json!({"type": what, "object": object})).is_ok());
    }
}

fn reply(value: &Value) -> Answer {
    Response::new(Full::from(value.to_string()).boxed_unsync())
}

fn failure(code: StatusCode, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16(), "message": reason});
    let mut response = reply(&status);
    *response.status_mut() = code;
    response
}

/// A replica's part in the election.
struct Candidate {
    leadership: Leadership,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Candidate {
    fn enter(cluster: &Cluster, identity: &str) -> Self {
        Self::enter_with(cluster, settings(identity, 0.5))
    }

    fn enter_with(cluster: &Cluster, settings: ElectionSettings) -> Self {
        let (electors, shards) = Elector::enter(&cluster.client(), settings, &Clock::wall());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = futures::future::join_all(electors.into_iter().map(move |e| e.run(stopped.clone())));
        let task = tokio::spawn(async move { drop(run.await) });
        Self { leadership: shards.first().clone(), stop, task }
    }
}

fn settings(identity: &str, jitter: f64) -> ElectionSettings {
    ElectionSettings {
        namespace: "n".into(),
        name: "setu".into(),
        shards: 1,
        identity: identity.into(),
        timing: Timing::default(),
        jitter: Box::new(move || jitter),
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How long it takes until `candidate` leads.
async fn until_it_leads(candidate: &mut Candidate) -> Duration {
    let start = Instant::now();
    while !candidate.leadership.leads() {
        candidate.leadership.changed().await.unwrap();
    }
    start.elapsed()
}

/// Two candidates, with `a` as the leader.
async fn two(cluster: &Cluster) -> (Candidate, Candidate) {
    let mut a = Candidate::enter(cluster, "a");
    until_it_leads(&mut a).await;
    let b = Candidate::enter(cluster, "b");
    sleep(seconds(5)).await;
    assert!(a.leadership.leads() && !b.leadership.leads());
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_at_once_and_keeps_leading() {
    let cluster = Cluster::default();
    let mut a = Candidate::enter(&cluster, "a");
    assert!(until_it_leads(&mut a).await < Duration::from_millis(100));
    let b = Candidate::enter(&cluster, "b");
    for _ in 0..600 {
        sleep(seconds(1)).await;
        assert!(a.leadership.leads() && !b.leadership.leads());
    }
    assert_eq!(cluster.holders(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_term_that_lapsed_before_its_renewal_counts_as_won_again() {
    let (electors, shards) = Elector::enter(&Cluster::default().client(), settings("a", 0.5), &Clock::wall());
    let mut leadership = shards.first().clone();
    for (after, won) in [(0, Some(1)), (5, None), (11, Some(2))] {
        sleep(seconds(after)).await;
        electors[0].lead_until(Instant::now() + seconds(10), None);
        assert_eq!(leadership.changed().now_or_never(), won.map(|term| Some(Some(term))), "after {after} s");
        assert_eq!(leadership.acts(), won.is_none(), "a new term has to be begun");
        leadership.begin(won.unwrap_or(1));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_of_a_shard_hands_it_over() {
    let cluster = Cluster::default();
    let settings = ElectionSettings { shards: 3, ..settings("a", 0.5) };
    let (mut electors, _shards) = Elector::enter(&cluster.client(), settings, &Clock::wall());
    let lease = json!({"metadata": {"annotations": {WANTED_BY: "b"}}, "spec": {"holderIdentity": "c"}});
    cluster.0.lock().unwrap().store(lease);
    (0..2).for_each(|shard| electors[0].share.note(shard, Some("a")));
    electors[2].refresh().await;
    electors[2].act().await;
    assert_eq!(cluster.holders(), ["c"], "a has two shards and b has none, but c leads this one");
}

#[tokio::test(start_paused = true)]
async fn one_of_many_candidates_that_start_together_leads() {
    let cluster = Cluster::default();
    let all: Vec<Candidate> = ["a", "b", "c", "d"].map(|i| Candidate::enter(&cluster, i)).into();
    for _ in 0..60 {
        sleep(seconds(1)).await;
        assert_eq!(all.iter().filter(|c| c.leadership.leads()).count(), 1);
    }
    assert_eq!(cluster.holders().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_shuts_down_is_replaced_at_once() {
    let cluster = Cluster::default();
    let (a, mut b) = two(&cluster).await;
    a.stop.cancel();
    assert!(until_it_leads(&mut b).await < Duration::from_millis(100));
    assert!(!a.leadership.leads());
    assert_eq!(cluster.holders(), ["a", "-", "b"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_the_successor_comes_within_two_retries() {
    let cluster = Cluster::default();
    cluster.weather(Weather::NoWatch);
    let (a, mut b) = two(&cluster).await;
    a.stop.cancel();
    assert!(until_it_leads(&mut b).await <= seconds(4));
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_reads_of_candidates_without_a_watch() {
    let mut took = Vec::new();
    for jitter in [0.0, 1.0] {
        let cluster = Cluster::default();
        cluster.weather(Weather::NoWatch);
        let mut a = Candidate::enter(&cluster, "a");
        until_it_leads(&mut a).await;
        let mut b = Candidate::enter_with(&cluster, settings("b", jitter));
        // Between the reads of a candidate that reads every 2 seconds and one that reads every 4.
        sleep(seconds(5)).await;
        a.stop.cancel();
        took.push(until_it_leads(&mut b).await);
    }
    let about = |took: Duration, wanted: u64| took.abs_diff(seconds(wanted)) < Duration::from_millis(200);
    assert!(about(took[0], 1) && about(took[1], 3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_only_after_its_lease_has_lapsed() {
    let cluster = Cluster::default();
    let (a, mut b) = two(&cluster).await;
    a.task.abort();
    let took = until_it_leads(&mut b).await;
    assert!(seconds(12) < took && took < seconds(17), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_api_server_stops_before_another_may_start() {
    let cluster = Cluster::default();
    let (a, b) = two(&cluster).await;
    cluster.weather(Weather::Silent);
    sleep(seconds(10)).await;
    assert!(!a.leadership.leads());
    sleep(seconds(60)).await;
    assert!(!a.leadership.leads() && !b.leadership.leads());
    cluster.weather(Weather::Fine);
    sleep(seconds(12)).await;
    assert_eq!([a, b].iter().filter(|c| c.leadership.leads()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_renewal_does_not_end_the_term_if_the_next_is_answered() {
    let cluster = Cluster::default();
    let (a, b) = two(&cluster).await;
    cluster.weather(Weather::AnswersLost);
    sleep(seconds(4)).await;
    cluster.weather(Weather::Fine);
    for _ in 0..30 {
        sleep(seconds(1)).await;
        assert!(a.leadership.leads() && !b.leadership.leads());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_given_to_a_stranger_by_hand_ends_the_term_and_lapses() {
    let cluster = Cluster::default();
    let (a, b) = two(&cluster).await;
    cluster.edit("somebody");
    sleep(Duration::from_millis(100)).await;
    assert!(!a.leadership.leads());
    sleep(seconds(14)).await;
    assert_eq!(cluster.holder(), "somebody");
    sleep(seconds(3)).await;
    assert_eq!([a, b].iter().filter(|c| c.leadership.leads()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_deleted_by_hand_is_recreated_with_one_leader() {
    let cluster = Cluster::default();
    let (a, b) = two(&cluster).await;
    cluster.delete();
    sleep(seconds(1)).await;
    assert_eq!([&a, &b].iter().filter(|c| c.leadership.leads()).count(), 1);
    assert_eq!(cluster.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn each_change_of_leader_is_counted_in_the_lease() {
    let cluster = Cluster::default();
    let (a, mut b) = two(&cluster).await;
    a.task.abort();
    until_it_leads(&mut b).await;
    let lease = cluster.0.lock().unwrap().lease.clone().unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_up_even_if_a_write_was_cancelled() {
    let cluster = Cluster::default();
    let (a, mut b) = two(&cluster).await;
    cluster.weather(Weather::AnswersLost);
    sleep(seconds(3)).await;
    cluster.weather(Weather::Fine);
    a.stop.cancel();
    assert!(until_it_leads(&mut b).await < Duration::from_millis(300), "a renewal");
    // One that has just taken it and has not got the answer.
    let c = Candidate::enter(&cluster, "c");
    sleep(seconds(5)).await;
    cluster.weather(Weather::AnswersLost);
    cluster.edit("");
    while cluster.holder() != "c" && cluster.holder() != "b" {
        sleep(Duration::from_millis(1)).await;
    }
    cluster.weather(Weather::Fine);
    b.stop.cancel();
    c.stop.cancel();
    sleep(seconds(1)).await;
    assert_eq!(cluster.holder(), "-", "nobody is left");
}
