//! The store of a watch: every object of a kind as last seen, in the order of namespaces and names.
//!
//! A relist replaces everything at once, when it is complete. Objects that it no longer shows are reported as removed,
//! which a watch alone would never do.

use super::packed::{Kept, Packer};
use super::recent::Recent;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// This many recently changed objects of a packed kind stay unpacked: changed objects are read most, and are about to
/// change again.
const UNPACKED: usize = 1_024;

/// An object that a store can keep.
pub trait Object: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone {}
impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone> Object for K {}

/// Namespace and name.
type Key = (String, String);

/// How the objects of a kind are kept.
#[derive(Debug)]
pub struct Keeping<K, G> {
    /// The summary of each object, for passes over all of them.
    pub summary: fn(&K) -> G,
    /// The values by which an object is found besides its name, one for each index; empty values are not indexed.
    pub indexes: fn(&G) -> Vec<&str>,
    /// Whether objects are packed, for a kind that comes in thousands. Reading one unpacks it, except for recently
    /// changed ones.
    pub packed: bool,
    /// Whether an object says the same as the one before, for a kind with heartbeats: then only its version is stored, and it is
    /// not reported. `None` reports every version.
    pub is_heartbeat: Option<fn(&K, &mut K) -> bool>,
}

/// Whether two versions of an object differ in nothing else. Leaves both as they are.
pub fn differ_in_version<K: Object + PartialEq>(before: &K, after: &mut K) -> bool {
    let earlier = before.meta().resource_version.clone();
    let version = std::mem::replace(&mut after.meta_mut().resource_version, earlier);
    let is_same = before == after;
    after.meta_mut().resource_version = version;
    is_same
}

impl<K> Default for Keeping<K, ()> {
    fn default() -> Self {
        Self { summary: |_| (), indexes: |()| Vec::new(), packed: false, is_heartbeat: None }
    }
}

/// An object with its summary.
#[derive(Debug)]
pub struct StoreEntry<K, G> {
    summary: Arc<G>,
    uid: Arc<str>,
    kept: Kept<K>,
    /// The version of a packed object since its last heartbeat.
    version: Option<String>,
}

impl<K, G> Clone for StoreEntry<K, G> {
    fn clone(&self) -> Self {
        let (summary, uid) = (Arc::clone(&self.summary), Arc::clone(&self.uid));
        Self { summary, uid, kept: self.kept.clone(), version: self.version.clone() }
    }
}

impl<K, G> Deref for StoreEntry<K, G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.summary
    }
}

impl<K: Object, G> StoreEntry<K, G> {
    fn new((summary, uid): (Arc<G>, Arc<str>), kept: Kept<K>) -> Self {
        Self { summary, uid, kept, version: None }
    }

    /// The whole object.
    pub fn object(&self) -> Option<Arc<K>> {
        let object = self.kept.object()?;
        let Some(version) = &self.version else { return Some(object) };
        let mut object = Arc::unwrap_or_clone(object);
        object.meta_mut().resource_version = Some(version.clone());
        Some(Arc::new(object))
    }
}

/// Objects of one kind. Cheap to clone; all clones share the same data.
#[derive(Debug)]
pub struct Store<K, G = ()>(Arc<RwLock<Shelf<K, G>>>);

#[derive(Debug)]
struct Shelf<K, G> {
    keeping: Keeping<K, G>,
    objects: BTreeMap<Key, StoreEntry<K, G>>,
    /// The objects by their values, for each index.
    found: Vec<BTreeMap<String, BTreeSet<Key>>>,
}

impl<K, G> Shelf<K, G> {
    /// Inserts an entry, and returns the one before. An index changes only where its value does: most changes leave all as they are.
    fn insert(&mut self, key: &Key, object: StoreEntry<K, G>) -> Option<StoreEntry<K, G>> {
        let indexes = self.keeping.indexes;
        let summary = Arc::clone(&object.summary);
        let old = self.objects.insert(key.clone(), object);
        let mut before = old.as_ref().map(|old| indexes(old)).unwrap_or_default().into_iter();
        let values = indexes(&summary);
        self.found.resize_with(values.len(), BTreeMap::new);
        for (found, value) in self.found.iter_mut().zip(values) {
            let last = before.next().unwrap_or_default();
            if last == value {
                continue;
            }
            lose(found, last, key);
            if !value.is_empty() {
                found.entry(value.to_owned()).or_default().insert(key.clone());
            }
        }
        old
    }

