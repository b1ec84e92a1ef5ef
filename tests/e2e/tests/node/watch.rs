//! A record of NodeClaims and of Setu's pods during the whole test, by watches that began before it.

use crate::surroundings::NAMESPACE;
use ::setu::api::NodeClaim;
use ::setu::names;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

/// The observations so far.
#[derive(Clone, Default)]
pub struct WatchRecords(Arc<Mutex<RecordedObjects>>);

#[derive(Default)]
struct RecordedObjects {
    /// The names of all NodeClaims that a gang ever had.
    claims: BTreeMap<String, BTreeSet<String>>,
    /// How each container of Setu's has ended, by pod: its exit code and the reason.
    ended: BTreeMap<String, Vec<(i32, String)>>,
}

impl WatchRecords {
    /// Watches from now on.
    pub fn start(client: &Client) -> Self {
        let seen = Self::default();
        let claims = seen.clone();
        tokio::spawn(follow(Api::<NodeClaim>::all(client.clone()), move |claim: &NodeClaim| {
            let Some(workload) = claim.annotations().get(names::WORKLOAD) else { return };
            let mut recorded = claims.0.lock().unwrap();
            recorded.claims.entry(workload.clone()).or_default().insert(claim.name_any());
        }));
        let pods = seen.clone();
        tokio::spawn(follow(Api::<Pod>::namespaced(client.clone(), NAMESPACE), move |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            for status in statuses {
                for state in [&status.state, &status.last_state].into_iter().flatten() {
                    let Some(end) = &state.terminated else { continue };
                    let end = (end.exit_code, end.reason.clone().unwrap_or_default());
                    let mut recorded = pods.0.lock().unwrap();
                    let ended = recorded.ended.entry(pod.name_any()).or_default();
                    if !ended.contains(&end) {
                        ended.push(end);
                    }
                }
            }
        }));
        seen
    }

    /// The number of NodeClaims that each gang of these Jobs ever had.
    pub fn claims(&self, job: &str) -> usize {
        let recorded = self.0.lock().unwrap();
        let of_job = |workload: &&String| workload.contains(&format!("job-{job}-"));
        recorded.claims.iter().filter(|(workload, _)| of_job(workload)).map(|(_, names)| names.len()).sum()
    }

    /// How the containers of a pod have ended.
    pub fn ended(&self, pod: &str) -> Vec<(i32, String)> {
        self.0.lock().unwrap().ended.get(pod).cloned().unwrap_or_default()
    }

    /// The same for all pods.
    pub fn all_ended(&self) -> BTreeMap<String, Vec<(i32, String)>> {
        self.0.lock().unwrap().ended.clone()
    }
}

/// Passes each version of each object to `note` while the test runs. A watch that ends is resumed from where it stopped.
async fn follow<K>(api: Api<K>, note: impl Fn(&K))
where
    K: Resource + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let mut version = "0".to_owned();
    loop {
        let Ok(events) = api.watch(&WatchParams::default(), &version).await else {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            continue;
        };
        let mut events = events.boxed();
        while let Ok(Some(event)) = events.try_next().await {
            match event {
                WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => {
                    note(&o);
                    version = o.resource_version().unwrap_or(version);
                }
                WatchEvent::Error(_) => "0".clone_into(&mut version),
                WatchEvent::Bookmark(_) => {}
            }
        }
    }
}
