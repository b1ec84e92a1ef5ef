//! The board page: what it serves, what it sends to a viewer, and that a browser shows a gang's progress.
//!
//! Most gangs here are fakes that follow the clock and need no cluster. A browser test also follows a gang of a real
//! controller in the embedded cluster.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

#[path = "gangs/train.rs"]
mod train;

use jiff::{SignedDuration, Timestamp};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use setu::api::Workload;
use setu::api::amount::Price;
use setu::app::board;
use setu::controllers::board::{
    BoardContext, BoardEntry, BoardSnapshot, Holder, LedShards, NumberedEntry, Queued,
};
use setu::gang::ledger::shortage::{ShortageEntry, ShortageSource};
use setu::gang::report::explain::{Explanation, Otherwise, SlotPhase, SlotView};
use setu::gang::{AdmissionId, Failure, FailureClass, Journal, StateName};
use setu::plan::cost::{Cost, times};
use setu::plan::offering::{Offering, What};
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::scenario::{controller_name_of, objects};
use setu_clock::Clock;
use setu_sim::api::kinds;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A tenant's attempt to run code in a viewer's browser.
const HOSTILE: &str =
    "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// A stay in a state: when it began, in seconds after the world began, and why the state was entered.
type Stay = (StateName, i64, &'static str);

/// A fake gang. It is always in the last state whose time has come.
struct Fake {
    workload: &'static str,
    owner: &'static str,
    slots: u32,
    attempt: u32,
    stays: Vec<Stay>,
    /// When the first slot is created, in seconds after the world began, and the length of each phase.
    nodes: Option<(i64, i64)>,
    message: String,
    failure: Option<Failure>,
}

impl Fake {
    fn new(workload: &'static str, owner: &'static str, slots: u32, stays: &[Stay]) -> Self {
        let stays = stays.to_vec();
        Self { workload, owner, slots, attempt: 1, stays, nodes: None, message: String::new(), failure: None }
    }

    /// Adds nodes that come up: the first is created at this second, and each phase takes this many seconds.
    fn nodes(self, first: i64, interval: i64) -> Self {
        Self { nodes: Some((first, interval)), ..self }
    }

    fn attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    fn message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    fn failed(self, class: FailureClass, message: &str) -> Self {
        Self { failure: Some(Failure::new(class, message)), ..self }
    }

    fn slot(&self, slot: u32, world: Timestamp, now: Timestamp) -> Option<SlotView> {
        let (first, interval) = self.nodes?;
        // Later slots are slower, so that the viewer sees the gang fill up.
        let lag = i64::from(slot * 7 % 5);
        let at = |phases: i64| {
            world
                + SignedDuration::from_secs(first + phases * (interval + lag) - lag * i64::from(phases == 0))
        };
        let reached = |phases: i64| Some(at(phases)).filter(|time| *time <= now);
        let phase = match (reached(1), reached(2), reached(3)) {
            (None, ..) => SlotPhase::Launching,
            (_, None, _) => SlotPhase::Registering,
            (_, _, None) => SlotPhase::Initializing,
            _ => SlotPhase::Ready,
        };
        let detail = match phase {
            SlotPhase::Launching => "launch".to_owned(),
            SlotPhase::Registering => "registration".to_owned(),
            SlotPhase::Initializing => "initialization (ResourceNotRegistered nvidia.com/gpu)".to_owned(),
            _ => String::new(),
        };
        Some(SlotView {
            slot,
            attempt: self.attempt,
            phase,
            detail,
            until: (phase != SlotPhase::Ready).then(|| at(0) + SignedDuration::from_mins(8)),
            claim: format!("setu-{}-k3v9q2m1xd-{slot}", self.workload.split_once('/').unwrap().1),
            node_pool: "gpu-h100".into(),
            node: if reached(2).is_some() { format!("ip-10-0-{slot}-17") } else { String::new() },
            instance_type: "p5.48xlarge".into(),
            zone: "eu-central-1b".into(),
            created: Some(at(0)),
            launched: reached(1),
            registered: reached(2),
            initialized: reached(3),
        })
    }

    fn entry(&self, world: Timestamp, now: Timestamp) -> BoardEntry {
        let at = |seconds: i64| world + SignedDuration::from_secs(seconds);
        let come: Vec<&Stay> = self.stays.iter().filter(|stay| at(stay.1) <= now).collect();
        let (state, since, _) = **come.last().unwrap();
        let steps: Vec<_> = (1..)
            .zip(come.windows(2))
            .map(|(seq, pair)| json!({"seq": seq, "from": pair[0].0, "to": pair[1].0, "at": at(pair[1].1).to_string(), "reason": pair[1].2}))
            .collect();
        let mut journal = Journal::new("uid", AdmissionId(self.workload.to_owned()), world, None);
        journal.history = serde_json::from_value(json!(steps)).unwrap();
        let wants = matches!(state, StateName::Provisioning | StateName::WaitingReady | StateName::Approved);
        let nodes: Vec<SlotView> =
            (0..self.slots).filter(|_| wants).filter_map(|slot| self.slot(slot, world, now)).collect();
        let ready = u32::try_from(nodes.iter().filter(|n| n.phase == SlotPhase::Ready).count()).unwrap();
        let lag = nodes.iter().find(|n| n.phase != SlotPhase::Ready);
        let lag = lag.map_or_else(String::new, |n| format!("; slot {} waits for {}", n.slot, n.detail));
        let sentence = match state {
            StateName::WaitingReady => {
                format!("{ready}/{} nodes ready{lag}; attempt {}", self.slots, self.attempt)
            }
            StateName::Approved => format!("all {} nodes are ready", self.slots),
            StateName::Released => "released".to_owned(),
            _ => {
                let next = (at(since) + SignedDuration::from_secs(80)).round(jiff::Unit::Second).unwrap();
                self.message.replace("{next}", &next.to_string())
            }
        };
        let deadline = Otherwise {
            at: at(since) + SignedDuration::from_mins(15),
            what: "gives this attempt up, deletes its nodes and tries again".into(),
        };
        let explanation = Explanation {
            state,
            since: at(since),
            attempt: self.attempt,
            tier: 0,
            tier_name: None,
            slots: self.slots,
            created: u32::try_from(nodes.len()).unwrap(),
            ready,
            sentence,
            next: match state {
                StateName::BackingOff => format!("attempt {} starts", self.attempt + 1),
                StateName::Validating => "the NodeClaims of all nodes are created at once".into(),
                StateName::WaitingReady => {
                    "once all nodes are ready the check becomes Ready, and the pods start".into()
                }
                StateName::Rejected => {
                    "nothing by itself: change the Job, delete it and create it again".into()
                }
                StateName::Approved => "its nodes are given back when the Job has ended".into(),
                StateName::RollingBack => "a short wait with the quota held, then the next attempt".into(),
                StateName::Yielded => {
                    "Kueue reserves quota again when its turn comes; the next attempt starts then".into()
                }
                _ => "nothing, unless quota is reserved again".into(),
            },
            next_at: (state == StateName::BackingOff).then(|| at(since) + SignedDuration::from_secs(80)),
            otherwise: matches!(state, StateName::WaitingReady | StateName::Validating).then_some(deadline),
            unbound_pods: None,
            last_failure: self.failure.clone(),
            nodes,
        };
        let (namespace, name) = self.workload.split_once('/').unwrap();
        let mut workload = Workload::new(
            name,
            setu::api::workload::WorkloadSpec { queue_name: "research".into(), ..Default::default() },
        );
        workload.metadata = ObjectMeta { namespace: Some(namespace.into()), ..workload.metadata };
        let mut entry =
            BoardEntry::new(self.workload, &workload, "karpenter-provision", &journal, explanation);
        self.owner.clone_into(&mut entry.owner);
        let Some(nodes) = Some(self.slots).filter(|slots| wants && *slots > 0) else { return entry };
        let price = times("98.320001".parse().unwrap(), nodes);
        entry.costing(&Cost { at_most: price, priced: nodes, ..Cost::default() })
    }
}

/// The gangs of a busy cluster.
fn gangs() -> Vec<Fake> {
    use StateName::{
        Approved, BackingOff, Provisioning, Rejected, Released, RollingBack, Validating, WaitingReady,
        Yielded,
    };
    let life = |start: i64, ready: i64| {
        [
            (Validating, start, "Reserved"),
            (Provisioning, start + 1, "PlanAccepted"),
            (WaitingReady, start + 3, "AllCreated"),
            (Approved, ready, "AllReady"),
        ]
    };
    let done = |start: i64, end: i64| {
        let mut stays = life(start, start + 60).to_vec();
        stays.extend([(RollingBack, end, "Finished"), (Released, end + 12, "ClaimsGone")]);
        stays
    };
    let shortage = "the provider has no capacity for slot 5 now";
    let missed = [
        (Validating, -190, "Reserved"),
        (Provisioning, -189, "PlanAccepted"),
        (WaitingReady, -186, "AllCreated"),
        (RollingBack, -140, "InsufficientCapacity"),
        (BackingOff, -128, "ClaimsGone"),
    ];
    let again = [
        &missed[..],
        &[
            (Validating, -118, "WaitOver"),
            (Provisioning, -117, "PlanAccepted"),
            (WaitingReady, -114, "AllCreated"),
            (RollingBack, -60, "InsufficientCapacity"),
            (BackingOff, -46, "ClaimsGone"),
        ],
    ]
    .concat();
    vec![
        Fake::new("vision/job-pretrain-vit-4c1d9", "Job/pretrain-vit", 8, &life(-24, 12)).nodes(-22, 7),
        Fake::new("language/jobset-llm-70b-0-99e1f", "JobSet/llm-70b", 64, &life(-31, 900)).nodes(-29, 17),
        Fake::new("genomics/job-align-batch-7-b02aa", "Job/align-batch-7", 4, &life(-9, 900)).nodes(-8, 14),
        Fake::new("language/job-finetune-13b-0d8e2", "Job/finetune-13b", 16, &again).attempt(2)
            .message("next attempt at {next}. Cause: InsufficientCapacity: the provider has no capacity for slot 5 now").failed(FailureClass::InsufficientCapacity, shortage),
        Fake::new("vision/job-segment-sweep-31-77a0c", "Job/segment-sweep-31", 12, &[(Validating, -340, "Reserved")])
            .message("LimitExceeded: NodePool gpu-h100 would hold 36 nodes, and its limit is 32 nodes. Continues automatically once this is fixed"),
        Fake::new("robotics/job-sim-rollouts-5-e1b77", "Job/sim-rollouts-5", 6, &[(Validating, -95, "Reserved"), (Provisioning, -94, "PlanAccepted"), (WaitingReady, -92, "AllCreated"), (RollingBack, -8, "RegistrationTimeout")])
            .message("rolling back attempt 1: 4 NodeClaims left, then tries again. Cause: RegistrationTimeout: slot 3 did not register within 8m")
            .failed(FailureClass::RegistrationTimeout, "slot 3 did not register within 8m"),
        Fake::new("genomics/job-variant-call-3f6d1", "Job/variant-call", 2, &life(-1900, -1830)).nodes(-1898, 20),
        Fake::new("robotics/raycluster-policy-search-5a9c4", "RayCluster/policy-search", 10, &life(-5200, -5120)).nodes(-5190, 21),
        Fake::new("speech/job-asr-eval-1b7e0", "Job/asr-eval", 3, &life(-700, -622)).nodes(-697, 23),
        Fake::new("speech/job-tts-distill-c55d2", "Job/tts-distill", 8, &[(Validating, -900, "Reserved"), (Yielded, -30, "NotPlannable")])
            .message("quota given back; next attempt not before {next}. Cause: NotPlannable: NodePool gpu-spot is not ready").attempt(5),
        Fake::new("adversary/job-hostile-00000", "Job/hostile", 1, &[(Validating, -60, "Reserved"), (Rejected, -58, "Impossible")]).message(HOSTILE),
        Fake::new("genomics/job-index-grch38-9dd10", "Job/index-grch38", 2, &done(-4000, -1200)),
        Fake::new("vision/job-augment-11-60b3e", "Job/augment-11", 4, &done(-7000, -2500)),
    ]
}

/// The source of the board: the fake gangs in their current states. Their world begins when it is read first.
fn source() -> impl Fn() -> BoardSnapshot + Clone + Send + Sync + 'static {
    let world: Arc<OnceLock<Timestamp>> = Arc::default();
    let known: Arc<std::sync::Mutex<(u64, BTreeMap<String, NumberedEntry>)>> = Arc::default();
    move || {
        let now = Timestamp::now();
        let world = *world.get_or_init(|| now);
        let mut known = known.lock().unwrap();
        let (revision, known) = &mut *known;
        for fake in gangs() {
            let entry = fake.entry(world, now);
            let old = known.get(&entry.gang);
            if old.is_none_or(|noted| *noted.entry != entry) {
                *revision += 1;
                known.insert(
                    entry.gang.clone(),
                    NumberedEntry { revision: *revision, entry: Arc::new(entry) },
                );
            }
        }
        let shortages = vec![ShortageEntry {
            offering: Offering {
                what: What::NodePool("gpu-h100-spot".into()),
                machine: String::new(),
                zone: "any".into(),
                capacity_type: "spot".into(),
                domain: String::new(),
            },
            until: world + SignedDuration::from_secs(134),
            source: ShortageSource::Launch,
            turn: Some("language/job-finetune-13b-0d8e2".into()),
        }];
        let (gangs, acting) = (Arc::new(known.clone()), LedShards { shards: 1, of: 1 });
        let queued = vec![Queued::new(
            "vision/main",
            "gpu",
            (1..=7).map(|n| (world - SignedDuration::from_mins(n), format!("job-sweep-{n}"))).collect(),
            &Holder::largest_first([
                ("vision/job-train-1".to_owned(), 1),
                ("vision/job-train-8".to_owned(), 8),
            ]),
        )];
        let around = BoardContext { shortages, queued, acting };
        BoardSnapshot { at: now, revision: *revision, gangs, around }
    }
}

