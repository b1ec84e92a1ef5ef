//! Digests of stored objects, by which a change is noticed. They are compared within one process only.

use kube::{Resource, ResourceExt};
use std::hash::{DefaultHasher, Hash};
use std::sync::Arc;

/// Hashes objects whose status does not matter.
pub fn by_generation<K: Resource>(all: impl IntoIterator<Item = Arc<K>>, hasher: &mut DefaultHasher) {
    let mut sorted: Vec<_> = all.into_iter().map(|o| (o.uid(), o.meta().generation)).collect();
    sorted.sort();
    sorted.hash(hasher);
}

/// Hashes objects that have no generation, or whose labels count.
pub fn by_version<K: Resource>(all: impl IntoIterator<Item = Arc<K>>, hasher: &mut DefaultHasher) {
    let version = |o: &Arc<K>| (o.namespace(), o.name_any(), o.resource_version());
    let mut sorted: Vec<_> = all.into_iter().map(|o| version(&o)).collect();
    sorted.sort();
    sorted.hash(hasher);
}

/// Hashes nothing: these objects are part of another digest.
pub fn uncounted<K>(_: impl IntoIterator<Item = Arc<K>>, _: &mut DefaultHasher) {}
