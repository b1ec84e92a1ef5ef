//! Publishes Kubernetes Events on the Workload, on its Job if configured, and on AdmissionChecks.
//!
//! Rule: an Event's name follows from its content, so that publishing it again adds nothing. Publishing never waits, and
//! the Events of each Workload are limited.

use crate::api::{ProvisioningRequest, Workload};
use crate::cluster::fair_queue::FairQueue;
use crate::cluster::lock;
use crate::cluster::write_limiter::WriteLimiter;
use crate::digest::digest;
use crate::effects::write;
use crate::gang::report::notice::Notice;
use crate::names;
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::{self, Unpublished};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The API server takes notes of up to 1024 bytes.
const NOTE_LIMIT: usize = 1_000;
/// Characters of the object's name that the name of an Event has; the rest is a digest.
const NAME_LIMIT: usize = 40;
/// The longest replica name that the API server takes.
const INSTANCE_LIMIT: usize = 128;
/// Events that may be sent at the same time.
const IN_FLIGHT: usize = 16;
/// Events that may wait to be sent: a few of each gang when a thousand begin at once.
const QUEUE: usize = 8_192;
/// Events on one Workload in a burst, and the time after which one more is allowed.
const BURST: u32 = 50;
const REFILL: SignedDuration = SignedDuration::from_secs(15);
/// Workloads whose token bucket is kept.
const BUCKETS_KEPT: usize = 4_096;

/// The context of an Event, besides the object.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The AdmissionCheck.
    pub check: &'a str,
    /// Number of the transition after which it happened; 0 if there is none.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
}

/// Publishes Events.
pub struct Publisher {
    client: Client,
    writes: WriteLimiter,
    instance: String,
    on_job: bool,
    queue: Arc<Mutex<EventQueue>>,
    buckets: Mutex<BTreeMap<String, TokenBucket>>,
}

/// Events that wait or are being sent.
#[derive(Debug, Default)]
struct EventQueue {
    /// Waiting Events by LocalQueue, so that one with many gangs does not hold up the Events of others.
    waiting: FairQueue<Event>,
    /// How many wait.
    length: usize,
    /// How many are being sent.
    in_flight: usize,
}

/// How many more Events one Workload may have: a token bucket.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    left: u32,
    since: Timestamp,
}

impl Publisher {
    /// A publisher for this replica.
    pub fn new(client: Client, writes: WriteLimiter, telemetry: &Telemetry) -> Self {
        let instance = if telemetry.instance.is_empty() { names::SETU } else { &telemetry.instance };
        Self {
            client,
            writes,
            instance: instance.chars().take(INSTANCE_LIMIT).collect(),
            on_job: telemetry.events_on_job,
            queue: Arc::default(),
            buckets: Mutex::default(),
        }
    }

    /// Publishes in the background. Events beyond the limit are dropped and counted.
    pub fn publish(&self, workload: &Workload, moment: Moment<'_>, notice: &Notice) {
        let flow = workload.local_queue();
        self.enqueue(flow.clone(), reference_to(workload), moment, notice);
        let origin = standalone_request_of(workload).or_else(|| job_of(workload).filter(|_| self.on_job));
        if let Some(origin) = origin {
            self.enqueue(flow, origin, moment, notice);
        }
    }

    /// Publishes on any object in the background. Events beyond the limit are dropped and counted.
    pub fn publish_on(&self, object: ObjectReference, moment: Moment<'_>, notice: &Notice) {
        self.enqueue(String::new(), object, moment, notice);
    }

    fn enqueue(&self, flow: String, object: ObjectReference, moment: Moment<'_>, notice: &Notice) {
        let uid = object.uid.clone().unwrap_or_default();
        let allowed = self.take_token(&uid, moment.at);
        let mut queue = lock(&self.queue);
        if !allowed || queue.length >= QUEUE {
            metrics::event_unpublished(Unpublished::Limited);
            return;
        }
        queue.waiting.push(flow, event(object, &self.instance, moment, notice));
        queue.length += 1;
        if queue.in_flight < IN_FLIGHT {
            queue.in_flight += 1;
            tokio::spawn(work_off(Arc::clone(&self.queue), self.client.clone(), self.writes.clone()));
        }
    }

    /// Takes a token for an Event on this object; returns whether one was left.
    fn take_token(&self, uid: &str, now: Timestamp) -> bool {
        let mut buckets = lock(&self.buckets);
        if buckets.len() >= BUCKETS_KEPT && !buckets.contains_key(uid) {
            buckets.retain(|_, bucket| bucket.refilled(now).left < BURST);
        }
        let bucket = buckets.entry(uid.to_owned()).or_insert(TokenBucket { left: BURST, since: now });
        *bucket = bucket.refilled(now);
        let Some(left) = bucket.left.checked_sub(1) else { return false };
        bucket.left = left;
        true
    }
}

