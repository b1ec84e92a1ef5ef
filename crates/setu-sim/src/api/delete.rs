//! Deletion: preconditions, finalizers, and garbage collection of dependents.

use super::kinds::{self, ServedKind};
use super::patch::Patch;
use super::status::Status;
use super::store::{ObjectKey, ObjectStore};
use super::write::{By, Deny};
use super::{AdmissionRequest, Preconditions};
use crate::values::{is_going, list, name, namespace, seconds, set, text};
use serde_json::{Value, json};
use std::sync::Arc;

/// How the dependents of a deleted object are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// Finalizers that keep an object until its dependents are handled.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

impl ObjectStore {
    /// Deletes an object, or starts its deletion if it has finalizers. Returns the object, and
    /// whether it is gone.
    pub fn delete(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        (only, propagation): (&Preconditions, Option<Propagation>),
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<(Arc<Value>, bool), Status> {
        let stored = self.get(kind, key).cloned().ok_or_else(|| Status::not_found(kind, &key.1))?;
        let old = &stored.bare;
        hold(kind, key, only, old)?;
        deny(&AdmissionRequest { user: by.user, verb: "DELETE", kind, object: old, old: Some(old) })
            .map_or(Ok(()), Err)?;
        let mut going = (**old).clone();
        // The default for a Job is to orphan its pods.
        let propagation = propagation.or((kind.kind == "Job").then_some(Propagation::Orphan));
        if let Some(propagation) = propagation {
            hold_for_dependents(&mut going, propagation);
        }
        if list(&going, "/metadata/finalizers").is_empty() {
            if by.dry_run {
                return Ok((Arc::clone(&stored.object), true));
            }
            return Ok((self.commit(kind, key.clone(), None, (by.user, None)), true));
        }
        if !is_going(old) {
            set(&mut going, &["metadata", "deletionTimestamp"], json!(seconds(self.clock.now())));
            set(&mut going, &["metadata", "deletionGracePeriodSeconds"], json!(0));
            if let Some(generation) = old.pointer("/metadata/generation").and_then(Value::as_i64) {
                set(&mut going, &["metadata", "generation"], json!(generation + 1));
            }
        }
        if going == **old || by.dry_run {
            return Ok((Arc::clone(&stored.object), false));
        }
        let after = (going, (*stored.managers).clone());
        Ok((self.commit(kind, key.clone(), Some(after), (by.user, None)), false))
    }

    /// Deletes objects whose owners are all gone, and handles the dependents of deleted objects, until nothing is
    /// left to do.
    pub fn collect_garbage(&mut self, by: &Arc<str>) {
        let by = By { user: by, manager: by, subresource: None, dry_run: false };
        while self.collect_once(by) {}
    }

    fn collect_once(&mut self, by: By<'_>) -> bool {
        let mut found: Vec<(&'static ServedKind, ObjectKey, GarbageStep)> = Vec::new();
        for kind in kinds::ALL {
            for object in self.all(kind).map(|s| &s.bare) {
                let step = if !is_going(object) {
                    self.is_garbage(object).then_some(GarbageStep::Delete)
                } else if has_finalizer(object, ORPHAN) {
                    Some(GarbageStep::LetGo(ORPHAN))
                } else {
                    let waits = has_finalizer(object, FOREGROUND) && self.dependents(object).is_empty();
                    waits.then_some(GarbageStep::LetGo(FOREGROUND))
                };
                found.extend(step.map(|step| (*kind, key_of(object), step)));
            }
        }
        for (kind, key, step) in &found {
            // The object may have been removed with another one.
            let _ = match step {
                GarbageStep::Delete => {
                    self.delete(kind, key, (&Preconditions::default(), None), by, &|_| None).map(|_| ())
                }
                GarbageStep::LetGo(finalizer) => self.let_go(kind, key, finalizer, by),
            };
        }
        !found.is_empty()
    }

    /// Removes the finalizer that waits for dependents. Orphaned dependents first lose their owner reference.
    fn let_go(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        finalizer: &str,
        by: By<'_>,
    ) -> Result<(), Status> {
        let Some(object) = self.get(kind, key).map(|s| Arc::clone(&s.bare)) else { return Ok(()) };
        let without = |list: &[Value], gone: &dyn Fn(&Value) -> bool| -> Vec<Value> {
            list.iter().filter(|v| !gone(v)).cloned().collect()
        };
        let uid = text(&object, "/metadata/uid");
        if finalizer == ORPHAN {
            for (kind, dependent) in self.dependents(&object) {
                let owners = list(&dependent, "/metadata/ownerReferences");
                let left = without(owners, &|owner| text(owner, "/uid") == uid);
                let patch = Patch::Merge(json!({"metadata": {"ownerReferences": left}}));
                self.patch(kind, &key_of(&dependent), &patch, by, &|_| None)?;
            }
        }
        let left = without(list(&object, "/metadata/finalizers"), &|f| f == finalizer);
        let patch = Patch::Merge(json!({"metadata": {"finalizers": left}}));
        self.patch(kind, key, &patch, by, &|_| None).map(|_| ())
    }

    /// The objects that this object owns.
    fn dependents(&self, owner: &Value) -> Vec<(&'static ServedKind, Arc<Value>)> {
        let uid = text(owner, "/metadata/uid");
        let depends =
            |object: &Value| list(object, "/metadata/ownerReferences").iter().any(|o| text(o, "/uid") == uid);
        let of = |kind: &&'static ServedKind| {
            let kind = *kind;
            self.all(kind)
                .filter(|s| depends(&s.bare))
                .map(move |s| (kind, Arc::clone(&s.bare)))
                .collect::<Vec<_>>()
        };
        kinds::ALL.iter().flat_map(of).collect()
    }

    /// Whether an object has owners that are all gone. A namespaced owner does not count for a cluster-scoped
    /// object.
    fn is_garbage(&self, object: &Value) -> bool {
        let owners = list(object, "/metadata/ownerReferences");
        let is_waited_for = |owner: &Value| is_going(owner) && has_finalizer(owner, FOREGROUND);
        !owners.is_empty()
            && owners.iter().all(|owner| {
                let group = text(owner, "/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
                let kind = kinds::ALL.iter().find(|k| k.kind == text(owner, "/kind") && k.group == group);
                let Some(kind) = kind else { return false };
                let namespace = if kind.namespaced { namespace(object) } else { "" };
                let key = (namespace.to_owned(), text(owner, "/name").to_owned());
                let found = self.get(kind, &key).map(|s| &*s.bare);
                let found = found.filter(|o| text(o, "/metadata/uid") == text(owner, "/uid"));
                found.is_none_or(is_waited_for)
            })
    }
}

fn key_of(object: &Value) -> ObjectKey {
    (namespace(object).to_owned(), name(object).to_owned())
}

/// An action of the garbage collector.
enum GarbageStep {
    Delete,
    LetGo(&'static str),
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    list(object, "/metadata/finalizers").iter().any(|f| f == finalizer)
}

/// Sets the finalizer of this propagation policy and removes that of another.
fn hold_for_dependents(object: &mut Value, propagation: Propagation) {
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let had = list(object, "/metadata/finalizers");
    let other = |f: &&Value| wanted.is_some_and(|w| *f == w) || (*f != FOREGROUND && *f != ORPHAN);
    let mut finalizers: Vec<Value> = had.iter().filter(other).cloned().collect();
    if let Some(wanted) = wanted.filter(|w| !had.iter().any(|f| f == w)) {
        finalizers.push(json!(wanted));
    }
    if finalizers.is_empty() {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("finalizers");
        }
    } else {
        set(object, &["metadata", "finalizers"], Value::Array(finalizers));
    }
}

/// Checks the preconditions of a delete.
fn hold(kind: &ServedKind, key: &ObjectKey, only: &Preconditions, object: &Value) -> Result<(), Status> {
    let uid = text(object, "/metadata/uid");
    if let Some(wanted) = only.uid.as_deref().filter(|w| *w != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        );
        return Err(Status::precondition(kind, &key.1, &why));
    }
    let version = text(object, "/metadata/resourceVersion");
    if let Some(wanted) = only.resource_version.as_deref().filter(|w| *w != version) {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        );
        return Err(Status::precondition(kind, &key.1, &why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{CONFIG_MAP, NODE_CLAIM, NODE_POOL};
    use super::super::{ApiServer, ServerOptions, User};
    use super::*;
    use setu_clock::Clock;

    fn server() -> ApiServer {
        ApiServer::new(ServerOptions { seed: 1, clock: Clock::wall(), replicas: 1, history: 100 })
    }

    fn map(name: &str, finalizers: &[&str]) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "finalizers": finalizers}})
    }

    fn pool_spec() -> Value {
        let class = json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"});
        json!({"nodeClassRef": class, "requirements": []})
    }

    fn claim(name: &str, owner: &Value) -> Value {
        json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": pool_spec(),
            "metadata": {"name": name, "ownerReferences": [owner]}})
    }

    fn owner(object: &Value) -> Value {
        json!({"apiVersion": object["apiVersion"], "kind": object["kind"],
            "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]})
    }

    fn delete(user: &User, name: &str, only: Preconditions) -> Result<(), Status> {
        user.delete(&CONFIG_MAP, "default", name, only)
    }

    #[test]
    fn finalizers_keep_an_object_until_the_last_is_removed_and_none_can_be_added() {
        let user = server().user("test");
        user.create(&CONFIG_MAP, map("x", &["a.b/c", "a.b/d"])).unwrap();
        delete(&user, "x", Preconditions::default()).unwrap();
        let left = |finalizers: &[&str]| {
            user.merge(&CONFIG_MAP, "default", "x", &json!({"metadata": {"finalizers": finalizers}}))
        };
        assert!(is_going(&user.get(&CONFIG_MAP, "default", "x").unwrap()));
        assert_eq!(left(&["a.b/c", "a.b/new"]).unwrap_err().code, 422);
        left(&["a.b/c"]).unwrap();
        left(&[]).unwrap();
        assert_eq!(user.get(&CONFIG_MAP, "default", "x"), None);
        assert_eq!(delete(&user, "x", Preconditions::default()).unwrap_err().code, 404);
    }

    #[test]
    fn a_delete_with_the_wrong_uid_or_version_is_a_conflict() {
        let user = server().user("test");
        user.create(&CONFIG_MAP, map("x", &[])).unwrap();
        let wrong = Some("other".to_owned());
        let uid = Preconditions { uid: wrong.clone(), resource_version: None };
        let version = Preconditions { uid: None, resource_version: wrong };
        assert_eq!(delete(&user, "x", uid).unwrap_err().code, 409);
        assert_eq!(delete(&user, "x", version).unwrap_err().code, 409);
    }

    #[test]
    fn dependents_are_deleted_with_their_owner_unless_orphaned() {
        let server = server();
        let user = server.user("test");
        let pool = |name: &str| {
            json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
                "spec": {"template": {"spec": pool_spec()}}})
        };
        let gone = user.create(&NODE_POOL, pool("gone")).unwrap();
        let kept = user.create(&NODE_POOL, pool("kept")).unwrap();
        user.create(&NODE_CLAIM, claim("a", &owner(&gone))).unwrap();
        user.create(&NODE_CLAIM, claim("b", &owner(&kept))).unwrap();
        user.delete(&NODE_POOL, "", "gone", Preconditions::default()).unwrap();
        let by = Arc::from("test");
        let by = By { user: &by, manager: "test", subresource: None, dry_run: false };
        let orphan = (&Preconditions::default(), Some(Propagation::Orphan));
        let key = (String::new(), "kept".to_owned());
        server.with(|s, deny| s.delete(&NODE_POOL, &key, orphan, by, deny)).unwrap();
        server.collect_garbage();
        assert_eq!(user.get(&NODE_CLAIM, "", "a"), None);
        assert_eq!(user.get(&NODE_POOL, "", "kept"), None);
        let orphan = user.get(&NODE_CLAIM, "", "b").unwrap();
        assert_eq!(orphan["metadata"].get("ownerReferences"), None);
    }

    #[test]
    fn a_namespaced_owner_does_not_count_for_a_cluster_scoped_object() {
        let server = server();
        let user = server.user("test");
        let owning = user.create(&CONFIG_MAP, map("owner", &[])).unwrap();
        user.create(&NODE_CLAIM, claim("a", &owner(&owning))).unwrap();
        server.collect_garbage();
        assert_eq!(user.get(&NODE_CLAIM, "", "a"), None);
    }
}
