//! What a watch has shown: every object of a kind as last seen, in the order of namespaces and names.
//!
//! A relist replaces everything at once, when it is complete. What it does not show any more is told
//! as removed, which a watch alone would never do.

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Namespace and name.
type Key = (String, String);

/// By what objects are found besides their names.
pub type Index<K> = fn(&K) -> &str;

/// Objects of one kind. Cheap to clone; all clones show the same.
#[derive(Debug)]
pub struct Store<K>(Arc<RwLock<Shelf<K>>>);

#[derive(Debug)]
struct Shelf<K> {
    objects: BTreeMap<Key, Arc<K>>,
    index: Option<Index<K>>,
    found: BTreeMap<String, BTreeSet<Key>>,
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), index: None, found: BTreeMap::new() }
    }
}

impl<K> Shelf<K> {
    fn insert(&mut self, key: Key, object: Arc<K>) {
        if let Some(index) = self.index {
            self.found.entry(index(&object).to_owned()).or_default().insert(key.clone());
            if let Some(old) = self.objects.get(&key).filter(|old| index(old) != index(&object)).cloned() {
                self.lose(index(&old), &key);
            }
        }
        self.objects.insert(key, object);
    }

    fn remove(&mut self, key: &Key) {
        if let (Some(old), Some(index)) = (self.objects.remove(key), self.index) {
            self.lose(index(&old), key);
        }
    }

    fn lose(&mut self, value: &str, key: &Key) {
        if let Some(keys) = self.found.get_mut(value) {
            keys.remove(key);
            if keys.is_empty() {
                self.found.remove(value);
            }
        }
    }
}

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
        self.shelf().objects.get(&key).cloned()
    }

    /// Every object, by namespace and name.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.shelf().objects.values().cloned().collect()
    }

    /// The objects whose index is this.
    pub fn of(&self, value: &str) -> Vec<Arc<K>> {
        let open = self.shelf();
        let keys = open.found.get(value).into_iter().flatten();
        keys.filter_map(|key| open.objects.get(key).cloned()).collect()
    }

    fn shelf(&self) -> RwLockReadGuard<'_, Shelf<K>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Shelf<K>) -> T) -> T {
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
    pub fn new(index: Option<Index<K>>) -> (Store<K>, Self) {
        let store = Store::default();
        store.change(|shelf| shelf.index = index);
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
                let before = self.store.change(|shelf| {
                    shelf.found.clear();
                    let before = std::mem::take(&mut shelf.objects);
                    for (key, object) in fresh {
                        shelf.insert(key, object);
                    }
                    before
                });
                let known = self.store.state();
                let gone = before.into_iter().filter(|(k, old)| {
                    known.binary_search_by(|new| key(&**new).cmp(k)).is_err() && old.meta().uid.is_some()
                });
                gone.map(|(_, old)| old).chain(shown).collect()
            }
            Event::Apply(object) => {
                let object = Arc::new(object);
                self.store.change(|shelf| shelf.insert(key(&*object), Arc::clone(&object)));
                vec![object]
            }
            Event::Delete(object) => {
                self.store.change(|shelf| shelf.remove(&key(&object)));
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
        let (store, mut writer) = Writer::new(None);
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

    #[test]
    fn what_is_found_by_its_index_is_what_has_it_now() {
        let node = |name: &str, zone: &str| {
            let mut node = node(name);
            node.metadata.generate_name = Some(zone.into());
            node
        };
        let (store, mut writer) =
            Writer::new(Some(|n: &Node| n.metadata.generate_name.as_deref().unwrap_or_default()));
        for event in [
            Event::Init,
            Event::InitApply(node("a", "x")),
            Event::InitApply(node("b", "y")),
            Event::InitDone,
            Event::Apply(node("c", "x")),
        ] {
            writer.take(event);
        }
        assert_eq!(
            (names(&store.of("x")), names(&store.of("y"))),
            (vec!["a".into(), "c".into()], vec!["b".into()])
        );
        writer.take(Event::Apply(node("a", "y")));
        writer.take(Event::Delete(node("c", "x")));
        assert_eq!((names(&store.of("x")), names(&store.of("y"))), (vec![], vec!["a".into(), "b".into()]));
        for event in [Event::Init, Event::InitApply(node("b", "z")), Event::InitDone] {
            writer.take(event);
        }
        assert_eq!((store.of("y").len(), names(&store.of("z"))), (0, vec!["b".to_owned()]));
    }
}
