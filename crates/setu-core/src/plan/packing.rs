//! Packs pods into nodes: first-fit-decreasing over all resources at once.
//!
//! Called by `slots` with the room that each kind of node has for pods. Rule: no node exceeds its room in any resource, and every
//! pod is placed exactly once. Identical pods and nodes are handled in one step, so the work grows with the kinds of pods, not
//! with their number.

use crate::api::amount::Price;
use crate::api::pod::ResourceList;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Identical pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// How many.
    pub pods: u32,
    /// The requests of each.
    pub needs: ResourceList,
    /// Most of them that may share a node.
    pub per_node: u32,
    /// Indices of the batches that they may not share a node with.
    pub apart: Vec<usize>,
}

/// A kind of node that may be bought.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeKind {
    /// Its room for these pods, after the system and DaemonSets.
    pub room: ResourceList,
    /// Its hourly price, if known.
    pub price: Option<Price>,
    /// Whether it has accelerators.
    pub has_accelerator: bool,
}

/// Nodes with identical pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Index of the kind.
    pub kind: usize,
    /// How many such nodes.
    pub nodes: u32,
    /// Pods of each batch on each of them.
    pub pods: Vec<u32>,
}

/// A batch whose pod fits no kind of node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Index of the batch.
    pub batch: usize,
}

/// Packs all pods into as few nodes as first-fit-decreasing finds, at the lowest price for that number.
///
/// Each kind is tried as the default kind. The pods are ordered by their largest share of it, and by the sum of their shares. The
/// best result is kept; each node then becomes the cheapest kind that holds its pods.
///
/// # Errors
/// The first batch whose pod fits nowhere.
pub fn pack(batches: &[Batch], kinds: &[NodeKind]) -> Result<Vec<Filled>, Misfit> {
    let (problem, useful) = PackingProblem::new(batches, kinds).without_dominated();
    if let Some(batch) = problem.misfit() {
        return Err(Misfit { batch });
    }
    let mut best: Option<(Score, Vec<Bin>)> = None;
    let mut mains: Vec<(u64, usize)> =
        (0..problem.rooms.len()).map(|kind| (problem.bound(kind), kind)).collect();
    mains.sort_unstable();
    for (bound, main) in mains {
        if best.as_ref().is_some_and(|(least, _)| bound > least.0) {
            break;
        }
        let mut orders =
            [problem.order(main, SizeMeasure::Largest), problem.order(main, SizeMeasure::Sum)].to_vec();
        orders.dedup();
        for order in orders {
            let mut bins = problem.fill(main, &order);
            for bin in &mut bins {
                problem.shrink(bin);
            }
            let score = problem.score(&bins);
            if best.as_ref().is_none_or(|(least, _)| score < *least) {
                best = Some((score, bins));
            }
        }
    }
    let bins = best.map(|(_, bins)| bins).unwrap_or_default();
    let pods = |bin: &Bin| {
        let mut row = vec![0; batches.len()];
        for (batch, pods) in &bin.pods {
            if let Some(there) = row.get_mut(*batch) {
                *there = *pods;
            }
        }
        row
    };
    let kind = |bin: &Bin| useful.get(bin.kind).copied().unwrap_or_default();
    Ok(bins.iter().map(|bin| Filled { kind: kind(bin), nodes: bin.nodes, pods: pods(bin) }).collect())
}

/// Number of nodes and their cost. Lower is better, compared in this order.
type Score = (u64, PackingCost);

/// Nodes without a known price, the price of the others, and the total size. Lower is better, compared in this order.
type PackingCost = [i128; 3];

/// How the size of a pod is measured.
#[derive(Clone, Copy)]
enum SizeMeasure {
    Largest,
    Sum,
}

/// Amounts in billionths, one column for each resource that a pod asks for.
type AmountRow = Vec<i128>;

/// Shares are fractions of this.
const WHOLE: i128 = 1_000_000;

struct PackingProblem {
    needs: Vec<AmountRow>,
    limits: Vec<(u32, u32)>,
    apart: Vec<Vec<usize>>,
    rooms: Vec<AmountRow>,
    costs: Vec<PackingCost>,
    /// Total requests of all pods.
    totals: AmountRow,
}

/// Identical nodes being filled.
#[derive(Clone, Default)]
struct Bin {
    kind: usize,
    nodes: u32,
    free: AmountRow,
    /// Pods of each batch on each node, in the order they were placed.
    pods: Vec<(usize, u32)>,
}

impl Bin {
    fn there(&self, batch: usize) -> u32 {
        self.pods.iter().rev().find(|(of, _)| *of == batch).map_or(0, |(_, pods)| *pods)
    }
}

