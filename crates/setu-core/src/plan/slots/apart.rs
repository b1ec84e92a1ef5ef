//! Keeps pods without accelerators off accelerator nodes, if other nodes hold them.

use super::{Batch, Filled, Misfit, NodeKind, pack, resources};
use crate::api::pod::ResourceList;
use crate::plan::shape::Shape;
use std::sync::Arc;

/// Packs all pods. Pods without accelerators go to nodes without accelerators where such nodes hold them.
///
/// # Errors
/// The first batch whose pod fits nowhere.
pub fn spread(batches: &[Batch], kinds: &[NodeKind]) -> Result<Vec<Filled>, Misfit> {
    let all = || kinds.iter().enumerate();
    let (indices, plain): (Vec<usize>, Vec<NodeKind>) =
        all().filter(|(_, kind)| !kind.has_accelerator).map(|(index, kind)| (index, kind.clone())).unzip();
    let goes_there = |batch: &Batch| !resources::has_accelerator(&batch.needs) && any_holds(&plain, batch);
    let mut filled = pack(&these(batches, |batch| !goes_there(batch)), kinds)?;
    let more = pack(&these(batches, goes_there), &plain)?;
    filled
        .extend(more.into_iter().filter_map(|node| Some(Filled { kind: *indices.get(node.kind)?, ..node })));
    Ok(filled)
}

/// Whether a node of one of these kinds holds a pod of this batch.
pub fn any_holds(kinds: &[NodeKind], batch: &Batch) -> bool {
    kinds.iter().any(|kind| resources::first_insufficient(&batch.needs, &kind.room).is_none())
}

/// A copy of the batches. Those that `is_meant` rejects have no pods.
pub fn these(batches: &[Batch], is_meant: impl Fn(&Batch) -> bool) -> Vec<Batch> {
    let pods = |batch: &Batch| if is_meant(batch) { batch.pods } else { 0 };
    batches.iter().map(|batch| Batch { pods: pods(batch), ..batch.clone() }).collect()
}

/// The names of the types that hold this. If it asks for no accelerators, only types without them, if there are any.
pub fn fitting(content: &ResourceList, holding: Vec<&Arc<Shape>>) -> Vec<String> {
    let is_plain = |shape: &&Arc<Shape>| !shape.has_accelerator();
    let any_plain = !resources::has_accelerator(content) && holding.iter().any(is_plain);
    let left = holding.into_iter().filter(|shape| !any_plain || is_plain(shape));
    left.map(|shape| shape.instance_type.clone()).collect()
}
