//! The instance types of a cloud, with the figures that its Karpenter provider calculates, embedded at build time.
//!
//! Called by `shapes` for what neither policy nor Nodes state. `just catalogue` generates the facts.
//!
//! EC2: sizes, labels and prices are those of karpenter-provider-aws (catalogue/main.go): memory minus 7.5 % for the machine, minus
//! what the kubelet keeps; pods as limited by network interfaces. The provider has prices in dollars for us-east-1 and the US
//! government's regions. Prices of other regions are estimates: the price in us-east-1 times the ratio of the two regions' prices on
//! an earlier day (catalogue/regions.go). Left out are the size of the root volume, which the EC2NodeClass sets, and types that AWS
//! no longer describes.
//!
//! Azure and Google Cloud: the types are in hand-written tables (catalogue/azure.csv and catalogue/google.csv, which name the source
//! of each fact and the types that they leave out), with labels and what pods may use as these providers calculate them
//! (catalogue/others). The AKSNodeClass sets how many pods an Azure node takes. Azure's prices are those that its provider ships, for
//! all of the provider's regions.
//!
//! Rule: the catalogue of each provider is decoded when it is first used, and then shared.

mod capacity;

use super::shape::{ACCELERATOR_NAMES, Accelerators, Shape, is_of_machine};
use super::source::Source;
use crate::api::NodePool;
use crate::api::amount::Price;
use crate::api::pod::ResourceList;
use crate::api::requirements::{Requirements, Values};
use crate::names;
use flate2::read::GzDecoder;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::{Arc, LazyLock};

/// Written by `just catalogue`.
static ALL: [EmbeddedCatalogue; 3] = [
    EmbeddedCatalogue {
        groups: &["karpenter.k8s.aws", "eks.amazonaws.com"],
        types: LazyLock::new(|| decode(include_bytes!("catalogue/types.json.gz"))),
    },
    EmbeddedCatalogue {
        groups: &["karpenter.azure.com"],
        types: LazyLock::new(|| decode(include_bytes!("catalogue/azure.json.gz"))),
    },
    EmbeddedCatalogue {
        groups: &["karpenter.k8s.gcp"],
        types: LazyLock::new(|| decode(include_bytes!("catalogue/gcp.json.gz"))),
    },
];
/// The prefix under which EKS Auto Mode has the labels of Karpenter's AWS provider.
const AUTO_MODE: &str = "eks.amazonaws.com/";
const AWS: &str = "karpenter.k8s.aws/";

/// The embedded catalogue of one provider.
struct EmbeddedCatalogue {
    /// API groups of its NodeClasses.
    groups: &'static [&'static str],
    types: LazyLock<Option<Catalogue>>,
}

/// Every instance type of a provider.
#[derive(Debug)]
pub struct Catalogue {
    /// Day of the prices.
    date: Arc<str>,
    /// Keys of the labels, sorted.
    keys: Vec<String>,
    /// The region of a price if the region of the nodes is not known, and for comparing types.
    usual_region: String,
    /// Position of each region among the prices of a type.
    regions: BTreeMap<String, usize>,
    /// Which of the prices are estimates.
    estimates: Option<EstimatedPrices>,
    /// In the order of their names.
    types: Vec<Type>,
    /// Every resource that any of them has, sorted.
    resources: Vec<String>,
}

/// One instance type.
#[derive(Debug)]
pub struct Type {
    /// The shape of its nodes.
    pub shape: Arc<Shape>,
    /// Values of the labels, in the order of the keys; empty where it has none.
    labels: Box<[Arc<str>]>,
    /// Hourly on-demand prices in millionths, in the order of the regions; zero where no price is known.
    prices: Box<[u64]>,
}

/// Prices that are reckoned from those of the usual region.
#[derive(Debug, Deserialize)]
struct EstimatedPrices {
    /// Day on which the regions' prices were compared.
    date: Arc<str>,
    /// Position of the first region that has such prices.
    first: usize,
}

/// A price of the catalogue, by the region that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPrice {
    /// The price of the region where the node would be.
    There(Price),
    /// An estimate for that region.
    Estimate(Price),
    /// The price of the usual region, because the node's region is not known.
    Usual(Price),
    /// The price of the usual region, because none is known for the node's region: only used to compare types.
    Elsewhere(Price),
}

/// Labels with the family of a type.
const FAMILIES: [&str; 3] = [
    "karpenter.k8s.aws/instance-family",
    "karpenter.azure.com/sku-family",
    "karpenter.k8s.gcp/instance-family",
];

/// The catalogue of the provider whose NodeClasses have this API group, if there is one.
pub fn of(group: &str) -> Option<&'static Catalogue> {
    ALL.iter().find(|embedded| embedded.groups.contains(&group))?.types.as_ref()
}

