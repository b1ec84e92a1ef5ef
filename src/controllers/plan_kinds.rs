//! Watches of the kinds that plans are made from, reads of them past the caches, and what their changes may clear. The kinds are
//! listed in `plan/kinds` of the core.

use super::digests::{by_generation, by_version, uncounted};
use crate::api::{ClusterQueue, NodePool};
use crate::cluster::decoded::Decoded;
use crate::cluster::store::{Object, Store};
use crate::cluster::watch::{FirstLists, Touched, watch};
use crate::effects::call;
use crate::error::Error;
use crate::plan::{PlanChange, PlanObjects};
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::DefaultHasher;
use std::sync::Arc;

/// Acts on changes of what plans are made from.
pub trait OnPlanChange {
    /// Acts on those changes of a kind that matter: `change` says what they may clear.
    fn on_change<K: Object + Send + Sync + 'static>(
        &mut self,
        touched: Touched<K>,
        change: impl FnMut(&K) -> Option<PlanChange> + Send + 'static,
    );
}

macro_rules! plan_stores {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal, $limitation:expr, $change:ident, $counted:ident;)+) => {
        /// The objects that their watches show.
        #[derive(Clone)]
        pub struct PlanStores {
            $(#[doc = concat!($plural, ".")] pub $field: Store<$kind>,)+
        }

        impl PlanStores {
            /// Starts a watch of each kind; nothing is reconciled before each was listed.
            pub fn watch(client: &Client, lists: &FirstLists, act: &mut impl OnPlanChange) -> Self {
                let all = Config::default;
                $(
                    let $field = watch::<$kind>($resource, Api::all(client.clone()), all(), Some(lists));
                    act.on_change($field.touched, $change($field.store.clone()));
                )+
                Self { $($field: $field.store),+ }
            }

            /// The objects that the caches show.
            pub fn objects(&self) -> PlanObjects {
                PlanObjects { $($field: self.$field.state()),+ }
            }

            /// Hashes what may end a refusal if it changes.
            pub fn hash_into(&self, hasher: &mut DefaultHasher) {
                $($counted(self.$field.state(), hasher);)+
            }
        }

        /// Reads all of them past the caches.
        ///
        /// # Errors
        /// The first read that failed.
        pub(super) async fn read_all(client: &Client) -> Result<Arc<PlanObjects>, Error> {
            let ($($field),+) =
                tokio::try_join!($(all(concat!("listing ", $plural), Api::all(client.clone()))),+)?;
            Ok(Arc::new(PlanObjects { $($field),+ }))
        }

        #[cfg(test)]
        fn resources() -> Vec<(String, &'static str)> {
            vec![$((<$kind as Resource>::group(&()).into_owned(), $resource)),+]
        }
    };
}

// Queues and flavors do not count in `hash_into`: they end a refusal through the digest `reserved_by` in `causes`.
setu_core::for_each_plan_kind!(plan_stores);

/// A part of each object, as it was after its last change.
struct Parts<T>(BTreeMap<(Option<String>, String), T>);

impl<T: PartialEq> Parts<T> {
    /// Whether this part of the object has changed, or the object is gone.
    fn changed(&mut self, object: &impl ResourceExt, part: Option<T>) -> bool {
        let key = (object.namespace(), object.name_any());
        let Some(part) = part else {
            self.0.remove(&key);
            return true;
        };
        let is_same = self.0.get(&key) == Some(&part);
        if !is_same {
            self.0.insert(key, part);
        }
        !is_same
    }
}

fn without_version<K: Object>(object: Arc<K>) -> K {
    let mut object = Arc::unwrap_or_clone(object);
    object.meta_mut().resource_version = None;
    object
}

/// Every change matters.
fn of_any<K>(_: Store<K>) -> impl FnMut(&K) -> Option<PlanChange> {
    |_| Some(PlanChange::Other)
}

/// Every NodePool, except one that was edited and that Karpenter has not reconciled yet: nothing can be planned from it, and
/// Karpenter's update comes as another change.
fn of_node_pool(pools: Store<NodePool>) -> impl FnMut(&NodePool) -> Option<PlanChange> {
    let mut others = Parts(BTreeMap::new());
    move |pool| {
        let known = pools.get(&ObjectRef::from_obj(pool));
        if known.as_ref().is_some_and(|pool| pool.is_unseen()) {
            return None;
        }
        let without_usage = known.map(|pool| {
            let mut pool = without_version(pool);
            pool.status.iter_mut().for_each(|status| status.resources.clear());
            pool
        });
        let changed = others.changed(pool, without_usage);
        Some(if changed { PlanChange::Other } else { PlanChange::NodePoolUsage })
    }
}

/// Every ClusterQueue. Only its usage is read of its status.
fn of_cluster_queue(queues: Store<ClusterQueue>) -> impl FnMut(&ClusterQueue) -> Option<PlanChange> {
    let mut others = Parts(BTreeMap::new());
    move |queue| {
        let known = queues.get(&ObjectRef::from_obj(queue));
        let without_usage = known.map(|queue| ClusterQueue { status: None, ..without_version(queue) });
        let changed = others.changed(queue, without_usage);
        Some(if changed { PlanChange::Other } else { PlanChange::QuotaUsage })
    }
}

/// Every object whose generation has changed: the status of a DaemonSet changes with every node, and that does not matter.
fn of_generation<K: Object>(store: Store<K>) -> impl FnMut(&K) -> Option<PlanChange> {
    let mut generations = Parts(BTreeMap::new());
    move |object| {
        let known = store.get(&ObjectRef::from_obj(object));
        let changed = generations.changed(object, known.map(|known| known.meta().generation));
        changed.then_some(PlanChange::Other)
    }
}

/// All objects of a kind that can be read; none where the API server does not serve the kind.
pub(super) async fn all<K>(what: &'static str, api: Api<Decoded<K>>) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = match call(what, "", api.list(&ListParams::default())).await {
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).map(Arc::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::client::RESOURCES;
    use serde_json::Value;
    use setu_sim::api::kinds;

    /// Whether a ClusterRole of this file allows a verb on a resource of a group.
    fn allows(file: &str) -> impl Fn(&str, &str, &str) -> bool {
        let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let documents = text.split("\n---\n").map(|one| serde_yaml::from_str::<Value>(one).unwrap());
        let rules: Vec<Value> =
            documents.flat_map(|one| one["rules"].as_array().cloned().unwrap_or_default()).collect();
        let has = |rule: &Value, key: &str, word: &str| {
            rule[key].as_array().is_some_and(|words| words.iter().any(|one| one == word))
        };
        move |group, resource, verb| {
            rules.iter().any(|rule| {
                has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
            })
        }
    }

    #[test]
    fn each_kind_may_be_read_is_counted_by_name_and_is_served_by_the_embedded_cluster() {
        let [controller, viewer] = ["manifests/rbac.yaml", "examples/rbac/setu-viewer.yaml"].map(allows);
        for (group, resource) in resources() {
            let may = |verb| controller(&group, resource, verb);
            assert!(may("list") && may("watch"), "the controller: {resource} of {group}");
            assert!(viewer(&group, resource, "list"), "who runs `setu plan`: {resource} of {group}");
            let is_served = kinds::ALL.iter().any(|kind| (kind.group, kind.plural) == (&*group, resource));
            assert!(is_served, "{resource} of {group}");
            assert!(RESOURCES.contains(&resource), "metrics count {resource} as `other`");
        }
    }
}