    fn remove(&mut self, key: &Key) {
        let Some(old) = self.objects.remove(key) else { return };
        for (found, value) in self.found.iter_mut().zip((self.keeping.indexes)(&old)) {
            lose(found, value, key);
        }
    }

    /// The objects with this value in this index, by namespace and name.
    fn found(&self, index: usize, value: &str) -> Option<&BTreeSet<Key>> {
        self.found.get(index)?.get(value)
    }
}

fn lose(found: &mut BTreeMap<String, BTreeSet<Key>>, value: &str, key: &Key) {
    if let Some(keys) = found.get_mut(value) {
        keys.remove(key);
        if keys.is_empty() {
            found.remove(value);
        }
    }
}

impl<K, G> Clone for Store<K, G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self::new(Keeping::default())
    }
}

impl<K, G> Store<K, G> {
    fn new(keeping: Keeping<K, G>) -> Self {
        Self(Arc::new(RwLock::new(Shelf { keeping, objects: BTreeMap::new(), found: Vec::new() })))
    }

    /// An object's entry.
    pub fn entry(&self, object: &ObjectRef<K>) -> Option<StoreEntry<K, G>>
    where
        K: Resource<DynamicType = ()>,
    {
        let key = (object.namespace.clone().unwrap_or_default(), object.name.clone());
        self.shelf().objects.get(&key).cloned()
    }

    /// Every entry, by namespace and name.
    pub fn entries(&self) -> Vec<StoreEntry<K, G>> {
        self.shelf().objects.values().cloned().collect()
    }

    /// References to the objects whose summary is wanted, by namespace and name.
    pub fn those(&self, is_wanted: impl Fn(&G) -> bool) -> Vec<ObjectRef<K>>
    where
        K: Resource<DynamicType = ()>,
    {
        let open = self.shelf();
        open.objects.iter().filter(|(_, known)| is_wanted(known)).map(|(key, _)| reference(key)).collect()
    }

    /// References to the objects with this value in the index of this number, by namespace and name.
    pub fn those_of(&self, index: usize, value: &str) -> Vec<ObjectRef<K>>
    where
        K: Resource<DynamicType = ()>,
    {
        self.shelf().found(index, value).into_iter().flatten().map(reference).collect()
    }

    /// The entries with this value in the index of this number.
    pub fn entries_of(&self, index: usize, value: &str) -> Vec<StoreEntry<K, G>> {
        let open = self.shelf();
        let keys = open.found(index, value).into_iter().flatten();
        keys.filter_map(|key| open.objects.get(key).cloned()).collect()
    }

    /// How many objects have this value in the index of this number.
    pub fn count_of(&self, index: usize, value: &str) -> usize {
        self.shelf().found(index, value).map_or(0, BTreeSet::len)
    }

    fn shelf(&self) -> RwLockReadGuard<'_, Shelf<K, G>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Shelf<K, G>) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<K: Object, G> Store<K, G> {
    /// An object.
    pub fn get(&self, object: &ObjectRef<K>) -> Option<Arc<K>> {
        self.entry(object)?.object()
    }

    /// Every object, by namespace and name, one after the other. At most one object of a packed kind is unpacked at a
    /// time, besides the recently changed ones.
    pub fn each(&self) -> impl Iterator<Item = Arc<K>> + use<K, G> {
        self.entries().into_iter().filter_map(|kept| kept.object())
    }

    /// Every object at once, by namespace and name.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.each().collect()
    }

    /// The objects with this value in the index of this number.
    pub fn of(&self, index: usize, value: &str) -> Vec<Arc<K>> {
        self.entries_of(index, value).into_iter().filter_map(|kept| kept.object()).collect()
    }

    /// The objects whose names, without namespaces, are wanted.
    pub fn named(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Arc<K>> {
        let open = self.shelf();
        let found = open.objects.iter().filter(|((_, name), _)| is_wanted(name));
        let found: Vec<_> = found.map(|(_, kept)| kept.clone()).collect();
        drop(open);
        found.into_iter().filter_map(|kept| kept.object()).collect()
    }
}