impl PackingProblem {
    fn new(batches: &[Batch], kinds: &[NodeKind]) -> Self {
        let keys: BTreeSet<&String> = batches.iter().flat_map(|b| b.needs.keys()).collect();
        let row = |list: &ResourceList| -> AmountRow {
            keys.iter().map(|key| super::resources::amount(list, key).nanos()).collect()
        };
        let rooms: Vec<AmountRow> = kinds.iter().map(|k| row(&k.room)).collect();
        let most: AmountRow =
            (0..keys.len()).map(|d| rooms.iter().map(|r| at(r, d)).max().unwrap_or(0)).collect();
        let sizes = rooms.iter().map(|room| shares(room, &most).sum::<i128>());
        let needs: Vec<AmountRow> = batches.iter().map(|b| row(&b.needs)).collect();
        let of_all = |d: usize| needs.iter().zip(batches).map(|(n, b)| at(n, d) * i128::from(b.pods)).sum();
        Self {
            totals: (0..keys.len()).map(of_all).collect(),
            needs,
            limits: batches.iter().map(|b| (b.pods, b.per_node.max(1))).collect(),
            apart: batches.iter().map(|b| b.apart.clone()).collect(),
            costs: kinds.iter().zip(sizes).map(|(kind, size)| cost(kind.price, size)).collect(),
            rooms,
        }
    }

    /// Drops each kind if another has at least its room and costs no more. Also returns the indices of the kinds that are left.
    fn without_dominated(mut self) -> (Self, Vec<usize>) {
        let mut by_cost: Vec<usize> = (0..self.rooms.len()).collect();
        by_cost.sort_by_key(|kind| self.cost(*kind));
        let mut useful: Vec<usize> = Vec::new();
        for kind in by_cost {
            let row = |kind: usize| self.rooms.get(kind).map_or(&[][..], Vec::as_slice);
            let holds_no_more =
                |other: &usize| row(kind).iter().zip(row(*other)).all(|(room, other)| room <= other);
            if !useful.iter().any(holds_no_more) {
                useful.push(kind);
            }
        }
        useful.sort_unstable();
        self.costs = useful.iter().map(|kind| self.cost(*kind)).collect();
        self.rooms = useful.iter().filter_map(|kind| self.rooms.get(*kind).cloned()).collect();
        (self, useful)
    }

    fn misfit(&self) -> Option<usize> {
        let fits_somewhere = |batch: usize| self.rooms.iter().any(|room| self.fit(batch, room, 1) > 0);
        (0..self.needs.len()).find(|batch| self.pods(*batch) > 0 && !fits_somewhere(*batch))
    }

    fn pods(&self, batch: usize) -> u32 {
        self.limits.get(batch).map_or(0, |(pods, _)| *pods)
    }

    /// How many more pods of a batch, at most `wanted`, fit into `free`.
    fn fit(&self, batch: usize, free: &[i128], wanted: u32) -> u32 {
        let needs = self.needs.get(batch).map_or(&[][..], Vec::as_slice);
        if needs.iter().zip(free).any(|(need, free)| need > free) {
            return 0;
        }
        if wanted <= 1 {
            return wanted;
        }
        let by_room =
            needs.iter().zip(free).filter(|(need, _)| **need > 0).map(|(need, free)| free / need).min();
        by_room.map_or(wanted, |n| u32::try_from(n).unwrap_or(u32::MAX).min(wanted))
    }

    /// A lower bound for the nodes needed if all pods ran on this kind.
    fn bound(&self, kind: usize) -> u64 {
        let room = self.rooms.get(kind).map_or(&[][..], Vec::as_slice);
        let nodes = self.totals.iter().zip(room).filter(|(total, _)| **total > 0).map(|(total, room)| {
            if *room > 0 { u64::try_from((total + room - 1) / room).unwrap_or(u64::MAX) } else { u64::MAX }
        });
        nodes.max().unwrap_or(0)
    }

    /// Whether a node has pods that these may not share it with.
    fn keeps_off(&self, batch: usize, bin: &Bin) -> bool {
        let apart = self.apart.get(batch).map_or(&[][..], Vec::as_slice);
        !apart.is_empty() && bin.pods.iter().any(|(there, _)| apart.contains(there))
    }

    fn may_share(&self, batch: usize) -> u32 {
        self.limits.get(batch).map_or(0, |(_, per_node)| *per_node)
    }

    /// The batches, largest pod first.
    fn order(&self, main: usize, measure: SizeMeasure) -> Vec<usize> {
        let room = self.rooms.get(main).map_or(&[][..], Vec::as_slice);
        let size = |batch: &usize| {
            let needs = self.needs.get(*batch).map_or(&[][..], Vec::as_slice);
            match measure {
                SizeMeasure::Largest => shares(needs, room).max().unwrap_or(0),
                SizeMeasure::Sum => shares(needs, room).sum(),
            }
        };
        let mut order: Vec<usize> = (0..self.needs.len()).collect();
        order.sort_by_cached_key(|batch| Reverse(size(batch)));
        order
    }

