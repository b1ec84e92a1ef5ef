//! The instance types of the embedded cloud, and their prices by zone and capacity type.

use setu_core::api::quantity::Amount;
use std::collections::BTreeMap;

/// An instance type.
#[derive(Clone, Copy, Debug)]
pub struct InstanceType {
    /// Name, as in the label `node.kubernetes.io/instance-type`.
    pub name: &'static str,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in GiB.
    pub memory: u32,
    /// GPUs.
    pub gpus: u32,
    /// On-demand price in US dollars per hour, in the first zone.
    pub price: f64,
}

/// Zones of the embedded cloud.
pub const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
/// Capacity types with their price factors.
pub const CAPACITY_TYPES: [(&str, f64); 3] = [("on-demand", 1.0), ("spot", 0.4), (RESERVED, 0.0)];
/// Capacity type that exists only if the weather provides it.
pub const RESERVED: &str = "reserved";
/// Relative price increase per zone.
const ZONE_PREMIUM: f64 = 0.01;

const fn of(name: &'static str, cpus: u32, memory: u32, gpus: u32, price: f64) -> InstanceType {
    InstanceType { name, cpus, memory, gpus, price }
}

/// All instance types.
pub const TYPES: [InstanceType; 13] = [
    of("c5.large", 2, 4, 0, 0.085),
    of("m5.large", 2, 8, 0, 0.096),
    of("m5.xlarge", 4, 16, 0, 0.192),
    of("m5.2xlarge", 8, 32, 0, 0.384),
    of("m5.4xlarge", 16, 64, 0, 0.768),
    of("r5.4xlarge", 16, 128, 0, 1.008),
    of("m5.12xlarge", 48, 192, 0, 2.304),
    of("g5.xlarge", 4, 16, 1, 1.006),
    of("g5.4xlarge", 16, 64, 1, 1.624),
    of("g5.12xlarge", 48, 192, 4, 5.672),
    of("g5.48xlarge", 192, 768, 8, 16.288),
    of("p4d.24xlarge", 96, 1152, 8, 32.77),
    of("p5.48xlarge", 192, 2048, 8, 98.32),
];

impl InstanceType {
    /// Allocatable resources of a node of this type.
    pub fn allocatable(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            ("cpu".to_owned(), self.cpus.to_string()),
            ("memory".to_owned(), format!("{}Gi", self.memory)),
            ("ephemeral-storage".to_owned(), "200Gi".to_owned()),
            ("pods".to_owned(), "110".to_owned()),
        ]);
        if self.gpus > 0 {
            all.insert("nvidia.com/gpu".to_owned(), self.gpus.to_string());
        }
        all
    }

    /// Whether these requests fit on an empty node.
    pub fn fits(&self, requests: &BTreeMap<String, String>) -> bool {
        let has = self.allocatable();
        requests.iter().all(|(resource, wanted)| {
            let has = has.get(resource).and_then(|q| Amount::parse(q)).unwrap_or_default();
            Amount::parse(wanted).unwrap_or_default() <= has
        })
    }
}

/// One instance type in one zone with one capacity type.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueOffer {
    /// The type.
    pub instance_type: &'static InstanceType,
    /// The zone.
    pub zone: &'static str,
    /// `on-demand`, `spot` or `reserved`.
    pub capacity_type: &'static str,
    /// US dollars per hour.
    pub price: f64,
}

/// Every offer, in catalogue order.
pub fn offers() -> impl Iterator<Item = CatalogueOffer> {
    TYPES.iter().flat_map(|instance_type| {
        ZONES.iter().zip(0_u32..).flat_map(move |(zone, index)| {
            CAPACITY_TYPES.iter().map(move |(capacity_type, factor)| CatalogueOffer {
                instance_type,
                zone,
                capacity_type,
                price: instance_type.price * factor * ZONE_PREMIUM.mul_add(f64::from(index), 1.0),
            })
        })
    })
}