/// A change of an object that a writer reports.
pub enum StoreChange<K: Resource<DynamicType = ()>> {
    /// It was listed, as the store shows it.
    Listed(ObjectRef<K>),
    /// It was added or changed.
    Applied(Arc<K>),
    /// It was removed. This is how it was last.
    Gone(Arc<K>),
}

/// Fills a [`Store`] from the events of a watch.
pub struct Writer<K, G = ()> {
    store: Store<K, G>,
    summary: fn(&K) -> G,
    is_heartbeat: Option<fn(&K, &mut K) -> bool>,
    packer: Option<Packer>,
    /// The objects of a packed kind that are not packed.
    recent: Recent<Key>,
    /// Objects that a relist has shown so far.
    relist: BTreeMap<Key, StoreEntry<K, G>>,
}

impl<K: Object, G> Writer<K, G> {
    /// A writer of a new store.
    pub fn new(keeping: Keeping<K, G>) -> (Store<K, G>, Self) {
        let (summary, packer) = (keeping.summary, keeping.packed.then(Packer::default));
        let is_heartbeat = keeping.is_heartbeat;
        let store = Store::new(keeping);
        let recent = Recent::new(UNPACKED);
        (store.clone(), Self { store, summary, is_heartbeat, packer, recent, relist: BTreeMap::new() })
    }

    /// An object as it was last applied.
    pub fn last(&self, object: &ObjectRef<K>) -> Option<K> {
        self.store.get(object).map(Arc::unwrap_or_clone)
    }

    /// Applies an event, and returns the objects that it added, changed or removed.
    pub fn take(&mut self, event: Event<K>) -> Vec<StoreChange<K>> {
        match event {
            Event::Init => {
                self.relist.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = key(&object);
                let unpacked = self.unpacked(&object);
                let kept = self.packed(Arc::new(object));
                self.relist.insert(key, StoreEntry::new(unpacked, kept));
                Vec::new()
            }
            Event::InitDone => self.listed(),
            Event::Apply(mut object) => {
                let key = key(&object);
                if self.is_heartbeat(&key, &mut object) {
                    self.refresh(&key, object);
                    return Vec::new();
                }
                let object = Arc::new(object);
                let shown = StoreEntry::new(self.unpacked(&object), Kept::Whole(Arc::clone(&object)));
                self.store.change(|shelf| shelf.insert(&key, shown));
                self.pack_another(key);
                vec![StoreChange::Applied(object)]
            }
            Event::Delete(object) => {
                let key = key(&object);
                self.store.change(|shelf| shelf.remove(&key));
                self.recent.forget(&key);
                vec![StoreChange::Gone(Arc::new(object))]
            }
        }
    }

    fn is_heartbeat(&self, key: &Key, object: &mut K) -> bool {
        let Some(is_heartbeat) = self.is_heartbeat else { return false };
        let before = self.store.shelf().objects.get(key).cloned();
        before.and_then(|before| before.object()).is_some_and(|before| is_heartbeat(&before, object))
    }

    /// Stores a heartbeat. A packed object stays packed.
    fn refresh(&self, key: &Key, object: K) {
        self.store.change(|shelf| match shelf.objects.get_mut(key) {
            Some(entry) if matches!(entry.kept, Kept::Whole(_)) => entry.kept = Kept::Whole(Arc::new(object)),
            Some(entry) => entry.version.clone_from(&object.meta().resource_version),
            None => {}
        });
    }

    /// What an entry has of an object besides the object.
    fn unpacked(&self, object: &K) -> (Arc<G>, Arc<str>) {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        (Arc::new((self.summary)(object)), uid.into())
    }

    fn packed(&mut self, object: Arc<K>) -> Kept<K> {
        let packed = self.packer.as_mut().and_then(|packer| packer.pack(&*object));
        packed.map_or(Kept::Whole(object), Kept::Packed)
    }

