//! Shapes from the machine size in Karpenter's metrics.

use super::Sources;
use crate::api::pod::ResourceList;
use crate::plan::catalogue::Catalogue;
use crate::plan::resources;
use crate::plan::shape::{Accelerators, Shape};
use crate::plan::source::Source;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Sources<'_> {
    /// The shape of a type that is known only by its size in Karpenter's metrics.
    pub(super) fn by_metrics(&self, instance_type: &str) -> Option<Shape> {
        let market = self.market.filter(|_| !self.asks_devices)?;
        let size = &market.size(instance_type)?;
        Some(Shape {
            instance_type: instance_type.to_owned(),
            allocatable: resources::minus(size, &overhead(size)),
            capacity: size.clone(),
            labels: BTreeMap::new(),
            node_pool: String::new(),
            nodes: 0,
            accelerators: Accelerators::Unknown,
            source: Source::Metrics { read: market.seen },
        })
    }

    /// The shape of a catalogue type with the size in Karpenter's metrics, if that differs.
    pub(super) fn resized(&self, listed: &Arc<Shape>, catalogue: &Catalogue) -> Option<Shape> {
        let market = self.market?;
        let size = &market.size(&listed.instance_type)?;
        let before = catalogue.whole(&listed.instance_type);
        let differs = |key: &&str| resources::amount(size, key) != resources::amount(&before, key);
        ["cpu", "memory"].iter().find(|key| differs(key))?;
        let (less, more) = (resources::minus(&before, size), resources::minus(size, &before));
        let kept = more.keys().map(|key| (key.clone(), resources::amount(&more, key).part(10).into()));
        let more = resources::minus(&more, &kept.collect());
        let allocatable = resources::minus(&resources::sum(&listed.allocatable, &more), &less);
        let source = Source::Metrics { read: market.seen };
        Some(Shape { allocatable, capacity: size.clone(), source, ..(**listed).clone() })
    }
}

/// The most that the system and the kubelet of any provider reserve on a machine of this size.
fn overhead(size: &ResourceList) -> ResourceList {
    let fixed = ResourceList::from([
        ("cpu".to_owned(), Quantity("200m".to_owned())),
        ("memory".to_owned(), Quantity("2Gi".to_owned())),
    ]);
    let part = |(key, of): (&str, u32)| (key.to_owned(), resources::amount(size, key).part(of).into());
    resources::sum(&fixed, &ResourceList::from([("cpu", 80), ("memory", 10)].map(part)))
}
