//! The gang that a request is about.

use super::InvariantChecker;
use crate::names;
use axum::body::Bytes;
use http::Request;
use serde_json::Value;
use setu_sim::values::{label, name, text, uid};

impl InvariantChecker {
    /// UID of the Workload that a request is about; empty if it is about none or several.
    pub fn meant_by(&self, request: &Request<Bytes>) -> String {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let mut rest = request.uri().path().rsplit('/').filter(|part| *part != "status");
        let (last, before) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
        let of_label = |object: &Value| label(object, names::WORKLOAD_UID).to_owned();
        if let Some(selected) = selected(request.uri().query().unwrap_or_default()) {
            return selected;
        }
        let committed = self.lock();
        match (before, last) {
            ("workloads", workload) => {
                let all = committed.workloads.values();
                all.filter(|w| name(w) == workload).map(|w| uid(w).to_owned()).next().unwrap_or_default()
            }
            ("nodeclaims", claim) => committed.claims.get(claim).map_or_else(String::new, |c| of_label(c)),
            ("nodes", node) => committed.nodes.get(node).map_or_else(String::new, |n| of_label(n)),
            (_, "events") => text(&body, "/regarding/uid").to_owned(),
            (_, "nodeclaims") => of_label(&body),
            _ => String::new(),
        }
    }
}

/// The Workload that a list selects by label.
fn selected(query: &str) -> Option<String> {
    let (_, selector) = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "labelSelector")?;
    let of = |term: &str| Some(term.strip_prefix(names::WORKLOAD_UID)?.strip_prefix('=')?.to_owned());
    selector.split(',').find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(uri: &str) -> String {
        let request = Request::builder().uri(uri).body(Bytes::new()).unwrap();
        InvariantChecker::default().meant_by(&request)
    }

    #[test]
    fn a_list_concerns_a_workload_only_if_it_selects_by_uid() {
        let of_gang = format!("{}={},{}=abc", names::MANAGED_BY, names::SETU, names::WORKLOAD_UID);
        let of_gang: String = form_urlencoded::byte_serialize(of_gang.as_bytes()).collect();
        let claims = "/apis/karpenter.sh/v1/nodeclaims";
        assert_eq!(meant(&format!("{claims}?limit=500&labelSelector={of_gang}")), "abc");
        assert_eq!(meant(&format!("{claims}?limit=500")), "");
        assert_eq!(meant(&format!("{claims}?labelSelector=a%3Db")), "");
    }
}