    /// Records that an object has changed, and packs the one that it pushes out.
    fn pack_another(&mut self, changed: Key) {
        if self.packer.is_none() {
            return;
        }
        let Some(key) = self.recent.name(changed) else { return };
        let shown = self.store.shelf().objects.get(&key).cloned();
        if let Some(StoreEntry { summary, uid, kept: Kept::Whole(object), .. }) = shown {
            let kept = self.packed(object);
            self.store.change(|shelf| shelf.objects.insert(key, StoreEntry::new((summary, uid), kept)));
        }
    }

    /// Shows exactly what was listed.
    fn listed(&mut self) -> Vec<StoreChange<K>> {
        let listed = std::mem::take(&mut self.relist);
        self.recent.clear();
        let shown: Vec<StoreChange<K>> =
            listed.keys().map(|key| StoreChange::Listed(reference(key))).collect();
        let gone = self.store.change(|shelf| {
            shelf.found.iter_mut().for_each(BTreeMap::clear);
            let mut before = std::mem::take(&mut shelf.objects);
            // Another object may have taken the name.
            before.retain(|key, old| listed.get(key).is_none_or(|new| new.uid != old.uid));
            for (key, object) in listed {
                shelf.insert(&key, object);
            }
            before
        });
        let gone = gone.into_values().filter_map(|kept| kept.object()).map(StoreChange::Gone);
        gone.chain(shown).collect()
    }
}

