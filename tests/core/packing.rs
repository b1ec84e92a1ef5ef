//! Tests the packing against its guarantees, an exact solver and the lower bound.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;
use setu::api::pod::ResourceList;
use setu::plan::packing::{Batch, Filled, Misfit, NodeKind, pack};
use setu::plan::resources;
use std::time::Instant;

fn list(pairs: &[(&str, u32)]) -> ResourceList {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), Quantity(v.to_string()))).collect()
}

fn batch(pods: u32, needs: &[(&str, u32)]) -> Batch {
    Batch { pods, needs: list(needs), per_node: u32::MAX, apart: Vec::new() }
}

fn kind(room: &[(&str, u32)], price: Option<u32>) -> NodeKind {
    NodeKind {
        room: list(room),
        price: price.map(|p| p.to_string().parse().unwrap()),
        has_accelerator: false,
    }
}

fn nodes(filled: &[Filled]) -> u32 {
    filled.iter().map(|f| f.nodes).sum()
}

#[test]
fn four_pods_of_one_gpu_share_a_node_of_eight() {
    let filled = pack(&[batch(4, &[("gpu", 1)])], &[kind(&[("gpu", 8)], None)]).unwrap();
    assert_eq!(filled, [Filled { kind: 0, nodes: 1, pods: vec![4] }]);
}

#[test]
fn pods_of_several_sets_share_nodes() {
    let batches = [batch(1, &[("cpu", 2)]), batch(4, &[("cpu", 3)])];
    let filled = pack(&batches, &[kind(&[("cpu", 8)], None)]).unwrap();
    assert_eq!((nodes(&filled), filled[0].pods.clone()), (2, vec![1, 2]));
}

#[test]
fn pods_that_must_not_share_get_a_node_each_and_others_fill_the_rest() {
    let apart = Batch { per_node: 1, ..batch(3, &[("cpu", 1)]) };
    let filled = pack(&[apart, batch(3, &[("cpu", 1)])], &[kind(&[("cpu", 8)], None)]).unwrap();
    assert_eq!(nodes(&filled), 3);
    assert!(filled.iter().all(|f| f.pods[0] == 1));
}

#[test]
fn fewest_nodes_come_first_and_then_the_lowest_price() {
    let kinds = [kind(&[("gpu", 8)], Some(80)), kind(&[("gpu", 8)], Some(60)), kind(&[("gpu", 1)], Some(5))];
    let filled = pack(&[batch(9, &[("gpu", 1)])], &kinds).unwrap();
    assert_eq!(nodes(&filled), 2);
    assert_eq!(filled.iter().map(|f| (f.kind, f.pods[0])).collect::<Vec<_>>(), [(1, 8), (2, 1)]);
}

#[test]
fn an_unpriced_kind_does_not_hide_the_prices_of_the_others() {
    let kinds = [kind(&[("gpu", 8)], Some(80)), kind(&[("gpu", 8)], Some(60)), kind(&[("gpu", 8)], None)];
    let filled = pack(&[batch(8, &[("gpu", 1)])], &kinds).unwrap();
    assert_eq!(filled, [Filled { kind: 1, nodes: 1, pods: vec![8] }]);
}

#[test]
fn batches_that_must_be_apart_share_no_node_and_others_fill_the_rest() {
    let apart = |pods, from: usize| Batch { apart: vec![from], ..batch(pods, &[("cpu", 1)]) };
    let batches = [apart(2, 1), apart(2, 0), batch(4, &[("cpu", 1)])];
    let filled = pack(&batches, &[kind(&[("cpu", 4)], None)]).unwrap();
    assert_eq!(nodes(&filled), 2);
    assert!(filled.iter().all(|f| f.pods[0] == 0 || f.pods[1] == 0), "{filled:?}");
}

#[test]
fn without_prices_the_smallest_sufficient_node_is_chosen() {
    let kinds = [kind(&[("gpu", 8)], None), kind(&[("gpu", 2)], Some(1))];
    let filled = pack(&[batch(2, &[("gpu", 1)])], &kinds).unwrap();
    assert_eq!(filled, [Filled { kind: 1, nodes: 1, pods: vec![2] }]);
}

#[test]
fn a_large_pod_gets_the_only_kind_that_holds_it() {
    let kinds = [kind(&[("cpu", 4)], Some(1)), kind(&[("cpu", 64)], Some(99))];
    let filled = pack(&[batch(1, &[("cpu", 40)]), batch(2, &[("cpu", 30)])], &kinds).unwrap();
    assert_eq!(nodes(&filled), 2);
    assert!(filled.iter().all(|f| f.kind == 1));
}

