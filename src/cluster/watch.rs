//! One watch per kind: decode → store → notify.
//!
//! An object that cannot be decoded is reported and left out; it never stops the others. Deleted objects are notified
//! too, when the store no longer has them.

use super::backoff::Doubling;
use super::decoded::Decoded;
use super::store::{Keeping, Object, Store, StoreChange, Writer};
use crate::error;
use crate::plan::PlanObjects;
use crate::telemetry::metrics;
use futures::{StreamExt, pin_mut};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// How long one watch request lasts, in seconds. If nothing has come through for this long and five seconds more, the
/// connection counts as dead and another is opened: a host that dies, or a firewall that drops a connection, sends no
/// FIN. A minute is far below the shortest default time limit of a gang (`launch`, four minutes), and costs the API
/// server one request per kind and minute: `tests/gangs/load.rs` holds the bound. The API server sends a bookmark before it
/// ends a watch, so the next one resumes from there without a list.
pub const WATCH_SECONDS: u32 = 60;

/// How long to wait for a kind that is not served: an upgrade or a new CRD brings it.
const NOT_SERVED: Duration = Duration::from_mins(10);
/// How long to wait for a kind that was served before: its CRD may be installed anew.
const NOT_SERVED_ANY_MORE: Duration = Duration::from_secs(10);

/// A watched kind.
pub struct Watched<K: Resource<DynamicType = ()> + 'static, G = ()> {
    /// Everything that exists, as last seen.
    pub store: Store<K, G>,
    /// Every object that was added, changed or removed.
    pub touched: Touched<K, G>,
    /// Whether everything has been listed once.
    pub listed: Listed,
}

/// Objects that were added, changed or removed, one after the other.
pub struct Touched<K: Resource<DynamicType = ()>, G = ()> {
    changes: UnboundedReceiver<StoreChange<K>>,
    store: Store<K, G>,
}

impl<K: Object, G> Touched<K, G> {
    /// The next one; `None` when the watch has ended.
    pub async fn recv(&mut self) -> Option<Arc<K>> {
        loop {
            let change = self.changes.recv().await?;
            if let Some(object) = self.known(change) {
                return Some(object);
            }
        }
    }

    /// Skips everything that is there already. Returns whether there was anything.
    pub fn skip(&mut self) -> bool {
        let mut any = false;
        while self.changes.try_recv().is_ok() {
            any = true;
        }
        any
    }

    /// An object that is gone by now gets a notification of its own, so that its end is noticed once.
    fn known(&self, change: StoreChange<K>) -> Option<Arc<K>> {
        match change {
            StoreChange::Listed(object) => self.store.get(&object),
            StoreChange::Applied(object) => {
                self.store.entry(&ObjectRef::from_obj(&*object)).is_some().then_some(object)
            }
            StoreChange::Gone(object) => Some(object),
        }
    }
}

/// Whether a kind has been listed once.
#[derive(Clone, Debug, Default)]
pub struct Listed(Arc<AtomicBool>);

impl Listed {
    /// Whether it has been listed; before that, absence from the store means nothing.
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a kind is not listed yet, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// It is being listed, or retried.
    Waits(String),
    /// A permission is missing.
    Forbidden(String),
}

impl fmt::Display for Unlisted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Waits(why) | Self::Forbidden(why)) = self;
        f.write_str(why)
    }
}