fn reference<K: Resource<DynamicType = ()>>((namespace, name): &Key) -> ObjectRef<K> {
    let object = ObjectRef::new(name);
    if namespace.is_empty() { object } else { object.within(namespace) }
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

    fn first_letter(zone: &str) -> &str {
        zone.get(..1).unwrap_or_default()
    }

    fn described(changes: &[StoreChange<Node>]) -> Vec<String> {
        let name = |change: &StoreChange<Node>| match change {
            StoreChange::Listed(node) => format!("listed {}", node.name),
            StoreChange::Applied(node) | StoreChange::Gone(node) => node.name_any(),
        };
        changes.iter().map(name).collect()
    }

    #[test]
    fn a_relist_is_shown_when_complete_and_reports_what_is_gone() {
        let (store, mut writer) = Writer::new(Keeping::default());
        for event in [Event::Init, Event::InitApply(node("a")), Event::InitApply(node("b")), Event::InitDone]
        {
            writer.take(event);
        }
        assert_eq!(names(&store.state()), ["a", "b"]);
        writer.take(Event::Init);
        assert!(writer.take(Event::InitApply(node("b"))).is_empty());
        assert_eq!(names(&store.state()), ["a", "b"], "an unfinished relist is not shown");
        assert_eq!(described(&writer.take(Event::InitDone)), ["a", "listed b"], "deletions are reported too");
        assert_eq!(names(&store.state()), ["b"]);
    }

    #[test]
    fn a_relist_reports_what_is_gone_even_if_another_object_has_its_name() {
        let of = |uid: &str| {
            let mut node = node("a");
            node.metadata.uid = Some(uid.to_owned());
            node
        };
        for packed in [false, true] {
            let (store, mut writer) = Writer::new(Keeping { packed, ..Keeping::default() });
            let relist = |writer: &mut Writer<Node>, uid| {
                let events = [Event::Init, Event::InitApply(of(uid)), Event::InitDone];
                events.into_iter().flat_map(|event| writer.take(event)).collect::<Vec<_>>()
            };
            assert_eq!(described(&relist(&mut writer, "first")), ["listed a"]);
            assert_eq!(described(&relist(&mut writer, "first")), ["listed a"]);
            let changes = relist(&mut writer, "second");
            assert_eq!(described(&changes), ["a", "listed a"]);
            assert!(matches!(&changes[0], StoreChange::Gone(gone) if **gone == of("first")));
            assert_eq!(*store.state()[0], of("second"));
        }
    }

    #[test]
    fn an_index_finds_the_objects_that_have_the_value_now() {
        let node = |name: &str, zone: &str| {
            let mut node = node(name);
            node.metadata.generate_name = Some(zone.into());
            node
        };
        for packed in [false, true] {
            let zone = |n: &Node| n.metadata.generate_name.clone().unwrap_or_default();
            let (store, mut writer) = Writer::new(Keeping {
                summary: zone,
                indexes: |zone| vec![zone, first_letter(zone)],
                packed,
                is_heartbeat: None,
            });
            for event in [
                Event::Init,
                Event::InitApply(node("a", "x")),
                Event::InitApply(node("b", "y")),
                Event::InitDone,
                Event::Apply(node("c", "x")),
            ] {
                writer.take(event);
            }
            let found = |zone| names(&store.of(0, zone));
            assert_eq!((found("x"), found("y")), (vec!["a".into(), "c".into()], vec!["b".into()]));
            let those: Vec<String> = store.those_of(0, "x").into_iter().map(|object| object.name).collect();
            assert_eq!(those, found("x"));
            assert_eq!((store.count_of(0, "x"), store.count_of(0, "z")), (2, 0));
            assert_eq!(names(&store.named(|name| name > "a")), ["b", "c"]);
            assert_eq!((store.count_of(1, "x"), store.count_of(2, "x")), (2, 0), "there is no third index");
            let entries = store.entries();
            assert_eq!(entries.iter().map(|g| g.as_str()).collect::<Vec<_>>(), ["x", "y", "x"]);
            writer.take(Event::Apply(node("a", "y")));
            writer.take(Event::Delete(node("c", "x")));
            assert_eq!((found("x"), found("y")), (vec![], vec!["a".into(), "b".into()]));
            for event in [Event::Init, Event::InitApply(node("b", "z")), Event::InitDone] {
                writer.take(event);
            }
            assert_eq!((store.of(0, "y").len(), found("z")), (0, vec!["b".to_owned()]));
        }
    }

    #[test]
    fn recently_changed_objects_of_a_packed_kind_are_not_packed() {
        let keeping = Keeping { indexes: |()| vec!["all"], packed: true, ..Keeping::default() };
        let (store, mut writer) = Writer::new(keeping);
        for event in [Event::Init, Event::InitApply(node("listed")), Event::InitDone] {
            writer.take(event);
        }
        let names: Vec<String> = (0..UNPACKED + 2).map(|number| format!("n{number:05}")).collect();
        for name in &names {
            writer.take(Event::Apply(node(name)));
        }
        // It is named again, so others are pushed out before it.
        writer.take(Event::Apply(node(&names[2])));
        writer.take(Event::Apply(node("another")));
        let is_packed = |name: &str| {
            let entry = store.entry(&ObjectRef::new(name)).unwrap();
            assert_eq!(entry.object().unwrap().name_any(), name);
            matches!(entry.kept, Kept::Packed(_))
        };
        let packed: Vec<_> = store.each().map(|n| n.name_any()).filter(|name| is_packed(name)).collect();
        assert_eq!(packed, ["listed", &names[0], &names[1], &names[3]]);
        assert_eq!(store.of(0, "all").len(), names.len() + 2);
        writer.take(Event::Delete(node("another")));
        writer.take(Event::Apply(node("one more")));
        assert!(!is_packed(&names[4]), "what is gone has made room");
    }

    #[test]
    fn a_heartbeat_is_stored_but_not_reported() {
        let at = |version: &str, zone: &str| {
            let mut node = node("a");
            node.metadata.resource_version = Some(version.to_owned());
            node.metadata.generate_name = Some(zone.to_owned());
            node
        };
        for packed in [false, true] {
            let keeping = Keeping { packed, is_heartbeat: Some(differ_in_version), ..Keeping::default() };
            let (store, mut writer) = Writer::new(keeping);
            for event in [Event::Init, Event::InitApply(at("1", "x")), Event::InitDone] {
                writer.take(event);
            }
            for version in ["2", "3"] {
                assert!(writer.take(Event::Apply(at(version, "x"))).is_empty());
                assert_eq!(*store.state()[0], at(version, "x"));
            }
            let entry = store.entry(&ObjectRef::new("a")).unwrap();
            assert_eq!(matches!(entry.kept, Kept::Packed(_)), packed, "a heartbeat does not unpack it");
            assert_eq!(described(&writer.take(Event::Apply(at("4", "y")))), ["a"]);
            assert_eq!(*store.state()[0], at("4", "y"));
            assert_eq!(described(&writer.take(Event::Delete(at("4", "y")))), ["a"]);
            assert_eq!(described(&writer.take(Event::Apply(at("5", "y")))), ["a"]);
        }
    }
}