impl TokenBucket {
    fn refilled(self, now: Timestamp) -> Self {
        let periods = now.duration_since(self.since).as_secs().max(0) / REFILL.as_secs();
        let gained = u32::try_from(periods).unwrap_or(u32::MAX);
        match self.left.saturating_add(gained) {
            left if left >= BURST => Self { left: BURST, since: now },
            left => Self { left, since: self.since + REFILL * i32::try_from(gained).unwrap_or(i32::MAX) },
        }
    }
}

/// Sends waiting Events, one after the other, until none is left.
async fn work_off(all: Arc<Mutex<EventQueue>>, client: Client, writes: WriteLimiter) {
    while let Some(event) = next(&all) {
        let api: Api<Event> =
            Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
        writes.low_priority(send(&api, &event)).await;
    }
}

/// The next waiting Event. Without one, the caller no longer counts as a sender.
fn next(all: &Mutex<EventQueue>) -> Option<Event> {
    let mut queue = lock(all);
    let next = queue.waiting.next(|_| true).map(|(_, event)| event);
    match next {
        Some(_) => queue.length = queue.length.saturating_sub(1),
        None => queue.in_flight = queue.in_flight.saturating_sub(1),
    }
    next
}

async fn send(api: &Api<Event>, event: &Event) {
    let params = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let name = event.name_any();
    match write("publishing Event", &name, api.create(&params, event)).await {
        Ok(_) => {}
        // It was published before.
        Err(error) if error.code() == Some(409) => {}
        Err(error) => {
            metrics::event_unpublished(Unpublished::Failed);
            tracing::debug!(event = name, error = %error.in_full(), "an event was not published");
        }
    }
}

/// The object that a Workload is: itself, or the ProvisioningRequest that is mirrored as one.
fn reference_to(workload: &Workload) -> ObjectReference {
    let object = workload.object_ref(&());
    match workload.request_name() {
        None => object,
        Some(name) => reference_to_request(name, object),
    }
}

/// The standalone ProvisioningRequest that a Workload was created for.
fn standalone_request_of(workload: &Workload) -> Option<ObjectReference> {
    let (name, uid) = workload.standalone_request()?;
    let request = reference_to_request(name, workload.object_ref(&()));
    Some(ObjectReference { uid: Some(uid.to_owned()), ..request })
}

/// The Job that a Workload was made for.
fn job_of(workload: &Workload) -> Option<ObjectReference> {
    let owner = workload.owner_references().iter().find(|o| o.controller == Some(true))?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: workload.namespace(),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}