/// Which kinds have been listed once, and why the others have not. A kind that was listed once never counts as unlisted again.
#[derive(Clone, Debug, Default)]
pub struct FirstLists(watch::Sender<BTreeMap<&'static str, FirstList>>);

/// The state of the first list of one kind.
#[derive(Clone, Debug)]
enum FirstList {
    Unlisted(Unlisted),
    /// It was listed once.
    Listed,
    /// The API server does not serve it, which only limits the controller.
    NotServed(&'static str),
}

impl FirstLists {
    /// Kinds not listed yet, each with the known reason.
    pub fn missing(&self) -> Vec<(&'static str, Unlisted)> {
        let lists = self.0.borrow();
        let unlisted = |(kind, list): (&&'static str, &FirstList)| match list {
            FirstList::Unlisted(why) => Some((*kind, why.clone())),
            FirstList::Listed | FirstList::NotServed(_) => None,
        };
        lists.iter().filter_map(unlisted).collect()
    }

    /// Limitations of the controller, because the API server does not serve a kind.
    pub fn limitations(&self) -> Vec<&'static str> {
        let limited = |list: &FirstList| match list {
            FirstList::NotServed(limitation) => Some(*limitation),
            FirstList::Unlisted(_) | FirstList::Listed => None,
        };
        self.0.borrow().values().filter_map(limited).collect()
    }

    /// Waits until every kind has been listed once.
    pub async fn complete(&self) {
        // Fails only without a sender, and this is one.
        let _ = self
            .0
            .subscribe()
            .wait_for(|lists| !lists.values().any(|list| matches!(list, FirstList::Unlisted(_))))
            .await;
    }

    fn set_unlisted(&self, kind: &'static str, why: Unlisted) {
        self.set(kind, FirstList::Unlisted(why));
    }

    fn set(&self, kind: &'static str, list: FirstList) -> Option<FirstList> {
        let mut before = None;
        self.0.send_modify(|lists| before = lists.insert(kind, list));
        before
    }

    /// Records that the API server does not serve a kind. Logs once what follows.
    fn set_not_served(&self, kind: &'static str, limitation: &'static str) {
        if !matches!(self.set(kind, FirstList::NotServed(limitation)), Some(FirstList::NotServed(_))) {
            tracing::info!(kind, "{limitation}");
        }
    }

    /// Whether the kind was listed before; a later error does not count it as unlisted.
    fn is_listed(&self, kind: &'static str) -> bool {
        matches!(self.0.borrow().get(kind), Some(FirstList::Listed | FirstList::NotServed(_)))
    }
}

/// Starts watching a kind. `lists` is `None` for kinds the controller can do without.
pub fn watch<K>(
    kind: &'static str,
    api: Api<Decoded<K>>,
    config: watcher::Config,
    lists: Option<&FirstLists>,
) -> Watched<K>
where
    K: Object + Debug + Send + Sync + 'static,
{
    watch_keeping(kind, api, config, lists, Keeping::default())
}

/// Starts watching a kind, with a choice of how the objects are kept.
pub fn watch_keeping<K, G>(
    kind: &'static str,
    api: Api<Decoded<K>>,
    config: watcher::Config,
    lists: Option<&FirstLists>,
    keeping: Keeping<K, G>,
) -> Watched<K, G>
where
    K: Object + Debug + Send + Sync + 'static,
    G: Send + Sync + 'static,
{
    let (store, writer) = Writer::new(keeping);
    let (sender, changes) = unbounded_channel();
    if let Some(lists) = lists {
        lists.set_unlisted(kind, Unlisted::Waits("not listed yet".to_owned()));
    }
    let listed = Listed::default();
    tokio::spawn(pump(kind, api, config, (writer, sender, listed.clone()), lists.cloned()));
    Watched { touched: Touched { changes, store: store.clone() }, store, listed }
}

async fn pump<K, G>(
    kind: &'static str,
    api: Api<Decoded<K>>,
    config: watcher::Config,
    (mut writer, sender, all_listed): (Writer<K, G>, UnboundedSender<StoreChange<K>>, Listed),
    lists: Option<FirstLists>,
) where
    K: Object + Debug + Send + Sync + 'static,
    G: Send + Sync + 'static,
{
    let events = watcher(api, config.timeout(WATCH_SECONDS)).backoff(Doubling::default());
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let Some(event) = decoded(kind, event, |object| writer.last(object)) else { continue };
                let listed = matches!(event, Event::InitDone);
                for change in writer.take(event) {
                    if sender.send(change).is_err() {
                        return;
                    }
                }
                if listed {
                    all_listed.0.store(true, Ordering::Relaxed);
                }
                if let Some(lists) = lists.as_ref().filter(|_| listed) {
                    lists.set(kind, FirstList::Listed);
                }
            }
            Err(error) => {
                let Some(limitation) = limited_by(kind, &error) else {
                    report(kind, &error, lists.as_ref());
                    continue;
                };
                if let Some(lists) = &lists {
                    lists.set_not_served(kind, limitation);
                }
                tokio::time::sleep(if all_listed.is_done() { NOT_SERVED_ANY_MORE } else { NOT_SERVED }).await;
            }
        }
    }
}