/// Serves the board of the fake gangs. Returns its address.
async fn serve() -> String {
    serve_from(source()).await
}

/// Serves the board of this source. Returns its address.
async fn serve_from(source: impl Fn() -> BoardSnapshot + Clone + Send + Sync + 'static) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, board::routes(source)).await });
    address
}

/// The board of a replica that acts for so many of two shards, and shows so many gangs.
fn board_of(revision: u64, shards: usize, gangs: u64) -> BoardSnapshot {
    let now = Timestamp::now();
    let fake =
        Fake::new("team/job", "Job/job", 1, &[(StateName::Validating, -60, "Reserved")]).entry(now, now);
    let noted = |number| {
        let mut entry = fake.clone();
        entry.gang = format!("team/job-{number:03}");
        entry.workload.clone_from(&entry.gang);
        (entry.gang.clone(), NumberedEntry { revision, entry: Arc::new(entry) })
    };
    let around = BoardContext { acting: LedShards { shards, of: 2 }, ..BoardContext::default() };
    BoardSnapshot { at: now, revision, gangs: Arc::new((0..gangs).map(noted).collect()), around }
}

/// Requests a path and reads the response until it contains all of `words`.
fn read(address: &str, path: &str, words: &[&str]) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    while !words.iter().all(|word| text.contains(word)) {
        text.push_str(&more(&mut stream));
    }
    (stream, text)
}