/// A reference to a ProvisioningRequest in the namespace of this object.
fn reference_to_request(name: &str, object: ObjectReference) -> ObjectReference {
    ObjectReference {
        api_version: Some(ProvisioningRequest::api_version(&()).into_owned()),
        kind: Some(ProvisioningRequest::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        ..object
    }
}

fn event(object: ObjectReference, instance: &str, moment: Moment<'_>, notice: &Notice) -> Event {
    let (name, uid) = (object.name.clone().unwrap_or_default(), object.uid.clone().unwrap_or_default());
    let reported = digest(&[&uid, moment.check, &moment.seq.to_string(), notice.reason, &notice.topic], 16);
    let start: String = name.chars().take(NAME_LIMIT).collect();
    let kind = if notice.warning { "Warning" } else { "Normal" };
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{reported}", start.trim_end_matches(['-', '.']))),
            // The namespace that the API server requires for Events on cluster-scoped objects.
            namespace: Some(object.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        action: Some("Provisioning".to_owned()),
        event_time: Some(MicroTime(moment.at)),
        // kubectl shows only the first line of a note.
        note: Some(cut(&notice.text.replace('\n', " "), NOTE_LIMIT)),
        reason: Some(notice.reason.to_owned()),
        regarding: Some(object),
        reporting_controller: Some(names::CONTROLLER_NAME.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(kind.to_owned()),
        ..Event::default()
    }
}

/// The start of a text, at most this many bytes long.
fn cut(text: &str, bytes: usize) -> String {
    let fits = |at: &mut usize, c: char| {
        *at += c.len_utf8();
        (*at <= bytes).then_some(c)
    };
    text.chars().scan(0, fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::WorkloadSpec;
    use http::{Request, Response};
    use kube::client::Body;

    fn workload(name: &str) -> Workload {
        let mut workload = Workload::new(name, WorkloadSpec::default());
        workload.metadata.namespace = Some("team".into());
        workload.metadata.uid = Some("u".into());
        workload
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn moment(seq: u64, second: i64) -> Moment<'static> {
        Moment { check: "c", seq, at: at(second) }
    }

    fn notice(text: &str) -> Notice {
        Notice { reason: "GangWaiting", topic: String::new(), warning: false, text: text.to_owned() }
    }

    fn made(name: &str, seq: u64, text: &str) -> Event {
        event(workload(name).object_ref(&()), "setu-0", moment(seq, 7), &notice(text))
    }

    #[test]
    fn a_repeated_event_has_the_same_name_and_a_new_one_has_another() {
        let name = |seq, text| made("train", seq, text).name_any();
        assert_eq!(name(3, "1/4 created"), name(3, "2/4 created"));
        assert_ne!(name(3, "x"), name(4, "x"));
        for long in ["x".repeat(253), format!("{}.b", "a-".repeat(100))] {
            let name = made(&long, 1, "x").name_any();
            assert!(name.len() <= 60 && !name.contains("-."), "{name}");
        }
    }

    #[test]
    fn a_long_note_is_cut_to_the_limit() {
        for text in ["a", "\u{10ffff}"] {
            let note = made("w", 1, &text.repeat(5_000)).note.unwrap();
            assert!((990..=NOTE_LIMIT).contains(&note.len()), "{}", note.len());
        }
    }

    #[tokio::test]
    async fn events_of_one_workload_are_limited_and_those_of_others_are_not() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let reported = tokio::spawn(async move {
            let mut reported = 0;
            while let Some((request, answer)) = handle.next_request().await {
                assert_eq!(request.uri().path(), "/apis/events.k8s.io/v1/namespaces/team/events");
                answer
                    .send_response(Response::builder().status(201).body(Body::from(b"{}".to_vec())).unwrap());
                reported += 1;
            }
            reported
        });
        let publisher =
            Publisher::new(Client::new(service, "default"), WriteLimiter::default(), &Telemetry::default());
        for seq in 0..80 {
            publisher.publish(&workload("train"), moment(seq, 0), &notice("x"));
        }
        assert!(publisher.take_token("another", at(0)));
        assert!(!publisher.take_token("u", at(14)));
        assert!(publisher.take_token("u", at(16)) && !publisher.take_token("u", at(16)));
        is_idle(&publisher).await;
        drop(publisher);
        assert_eq!(reported.await.unwrap(), BURST);
    }

    async fn is_idle(publisher: &Publisher) {
        while lock(&publisher.queue).in_flight > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn events_of_many_gangs_are_all_published_and_queues_take_turns() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let publisher =
            Publisher::new(Client::new(service, "default"), WriteLimiter::default(), &Telemetry::default());
        let recorder = metrics::recorder().unwrap();
        ::metrics::with_local_recorder(&recorder, || {
            for gang in 0..1_001 {
                let mut workload = workload(&format!("train-{gang}"));
                workload.metadata.uid = Some(gang.to_string());
                workload.spec.queue_name = if gang < 1_000 { "large" } else { "small" }.to_owned();
                publisher.publish(&workload, moment(1, 0), &notice("x"));
                publisher.publish(&workload, moment(2, 0), &notice("y"));
            }
        });
        assert!(!recorder.handle().render().contains("setu_events_unpublished_total"));
        // No answer comes before all of it waits.
        let answers = tokio::spawn(async move {
            let mut reported = Vec::new();
            while let Some((request, answer)) = handle.next_request().await {
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                reported.push(event["regarding"]["name"].as_str().unwrap().to_owned());
                answer
                    .send_response(Response::builder().status(201).body(Body::from(b"{}".to_vec())).unwrap());
            }
            reported
        });
        is_idle(&publisher).await;
        drop(publisher);
        let reported = answers.await.unwrap();
        assert_eq!(reported.len(), 2_002);
        let last = reported.iter().rposition(|name| name == "train-1000").unwrap();
        assert!(last < 50, "the other queue's Events came as number {last}");
    }

    #[test]
    fn the_job_is_the_controlling_owner_in_the_workloads_namespace() {
        let mut train = workload("train");
        assert_eq!(job_of(&train), None);
        let owner = serde_json::json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": true});
        train.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        let job = job_of(&train).unwrap();
        assert_eq!((job.kind.as_deref(), job.namespace.as_deref()), (Some("Job"), Some("team")));
    }
}
