//! What a watch has shown: every object of a kind as last seen, in the order of namespaces and names.
//!
//! A relist replaces everything at once, when it is complete. What it does not show any more is told
//! as removed, which a watch alone would never do.

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Namespace and name.
type Key = (String, String);

/// Objects of one kind. Cheap to clone; all clones show the same.
#[derive(Debug)]
pub struct Store<K>(Arc<RwLock<BTreeMap<Key, Arc<K>>>>);

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Resource<DynamicType = ()> + Clone> Store<K> {
    /// An object.
    pub fn get(&self, object: &ObjectRef<K>) -> Option<Arc<K>> {
        let key = (object.namespace.clone().unwrap_or_default(), object.name.clone());
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// Every object, by namespace and name.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<Key, Arc<K>>) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Fills a [`Store`] from the events of a watch.
pub struct Writer<K> {
    store: Store<K>,
    /// What a relist has shown so far.
    relist: BTreeMap<Key, Arc<K>>,
}

impl<K: Resource<DynamicType = ()> + Clone> Writer<K> {
    /// A writer of a new store.
    pub fn new() -> (Store<K>, Self) {
        let store = Store::default();
        (store.clone(), Self { store, relist: BTreeMap::new() })
    }

    /// Takes an event in, and returns the objects it added, changed or removed.
    pub fn take(&mut self, event: Event<K>) -> Vec<Arc<K>> {
        match event {
            Event::Init => {
                self.relist.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                self.relist.insert(key(&object), Arc::new(object));
                Vec::new()
            }
            Event::InitDone => {
                let fresh = std::mem::take(&mut self.relist);
                let shown: Vec<Arc<K>> = fresh.values().cloned().collect();
                let before = self.store.change(|all| std::mem::replace(all, fresh));
                let known = self.store.state();
                let gone = before.into_iter().filter(|(k, old)| {
                    known.binary_search_by(|new| key(&**new).cmp(k)).is_err() && old.meta().uid.is_some()
                });
                gone.map(|(_, old)| old).chain(shown).collect()
            }
            Event::Apply(object) => {
                let object = Arc::new(object);
                self.store.change(|all| all.insert(key(&*object), Arc::clone(&object)));
                vec![object]
            }
            Event::Delete(object) => {
                self.store.change(|all| all.remove(&key(&object)));
                vec![Arc::new(object)]
            }
        }
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Node;

    fn node(name: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.into());
        node.metadata.uid = Some(name.into());
        node
    }

    fn names(nodes: &[Arc<Node>]) -> Vec<String> {
        nodes.iter().map(|n| n.name_any()).collect()
    }

    #[test]
    fn a_relist_is_shown_when_it_is_complete_and_tells_what_is_gone() {
        let (store, mut writer) = Writer::new();
        for event in [Event::Init, Event::InitApply(node("a")), Event::InitApply(node("b")), Event::InitDone]
        {
            writer.take(event);
        }
        assert_eq!(names(&store.state()), ["a", "b"]);
        writer.take(Event::Init);
        assert!(writer.take(Event::InitApply(node("b"))).is_empty());
        assert_eq!(names(&store.state()), ["a", "b"], "an unfinished relist is not shown");
        assert_eq!(names(&writer.take(Event::InitDone)), ["a", "b"], "what is gone is told too");
        assert_eq!(names(&store.state()), ["b"]);
    }
}
