//! Live objects for `--watch`: from the same watches that the controller uses, and lists that are read again.
//!
//! Rule: what is shown was read lately. If a kind cannot be read any more, a line says since when and why.

use super::cluster::{ClusterObjects, ClusterReader, ListError, list};
use super::{CliError, find};
use crate::api::resource_slice::ResourceSlice;
use crate::api::{
    AdmissionCheck, ClusterQueue, LocalQueue, Node, NodeClaim, ProvisioningParameters, ProvisioningRequest,
    Workload,
};
use crate::cluster::decoded::Decoded;
use crate::cluster::watch::{FirstLists, Unlisted, Watched, watch};
use crate::gang::snapshot::resource_slices::NodeResourceSlices;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Changes within this time are shown together.
const PACE: Duration = Duration::from_millis(300);
/// Ages and waits are redrawn this often even if nothing changed. Lists are read again this often.
const TICK: Duration = Duration::from_secs(5);
/// The Workloads of all namespaces are read again this often: there may be thousands.
const ELSEWHERE: Duration = Duration::from_mins(1);
/// A kind that could not be read for this long is named.
const LONG: SignedDuration = SignedDuration::from_secs(15);

/// Watches of the objects that change, and the lists beside them.
pub struct Live {
    workloads: Watched<Workload>,
    requests: Watched<ProvisioningRequest>,
    claims: Watched<NodeClaim>,
    nodes: Watched<Node>,
    lists: FirstLists,
    /// The objects that are not watched, and which kinds may not be read.
    base: ClusterObjects,
    /// The Workload or Job that the user named.
    wanted: Option<String>,
    answers: Answers,
    /// When the lists were last read.
    read_at: Instant,
    /// When the Workloads of all namespaces were last read.
    elsewhere_at: Instant,
}

impl Live {
    /// Starts the watches; `base` was read before. `wanted` is the Workload or Job that the user named.
    pub fn start(cluster: &ClusterReader, base: ClusterObjects, wanted: Option<&str>) -> Self {
        let lists = FirstLists::default();
        let client = || cluster.client.clone();
        let ours = Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let of_gangs = Config::default().labels(names::GANG);
        let workloads = cluster.scope.workloads(&cluster.client);
        let now = Instant::now();
        Self {
            workloads: watch("workloads", workloads, Config::default(), Some(&lists)),
            requests: watch(
                "provisioningrequests",
                cluster.scope.workloads(&cluster.client),
                Config::default(),
                base.requests.is_some().then_some(&lists),
            ),
            claims: watch("nodeclaims", Api::all(client()), ours, base.claims.is_some().then_some(&lists)),
            nodes: watch("nodes", Api::all(client()), of_gangs, base.nodes.is_some().then_some(&lists)),
            lists,
            answers: Answers::of(&base),
            base: without_watched(base),
            wanted: wanted.map(str::to_owned),
            read_at: now,
            elsewhere_at: now,
        }
    }

    /// Returns the objects after a change, or after `TICK`.
    pub async fn next(&mut self, cluster: &ClusterReader) -> Result<ClusterObjects, CliError> {
        loop {
            let change = async {
                tokio::select! {
                    Some(_) = self.workloads.touched.recv() => {}
                    Some(_) = self.requests.touched.recv() => {}
                    Some(_) = self.claims.touched.recv() => {}
                    Some(_) = self.nodes.touched.recv() => {}
                    else => std::future::pending().await,
                }
            };
            // Redraw in both cases: objects changed, or time passed.
            let _ = tokio::time::timeout(TICK, change).await;
            tokio::time::sleep(PACE).await;
            while self.workloads.touched.skip()
                || self.requests.touched.skip()
                || self.claims.touched.skip()
                || self.nodes.touched.skip()
            {}
            let missing = self.lists.missing();
            if missing.is_empty() {
                if self.read_at.elapsed() >= TICK {
                    self.read_again(cluster).await;
                }
                return Ok(self.objects(cluster));
            }
            if let Some((kind, why)) =
                missing.into_iter().find(|(_, why)| matches!(why, Unlisted::Forbidden(_)))
            {
                return Err(CliError::Failed(format!("cannot watch {kind}: {why}")));
            }
        }
    }

    /// A line about the kinds that could not be read for long, for each reason.
    pub fn outages(&self, now: Timestamp) -> Vec<String> {
        self.answers.outages(now)
    }

    fn objects(&self, cluster: &ClusterReader) -> ClusterObjects {
        fn all<K: Clone>(items: Vec<Arc<K>>) -> Vec<K> {
            items.into_iter().map(Arc::unwrap_or_clone).collect()
        }
        let mut objects = ClusterObjects {
            now: cluster.empty().now,
            workloads: all(self.workloads.store.state()),
            requests: self.base.requests.is_some().then(|| all(self.requests.store.state())),
            claims: self.base.claims.is_some().then(|| all(self.claims.store.state())),
            nodes: self.base.nodes.is_some().then(|| all(self.nodes.store.state())),
            ..self.base.clone()
        };
        objects.add_requests();
        objects
    }

