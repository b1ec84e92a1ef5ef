//! How Karpenter's metrics page is polled, from a page served over HTTP, and how changes affect a gang.

use crate::page::{Served, offer, priced};
use crate::world;
use serde_json::{Value, json};
use setu::app::market::Follower;
use setu::cluster::page::Page;
use setu::names;
use setu::plan::catalogue;
use setu::plan::market::Market;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_clock::Clock;
use setu_sim::api::{Preconditions, User, kinds};
use setu_sim::denials::Denial;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The time between two reads.
const PERIOD: Duration = Duration::from_mins(1);

/// A page with the availability of one offering; an empty page if none is given.
fn page_of(available: Option<u8>) -> String {
    available
        .map(|value| offer("available", ["p5.48xlarge", "spot", "us-east-1a"], value))
        .unwrap_or_default()
}

/// Lets a minute pass, so that the next read is due.
async fn a_minute_passes() {
    tokio::time::pause();
    tokio::time::advance(PERIOD).await;
    tokio::time::resume();
}

#[tokio::test]
async fn the_last_readable_page_stays_in_effect_until_the_next_one() {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let mut cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
    let setu = cluster.start_setu(&Start::default());
    let served = Served::default();
    let page = Page::at(&served.start()).unwrap();
    let stop = CancellationToken::new();
    let mut follower = Follower::new(page, Arc::clone(&setu.context));
    let until = stop.clone();
    let following = tokio::spawn(async move {
        follower.read().await;
        follower.follow(until).await;
    });
    let short = || !setu.context.capacity().shortages.is_empty();
    for (read, available, expected) in
        [(1, None, false), (2, Some(0), true), (3, None, true), (4, Some(1), false)]
    {
        served.says(page_of(available));
        if read > 1 {
            a_minute_passes().await;
        }
        for _ in 0..500 {
            if served.asked.load(Ordering::SeqCst) == read && short() == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A page is applied shortly after its request.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((served.asked.load(Ordering::SeqCst), short()), (read, expected), "{available:?}");
    }
    stop.cancel();
    following.await.unwrap();
}

/// Makes every second EC2 type of the m families except m5 cost a hundred times as much as the others.
fn set_prices(setu: &Setu, nth: usize) {
    let names = catalogue::of("karpenter.k8s.aws").unwrap().names().filter(|name| name.starts_with('m'));
    let of_type = |(place, name): (usize, &str)| {
        let price = if name.starts_with("m5.") || place % 2 == nth { 1 } else { 100 };
        priced([name, "on-demand", "us-east-1a"], price)
    };
    let page: String = names.enumerate().map(of_type).collect();
    setu.context.take_market(Market::read(&page, setu.context.now()).unwrap());
}

/// A Job of two pods without devices that cannot share a node.
fn apart(id: &str) -> Value {
    let mut job = world::job(id, "gang", 2, None);
    let template = &mut job["spec"]["template"];
    let requests = json!({"cpu": "1"});
    template["spec"]["containers"][0]["resources"] = json!({"requests": requests, "limits": requests});
    template["metadata"]["labels"] = json!({"app": "gang"});
    template["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "gang"}}},
    ]}});
    job
}

/// A cluster whose NodePools provide EC2 types of category m, under this policy.
fn of_ec2(id: &str, policy: PolicyFile) -> (SimCluster, User) {
    let (cluster, admin) = world::cluster(id, policy);
    let spec = json!({"spec": {"template": {"spec": {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": id},
        "requirements": [{"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["m"]}],
    }}}});
    for pool in admin.list(&kinds::NODE_POOL) {
        admin.merge(&kinds::NODE_POOL, "", pool["metadata"]["name"].as_str().unwrap(), &spec).unwrap();
    }
    (cluster, admin)
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_completes_an_attempt_with_its_plan_after_a_price_change() {
    const ID: &str = "half";
    let (mut cluster, admin) = of_ec2(ID, PolicyFile::default());
    let setu = cluster.start_setu(&Start::default());
    set_prices(&setu, 0);
    // The second claim is denied, and retried repeatedly.
    cluster.denials.begin(Denial::Webhook);
    admin.create(&kinds::JOB, apart(ID)).unwrap();
    let claims = || admin.list(&kinds::NODE_CLAIM);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(claims().len(), 1, "{:#}", admin.list(&kinds::WORKLOAD)[0]);
    setu.kill();
    let setu = cluster.start_setu(&Start::default());
    set_prices(&setu, 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    cluster.denials.end();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert!(world::is(&admin.list(&kinds::WORKLOAD)[0], "Admitted"), "{:#}", admin.list(&kinds::WORKLOAD)[0]);
    let asked = claims().into_iter().map(|claim| {
        let attempt = claim["metadata"]["labels"][names::ATTEMPT].clone();
        (attempt, claim["spec"]["requirements"].clone())
    });
    let asked: Vec<(Value, Value)> = asked.collect();
    assert_eq!((asked.len(), &asked[0].0), (2, &json!("1")));
    assert_eq!(asked[0], asked[1]);
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_lost_all_nodes_is_replaced_after_a_new_leader_and_a_price_change() {
    const ID: &str = "lost";
    let (mut cluster, admin) = of_ec2(ID, world::policy("defaults: {custody: {onNodeLost: Replace}}"));
    let setu = cluster.start_setu(&Start::default());
    set_prices(&setu, 0);
    admin.create(&kinds::JOB, apart(ID)).unwrap();
    let is_admitted = || world::is(&admin.list(&kinds::WORKLOAD)[0], "Admitted");
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(is_admitted(), "{:#}", admin.list(&kinds::WORKLOAD)[0]);
    let types = || {
        let asked = |claim: &Arc<Value>| claim["spec"]["requirements"].clone();
        admin.list(&kinds::NODE_CLAIM).iter().map(asked).collect::<Vec<_>>()
    };
    let before = types();
    setu.kill();
    for claim in admin.list(&kinds::NODE_CLAIM) {
        let name = claim["metadata"]["name"].as_str().unwrap();
        admin.delete(&kinds::NODE_CLAIM, "", name, Preconditions::default()).unwrap();
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(types().is_empty());
    let setu = cluster.start_setu(&Start::default());
    set_prices(&setu, 1);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(is_admitted(), "{:#}", admin.list(&kinds::WORKLOAD)[0]);
    let after = types();
    assert_eq!(after.len(), 2, "{:#}", admin.list(&kinds::WORKLOAD)[0]);
    assert_ne!(before, after, "other types are the cheapest");
}