#[test]
fn a_pod_that_fits_nowhere_is_named() {
    let batches = [batch(1, &[("cpu", 1)]), batch(1, &[("cpu", 1), ("example.com/unknown", 1)])];
    assert_eq!(pack(&batches, &[kind(&[("cpu", 4)], None)]), Err(Misfit { batch: 1 }));
    assert_eq!(pack(&[batch(0, &[("cpu", 9)])], &[kind(&[("cpu", 4)], None)]), Ok(Vec::new()));
}

/// Deterministic random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(sides)).unwrap()
    }
}

/// Random pods in up to four batches with up to three resources. No pod is larger than a node.
fn instance(dice: &mut Dice, most_pods: u32) -> (Vec<Batch>, NodeKind) {
    let resources = 1 + dice.roll(3);
    let names = ["cpu", "memory", "gpu"];
    let room: Vec<(&str, u32)> = (0..resources).map(|r| (names[r as usize], 8 + dice.roll(57))).collect();
    let mut left = 1 + dice.roll(most_pods);
    let mut batches = Vec::new();
    while left > 0 && batches.len() < 4 {
        let pods = 1 + dice.roll(left);
        left -= pods;
        let needs: Vec<(&str, u32)> = room.iter().map(|(name, most)| (*name, 1 + dice.roll(*most))).collect();
        batches.push(batch(pods, &needs));
    }
    (batches, kind(&room, None))
}

fn row(list: &ResourceList) -> Vec<u64> {
    list.values().map(|q| q.0.parse().unwrap()).collect()
}

/// A lower bound from the sum of each resource, and from pods that are too large to share a node.
fn lower_bound(batches: &[Batch], kind: &NodeKind) -> u32 {
    let room = row(&kind.room);
    let by_sum = (0..room.len()).map(|d| {
        let total: u64 = batches.iter().map(|b| u64::from(b.pods) * row(&b.needs)[d]).sum();
        let large: u64 =
            batches.iter().filter(|b| 2 * row(&b.needs)[d] > room[d]).map(|b| u64::from(b.pods)).sum();
        total.div_ceil(room[d]).max(large)
    });
    u32::try_from(by_sum.max().unwrap_or(0)).unwrap()
}

/// The minimum number of nodes, by exhaustive search.
fn exact(batches: &[Batch], kind: &NodeKind, best: u32) -> u32 {
    fn go(pods: &[Vec<u64>], free: &mut Vec<Vec<u64>>, room: &[u64], best: &mut u32) {
        let used = u32::try_from(free.len()).unwrap();
        if used >= *best {
            return;
        }
        let Some((pod, rest)) = pods.split_first() else {
            *best = used;
            return;
        };
        for n in 0..free.len() {
            let seen_before = free[..n].contains(&free[n]);
            if seen_before || free[n].iter().zip(pod).any(|(free, need)| free < need) {
                continue;
            }
            free[n].iter_mut().zip(pod).for_each(|(free, need)| *free -= need);
            go(rest, free, room, best);
            free[n].iter_mut().zip(pod).for_each(|(free, need)| *free += need);
        }
        free.push(room.iter().zip(pod).map(|(room, need)| room - need).collect());
        go(rest, free, room, best);
        free.pop();
    }
    let pods: Vec<Vec<u64>> =
        batches.iter().flat_map(|b| std::iter::repeat_n(row(&b.needs), b.pods as usize)).collect();
    let mut least = best + 1;
    go(&pods, &mut Vec::new(), &row(&kind.room), &mut least);
    least
}

/// Checks that the documented figures match these results.
fn is_documented(words: &str) {
    let document = include_str!("../../docs/performance/controller.md");
    assert!(document.contains(words), "docs/performance/controller.md does not say: {words}");
}

#[test]
fn packing_is_close_to_the_exact_solver_and_the_lower_bound() {
    let mut dice = Dice(7);
    let (mut ours, mut least, mut same) = (0_u32, 0_u32, 0_u32);
    for _ in 0..5_000 {
        let (batches, kind) = instance(&mut dice, 9);
        let found = nodes(&pack(&batches, std::slice::from_ref(&kind)).unwrap());
        let optimum = exact(&batches, &kind, found);
        assert!(optimum <= found);
        (ours, least, same) = (ours + found, least + optimum, same + u32::from(found == optimum));
    }
    let ratio = |a: u32, b: u32| f64::from(a) / f64::from(b);
    println!(
        "small: {ours} nodes of {least} possible, ratio {:.4}; optimal in {same} of 5000",
        ratio(ours, least)
    );
    is_documented(&format!("{:.4} times as many nodes", ratio(ours, least)));
    is_documented(&format!("no more of them in {same} gangs"));
    assert!(ratio(ours, least) < 1.001);
    let (mut ours, mut bound) = (0_u32, 0_u32);
    for _ in 0..5_000 {
        let (batches, kind) = instance(&mut dice, 400);
        ours += nodes(&pack(&batches, std::slice::from_ref(&kind)).unwrap());
        bound += lower_bound(&batches, &kind);
    }
    println!("large: {ours} nodes of at least {bound}, ratio {:.4} to the lower bound", ratio(ours, bound));
    is_documented(&format!("{:.4} times as many as the lower bound", ratio(ours, bound)));
    assert!(ratio(ours, bound) < 1.08);
}