/// The event without an object that cannot be read. `last` returns an object as it was last read.
fn decoded<K: Object>(
    kind: &'static str,
    event: Event<Decoded<K>>,
    last: impl Fn(&ObjectRef<K>) -> Option<K>,
) -> Option<Event<K>> {
    if let Event::Delete(Decoded(Err(bad))) = &event {
        let named = ObjectRef::new(bad.metadata.name.as_deref().unwrap_or_default());
        let object = bad.metadata.namespace.iter().fold(named, |object, namespace| object.within(namespace));
        return last(&object).map(Event::Delete);
    }
    let good = |guard: Decoded<K>| match guard.0 {
        Ok(object) => Some(object),
        Err(bad) => {
            let name = bad.metadata.name.as_deref().unwrap_or_default();
            let namespace = bad.metadata.namespace.as_deref().unwrap_or_default();
            tracing::warn!(kind, namespace, name, error = %bad.error, "left out an object that cannot be read");
            None
        }
    };
    Some(match event {
        Event::Apply(o) => Event::Apply(good(o)?),
        Event::Delete(o) => Event::Delete(good(o)?),
        Event::Init => Event::Init,
        Event::InitApply(o) => Event::InitApply(good(o)?),
        Event::InitDone => Event::InitDone,
    })
}

/// The limitation of the controller where the API server does not serve a kind. `None` if every cluster serves it.
fn limitation(kind: &str) -> Option<&'static str> {
    if kind == "provisioningrequests" {
        return Some(
            "ProvisioningRequests are not served: the API server does not have version v1 of their CRD",
        );
    }
    PlanObjects::LIMITATIONS.iter().find(|(of, _)| *of == kind).and_then(|(_, limitation)| *limitation)
}

/// The limitation of the controller, if the error is that the API server does not serve the kind.
fn limited_by(kind: &str, error: &watcher::Error) -> Option<&'static str> {
    limitation(kind).filter(|_| code(error) == 404)
}

fn report(kind: &'static str, error: &watcher::Error, lists: Option<&FirstLists>) {
    metrics::watch_error(kind);
    let advice = advice(kind, error);
    let words = in_words(error);
    match lists {
        Some(lists) if is_unanswered(error) => {
            tracing::debug!(kind, error = words, "a watch got no answer and starts again");
            if !lists.is_listed(kind) {
                lists.set_unlisted(kind, Unlisted::Waits(words));
            }
        }
        // For a kind that seldom changes, the version to resume from was compacted meanwhile.
        Some(lists) if lists.is_listed(kind) && code(error) == 410 => {
            tracing::debug!(kind, error = words, "a watch expired and starts again");
        }
        Some(lists) if lists.is_listed(kind) => {
            tracing::warn!(kind, error = words, "a watch broke and starts again");
        }
        Some(lists) => {
            tracing::warn!(kind, error = words, advice, "cannot watch yet, trying again");
            let why = format!("{words}{}{advice}", if advice.is_empty() { "" } else { ": " });
            lists.set_unlisted(
                kind,
                if code(error) == 403 { Unlisted::Forbidden(why) } else { Unlisted::Waits(why) },
            );
        }
        None if code(error) == 403 => {
            tracing::warn!(kind, error = words, advice, "cannot watch an optional kind");
        }
        None => tracing::debug!(kind, error = words, advice, "cannot watch an optional kind"),
    }
}

/// Advice for the administrator about a watch that cannot start; empty if there is none.
fn advice(kind: &'static str, error: &watcher::Error) -> String {
    match code(error) {
        404 => format!("the API server does not serve {kind}: install {}", provider_of(kind)),
        401 => {
            "the API server does not accept these credentials: check the kubeconfig or the token".to_owned()
        }
        403 => format!("grant this ServiceAccount get, list and watch on {kind}"),
        _ => String::new(),
    }
}

