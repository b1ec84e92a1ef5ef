//! Reads a gang past every cache: its claims and nodes, and who else is on them.

use super::Gang;
use crate::api::workload::Verdict;
use crate::api::{Pod, Workload};
use crate::effects::{claims, pods};
use crate::error::Error;
use crate::gang::{Sight, State, strangers};
use kube::ResourceExt;

impl Gang<'_> {
    pub(super) async fn look_again(&mut self, workload: &Workload) -> Result<(), Error> {
        // Mostly the caches know the nodes by now, so that their pods can be asked for at the same time.
        let known = self.nodes_to_search(workload);
        let (read, found) = tokio::join!(
            claims::read(self.client, &self.identity),
            pods::on_nodes(self.client, known.clone())
        );
        let (claims, nodes) = read?;
        self.tier = super::view::tier_of(&claims);
        self.claims = claims;
        self.nodes = nodes.into_iter().map(|n| (n.name_any(), n)).collect();
        self.sight = Sight::Quorum;
        let rest = self.nodes_to_search(workload).into_iter().filter(|node| !known.contains(node)).collect();
        let mut pods = permitted(found)?;
        pods.extend(permitted(pods::on_nodes(self.client, rest).await)?);
        self.taken = strangers::taken(&pods);
        Ok(())
    }

    /// The nodes of a gang that is about to be told to run. A taint keeps off only those who do not tolerate
    /// it, and anybody may write a toleration.
    fn nodes_to_search(&self, workload: &Workload) -> Vec<String> {
        let memory = &self.journal.memory;
        let waits = matches!(self.journal.state, State::WaitingReady | State::Approved);
        let told = workload.check(&self.identity.check).is_some_and(|c| c.state == Verdict::Ready);
        let ready = self.nodes.values().filter(|node| node.is_ready()).count();
        let complete = u32::try_from(ready).is_ok_and(|nodes| nodes >= memory.slots);
        if waits && !told && complete { self.nodes.keys().cloned().collect() } else { Vec::new() }
    }
}

/// What was found, or nothing where Setu may not list pods.
fn permitted(pods: Result<Vec<Pod>, Error>) -> Result<Vec<Pod>, Error> {
    match pods {
        Err(error) if error.code() == Some(403) => {
            tracing::warn!(error = %error, "could not look for other pods on a gang's nodes");
            Ok(Vec::new())
        }
        pods => pods,
    }
}
