//! Checks from time to time that the pods of an admitted gang are bound to nodes.
//!
//! Rule: pods are not watched. Each check lists one namespace for one gang: first some time after admission, then at a
//! low rate.

use super::Gang;
use crate::api::Workload;
use crate::effects::pods;
use crate::gang::{AdmittedPods, JournalPosition, PodCheck};

impl Gang<'_> {
    /// The last check of the gang's pods, made now if one is due; `None` unless it is admitted with nodes.
    pub(super) async fn check_pods(&self, workload: &Workload) -> Option<PodCheck> {
        if !self.journal().state.holds_nodes() {
            return None;
        }
        let admitted = AdmittedPods::of(workload, &self.scope.identity.check)?;
        let (now, position) = (self.scope.now(), JournalPosition::of(self.journal()));
        let last = self.scope.context.gang_state.registry.pod_check(&self.scope.id);
        let last = last.filter(|last| admitted.is_of(last, position));
        let last = last.unwrap_or_else(|| admitted.unchecked(position, now, self.scope.identity.jitter(0)));
        if !last.is_due(now) {
            return Some(last);
        }
        Some(match pods::unbound(self.scope.client, &self.scope.identity.namespace).await {
            Ok(pods) => admitted.check(&last, &pods, now),
            Err(error) if error.is_forbidden() => last.forbidden(),
            Err(error) => {
                tracing::debug!(workload = self.scope.identity.workload_ref(), error = %error.in_full(), "could not check a gang's pods");
                last.postponed(now)
            }
        })
    }
}