/// A message for each of these NodePools whose provider's catalogue is older than a year.
pub fn outdated_of(pools: &[Arc<NodePool>], now: Timestamp) -> impl Iterator<Item = String> {
    let groups = pools.iter().map(|pool| pool.spec.template.spec.node_class_ref.group.as_str());
    groups.filter_map(move |group| of(group)?.outdated(now))
}

/// The catalogues of all providers.
pub fn all() -> impl Iterator<Item = &'static Catalogue> {
    ALL.iter().filter_map(|embedded| embedded.types.as_ref())
}

/// The instance type of this name, whichever provider has it.
pub fn find(name: &str) -> Option<&'static Type> {
    ALL.iter().find_map(|embedded| embedded.types.as_ref()?.get(name))
}

/// The region of a zone: the zone without its letter (`us-east-1a`, `us-central1-a`), or without its number on Azure (`eastus-1`).
/// Anything else is its own region. A local zone (`us-east-1-bos-1a`) counts as the region `us-east-1-bos-1`.
pub fn region_of(zone: &str) -> &str {
    if let Some((region, number)) = zone.split_once('-')
        && !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit())
    {
        return region;
    }
    let rest = zone.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let region = if zone.len() == rest.len() + 1 { rest.trim_end_matches('-') } else { rest };
    if region.ends_with(|c: char| c.is_ascii_digit()) { region } else { zone }
}

impl Catalogue {
    /// Day of the prices, such as `2026-07-06`.
    pub fn date(&self) -> &str {
        &self.date
    }

    /// Where its figures are known from.
    pub fn source(&self) -> Source {
        Source::Catalogue { date: Arc::clone(&self.date), estimated_by: None }
    }

    /// Where the prices are known from that are estimates.
    pub fn source_of_estimates(&self) -> Source {
        let day = self.estimates.as_ref().map(|estimates| Arc::clone(&estimates.date));
        Source::Catalogue { date: Arc::clone(&self.date), estimated_by: day }
    }

    /// A message for people if it is older than a year, with the remedy. `None` otherwise.
    pub fn outdated(&self, now: Timestamp) -> Option<String> {
        let ends = self.date.parse::<Date>().ok()?.checked_add(1.year()).ok()?;
        let is_over = now.to_zoned(TimeZone::UTC).date() > ends;
        is_over.then(|| {
            format!(
                "the catalogue of instance types is of {}, more than a year ago: sizes and prices may have changed; take a \
                 newer release, or state shapes and prices in the policy",
                self.date
            )
        })
    }

    /// Names of all types, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(|t| t.shape.instance_type.as_str())
    }

    /// The family of a type, such as `p5`, `a2` or, on Azure, `N`.
    pub fn family(&self, name: &str) -> Option<&str> {
        FAMILIES.iter().find_map(|key| self.label(name, key))
    }

    /// The families of all types.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.names().filter_map(|name| self.family(name))
    }

    /// Keys of the labels, sorted.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Whether its types have this label.
    pub fn has_label(&self, key: &str) -> bool {
        self.column(key).is_some()
    }

    /// A label's key as the catalogue has it: EKS Auto Mode has a prefix of its own.
    pub fn normalized<'k>(&self, key: &'k str) -> Cow<'k, str> {
        match key.strip_prefix(AUTO_MODE) {
            Some(name) if name.starts_with("instance-") => Cow::Owned(format!("{AWS}{name}")),
            _ => Cow::Borrowed(key),
        }
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&Type> {
        let place = self.types.binary_search_by(|t| t.shape.instance_type.as_str().cmp(name)).ok()?;
        self.types.get(place)
    }

    /// The types that a node with these requirements may be of.
    pub fn matching(&self, requirements: &Requirements) -> Vec<&Type> {
        let asked: Vec<(usize, &Values)> = requirements
            .iter()
            .filter(|(key, _)| is_of_machine(key))
            .filter_map(|(key, values)| Some((self.column(key)?, values)))
            .collect();
        let meets = |t: &&Type| {
            asked.iter().all(|(column, values)| match t.labels.get(*column).map_or("", |v| v) {
                "" => values.allows_absence(),
                value => values.allows(value),
            })
        };
        let types = requirements.get(names::INSTANCE_TYPE);
        if let Some(listed) = types.and_then(Values::listed) {
            return listed.iter().filter_map(|name| self.get(name)).filter(meets).collect();
        }
        let allowed = |t: &&Type| types.is_none_or(|values| values.allows(&t.shape.instance_type));
        self.types.iter().filter(allowed).filter(meets).collect()
    }

    /// The region whose price is shown if nothing says in which one nodes would be.
    pub fn usual_region(&self) -> &str {
        &self.usual_region
    }

    /// Hourly on-demand price of a node of this type in this region, or else in the usual one.
    pub fn price(&self, name: &str, region: Option<&str>) -> Option<ListPrice> {
        let prices = &self.get(name)?.prices;
        let at = |place: usize| {
            prices.get(place).copied().filter(|micros| *micros > 0).map(|micros| Price { micros })
        };
        let Some(region) = region else { return at(0).map(ListPrice::Usual) };
        let there = self.regions.get(region).and_then(|place| {
            let is_estimate = self.estimates.as_ref().is_some_and(|estimates| *place >= estimates.first);
            at(*place).map(if is_estimate { ListPrice::Estimate } else { ListPrice::There })
        });
        there.or_else(|| at(0).map(ListPrice::Elsewhere))
    }

    /// Whether it has prices of this region.
    pub fn knows(&self, region: &str) -> bool {
        self.regions.contains_key(region)
    }

    /// Every resource that any type has, sorted.
    pub fn resources(&self) -> &[String] {
        &self.resources
    }

    /// Whether a type has any of a resource.
    pub fn has(&self, resource: &str) -> bool {
        self.resources.binary_search_by(|known| known.as_str().cmp(resource)).is_ok()
    }

    /// Cores and memory of a machine of this type, before anything is taken off.
    pub fn whole(&self, name: &str) -> ResourceList {
        capacity::whole(|key| self.label(name, key))
    }

    /// Value of a label of this type.
    pub fn label(&self, name: &str, key: &str) -> Option<&str> {
        let value = self.get(name)?.labels.get(self.column(key)?)?;
        Some(&**value).filter(|value| !value.is_empty())
    }

    fn column(&self, key: &str) -> Option<usize> {
        let key = self.normalized(key);
        self.keys.binary_search_by(|known| known.as_str().cmp(&key)).ok()
    }
}

