//! Requests of Setu that the API server refuses for a while, like a role, a policy or a webhook would.

use super::api::kinds;
use http::{Method, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use setu_core::names;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A kind of refused requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// Creates of NodeClaims.
    Creates,
    /// Creates of the NodeClaim of slot 1.
    OneSlot,
    /// Creates of the NodeClaim of slot 1, because a webhook does not answer.
    Webhook,
    /// Deletes of NodeClaims.
    Deletes,
    /// Deletes of Nodes.
    NodeDeletes,
    /// Patches of NodeClaims and Nodes.
    Patches,
    /// Patches of NodeClaims.
    ClaimPatches,
    /// Patches of Nodes.
    NodePatches,
    /// Patches of Workloads, without their status.
    Journals,
    /// Patches of Workloads with the journal of the check `first`, because they are invalid.
    FirstJournal,
    /// Patches of the status of Workloads.
    Verdicts,
    /// Writes of Events.
    Events,
    /// Reads of DeviceClasses.
    DeviceClasses,
    /// Reads of DeviceClasses, because they are not served.
    NoDeviceClasses,
    /// Reads of ProvisioningRequests.
    Requests,
}

impl Denial {
    fn covers(self, method: &Method, path: &str, body: &[u8]) -> bool {
        let of = |plural: &str| path.split('/').any(|part| part == plural);
        let status = path.ends_with("/status");
        match self {
            Self::Creates => *method == Method::POST && of(kinds::NODE_CLAIM.plural),
            Self::OneSlot | Self::Webhook => {
                Self::Creates.covers(method, path, body) && contains(body, &slot_one())
            }
            Self::Deletes => *method == Method::DELETE && of(kinds::NODE_CLAIM.plural),
            Self::NodeDeletes => *method == Method::DELETE && of(kinds::NODE.plural),
            Self::Patches => {
                [Self::ClaimPatches, Self::NodePatches].iter().any(|d| d.covers(method, path, body))
            }
            Self::ClaimPatches => *method == Method::PATCH && of(kinds::NODE_CLAIM.plural),
            Self::NodePatches => *method == Method::PATCH && of(kinds::NODE.plural),
            Self::Journals => *method == Method::PATCH && of(kinds::WORKLOAD.plural) && !status,
            Self::FirstJournal => Self::Journals.covers(method, path, body) && contains(body, FIRST_JOURNAL),
            Self::Verdicts => *method == Method::PATCH && of(kinds::WORKLOAD.plural) && status,
            Self::DeviceClasses | Self::NoDeviceClasses => {
                *method == Method::GET && of(kinds::DEVICE_CLASS.plural)
            }
            Self::Requests => *method == Method::GET && of(kinds::PROVISIONING_REQUEST.plural),
            Self::Events => *method != Method::GET && of(kinds::EVENT.plural),
        }
    }

    /// The status code of the answer.
    const fn code(self) -> StatusCode {
        match self {
            Self::Webhook => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoDeviceClasses => StatusCode::NOT_FOUND,
            Self::FirstJournal => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::FORBIDDEN,
        }
    }
}

/// The journal of the check `first` in a JSON patch.
const FIRST_JOURNAL: &str = "/metadata/annotations/gang.setu.kueue.x-k8s.io~1first";

/// The annotation of slot 1 in a JSON body.
fn slot_one() -> String {
    format!("\"{}\":\"1\"", names::SLOT)
}

fn contains(body: &[u8], word: &str) -> bool {
    body.windows(word.len()).any(|part| part == word.as_bytes())
}

/// The current denials, shared by clones.
#[derive(Clone, Debug, Default)]
pub struct Denials(Arc<Mutex<BTreeSet<Denial>>>);

impl Denials {
    fn all(&self) -> MutexGuard<'_, BTreeSet<Denial>> {
        self.0.lock()
    }

    /// Adds a denial.
    pub fn begin(&self, denial: Denial) {
        self.all().insert(denial);
    }

    /// Removes all denials.
    pub fn end(&self) {
        self.all().clear();
    }

    /// The status code that a request is refused with; `None` if it is allowed.
    pub fn refuse(&self, method: &Method, path: &str, body: &[u8]) -> Option<StatusCode> {
        self.all().iter().find(|denial| denial.covers(method, path, body)).map(|denial| denial.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_denial_covers_its_own_requests_and_no_others() {
        let claims = "/apis/karpenter.sh/v1/nodeclaims";
        let workload = "/apis/kueue.x-k8s.io/v1beta2/namespaces/n/workloads/w";
        let slot = |n: u32| format!("{{\"annotations\":{{\"{}\":\"{n}\"}}}}", names::SLOT);
        let requests = [
            (Method::POST, claims.to_owned(), slot(0)),
            (Method::POST, claims.to_owned(), slot(1)),
            (Method::DELETE, format!("{claims}/c"), String::new()),
            (Method::PATCH, workload.to_owned(), String::new()),
            (Method::PATCH, format!("{workload}/status"), String::new()),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/n/events".to_owned(), String::new()),
            (Method::GET, claims.to_owned(), String::new()),
            (Method::PATCH, format!("{claims}/c"), String::new()),
            (Method::PATCH, "/api/v1/nodes/n".to_owned(), String::new()),
            (Method::DELETE, "/api/v1/nodes/n".to_owned(), String::new()),
            (Method::GET, "/apis/resource.k8s.io/v1/deviceclasses".to_owned(), String::new()),
            (Method::GET, "/apis/autoscaling.x-k8s.io/v1/provisioningrequests".to_owned(), String::new()),
            (Method::PATCH, workload.to_owned(), format!("[{{\"path\":\"{FIRST_JOURNAL}\"}}]")),
        ];
        for (denial, refused) in [
            (Denial::Creates, vec![0, 1]),
            (Denial::OneSlot, vec![1]),
            (Denial::Webhook, vec![1]),
            (Denial::Deletes, vec![2]),
            (Denial::Journals, vec![3, 12]),
            (Denial::FirstJournal, vec![12]),
            (Denial::Verdicts, vec![4]),
            (Denial::Events, vec![5]),
            (Denial::Patches, vec![7, 8]),
            (Denial::ClaimPatches, vec![7]),
            (Denial::NodePatches, vec![8]),
            (Denial::NodeDeletes, vec![9]),
            (Denial::DeviceClasses, vec![10]),
            (Denial::NoDeviceClasses, vec![10]),
            (Denial::Requests, vec![11]),
        ] {
            let denials = Denials::default();
            denials.begin(denial);
            let covered: Vec<usize> = (0..requests.len())
                .filter(|index| {
                    let (method, path, body) = &requests[*index];
                    denials.refuse(method, path, body.as_bytes()).is_some()
                })
                .collect();
            assert_eq!(covered, refused, "{denial:?}");
            denials.end();
            assert_eq!(denials.refuse(&Method::POST, claims, b""), None);
        }
    }
}