    /// Reads everything again that is not watched.
    async fn read_again(&mut self, cluster: &ClusterReader) {
        if self.ask_for_watched(cluster).await {
            self.read_lists(cluster).await;
            self.read_of_wanted(cluster).await;
        }
        self.read_at = Instant::now();
    }

    /// Asks for one object of each watched kind: a watch does not say that it fails. Returns whether Workloads can be read.
    async fn ask_for_watched(&mut self, cluster: &ClusterReader) -> bool {
        let (scope, client) = (&cluster.scope, || cluster.client.clone());
        let (workloads, requests, claims, nodes) = tokio::join!(
            can_read::<Workload>("workloads", scope.workloads(&cluster.client), true),
            can_read::<ProvisioningRequest>(
                "provisioningrequests",
                scope.workloads(&cluster.client),
                self.base.requests.is_some()
            ),
            can_read::<NodeClaim>("nodeclaims", Api::all(client()), self.base.claims.is_some()),
            can_read::<Node>("nodes", Api::all(client()), self.base.nodes.is_some()),
        );
        let is_up = workloads.is_ok();
        let now = cluster.empty().now;
        for (kind, answer) in [
            ("workloads", workloads),
            ("provisioningrequests", requests),
            ("nodeclaims", claims),
            ("nodes", nodes),
        ] {
            self.answers.note(kind, answer, now);
        }
        is_up
    }

    /// Reads the kinds that are not watched and have few objects.
    async fn read_lists(&mut self, cluster: &ClusterReader) {
        let (all, client) = (ListParams::default(), || cluster.client.clone());
        let (checks, parameters, local_queues, cluster_queues) = tokio::join!(
            list::<AdmissionCheck>("admissionchecks", Api::all(client()), &all),
            list::<ProvisioningParameters>("provisioningparameters", Api::all(client()), &all),
            list::<LocalQueue>("localqueues", cluster.scope.workloads(&cluster.client), &all),
            list::<ClusterQueue>("clusterqueues", Api::all(client()), &all),
        );
        let now = cluster.empty().now;
        let (answers, base) = (&mut self.answers, &mut self.base);
        answers.take("admissionchecks", checks.map(Some), &mut base.checks, now);
        answers.take("provisioningparameters", parameters, &mut base.parameters, now);
        answers.take("localqueues", local_queues, &mut base.local_queues, now);
        answers.take("clusterqueues", cluster_queues, &mut base.cluster_queues, now);
        if self.claims.store.state().iter().any(|claim| !claim.devices().is_empty()) {
            let slices = list::<ResourceSlice>("resourceslices", Api::all(client()), &all).await;
            let slices = slices.map(NodeResourceSlices::Read);
            answers.take("resourceslices", slices, &mut base.resource_slices, now);
        }
    }

    /// Reads what only the explanation of the named Workload needs: unbound pods, plans, and holders of quota elsewhere.
    async fn read_of_wanted(&mut self, cluster: &ClusterReader) {
        let Some(wanted) = &self.wanted else { return };
        let workloads = self.objects(cluster).workloads;
        let found = find::matches(&workloads, wanted);
        let namespace_of = |is_meant: fn(&Workload) -> bool| {
            found.iter().find(|w| is_meant(w)).map(|w| w.namespace().unwrap_or_default())
        };
        self.base.pods = match namespace_of(Workload::runs) {
            Some(namespace) => cluster.unbound_pods(&namespace).await,
            None => None,
        };
        self.base.plans = match namespace_of(Workload::has_quota) {
            Some(namespace) => cluster.plans(&namespace).await,
            None => Vec::new(),
        };
        if namespace_of(|w| !w.has_quota() && !w.is_finished()).is_none() {
            self.base.elsewhere.clear();
        } else if self.base.elsewhere.is_empty() || self.elsewhere_at.elapsed() >= ELSEWHERE {
            self.base.elsewhere = cluster.elsewhere().await;
            self.elsewhere_at = Instant::now();
        }
    }
}

/// These objects without the watched ones. A kind that may not be read stays so.
fn without_watched(mut base: ClusterObjects) -> ClusterObjects {
    base.workloads.clear();
    base.requests = base.requests.map(|_| Vec::new());
    base.claims = base.claims.map(|_| Vec::new());
    base.nodes = base.nodes.map(|_| Vec::new());
    base
}

