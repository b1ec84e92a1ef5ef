//! Checks from time to time that the pods of an admitted gang are bound to nodes.
//!
//! Rule: pods are not watched. Each check lists one namespace for one gang: first some time after admission, then at a
//! slow pace.

use super::Gang;
use crate::api::Workload;
use crate::effects::pods;
use crate::gang::{AdmittedPods, PodCheck, Stand};

impl Gang<'_> {
    /// Checks the gang's pods if a check is due.
    pub(super) async fn check_pods(&mut self, workload: &Workload) {
        let has_nodes = self.journal.state.holds_nodes();
        let admitted = AdmittedPods::of(workload, &self.identity.check).filter(|_| has_nodes);
        self.pod_check = match admitted {
            Some(admitted) => Some(self.checked(&admitted).await),
            None => None,
        };
    }

    async fn checked(&self, admitted: &AdmittedPods) -> PodCheck {
        let now = self.context.now();
        let stand = Stand::of(&self.journal);
        let last = self.context.board().pod_check(&self.id).filter(|last| admitted.is_of(last, stand));
        let last = last.unwrap_or_else(|| admitted.unchecked(stand, now, self.identity.jitter(0)));
        if !last.is_due(now) {
            return last;
        }
        match pods::unbound(self.client, &self.identity.namespace).await {
            Ok(pods) => admitted.check(&last, &pods, now),
            Err(error) if error.code() == Some(403) => last.forbidden(),
            Err(error) => {
                tracing::debug!(workload = self.identity.workload_ref(), error = %error.in_full(), "could not check a gang's pods");
                last.again(now)
            }
        }
    }
}
