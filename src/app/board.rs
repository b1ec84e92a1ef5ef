//! The board: a read-only page that shows every gang of this replica, live by server-sent events.
//!
//! Rule: it only reads. The page is one file that loads nothing from elsewhere and inserts names only as text. Its
//! security policy holds even if that failed.

use crate::api::amount::{Money, Sums};
use crate::cluster::lock;
use crate::controllers::Context;
use crate::controllers::board::{BoardContext, BoardEntry, BoardSnapshot};
use crate::gang::{StateName, statechart::diagram};
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use futures::stream::{self, Stream};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The page: markup, style and script in one file.
const PAGE: &str = include_str!("board.html");
/// How often a stream checks for changes.
const TICK: Duration = Duration::from_millis(250);
/// How often an event is sent if nothing changes. The page takes a longer silence for a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The most pages served at the same time. Further ones have to come back later.
const VIEWERS: usize = 32;
/// The most gangs in one message, so that a page of thousands builds up instead of stalling.
const BATCH: usize = 250;

/// `/board` and `/board/events`, fed by the controller.
pub fn router(context: Arc<Context>) -> Router {
    routes(move || context.board_snapshot())
}

/// The routes of [`router`], fed by any source of snapshots.
pub fn routes<S>(snapshot: S) -> Router
where
    S: Fn() -> BoardSnapshot + Clone + Send + Sync + 'static,
{
    let viewers = Arc::new(Semaphore::new(VIEWERS));
    let snapshot = once_a_tick(snapshot);
    let policy = content_security_policy();
    let page = move || {
        let headers = [
            (CONTENT_SECURITY_POLICY, policy.clone()),
            (CACHE_CONTROL, "no-cache".to_owned()),
            (REFERRER_POLICY, "no-referrer".to_owned()),
            (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ];
        async move { (headers, Html(PAGE)) }
    };
    let events = move || {
        let viewer = Arc::clone(&viewers).try_acquire_owned();
        let snapshot = snapshot.clone();
        async move {
            match viewer {
                Ok(viewer) => live(snapshot, viewer),
                Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "too many boards are open\n").into_response(),
            }
        }
    };
    Router::new().route("/board", get(page)).route("/board/events", get(events))
}

/// The same source, asked at most once in each [`TICK`], however many pages are open.
fn once_a_tick<S>(snapshot: S) -> impl Fn() -> BoardSnapshot + Clone + Send + Sync + 'static
where
    S: Fn() -> BoardSnapshot + Clone + Send + Sync + 'static,
{
    let last: Arc<Mutex<Option<(Instant, BoardSnapshot)>>> = Arc::default();
    move || {
        let mut last = lock(&last);
        if let Some((_, known)) = last.as_ref().filter(|(at, _)| at.elapsed() < TICK) {
            return known.clone();
        }
        last.insert((Instant::now(), snapshot())).1.clone()
    }
}

fn live<S>(snapshot: S, viewer: OwnedSemaphorePermit) -> Response
where
    S: Fn() -> BoardSnapshot + Send + 'static,
{
    // A proxy that buffers the response would keep the page empty.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    // An event, because a browser keeps comments from the page.
    let heartbeat =
        KeepAlive::new().interval(HEARTBEAT).event(Event::default().event("heartbeat").data("none"));
    (unbuffered, Sse::new(updates(snapshot, viewer)).keep_alive(heartbeat)).into_response()
}

/// State that one viewer was sent: the revision of the whole and of each gang, and the parts that are small enough to send whole.
#[derive(Default)]
struct Sent {
    /// `None` while more of it is to be sent.
    revision: Option<u64>,
    revisions: BTreeMap<String, u64>,
    around: Option<BoardContext>,
}

/// One message: what changed since the last one.
#[derive(Serialize)]
struct BoardUpdate {
    at: Timestamp,
    gangs: Vec<Arc<BoardEntry>>,
    gone: Vec<String>,
    /// The hourly cost of all gangs, as text, in each currency.
    costs: Vec<String>,
    #[serde(flatten)]
    around: BoardContext,
    /// Whether more follows at once.
    more: bool,
}