/// The next part of a response. Panics if the response ends.
fn more(stream: &mut TcpStream) -> String {
    let mut buffer = vec![0; 1 << 18];
    let read = stream.read(&mut buffer).unwrap();
    assert!(read > 0, "the answer ended");
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_may_load_and_run_only_itself() {
    let address = serve().await;
    let (_, text) = read(&address, "/board", &["</html>"]);
    let policy = text.lines().find(|l| l.starts_with("content-security-policy: ")).unwrap();
    for words in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'"] {
        assert!(policy.contains(words), "{policy}");
    }
    let page = text.split_once("\r\n\r\n").unwrap().1;
    for outside in ["src=", "@import", "innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!page.contains(outside), "the page has {outside}");
    }
    let links =
        page.match_indices("http").filter(|(at, _)| !page[*at..].starts_with("http://www.w3.org/2000/svg"));
    assert_eq!(links.count(), 0, "the page names an address");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_gets_everything_once_and_then_only_changes() {
    let address = serve().await;
    let (mut stream, text) =
        read(&address, "/board/events", &["event: chart", "event: news", "gpu-h100-spot"]);
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    let first = text.split("event: news\n").nth(1).unwrap();
    for gang in gangs() {
        assert!(first.contains(gang.workload), "{} is missing", gang.workload);
    }
    let first: Value =
        serde_json::from_str(first.split("data: ").nth(1).unwrap().lines().next().unwrap()).unwrap();
    let entries = first["gangs"].as_array().unwrap();
    let of = |name: &str| entries.iter().find(|entry| entry["gang"] == name).unwrap();
    // Displayed amounts are rounded once: after summing each gang's eight nodes, or all gangs' exact prices.
    assert_eq!(of("vision/job-pretrain-vit-4c1d9")["costPerHour"], "786.560008");
    assert_eq!(of("vision/job-pretrain-vit-4c1d9")["cost"], "786.57 USD");
    let exact = entries.iter().filter_map(|entry| entry["costPerHour"].as_str());
    let sum: u64 = exact.map(|price| price.parse::<Price>().unwrap().micros).sum();
    assert_eq!(first["costs"], json!([format!("{} USD", Price { micros: sum })]));
    // The gang that fills up causes the next message, which does not repeat gangs at rest.
    let second = more(&mut stream);
    assert!(second.contains("event: news"), "{second}");
    assert!(!second.contains("job-hostile"), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_over_the_limit_are_rejected_until_one_leaves() {
    let address = serve().await;
    let mut open = Vec::new();
    for _ in 0..32 {
        open.push(read(&address, "/board/events", &["event: news"]));
    }
    read(&address, "/board/events", &["503 Service Unavailable", "too many boards"]);
    drop(open);
    let mut answer = String::new();
    for _ in 0..200 {
        answer = read(&address, "/board/events", &["HTTP/1.1 "]).1;
        if answer.contains("200 OK") {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no place became free: {answer}");
}

/// Runs the browser part of a test. Calls `go_on` whenever the script says that its page is ready for what comes next.
fn browse(url: &str, more: &[&str], go_on: impl Fn()) {
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/board/browser.py");
    let mut command = Command::new("python3");
    let mut child = command
        .arg(script)
        .arg(url)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if line.unwrap() == "open" {
            go_on();
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Needs `chromium` and `python3`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_follows_a_real_gang_through_its_states() {
    const ID: &str = "board";
    let policy = json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy"});
    let controller = controller_name_of(ID);
    let mut cluster =
        SimCluster::start(7, &Clock::wall(), &controller, serde_json::from_value(policy).unwrap());
    let admin = cluster.server.user("admin");
    for object in objects(ID, 100).unwrap() {
        let kind = kinds::ALL.iter().find(|k| object["kind"] == k.kind).unwrap();
        admin.create(kind, object).unwrap();
    }
    let setu = cluster.start_setu(&Start::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/board", listener.local_addr().unwrap());
    let routes = board::router(Arc::clone(&setu.context));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let mut job = train::job(ID);
    (job["spec"]["parallelism"], job["spec"]["completions"]) = (json!(8), json!(8));
    job["spec"]["template"]["metadata"]["annotations"]["e2e.setu/run-for"] = json!("10h");
    let begin = move || drop(admin.create(&kinds::JOB, job.clone()).unwrap());
    tokio::task::spawn_blocking(move || browse(&url, &["follow"], begin)).await.unwrap();
}

/// Runs a browser part on boards that follow each other, each with its shards and gangs.
async fn browse_boards(part: &'static str, boards: &[(usize, u64)]) {
    let boards: Vec<BoardSnapshot> =
        (1..).zip(boards).map(|(revision, (shards, gangs))| board_of(revision, *shards, *gangs)).collect();
    let shown = Arc::new(AtomicUsize::new(0));
    let source = {
        let shown = Arc::clone(&shown);
        move || boards[shown.load(Ordering::Relaxed)].clone()
    };
    let url = format!("http://{}/board", serve_from(source).await);
    let next = move || {
        shown.fetch_add(1, Ordering::Relaxed);
    };
    tokio::task::spawn_blocking(move || browse(&url, &[part], next)).await.unwrap();
}

/// Needs `chromium` and `python3`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_shows_that_a_replica_is_on_standby() {
    browse_boards("stand-by", &[(0, 0), (2, 0)]).await;
}

/// Needs `chromium` and `python3`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_opens_the_gang_in_the_address_among_many_and_says_why_it_left() {
    browse_boards("leave", &[(2, 500), (1, 0), (2, 0)]).await;
}

/// Runs a browser part on the fake gangs. With `SETU_SCREENSHOTS=FOLDER` it saves screenshots there.
async fn browse_fakes(more: &'static [&'static str]) {
    let address = serve().await;
    let url = format!("http://{address}/board");
    tokio::task::spawn_blocking(move || browse(&url, more, || ())).await.unwrap();
}

/// Needs `chromium` and `python3`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_shows_a_gangs_progress_and_no_error() {
    browse_fakes(&[]).await;
}

/// Needs `chromium`, `python3` and `npm`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn desk_tablet_and_phone_show_a_gang_in_view_without_a_violation() {
    browse_fakes(&["screens"]).await;
}

/// Needs `chromium`, `python3` and `npm`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_tells_connecting_refused_unreachable_and_lost_apart() {
    browse_fakes(&["connection"]).await;
}
