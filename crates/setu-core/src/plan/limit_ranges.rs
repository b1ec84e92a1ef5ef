//! LimitRanges by namespace: defaults for the resources of containers that state none.

use crate::api::DaemonSet;
use k8s_openapi::api::core::v1::LimitRange;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The LimitRanges of some namespaces.
#[derive(Clone, Debug, Default)]
pub struct LimitRanges(BTreeMap<String, Vec<Arc<LimitRange>>>);

impl LimitRanges {
    /// None at all.
    pub const NONE: &'static Self = &Self(BTreeMap::new());

    /// Those that matter for a plan: of the namespaces of a Workload and of the DaemonSets.
    pub fn for_plan(
        all: impl IntoIterator<Item = Arc<LimitRange>>,
        namespace: &str,
        daemon_sets: &[Arc<DaemonSet>],
    ) -> Self {
        let of_daemon_sets =
            daemon_sets.iter().filter_map(|daemon_set| daemon_set.metadata.namespace.as_deref());
        let named: BTreeSet<&str> = of_daemon_sets.chain([namespace]).collect();
        let mut ranges = Self::default();
        for range in all {
            let namespace = range.metadata.namespace.as_deref().unwrap_or_default();
            if named.contains(namespace) {
                ranges.0.entry(namespace.to_owned()).or_default().push(range);
            }
        }
        ranges
    }

    /// Those of a namespace.
    pub fn of(&self, namespace: Option<&str>) -> &[Arc<LimitRange>] {
        self.0.get(namespace.unwrap_or_default()).map_or(&[], Vec::as_slice)
    }
}
