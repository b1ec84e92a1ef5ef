//! Records every NodeClaim that a watch reports, so that short-lived ones between two checks are judged too.

use crate::stage::NEIGHBOURS;
use futures::TryStreamExt as _;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use setu::api::NodeClaim;
use setu::names;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The ledger's record of a NodeClaim.
#[derive(Clone, Debug)]
pub struct Bought {
    /// `namespace/name` of its Workload.
    pub workload: String,
    pub node_pool: String,
    /// Its Workload UID, attempt, generation and slot.
    pub slot_key: [String; 4],
    /// The fields that decide its machine, and therefore its price.
    pub shape: Value,
    /// Whether its deletion was ever requested.
    pub deleted: bool,
}

/// The NodeClaims by UID.
#[derive(Clone, Default)]
pub struct Ledger {
    bought: Arc<Mutex<BTreeMap<String, Bought>>>,
    /// Name prefixes of Workloads that are over. They are ignored, because a watch may report their deletion late.
    over: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    /// Starts the watch.
    pub fn keep(client: Client) -> Self {
        let ledger = Self::default();
        let kept = ledger.clone();
        tokio::spawn(async move {
            let api: Api<NodeClaim> = Api::all(client);
            // After a broken watch, the next one starts with all existing objects.
            loop {
                if let Ok(events) = api.watch(&WatchParams::default(), "0").await {
                    let mut events = pin!(events);
                    while let Ok(Some(event)) = events.try_next().await {
                        kept.write_down(event);
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        ledger
    }

    fn write_down(&self, event: WatchEvent<NodeClaim>) {
        let (claim, gone) = match event {
            WatchEvent::Added(claim) | WatchEvent::Modified(claim) => (claim, false),
            WatchEvent::Deleted(claim) => (claim, true),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return,
        };
        let label = |key: &str| claim.label(key).to_owned();
        let spec = &claim.spec;
        let bought = Bought {
            workload: claim.annotation(names::WORKLOAD).to_owned(),
            node_pool: label(names::NODEPOOL),
            slot_key: [
                label(names::WORKLOAD_UID),
                label(names::ATTEMPT),
                claim.generation().to_string(),
                claim.slot().map_or_else(String::new, |slot| slot.to_string()),
            ],
            shape: json!([spec.requirements, spec.resources, spec.node_class_ref]),
            deleted: gone || claim.metadata.deletion_timestamp.is_some(),
        };
        self.bought.lock().unwrap().insert(claim.uid().unwrap(), bought);
    }

    /// The NodeClaims of one namespace's Workloads, without those that are over.
    pub fn of(&self, namespace: &str) -> Vec<Bought> {
        let prefix = format!("{namespace}/");
        let over = self.over.lock().unwrap();
        let asked = |b: &&Bought| {
            b.workload.starts_with(&prefix) && !over.iter().any(|over| b.workload.starts_with(over))
        };
        self.bought.lock().unwrap().values().filter(asked).cloned().collect()
    }

    /// Records that a Job of the neighbours is over and its nodes were released.
    pub fn is_over(&self, job: &str) {
        self.over.lock().unwrap().push(format!("{NEIGHBOURS}/job-{job}-"));
    }

    /// Checks that every NodeClaim was in this NodePool, had the same shape as the first, had a slot of a gang with this
    /// many pods, and did not duplicate a node of its slot. Deleting a journal also deletes its attempt count, so an
    /// empty slot may be filled again.
    pub fn is_as_honest_gangs_would_have_it(&self, node_pool: &str, pods: usize) {
        let all: Vec<Bought> = self.bought.lock().unwrap().values().cloned().collect();
        let mut slots = BTreeSet::new();
        for bought in &all {
            assert_eq!(bought.node_pool, node_pool, "{bought:?}");
            assert_eq!(bought.shape, all[0].shape, "{bought:?}");
            let [.., slot] = &bought.slot_key;
            assert!(slot.parse::<usize>().unwrap() < pods, "{bought:?}");
            assert!(bought.deleted || slots.insert(bought.slot_key.clone()), "twice in one slot: {bought:?}");
        }
    }
}