    fn fill(&self, main: usize, order: &[usize]) -> Vec<Bin> {
        let mut bins: Vec<Bin> = Vec::new();
        for &batch in order {
            let mut left = self.pods(batch);
            let share = self.may_share(batch);
            let mut n = 0;
            while left > 0 && n < bins.len() {
                if let Some(bin) = bins.get_mut(n) {
                    let may = match share {
                        _ if self.keeps_off(batch, bin) => 0,
                        u32::MAX => share,
                        share => share.saturating_sub(bin.there(batch)),
                    };
                    let fit = self.fit(batch, &bin.free, may.min(left));
                    let rest = self.place(batch, bin, fit, &mut left);
                    n += 1;
                    if !rest.is_empty() {
                        bins.splice(n..n, rest);
                    }
                }
            }
            while left > 0
                && let Some(kind) = self.kind_for(batch, main)
            {
                let room = self.rooms.get(kind).cloned().unwrap_or_default();
                let fit = self.fit(batch, &room, share.min(left));
                let mut bin = Bin { kind, nodes: (left / fit.max(1)).max(1), free: room, pods: Vec::new() };
                self.place(batch, &mut bin, fit, &mut left);
                bins.push(bin);
            }
        }
        bins
    }

    /// Puts up to `fit` pods on each of these identical nodes. Nodes that get fewer are split off and returned.
    fn place(&self, batch: usize, bin: &mut Bin, fit: u32, left: &mut u32) -> Vec<Bin> {
        if fit == 0 {
            return Vec::new();
        }
        let full = bin.nodes.min(*left / fit);
        let rest = if full < bin.nodes { *left - full.saturating_mul(fit) } else { 0 };
        *left = left.saturating_sub(full.saturating_mul(fit)).saturating_sub(rest);
        let partly = u32::from(rest > 0);
        let shares = [(full, fit), (partly, rest), (bin.nodes - full - partly, 0)];
        let mut parts = shares.into_iter().filter(|(nodes, _)| *nodes > 0);
        let first = parts.next();
        let others = parts.map(|(nodes, pods)| self.with(batch, bin.clone(), nodes, pods)).collect();
        if let Some((nodes, pods)) = first {
            *bin = self.with(batch, std::mem::take(bin), nodes, pods);
        }
        others
    }

    fn with(&self, batch: usize, mut bin: Bin, nodes: u32, pods: u32) -> Bin {
        bin.nodes = nodes;
        if pods == 0 {
            return bin;
        }
        let needs = self.needs.get(batch).map_or(&[][..], Vec::as_slice);
        for (free, need) in bin.free.iter_mut().zip(needs) {
            *free -= need * i128::from(pods);
        }
        match bin.pods.last_mut() {
            Some((of, there)) if *of == batch => *there += pods,
            _ => bin.pods.push((batch, pods)),
        }
        bin
    }

    /// The kind to open for a batch: the main one, or else the one that holds most of its pods.
    fn kind_for(&self, batch: usize, main: usize) -> Option<usize> {
        let most = self.may_share(batch).min(self.pods(batch));
        let fit = |kind: usize| self.rooms.get(kind).map_or(0, |room| self.fit(batch, room, most));
        if fit(main) > 0 {
            return Some(main);
        }
        (0..self.rooms.len())
            .filter(|kind| fit(*kind) > 0)
            .max_by_key(|kind| (fit(*kind), Reverse(self.cost(*kind))))
    }

    fn cost(&self, kind: usize) -> PackingCost {
        self.costs.get(kind).copied().unwrap_or_default()
    }

    /// Turns nodes into the cheapest kind that holds their pods.
    fn shrink(&self, bin: &mut Bin) {
        let used: AmountRow = (0..bin.free.len())
            .map(|d| self.rooms.get(bin.kind).map_or(0, |room| at(room, d)) - at(&bin.free, d))
            .collect();
        let holds = |kind: &usize| {
            self.rooms.get(*kind).is_some_and(|room| room.iter().zip(&used).all(|(room, used)| room >= used))
        };
        let cheapest = (0..self.rooms.len()).filter(holds).min_by_key(|kind| self.cost(*kind));
        if let Some(kind) = cheapest.filter(|kind| self.cost(*kind) < self.cost(bin.kind)) {
            bin.kind = kind;
            bin.free = (0..used.len())
                .map(|d| self.rooms.get(kind).map_or(0, |room| at(room, d)) - at(&used, d))
                .collect();
        }
    }

    fn score(&self, bins: &[Bin]) -> Score {
        let mut total = PackingCost::default();
        for bin in bins {
            for (sum, each) in total.iter_mut().zip(self.cost(bin.kind)) {
                *sum += each * i128::from(bin.nodes);
            }
        }
        (bins.iter().map(|b| u64::from(b.nodes)).sum(), total)
    }
}

/// The cost of a node. A node without a price ranks after all that have one.
fn cost(price: Option<Price>, size: i128) -> PackingCost {
    [i128::from(price.is_none()), price.map_or(0, |p| i128::from(p.micros)), size]
}

fn at(row: &[i128], column: usize) -> i128 {
    row.get(column).copied().unwrap_or(0)
}

/// The share of each resource, in parts of [`WHOLE`].
fn shares<'a>(part: &'a [i128], whole: &'a [i128]) -> impl Iterator<Item = i128> + 'a {
    part.iter()
        .zip(whole)
        .filter(|(part, _)| **part > 0)
        .map(|(part, whole)| if *whole > 0 { part.saturating_mul(WHOLE) / whole } else { WHOLE })
}