/// The error that ended a watch, without the whole Status.
fn in_words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(cause) => format!("listing: {}", error::in_words(cause)),
        watcher::Error::WatchStartFailed(cause) | watcher::Error::WatchFailed(cause) => {
            format!("watching: {}", error::in_words(cause))
        }
        watcher::Error::WatchError(status) => format!("watching: {} ({})", status.message, status.code),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// Whether a watch ended because the API server could not be reached.
fn is_unanswered(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => error::is_unanswered(cause),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => false,
    }
}

/// The HTTP status that ended a watch; 0 if the API server did not answer.
fn code(error: &watcher::Error) -> u16 {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(s))
        | watcher::Error::WatchStartFailed(kube::Error::Api(s))
        | watcher::Error::WatchError(s) => s.code,
        _ => 0,
    }
}

/// The software that brings a kind to a cluster.
pub fn provider_of(kind: &str) -> &'static str {
    match kind {
        "workloads" | "admissionchecks" | "clusterqueues" | "localqueues" | "cohorts" | "resourceflavors" => {
            "Kueue (v1beta2, 0.16 or later)"
        }
        "nodeclaims" | "nodepools" => "Karpenter (v1)",
        "provisioningparameters" => "Setu's own CRDs",
        _ => "Kubernetes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Node;
    use kube::ResourceExt;
    use serde_json::json;

    fn answer(code: u16) -> watcher::Error {
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(kube::core::Status {
            code,
            ..kube::core::Status::default()
        })))
    }

    fn node(name: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name}})).unwrap()
    }

    #[tokio::test]
    async fn an_object_that_changed_and_went_is_reported_once() {
        let (store, mut writer) = Writer::new(Keeping::default());
        let (sender, changes) = unbounded_channel();
        let events = [Event::Apply(node("a")), Event::Apply(node("a")), Event::Delete(node("a"))];
        for event in events.into_iter().chain([Event::Apply(node("b"))]) {
            writer.take(event).into_iter().for_each(|change| sender.send(change).ok().unwrap());
        }
        drop(sender);
        let mut touched = Touched { changes, store };
        let mut reported = Vec::new();
        while let Some(object) = touched.recv().await {
            reported.push(object.name_any());
        }
        assert_eq!(reported, ["a", "b"]);
    }

    #[test]
    fn an_object_that_cannot_be_read_any_more_is_removed_once_it_is_deleted() {
        let bad = r#"{"metadata": {"name": "a", "uid": "a"}, "spec": {"taints": 1}}"#;
        let bad: Decoded<Node> = serde_json::from_str(bad).unwrap();
        assert!(bad.0.is_err());
        let last = |object: &ObjectRef<Node>| (object.name == "a").then(|| node("a"));
        assert!(decoded("nodes", Event::Apply(bad.clone()), last).is_none());
        let gone = decoded("nodes", Event::Delete(bad.clone()), last);
        assert!(matches!(gone, Some(Event::Delete(last)) if last == node("a")));
        assert!(decoded("nodes", Event::Delete(bad), |_: &ObjectRef<Node>| None).is_none());
    }

    #[test]
    fn unserved_device_classes_count_as_none_and_forbidden_ones_are_waited_for() {
        for (kind, code, not_served) in
            [("deviceclasses", 404, true), ("deviceclasses", 403, false), ("nodepools", 404, false)]
        {
            assert_eq!(limited_by(kind, &answer(code)).is_some(), not_served, "{kind} {code}");
        }
        let lists = FirstLists::default();
        lists.set_unlisted("deviceclasses", Unlisted::Waits(String::new()));
        report("deviceclasses", &answer(403), Some(&lists));
        assert!(matches!(lists.missing()[..], [("deviceclasses", Unlisted::Forbidden(_))]));
        assert!(lists.limitations().is_empty());
        lists.set_not_served("deviceclasses", limitation("deviceclasses").unwrap());
        assert!(lists.missing().is_empty() && lists.is_listed("deviceclasses"));
        assert!(matches!(lists.limitations()[..], [text] if text.contains("since 1.34")), "{lists:?}");
    }
}