/// A provider's types as the file has them.
#[derive(Deserialize)]
struct Raw<'f> {
    date: Arc<str>,
    keys: Vec<String>,
    /// First the usual one.
    regions: Vec<String>,
    estimates: Option<EstimatedPrices>,
    #[serde(borrow)]
    types: Vec<RawType<'f>>,
}

#[derive(Deserialize)]
struct RawType<'f> {
    name: String,
    #[serde(borrow)]
    labels: Vec<&'f str>,
    allocatable: ResourceList,
    prices: Box<[u64]>,
    /// Whether it has accelerators that neither labels nor resources show.
    #[serde(default)]
    accelerator: bool,
}

/// The value of a label of a type.
fn value<'f>(keys: &[String], labels: &[&'f str], key: &str) -> Option<&'f str> {
    let column = keys.iter().position(|known| known == key)?;
    labels.get(column).copied().filter(|value| !value.is_empty())
}

fn decode(file: &[u8]) -> Option<Catalogue> {
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).ok()?;
    let all: BTreeMap<String, Raw<'_>> = serde_json::from_str(&text).ok()?;
    all.into_values().next().map(Catalogue::from)
}

impl From<Raw<'_>> for Catalogue {
    fn from(Raw { date, keys, regions, estimates, types }: Raw<'_>) -> Self {
        let mut known: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut shared = |value: &str| {
            if let Some(value) = known.get(value) {
                return Arc::clone(value);
            }
            let value: Arc<str> = value.into();
            known.insert(Arc::clone(&value));
            value
        };
        let of_accelerators = |labels: &[&str]| -> BTreeMap<String, String> {
            let all = keys.iter().cloned().zip(labels.iter().map(ToString::to_string));
            all.filter(|(key, value)| ACCELERATOR_NAMES.contains(&key.as_str()) && !value.is_empty())
                .collect()
        };
        let mut read = |t: RawType<'_>| Type {
            shape: Arc::new(Shape {
                instance_type: t.name,
                capacity: capacity::of(|key| value(&keys, &t.labels, key)),
                allocatable: t.allocatable,
                labels: of_accelerators(&t.labels),
                node_pool: String::new(),
                nodes: 0,
                accelerators: if t.accelerator { Accelerators::Some } else { Accelerators::Stated },
                source: Source::Catalogue { date: Arc::clone(&date), estimated_by: None },
            }),
            labels: t.labels.into_iter().map(&mut shared).collect(),
            prices: t.prices,
        };
        let types: Vec<Type> = types.into_iter().map(&mut read).collect();
        let resources: BTreeSet<&String> = types.iter().flat_map(|t| t.shape.allocatable.keys()).collect();
        let resources = resources.into_iter().cloned().collect();
        let usual_region = regions.first().cloned().unwrap_or_default();
        let regions = regions.into_iter().zip(0..).collect();
        Self { date, keys, usual_region, regions, estimates, types, resources }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::resources::amount;
    use serde_json::{Value, json};

    const AZURE: &str = "karpenter.azure.com";
    const GOOGLE: &str = "karpenter.k8s.gcp";

    fn aws() -> &'static Catalogue {
        of("karpenter.k8s.aws").unwrap()
    }

    /// vCPU, memory in GiB, and devices, from the pages of the provider on its types.
    const DOCUMENTED: [(&str, u32, f64, &str, u32); 34] = [
        ("c5.large", 2, 4.0, "", 0),
        ("c6g.16xlarge", 64, 128.0, "", 0),
        ("c6i.32xlarge", 128, 256.0, "", 0),
        ("c7a.medium", 1, 2.0, "", 0),
        ("c7i.48xlarge", 192, 384.0, "", 0),
        ("hpc7g.16xlarge", 64, 128.0, "", 0),
        ("i4i.32xlarge", 128, 1024.0, "", 0),
        ("m5.large", 2, 8.0, "", 0),
        ("m6a.48xlarge", 192, 768.0, "", 0),
        ("m7g.medium", 1, 4.0, "", 0),
        ("m7i-flex.8xlarge", 32, 128.0, "", 0),
        ("r5.24xlarge", 96, 768.0, "", 0),
        ("r6i.large", 2, 16.0, "", 0),
        ("r8g.48xlarge", 192, 1536.0, "", 0),
        ("t3.nano", 2, 0.5, "", 0),
        ("t4g.micro", 2, 1.0, "", 0),
        ("x2iedn.32xlarge", 128, 4096.0, "", 0),
        ("g4dn.xlarge", 4, 16.0, "nvidia.com/gpu", 1),
        ("g4dn.12xlarge", 48, 192.0, "nvidia.com/gpu", 4),
        ("g4ad.16xlarge", 64, 256.0, "amd.com/gpu", 4),
        ("g5.xlarge", 4, 16.0, "nvidia.com/gpu", 1),
        ("g5.48xlarge", 192, 768.0, "nvidia.com/gpu", 8),
        ("g6.12xlarge", 48, 192.0, "nvidia.com/gpu", 4),
        ("g6e.48xlarge", 192, 1536.0, "nvidia.com/gpu", 8),
        ("p3dn.24xlarge", 96, 768.0, "nvidia.com/gpu", 8),
        ("p4d.24xlarge", 96, 1152.0, "nvidia.com/gpu", 8),
        ("p4de.24xlarge", 96, 1152.0, "nvidia.com/gpu", 8),
        ("p5.48xlarge", 192, 2048.0, "nvidia.com/gpu", 8),
        ("p5en.48xlarge", 192, 2048.0, "nvidia.com/gpu", 8),
        ("p6-b200.48xlarge", 192, 2048.0, "nvidia.com/gpu", 8),
        ("dl1.24xlarge", 96, 768.0, "habana.ai/gaudi", 8),
        ("inf1.24xlarge", 96, 192.0, "aws.amazon.com/neuron", 16),
        ("inf2.48xlarge", 192, 768.0, "aws.amazon.com/neuron", 12),
        ("trn1.32xlarge", 128, 512.0, "aws.amazon.com/neuron", 16),
    ];

    /// Sizes and devices of instance types that other providers document.
    const DOCUMENTED_ELSEWHERE: [(&str, &str, u32, u32, &str, u32); 24] = [
        (AZURE, "Standard_NC4as_T4_v3", 4, 28, "nvidia.com/gpu", 1),
        (AZURE, "Standard_NC64as_T4_v3", 64, 440, "nvidia.com/gpu", 4),
        (AZURE, "Standard_NC24ads_A100_v4", 24, 220, "nvidia.com/gpu", 1),
        (AZURE, "Standard_NC96ads_A100_v4", 96, 880, "nvidia.com/gpu", 4),
        (AZURE, "Standard_NC80adis_H100_v5", 80, 640, "nvidia.com/gpu", 2),
        (AZURE, "Standard_ND96asr_v4", 96, 900, "nvidia.com/gpu", 8),
        (AZURE, "Standard_ND96isr_H100_v5", 96, 1900, "nvidia.com/gpu", 8),
        (AZURE, "Standard_ND96isr_H200_v5", 96, 1850, "nvidia.com/gpu", 8),
        (AZURE, "Standard_ND96isr_MI300X_v5", 96, 1850, "amd.com/gpu", 8),
        (AZURE, "Standard_D4s_v5", 4, 16, "", 0),
        (AZURE, "Standard_D2pls_v5", 2, 4, "", 0),
        (AZURE, "Standard_E8ads_v5", 8, 64, "", 0),
        (AZURE, "Standard_F8s_v2", 8, 16, "", 0),
        (GOOGLE, "a2-highgpu-8g", 96, 680, "nvidia.com/gpu", 8),
        (GOOGLE, "a2-megagpu-16g", 96, 1360, "nvidia.com/gpu", 16),
        (GOOGLE, "a3-highgpu-8g", 208, 1872, "nvidia.com/gpu", 8),
        (GOOGLE, "a3-ultragpu-8g", 224, 2952, "nvidia.com/gpu", 8),
        (GOOGLE, "a4-highgpu-8g", 224, 3968, "nvidia.com/gpu", 8),
        (GOOGLE, "g2-standard-24", 24, 96, "nvidia.com/gpu", 2),
        (GOOGLE, "g2-standard-32", 32, 128, "nvidia.com/gpu", 1),
        (GOOGLE, "g4-standard-384", 384, 1440, "nvidia.com/gpu", 8),
        (GOOGLE, "n2-highmem-16", 16, 128, "", 0),
        (GOOGLE, "c4-standard-192", 192, 720, "", 0),
        (GOOGLE, "t2d-standard-4", 4, 16, "", 0),
    ];

    #[test]
    fn types_of_azure_and_google_have_the_figures_that_those_document() {
        for (group, name, cpu, gib, device, count) in DOCUMENTED_ELSEWHERE {
            let catalogue = of(group).unwrap();
            let prefix = if group == AZURE { "sku" } else { "instance" };
            let label =
                |label: &str| catalogue.label(name, &format!("{group}/{prefix}-{label}")).unwrap_or("0");
            assert_eq!(label("cpu"), cpu.to_string(), "{name}");
            assert_eq!(label("memory"), (gib * 1024).to_string(), "{name}");
            assert_eq!(label("gpu-count"), count.to_string(), "{name}");
            let allocatable = &catalogue.get(name).unwrap().shape.allocatable;
            let devices: Vec<&str> =
                allocatable.keys().map(String::as_str).filter(|key| key.contains('/')).collect();
            assert_eq!(devices, if device.is_empty() { vec![] } else { vec![device] }, "{name}");
            assert_eq!(amount(allocatable, device).nanos(), i128::from(count) * 1_000_000_000, "{name}");
        }
    }

    #[test]
    fn a_catalogue_that_is_older_than_a_year_says_so() {
        let noon = |day: Date| day.at(12, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp();
        let anniversary = aws().date().parse::<Date>().unwrap() + 1.year();
        assert_eq!(aws().outdated(noon(anniversary)), None);
        let said = aws().outdated(noon(anniversary + 1.day())).unwrap();
        assert!(said.contains(aws().date()), "{said}");
    }

    #[test]
    fn types_have_the_figures_that_the_provider_documents() {
        for (name, cpu, gib, device, count) in DOCUMENTED {
            let of = |label: &str| -> f64 {
                aws().label(name, &format!("{AWS}{label}")).unwrap().parse().unwrap()
            };
            assert_eq!((of("instance-cpu"), of("instance-memory") / 1024.0), (f64::from(cpu), gib), "{name}");
            let allocatable = &aws().get(name).unwrap().shape.allocatable;
            let devices: Vec<&str> = allocatable
                .keys()
                .map(String::as_str)
                .filter(|key| {
                    key.contains('/')
                        && !key.starts_with("vpc.amazonaws.com/")
                        && !key.ends_with("neuroncore")
                })
                .collect();
            assert_eq!(devices, if device.is_empty() { vec![] } else { vec![device] }, "{name}");
            assert_eq!(amount(allocatable, device).nanos(), i128::from(count) * 1_000_000_000, "{name}");
        }
    }

    /// CPU that the kubelet reserves, in thousandths of a core: 6 % of the first core, 1 % of the second, 0.5 % of the next two and
    /// 0.25 % of the rest.
    fn overhead(cores: i128) -> i128 {
        let part = |from: i128, to: i128, in_10_000: i128| {
            ((cores.min(to) - from).max(0) * 1_000 * in_10_000) / 10_000
        };
        part(0, 1, 600) + part(1, 2, 100) + part(2, 4, 50) + part(4, i128::MAX, 25)
    }

    #[test]
    fn what_pods_may_use_is_what_karpenter_reckons_with() {
        const MI: i128 = 1024 * 1024;
        for t in &aws().types {
            let name = t.shape.instance_type.as_str();
            let label =
                |key: &str| -> i128 { aws().label(name, &format!("{AWS}{key}")).unwrap().parse().unwrap() };
            let whole = |key: &str| amount(&t.shape.allocatable, key).nanos() / 1_000_000_000;
            let contiguous = if aws().label(name, names::ARCH) == Some("arm64") { 64 } else { 0 };
            let all = label("instance-memory") - contiguous;
            let machine = (all * 75 + 999) / 1000;
            let memory = all - machine - (11 * whole("pods") + 255) - 100;
            assert_eq!(whole("memory"), memory.max(0) * MI, "{name}");
            let cores = label("instance-cpu");
            let cpu = amount(&t.shape.allocatable, "cpu").nanos() / 1_000_000;
            assert_eq!(cpu, cores * 1000 - overhead(cores), "{name}");
            let has = |key: &str| amount(&t.shape.counts_with(), key).nanos() / 1_000_000_000;
            assert_eq!((has("cpu"), has("memory")), (cores, (all - machine) * MI), "limits count for {name}");
        }
    }

    #[test]
    fn figures_are_those_that_the_providers_own_code_comes_to() {
        for (name, figures) in [
            (
                "p5.48xlarge",
                json!({"cpu": "191450m", "memory": "1938410Mi", "pods": "100", "nvidia.com/gpu": "8",
                "vpc.amazonaws.com/efa": "32", "vpc.amazonaws.com/pod-eni": "120"}),
            ),
            (
                "c6g.large",
                json!({"cpu": "1930m", "memory": "3055Mi", "pods": "29", "vpc.amazonaws.com/pod-eni": "9"}),
            ),
            (
                "trn1.32xlarge",
                json!({"cpu": "127610m", "memory": "481894Mi", "pods": "247", "aws.amazon.com/neuron": "16",
                "aws.amazon.com/neuroncore": "32", "vpc.amazonaws.com/efa": "8", "vpc.amazonaws.com/pod-eni": "82"}),
            ),
        ] {
            assert_eq!(
                serde_json::to_value(&aws().get(name).unwrap().shape.allocatable).unwrap(),
                figures,
                "{name}"
            );
        }
    }

    #[test]
    fn figures_of_azure_and_google_are_what_their_providers_keep_for_machine_and_kubelet() {
        for (group, name, figures) in [
            // 6 %, 4 %, 2 % and 1 % of the cores. 7.5 % of the memory, then 25 %, 20 %, 10 %, 6 % and 2 % of its parts, and 750 Mi.
            (
                AZURE,
                "Standard_ND96isr_H100_v5",
                json!({"cpu": "94940m", "memory": "1753096Mi", "nvidia.com/gpu": "8"}),
            ),
            (AZURE, "Standard_D4s_v5", json!({"cpu": "3860m", "memory": "11743Mi"})),
            // 6 %, 1 %, 0.5 % and 0.25 % of the cores, and 100 m for kube-proxy. 7 % of the memory, then as on Azure, and 100 Mi.
            (
                GOOGLE,
                "a3-highgpu-8g",
                json!({"cpu": "207310m", "memory": "1737383Mi", "pods": "110", "nvidia.com/gpu": "8"}),
            ),
            (GOOGLE, "e2-standard-4", json!({"cpu": "3820m", "memory": "12475Mi", "pods": "110"})),
            (GOOGLE, "e2-medium", json!({"cpu": "840m", "memory": "2685Mi", "pods": "110"})),
        ] {
            let shape = &of(group).unwrap().get(name).unwrap().shape;
            assert_eq!(serde_json::to_value(&shape.allocatable).unwrap(), figures, "{name}");
        }
    }

    fn matching(list: &Value) -> Vec<&'static str> {
        matching_of(aws(), list)
    }

    fn matching_of(catalogue: &'static Catalogue, list: &Value) -> Vec<&'static str> {
        let list: Vec<crate::api::node_claim::Requirement> = serde_json::from_value(list.clone()).unwrap();
        let mut requirements = Requirements::default();
        requirements.add_all(&list).unwrap();
        catalogue.matching(&requirements).iter().map(|t| t.shape.instance_type.as_str()).collect()
    }

    #[test]
    fn types_are_found_by_what_is_asked_of_their_labels() {
        let is = |key: &str, operator: &str, values: &[&str]| {
            json!({"key": if key.contains('/') { key.to_owned() } else { format!("{AWS}instance-{key}") },
                "operator": operator, "values": values})
        };
        let trn = || is("category", "In", &["trn"]);
        for (asked, expected) in [
            (json!([is("family", "In", &["p5"])]), vec!["p5.48xlarge", "p5.4xlarge"]),
            (json!([is("family", "In", &["p5"]), is("gpu-count", "Gte", &["2"])]), vec!["p5.48xlarge"]),
            (json!([is("family", "In", &["p5"]), is("gpu-count", "Lt", &["8"])]), vec!["p5.4xlarge"]),
            (json!([is("gpu-name", "In", &["h100"]), is("cpu", "Gt", &["64"])]), vec!["p5.48xlarge"]),
            (json!([is("gpu-name", "In", &["h100"]), is("cpu", "Lte", &["64"])]), vec!["p5.4xlarge"]),
            (
                json!([trn(), is("gpu-count", "DoesNotExist", &[]), is("size", "In", &["2xlarge"])]),
                vec!["trn1.2xlarge"],
            ),
            (
                json!([trn(), is("accelerator-count", "Exists", &[]), is("size", "In", &["2xlarge"])]),
                vec!["trn1.2xlarge"],
            ),
            (
                json!([trn(), is("gpu-name", "NotIn", &["h100"]), is("size", "In", &["2xlarge"])]),
                vec!["trn1.2xlarge"],
            ),
            (json!([trn(), is("gpu-count", "Gt", &["0"])]), vec![]),
            (
                json!([is(names::ARCH, "In", &["arm64"]), is("gpu-count", "In", &["2"])]),
                vec!["g5g.16xlarge", "g5g.metal"],
            ),
            (
                json!([is("eks.amazonaws.com/instance-family", "In", &["p5"])]),
                vec!["p5.48xlarge", "p5.4xlarge"],
            ),
            (json!([is(names::INSTANCE_TYPE, "In", &["m5.large", "none"])]), vec!["m5.large"]),
            // The operating system is the EC2NodeClass's.
            (
                json!([is(names::INSTANCE_TYPE, "In", &["m5.2xlarge"]), is(names::OS, "In", &["windows"])]),
                vec!["m5.2xlarge"],
            ),
            (
                json!([is(names::INSTANCE_TYPE, "NotIn", &["p5.4xlarge"]), is("family", "In", &["p5"])]),
                vec!["p5.48xlarge"],
            ),
            (
                json!([is("family", "In", &["p5"]), is("tenancy", "In", &["default"])]),
                vec!["p5.48xlarge", "p5.4xlarge"],
            ),
        ] {
            assert_eq!(matching(&asked), expected, "{asked}");
        }
    }

    #[test]
    fn types_of_azure_and_google_are_found_by_the_labels_of_their_providers() {
        let is = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let azure =
            |label: &str, operator, values: &[&str]| is(&format!("{AZURE}/sku-{label}"), operator, values);
        let google = |label: &str, operator, values: &[&str]| {
            is(&format!("{GOOGLE}/instance-{label}"), operator, values)
        };
        let h100s = ["Standard_NC40ads_H100_v5", "Standard_NC80adis_H100_v5", "Standard_ND96isr_H100_v5"];
        let mi300xs = ["Standard_ND96is_MI300X_v5", "Standard_ND96isr_MI300X_v5"];
        let d16s = ["Standard_D16plds_v6", "Standard_D16pls_v6"];
        let c4s = ["c4-highcpu-288", "c4-standard-288", "c4-standard-288-lssd", "c4-standard-288-metal"];
        for (group, asked, expected) in [
            (AZURE, json!([azure("gpu-name", "In", &["H100"])]), &h100s[..]),
            (
                AZURE,
                json!([azure("gpu-name", "In", &["H100"]), azure("gpu-count", "Gt", &["1"])]),
                &h100s[1..],
            ),
            (
                AZURE,
                json!([azure("gpu-manufacturer", "In", &["amd"]), azure("gpu-count", "In", &["8"])]),
                &mi300xs,
            ),
            (
                AZURE,
                json!([
                    azure("series", "In", &["Dpls_v6", "Dplds_v6"]),
                    is("kubernetes.azure.com/sku-cpu", "In", &["16"])
                ]),
                &d16s,
            ),
            (AZURE, json!([azure("name", "In", &["Standard_D4s_v5"])]), &["Standard_D4s_v5"]),
            (AZURE, json!([azure("family", "In", &["N"]), is(names::ARCH, "In", &["arm64"])]), &[]),
            (GOOGLE, json!([google("family", "In", &["a4"])]), &["a4-highgpu-8g"]),
            (GOOGLE, json!([google("gpu-count", "Gte", &["16"])]), &["a2-megagpu-16g"]),
            (
                GOOGLE,
                json!([is("cloud.google.com/gke-accelerator", "In", &["nvidia-h200-141gb"])]),
                &["a3-ultragpu-8g"],
            ),
            (
                GOOGLE,
                json!([
                    google("family", "In", &["c4"]),
                    google("size", "In", &["288"]),
                    google("shape", "NotIn", &["highmem"])
                ]),
                &c4s,
            ),
            (
                GOOGLE,
                json!([
                    google("generation", "In", &["2"]),
                    is(names::ARCH, "In", &["arm64"]),
                    google("cpu", "Gt", &["40"])
                ]),
                &["t2a-standard-48"],
            ),
            (GOOGLE, json!([google("family", "In", &["p5"])]), &[]),
        ] {
            assert_eq!(matching_of(of(group).unwrap(), &asked), expected, "{asked}");
        }
    }

    #[test]
    fn the_source_of_an_estimate_says_so() {
        let source = aws().source_of_estimates();
        let date = aws().date();
        let words = "(estimates, by how prices of regions differed on 2025-05-28)";
        assert_eq!(source.to_string(), format!("the catalogue of {date} {words}"));
        let shown = serde_json::to_value(&source).unwrap();
        assert_eq!(shown, json!({"kind": "catalogue", "date": date, "estimatedBy": "2025-05-28"}));
    }

    #[test]
    fn a_price_is_of_the_region_or_says_that_it_is_an_estimate_or_of_another() {
        let dollars = |micros| Price { micros };
        for (name, region, listed) in [
            ("m5.large", Some("us-gov-west-1"), Some(ListPrice::There(dollars(121_000)))),
            ("m5.large", Some("us-east-1"), Some(ListPrice::There(dollars(96_000)))),
            ("m5.large", Some("eu-central-1"), Some(ListPrice::Estimate(dollars(115_000)))),
            ("m5.large", Some("us-east-1-bos-1"), Some(ListPrice::Elsewhere(dollars(96_000)))),
            ("m5.xlarge", Some("us-east-1-bos-1"), Some(ListPrice::Estimate(dollars(240_000)))),
            ("p5.48xlarge", Some("eu-central-1"), Some(ListPrice::Elsewhere(dollars(55_040_000)))),
            ("m5.large", Some("cn-north-1"), Some(ListPrice::Elsewhere(dollars(96_000)))),
            ("m5.large", None, Some(ListPrice::Usual(dollars(96_000)))),
            ("trn2.48xlarge", None, None),
            ("trn2.48xlarge", Some("us-east-2"), Some(ListPrice::Estimate(dollars(85_964_000)))),
            ("unheard.of", None, None),
        ] {
            assert_eq!(aws().price(name, region), listed, "{name} in {region:?}");
        }
        let price = |group, name, region| of(group).unwrap().price(name, region);
        for (region, listed) in [
            (Some("eastus"), Some(ListPrice::There(dollars(98_320_000)))),
            (Some("westeurope"), Some(ListPrice::There(dollars(127_816_000)))),
            (Some("germanywestcentral"), Some(ListPrice::Elsewhere(dollars(98_320_000)))),
            (None, Some(ListPrice::Usual(dollars(98_320_000)))),
        ] {
            assert_eq!(price(AZURE, "Standard_ND96isr_H100_v5", region), listed, "{region:?}");
        }
        let h200 = |region| price(AZURE, "Standard_ND96isr_H200_v5", region);
        assert_eq!((h200(None), h200(Some("westeurope"))), (None, None), "it is sold in neither");
        assert_eq!(h200(Some("swedencentral")), Some(ListPrice::There(dollars(110_272_000))));
        assert_eq!(
            price(GOOGLE, "e2-standard-4", Some("us-central1")),
            Some(ListPrice::There(dollars(134_023)))
        );
        assert_eq!(of(GOOGLE).unwrap().usual_region(), "us-central1");
    }

    #[test]
    fn a_region_is_its_zone_without_the_suffix_and_other_names_are_their_own() {
        for (zone, region) in [
            ("us-east-1a", "us-east-1"),
            ("us-east-1-bos-1a", "us-east-1-bos-1"),
            ("us-east-1", "us-east-1"),
            ("us-central1-a", "us-central1"),
            ("us-central1", "us-central1"),
            ("eastus-1", "eastus"),
            ("eastus2", "eastus2"),
            ("test-zone-a", "test-zone-a"),
            ("a", "a"),
        ] {
            assert_eq!(region_of(zone), region);
        }
    }

    #[test]
    fn only_groups_of_the_provider_have_its_catalogue_and_all_types_are_there() {
        assert!(
            of("eks.amazonaws.com").is_some()
                && of("karpenter.kwok.sh").is_none()
                && of("karpenter.gcp.io").is_none()
        );
        for (catalogue, least) in [(aws(), 1_300), (of(AZURE).unwrap(), 940), (of(GOOGLE).unwrap(), 520)] {
            let types = &catalogue.types;
            assert!(types.len() > least && types.is_sorted_by_key(|t| t.shape.instance_type.clone()));
            let keys = &catalogue.keys;
            assert!(keys.is_sorted() && types.iter().all(|t| t.labels.len() == keys.len()));
        }
        for name in ["m5.large", "Standard_D4s_v5", "e2-standard-4"] {
            assert_eq!(find(name).unwrap().shape.instance_type, name);
        }
        let files = ["types", "azure", "gcp"].map(|name| format!("src/plan/catalogue/{name}.json.gz"));
        let size: u64 = files.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
        assert!(size < 400 * 1024, "{size}");
    }
}