#[test]
fn five_thousand_pods_are_packed_within_fifty_milliseconds() {
    let mut dice = Dice(3);
    let room = [("cpu", 190_000), ("memory", 2_000_000), ("gpu", 8), ("pods", 110)];
    let kinds: Vec<NodeKind> =
        (1..=20).map(|n| kind(&room.map(|(name, most)| (name, most * n / 20 + 1)), Some(n))).collect();
    let different: Vec<Batch> = (0..5_000)
        .map(|_| {
            let needs = [("cpu", 1 + dice.roll(9_000)), ("memory", 1 + dice.roll(90_000)), ("pods", 1)];
            batch(1, &needs)
        })
        .collect();
    let alike = [batch(5_000, &[("cpu", 4_000), ("gpu", 1), ("pods", 1)])];
    let mixed: Vec<Batch> = (0..20)
        .map(|_| batch(250, &[("cpu", 1 + dice.roll(9_000)), ("memory", 1 + dice.roll(90_000)), ("pods", 1)]))
        .collect();
    for (what, batches) in [("alike", &alike[..]), ("of 20 kinds", &mixed), ("all different", &different)] {
        let started = Instant::now();
        let found = nodes(&pack(batches, &kinds).unwrap());
        let took = started.elapsed();
        println!("5000 pods {what}, 20 kinds of nodes: {found} nodes in {took:?}");
        // Unoptimized builds say nothing about real performance.
        assert!(cfg!(debug_assertions) || took.as_millis() < 50, "5000 pods {what} took {took:?}");
        assert!(found < 5_000);
    }
}

fn problems() -> impl Strategy<Value = (Vec<Batch>, Vec<NodeKind>)> {
    let amounts =
        || proptest::collection::btree_map(prop_oneof![Just("a"), Just("b"), Just("c")], 0..9_u32, 1..4);
    let list = |m: std::collections::BTreeMap<&'static str, u32>| {
        m.into_iter().map(|(k, v)| (k.to_owned(), Quantity(v.to_string()))).collect::<ResourceList>()
    };
    let batch = (0..40_u32, amounts(), prop_oneof![Just(u32::MAX), 1..4_u32]).prop_map(
        move |(pods, needs, per_node)| Batch { pods, needs: list(needs), per_node, apart: Vec::new() },
    );
    let kind = (amounts(), proptest::option::of(1..9_u32)).prop_map(move |(room, price)| NodeKind {
        room: list(room),
        price: price.map(|p| p.to_string().parse().unwrap()),
        has_accelerator: false,
    });
    (proptest::collection::vec(batch, 1..6), proptest::collection::vec(kind, 1..5))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pod_is_placed_once_and_no_node_is_over_capacity((batches, kinds) in problems()) {
        match pack(&batches, &kinds) {
            Ok(filled) => {
                for (n, batch) in batches.iter().enumerate() {
                    let placed: u32 = filled.iter().map(|f| f.nodes * f.pods[n]).sum();
                    prop_assert_eq!(placed, batch.pods);
                    prop_assert!(filled.iter().all(|f| f.pods[n] <= batch.per_node));
                }
                for node in &filled {
                    prop_assert!(node.pods.iter().any(|n| *n > 0));
                    let used = batches.iter().zip(&node.pods).fold(ResourceList::new(), |sum, (batch, pods)| {
                        resources::sum(&sum, &resources::times(&batch.needs, *pods))
                    });
                    prop_assert_eq!(resources::shortage(&used, &kinds[node.kind].room), None);
                }
                let pods: u32 = batches.iter().map(|b| b.pods).sum();
                prop_assert!(nodes(&filled) <= pods, "never more nodes than one for each pod");
            }
            Err(Misfit { batch }) => {
                let alone = &batches[batch];
                prop_assert!(alone.pods > 0);
                prop_assert!(kinds.iter().all(|k| resources::first_insufficient(&alone.needs, &k.room).is_some()));
            }
        }
    }
}
