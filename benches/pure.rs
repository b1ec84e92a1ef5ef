//! Times the pure parts with criterion: deciding, planning, packing, and the journal's codec.
//!
//! `cargo bench --bench pure`, with part of a name to select benches.

#![allow(missing_docs, reason = "criterion makes public functions without any")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]

#[path = "pure/world.rs"]
mod world;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;
use setu::api::pod::ResourceList;
use setu::gang::{
    AdmissionId, AdmissionPhase, Ending, Event, Failure, FailureClass, Journal, OptionPosition, Rules, decide,
};
use setu::plan::Outcome;
use setu::plan::packing::{Batch, NodeKind, pack};
use setu::plan::pod_set_labels::PodSetLabels;
use setu::policy::Policy;
use std::hint::black_box;
use world::World;

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// A gang's life with two attempts. The first one fails.
fn life() -> Vec<Event> {
    let planned = |index| Event::Planned {
        slots: 8,
        plan: "0123456789abcdef".into(),
        pinning: setu::api::parameters::Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: OptionPosition { tier: index, index, count: 2 },
    };
    let admission = AdmissionId("1-0-a".into());
    vec![
        Event::Reserved { admission, phase: AdmissionPhase::Reserved },
        planned(0),
        Event::ClaimsExist,
        Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "no capacity left")),
        Event::ClaimsGone,
        Event::WaitOver,
        planned(1),
        Event::ClaimsExist,
        Event::NodesReady,
        Event::Gone(Ending::Finished),
        Event::ClaimsGone,
    ]
}

fn lived(events: &[Event], rules: &[Rules]) -> Journal {
    let new = Journal::new("uid", AdmissionId("1-0-a".into()), start(), None);
    events.iter().zip(rules).fold(new, |journal, (event, rules)| decide(&journal, event, rules).journal)
}

fn deciding(c: &mut Criterion) {
    let events = life();
    let seconds = 0..i64::try_from(events.len()).unwrap();
    let policy = Policy::default();
    let rules: Vec<Rules> =
        seconds.map(|s| Rules::new(&policy, start() + SignedDuration::from_mins(s), 0.5)).collect();
    c.bench_function("decide: a gang's life of 11 events", |b| {
        b.iter(|| lived(black_box(&events), black_box(&rules)));
    });
    let journal = lived(&events, &rules);
    let text = journal.encode();
    println!("the journal of that gang has {} bytes", text.len());
    c.bench_function("journal: encode", |b| b.iter(|| black_box(&journal).encode()));
    c.bench_function("journal: decode", |b| {
        b.iter(|| Journal::decode(black_box(&text), "uid", Timestamp::MIN, start()).expect("it is ours"));
    });
}

fn planning(c: &mut Criterion) {
    let unknown = json!({"group": "g", "kind": "K", "name": "default"});
    for pods in [8, 256] {
        let world = World::new(pods, &json!({"cpu": "4", "nvidia.com/gpu": "1"}), &unknown, &json!([]));
        let made = world.plan();
        assert!(matches!(&made, Outcome::Provision(plan) if plan.nodes() == pods), "{made:?}");
        c.bench_function(&format!("plan: a gang of {pods} nodes"), |b| b.iter(|| world.plan()));
    }
    let ec2 = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    let any = json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists"}]);
    let world = World::new(5_000, &json!({"cpu": "1500m", "memory": "5Gi"}), &ec2, &any);
    let made = world.plan();
    assert!(matches!(&made, Outcome::Provision(plan) if plan.nodes() < 5_000), "{made:?}");
    c.bench_function("plan: 5000 pods on every EC2 type", |b| b.iter(|| world.plan()));
}

fn list(pairs: &[(&str, u32)]) -> ResourceList {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), Quantity(v.to_string()))).collect()
}

fn packing(c: &mut Criterion) {
    let kinds: Vec<NodeKind> = (1..=20_u32)
        .map(|size| NodeKind {
            room: list(&[("cpu", size * 8_000), ("memory", size * 32_000), ("gpu", size % 9), ("pods", 110)]),
            price: Some((size * 3).to_string().parse().unwrap()),
            has_accelerator: false,
        })
        .collect();
    let batch = |pods, cpu, memory, gpu| Batch {
        pods,
        needs: list(&[("cpu", cpu), ("memory", memory), ("gpu", gpu), ("pods", 1)]),
        per_node: u32::MAX,
        apart: Vec::new(),
    };
    let different: Vec<Batch> = (0..5_000_u32)
        .map(|i| batch(1, 500 + i % 4_000, 1_000 + i % 13_000, u32::from(i % 7 == 0)))
        .collect();
    for (what, batches) in [("alike", vec![batch(5_000, 4_000, 9_000, 1)]), ("all different", different)] {
        c.bench_function(&format!("pack: 5000 pods, {what}, on 20 kinds of nodes"), |b| {
            b.iter_batched(|| batches.clone(), |batches| pack(&batches, &kinds), BatchSize::LargeInput);
        });
    }
}

criterion_group!(benches, deciding, planning, packing);
criterion_main!(benches);
