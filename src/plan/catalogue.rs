//! The instance types of a cloud as Karpenter's own provider reckons with them, embedded at build time.
//!
//! Called by `shapes` for what neither policy nor Nodes tell. `just catalogue` generates the facts from published packages
//! (catalogue/main.go): EC2 as recorded by moto, with sizes, labels and prices on demand by karpenter-provider-aws: memory less
//! 7.5 % for the machine, less what the kubelet keeps; pods by network interfaces. Prices are those of us-east-1 and of the
//! partitions for China and the US government, which are all that the provider ships. Left out are the size of the root
//! volume, which the EC2NodeClass says; types that AWS no longer describes; Azure, of whose types the module of its provider has
//! full facts for some twenty alone; and Google, whose provider is not published as a module.
//!
//! Rule: decoded when it is first asked for, and then shared.

use super::requirements::{Requirements, Values};
use super::shapes::{ACCELERATOR_NAMES, Shape, Source, is_of_machine};
use crate::api::amount::Price;
use crate::api::pod::ResourceList;
use crate::names;
use flate2::read::GzDecoder;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::{Arc, LazyLock};

/// Written by `just catalogue`.
const TYPES: &[u8] = include_bytes!("catalogue/types.json.gz");
/// Region whose price stands for that of a region of which none is known, as with Karpenter's provider.
const USUAL_REGION: &str = "us-east-1";
/// Under this group EKS Auto Mode has the labels of Karpenter's provider.
const AUTO_MODE: &str = "eks.amazonaws.com/";
const AWS: &str = "karpenter.k8s.aws/";

static ALL: LazyLock<BTreeMap<String, Catalogue>> = LazyLock::new(|| decode(TYPES).unwrap_or_default());

/// Every instance type of a provider.
#[derive(Debug)]
pub struct Catalogue {
    /// Day of the prices.
    date: Arc<str>,
    /// Keys of the labels, sorted.
    keys: Vec<String>,
    regions: Vec<String>,
    /// In the order of their names.
    types: Vec<Type>,
}

/// One instance type.
#[derive(Debug)]
pub struct Type {
    /// What its nodes offer.
    pub shape: Arc<Shape>,
    /// Values of the labels, in the order of the keys; empty where it has none.
    labels: Box<[Arc<str>]>,
    /// An hour on demand, in the order of the regions; nothing where no price is known.
    prices: Box<[u64]>,
}

/// The catalogue of the provider whose NodeClasses have this API group, if there is one.
pub fn of(group: &str) -> Option<&'static Catalogue> {
    ["karpenter.k8s.aws", "eks.amazonaws.com"].contains(&group).then(|| ALL.get("aws")).flatten()
}

/// The instance type of this name, whichever provider has it.
pub fn find(name: &str) -> Option<&'static Type> {
    ALL.values().find_map(|catalogue| catalogue.get(name))
}

impl Catalogue {
    /// Day of the prices, such as `2026-07-06`.
    pub fn date(&self) -> &str {
        &self.date
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

    /// What a node of this type costs an hour on demand: in this region or zone, or else where most prices are known.
    pub fn price(&self, name: &str, region: Option<&str>) -> Option<Price> {
        let prices = &self.get(name)?.prices;
        let of = |region: &str| {
            let place = self.regions.iter().position(|known| region.starts_with(known.as_str()))?;
            prices.get(place).copied().filter(|micros| *micros > 0).map(|micros| Price { micros })
        };
        region.and_then(of).or_else(|| of(USUAL_REGION))
    }

    /// Value of a label of this type.
    pub fn label(&self, name: &str, key: &str) -> Option<&str> {
        let value = self.get(name)?.labels.get(self.column(key)?)?;
        Some(&**value).filter(|value| !value.is_empty())
    }

    fn column(&self, key: &str) -> Option<usize> {
        let place = |key: &str| self.keys.binary_search_by(|known| known.as_str().cmp(key)).ok();
        place(key).or_else(|| place(&format!("{AWS}{}", key.strip_prefix(AUTO_MODE)?)))
    }
}

/// A provider's types as the file has them.
#[derive(Deserialize)]
struct Raw<'f> {
    date: Arc<str>,
    keys: Vec<String>,
    regions: Vec<String>,
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
}

fn decode(file: &[u8]) -> Option<BTreeMap<String, Catalogue>> {
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).ok()?;
    let all: BTreeMap<String, Raw<'_>> = serde_json::from_str(&text).ok()?;
    Some(all.into_iter().map(|(provider, raw)| (provider, Catalogue::from(raw))).collect())
}

impl From<Raw<'_>> for Catalogue {
    fn from(Raw { date, keys, regions, types }: Raw<'_>) -> Self {
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
                allocatable: t.allocatable,
                labels: of_accelerators(&t.labels),
                node_pool: String::new(),
                nodes: 0,
                source: Source::Catalogue { date: Arc::clone(&date) },
            }),
            labels: t.labels.into_iter().map(&mut shared).collect(),
            prices: t.prices,
        };
        let types = types.into_iter().map(&mut read).collect();
        Self { date, keys, regions, types }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::resources::amount;
    use serde_json::{Value, json};

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

    /// What the kubelet keeps of the cores, in thousandths: 6 % of the first, 1 % of the second, 0.5 % of the next two and
    /// 0.25 % of the rest.
    fn kept(cores: i128) -> i128 {
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
            assert_eq!(cpu, cores * 1000 - kept(cores), "{name}");
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

    fn matching(list: &Value) -> Vec<&'static str> {
        let list: Vec<crate::api::node_claim::Requirement> = serde_json::from_value(list.clone()).unwrap();
        let mut requirements = Requirements::default();
        requirements.add_all(&list).unwrap();
        aws().matching(&requirements).iter().map(|t| t.shape.instance_type.as_str()).collect()
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
    fn a_price_is_that_of_the_region_or_else_of_the_usual_one() {
        let price = |name: &str, region| aws().price(name, region).map(|price| price.micros);
        assert_eq!(price("m5.large", Some("us-gov-west-1")), Some(121_000));
        assert_eq!(price("m5.large", Some("eu-central-1")), Some(96_000));
        assert_eq!(price("m5.large", None), Some(96_000));
        assert_eq!(price("trn2.48xlarge", None), None);
        assert_eq!(price("unheard.of", None), None);
    }

    #[test]
    fn only_groups_of_the_provider_have_its_catalogue_and_all_types_are_there() {
        assert!(of("eks.amazonaws.com").is_some() && of("karpenter.kwok.sh").is_none());
        assert!(aws().types.len() > 1_300 && aws().types.is_sorted_by_key(|t| t.shape.instance_type.clone()));
        assert!(aws().keys.is_sorted() && aws().types.iter().all(|t| t.labels.len() == aws().keys.len()));
        assert!(TYPES.len() < 400 * 1024, "{}", TYPES.len());
    }
}