/// Whether an object of a kind can be read. A kind that could not be read at the start is not asked for.
async fn can_read<K>(kind: &'static str, api: Api<Decoded<K>>, is_known: bool) -> Result<(), ListError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if !is_known {
        return Ok(());
    }
    match list(kind, api, &ListParams::default().limit(1)).await {
        // Few clusters serve them, and elsewhere there are none.
        Err(ListError::NotServed("provisioningrequests", _)) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Why a kind cannot be read. An error that several kinds have in common does not name them.
fn in_words(error: ListError) -> String {
    match error {
        ListError::Other(_, why) => why,
        named => named.to_string(),
    }
}

/// When each kind was last read, and why it cannot be read now.
#[derive(Debug, Default)]
struct Answers(BTreeMap<&'static str, LastAnswer>);

/// The last answer about a kind.
#[derive(Debug)]
struct LastAnswer {
    at: Timestamp,
    /// Why a later question failed.
    failure: Option<String>,
}

impl Answers {
    /// The answers about the kinds that were read at the start.
    fn of(base: &ClusterObjects) -> Self {
        let mut answers = Self::default();
        let kinds = [
            ("workloads", true),
            ("provisioningrequests", base.requests.is_some()),
            ("nodeclaims", base.claims.is_some()),
            ("nodes", base.nodes.is_some()),
            ("admissionchecks", base.checks.is_some()),
        ];
        for (kind, _) in kinds.into_iter().filter(|(_, is_read)| *is_read) {
            answers.note(kind, Ok(()), base.now);
        }
        answers
    }

    /// Notes whether a kind could be read. A kind that never could is not missed.
    fn note(&mut self, kind: &'static str, answer: Result<(), ListError>, now: Timestamp) {
        match answer {
            Ok(()) => {
                self.0.insert(kind, LastAnswer { at: now, failure: None });
            }
            Err(error) => {
                if let Some(last) = self.0.get_mut(kind) {
                    last.failure = Some(in_words(error));
                }
            }
        }
    }

    /// Notes whether a kind could be read, and replaces the objects that were read before.
    fn take<T>(&mut self, kind: &'static str, answer: Result<T, ListError>, shown: &mut T, now: Timestamp) {
        self.note(kind, answer.map(|read| *shown = read), now);
    }

    /// A line about the kinds that could not be read for long, for each reason.
    fn outages(&self, now: Timestamp) -> Vec<String> {
        let mut found: BTreeMap<(Timestamp, &str), Vec<&str>> = BTreeMap::new();
        for (kind, last) in &self.0 {
            if let Some(why) = last.failure.as_deref().filter(|_| now.duration_since(last.at) >= LONG) {
                found.entry((last.at, why)).or_default().push(kind);
            }
        }
        let line = |((at, why), kinds): ((Timestamp, &str), Vec<&str>)| {
            format!("{}: not updated since {}: {why}", kinds.join(", "), at.strftime("%H:%M:%SZ"))
        };
        found.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn no_answer(kind: &'static str) -> Result<(), ListError> {
        Err(ListError::Other(kind, "connection refused".to_owned()))
    }

    #[test]
    fn a_kind_that_could_not_be_read_for_long_is_named_until_it_can_be_read() {
        let base = ClusterObjects { now: at(0), nodes: Some(Vec::new()), ..ClusterObjects::default() };
        let mut answers = Answers::of(&base);
        for second in [5, 10, 14] {
            assert!(answers.outages(at(second)).is_empty(), "a failed call is no outage yet");
            answers.note("nodes", no_answer("nodes"), at(second));
            answers.note("workloads", no_answer("workloads"), at(second));
        }
        let line = "nodes, workloads: not updated since 08:00:00Z: connection refused";
        assert_eq!(answers.outages(at(15)), [line]);
        answers.note("nodes", Ok(()), at(20));
        answers.note("workloads", Ok(()), at(20));
        assert!(answers.outages(at(99)).is_empty());
        answers.note("nodeclaims", no_answer("nodeclaims"), at(20));
        assert!(answers.outages(at(99)).is_empty(), "NodeClaims could never be read");
    }

    #[test]
    fn a_list_that_cannot_be_read_again_stays_as_it_was() {
        let (mut answers, mut shown) = (Answers::default(), vec![1]);
        answers.take("nodes", Ok(vec![2]), &mut shown, at(0));
        answers.take("nodes", Err(ListError::Unauthorized), &mut shown, at(30));
        assert_eq!((shown, answers.outages(at(30)).len()), (vec![2], 1));
    }

    #[test]
    fn what_is_watched_is_not_kept_twice() {
        let read = ClusterObjects {
            workloads: vec![Workload::new("w", crate::api::workload::WorkloadSpec::default())],
            claims: Some(vec![NodeClaim::new("c", crate::api::node_claim::NodeClaimSpec::default())]),
            ..ClusterObjects::default()
        };
        let base = without_watched(read);
        assert!(base.workloads.is_empty() && base.claims == Some(Vec::new()) && base.nodes.is_none());
    }
}
