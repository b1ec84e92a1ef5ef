//! The pods that name a standalone request, by namespace. A client can wake its requests at will, so a list serves for a while.

use crate::api::Pod;
use crate::cluster::joined::Joined;
use crate::cluster::lock;
use crate::effects::standalone;
use crate::error::Error;
use jiff::Timestamp;
use kube::Client;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The latest list of each namespace.
#[derive(Debug, Default)]
pub struct PodLists {
    reads: Joined<String, [Pod], Error>,
    latest: Mutex<BTreeMap<String, PodList>>,
}

#[derive(Clone, Debug)]
struct PodList {
    read_at: Timestamp,
    pods: Arc<[Pod]>,
}

impl PodLists {
    /// The pods of a namespace that name a request, read at most this long ago. With an age of zero they are read now.
    ///
    /// # Errors
    /// The list failed; 403 where Setu may not list pods.
    pub async fn read(
        &self,
        client: &Client,
        namespace: &str,
        (age, now): (Duration, Timestamp),
    ) -> Result<Arc<[Pod]>, Error> {
        let is_recent = |list: &PodList| list.read_at.checked_add(age).is_ok_and(|until| now < until);
        if let Some(list) = lock(&self.latest).get(namespace).filter(|list| is_recent(list)) {
            return Ok(Arc::clone(&list.pods));
        }
        let read = standalone::pods_with_request(client, namespace);
        let pods = self.reads.read(namespace.to_owned(), read).await?;
        let list = PodList { read_at: now, pods: Arc::clone(&pods) };
        let mut latest = lock(&self.latest);
        latest.retain(|_, list| is_recent(list));
        latest.insert(namespace.to_owned(), list);
        Ok(pods)
    }
}
