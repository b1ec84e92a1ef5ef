//! The cost of planning with the whole embedded catalogue: processor time and memory.
//!
//! One test only, so that nothing else runs in its process.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "../benches/pure/world.rs"]
mod world;

use jiff::Timestamp;
use serde_json::json;
use setu::plan::market::Market;
use setu::plan::{Outcome, catalogue};
use std::fmt::Write as _;
use std::fs::read_to_string;
use std::time::Duration;
use world::World;

/// The target for an optimized build.
const OPTIMIZED: Duration = Duration::from_millis(50);
/// How many times slower an unoptimized build may be; 67 ms were measured.
const DEBUG: u32 = 10;
/// The target for resident memory.
const RESIDENT: i64 = 5 * 1024;

/// Processor time of this thread.
fn on_processor() -> Duration {
    let text = read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Memory of this process without the program, in KiB.
fn resident() -> i64 {
    let status = read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A metrics page with size, price and availability of each catalogue type in six zones, on demand and spot.
fn page() -> String {
    let mut page = String::new();
    for name in catalogue::of("karpenter.k8s.aws").unwrap().names() {
        let of = format!("{{instance_type=\"{name}\"}}");
        let all = "karpenter_cloudprovider_instance_type";
        writeln!(page, "{all}_cpu_cores{of} 96\n{all}_memory_bytes{of} 4.12316860416e+11").unwrap();
        for zone in ["a", "b", "c", "d", "e", "f"].map(|zone| format!("us-east-1{zone}")) {
            for kind in ["on-demand", "spot"] {
                let of = format!("{{instance_type=\"{name}\",zone=\"{zone}\",capacity_type=\"{kind}\"}}");
                let all = "karpenter_cloudprovider_instance_type_offering";
                writeln!(page, "{all}_available{of} 1\n{all}_price_estimate{of} 1.5").unwrap();
            }
        }
    }
    page
}

#[test]
fn five_thousand_pods_on_every_type_are_planned_within_the_limits_of_time_and_memory() {
    let before = resident();
    let types = catalogue::of("karpenter.k8s.aws").unwrap().names().count();
    let decoded = resident();
    let others = ["karpenter.azure.com", "karpenter.k8s.gcp"];
    let more: usize = others.iter().map(|group| catalogue::of(group).unwrap().names().count()).sum();
    let others = resident() - decoded;
    let page = page();
    let with_page = resident();
    let market = Market::read(&page, Timestamp::UNIX_EPOCH).unwrap();
    let [catalogue, offerings] = [decoded - before, resident() - with_page];
    assert!(market.prices("m5.large", "spot", |_| true).is_some());

    let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    let any = json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists"}]);
    let world = World::new(5_000, &json!({"cpu": "1500m", "memory": "5Gi"}), &class, &any);
    let once = || {
        let begun = on_processor();
        let made = world.plan();
        let took = on_processor().saturating_sub(begun);
        assert!(matches!(&made, Outcome::Provision(plan) if plan.nodes() < 5_000), "{made:?}");
        took
    };
    let took = (0..3).map(|_| once()).min().unwrap();
    println!(
        "{types} types: the catalogue takes {catalogue} KiB, offerings {offerings} KiB, a plan {took:?}; \
         {more} types of other providers take {others} KiB"
    );
    // A cluster has nodes of one provider only.
    assert!(others < RESIDENT, "{others} KiB");
    assert!(catalogue + offerings < RESIDENT, "{catalogue} and {offerings} KiB");
    let most = OPTIMIZED * if cfg!(debug_assertions) { DEBUG } else { 1 };
    assert!(took < most, "{took:?} of {most:?}");
}