impl Sent {
    /// The changes in a snapshot, which then counts as sent; `None` if there are none.
    fn update(&mut self, snapshot: BoardSnapshot) -> Option<BoardUpdate> {
        if self.around.as_ref() == Some(&snapshot.around) && self.revision == Some(snapshot.revision) {
            return None;
        }
        let gone: Vec<String> =
            self.revisions.keys().filter(|gang| !snapshot.gangs.contains_key(*gang)).cloned().collect();
        self.revisions.retain(|gang, _| snapshot.gangs.contains_key(gang));
        let is_new = |(gang, revision): (&String, u64)| self.revisions.get(gang) != Some(&revision);
        let mut changed: Vec<_> =
            snapshot.gangs.iter().filter(|(gang, noted)| is_new((gang, noted.revision))).collect();
        let more = changed.len() > BATCH;
        changed.truncate(BATCH);
        self.revision = (!more).then_some(snapshot.revision);
        self.revisions.extend(changed.iter().map(|(gang, noted)| ((*gang).clone(), noted.revision)));
        let gangs = changed.iter().map(|(_, noted)| Arc::clone(&noted.entry)).collect();
        self.around = Some(snapshot.around.clone());
        let costs = costs(&snapshot);
        Some(BoardUpdate { at: snapshot.at, gangs, gone, costs, around: snapshot.around, more })
    }
}

/// The hourly cost of all gangs of a snapshot, as text, in each currency. Unknown prices are left out.
fn costs(snapshot: &BoardSnapshot) -> Vec<String> {
    let mut sums = Sums::default();
    for entry in snapshot.gangs.values().map(|noted| &noted.entry) {
        if let Some(price) = entry.cost_per_hour {
            sums.add(Money { price, currency: entry.currency });
        }
    }
    sums.iter().map(|sum| sum.to_string()).collect()
}

/// The state of a viewer's stream. Dropping it frees its place.
struct Viewer<S> {
    snapshot: S,
    sent: Sent,
    started: bool,
    at_once: bool,
    _place: OwnedSemaphorePermit,
}

/// The chart first, then everything, then changes.
fn updates<S>(
    snapshot: S,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> + Send
where
    S: Fn() -> BoardSnapshot + Send + 'static,
{
    let viewer = Viewer { snapshot, sent: Sent::default(), started: false, at_once: true, _place: place };
    stream::unfold(viewer, |mut viewer| async move {
        if !viewer.started {
            viewer.started = true;
            return Some((Ok(Event::default().event("chart").data(CHART.as_str())), viewer));
        }
        loop {
            if !viewer.at_once {
                tokio::time::sleep(TICK).await;
            }
            let snapshot = (viewer.snapshot)();
            viewer.at_once = false;
            if let Some(update) = viewer.sent.update(snapshot) {
                viewer.at_once = update.more;
                return Some((Ok(Event::default().event("news").data(json(&update))), viewer));
            }
        }
    })
}

fn json(data: &impl Serialize) -> String {
    // Fails only for maps whose keys are not strings, and there are none.
    serde_json::to_string(data).unwrap_or_default()
}

/// The chart stays the same while the process runs, and drawing it walks every state.
static CHART: LazyLock<String> = LazyLock::new(|| json(&Chart::drawn()));

/// The statechart as the page draws it.
#[derive(Serialize)]
struct Chart {
    states: [StateName; 9],
    edges: Vec<ChartEdge>,
}

#[derive(Serialize)]
struct ChartEdge {
    from: StateName,
    to: StateName,
    reasons: String,
}

impl Chart {
    /// Drawn from the code, like `statecharts/`.
    fn drawn() -> Self {
        let edges = diagram::edges();
        let edge = |((from, to), reasons): (&(StateName, StateName), &_)| ChartEdge {
            from: *from,
            to: *to,
            reasons: diagram::label(reasons),
        };
        Self { states: StateName::ALL, edges: edges.iter().map(edge).collect() }
    }
}

/// Allows only the script and style of the page as released.
fn content_security_policy() -> String {
    let hash = |tag: &str| {
        let inside = PAGE
            .split_once(&format!("<{tag}>"))
            .and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")))
            .map_or("", |(inside, _)| inside);
        base64::engine::general_purpose::STANDARD.encode(Sha256::digest(inside))
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn all_open_pages_share_a_snapshot_in_each_tick() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let snapshot = once_a_tick(move || {
            count.fetch_add(1, Ordering::Relaxed);
            BoardSnapshot::default()
        });
        for ticks in 1..=3 {
            for page in [snapshot.clone(), snapshot.clone()] {
                page();
            }
            assert_eq!(made.load(Ordering::Relaxed), ticks);
            tokio::time::advance(TICK).await;
        }
    }
}
