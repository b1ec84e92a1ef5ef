//! The weather: the cloud's behaviour in a test, read from the ConfigMap `weather` in `kube-system`.
//!
//! Each data key holds a YAML document `rules: [...]`. The rules of all keys apply.

use super::catalogue::{CatalogueOffer, RESERVED};
use serde::Deserialize;
use serde_json::Value;
use setu_core::api::duration::Span;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where a claim is, or would be, launched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Its NodePool.
    pub node_pool: String,
    /// Its slot in the gang.
    pub slot: String,
    /// Its instance type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// `on-demand`, `spot` or `reserved`.
    pub capacity_type: String,
    /// Labels of the claim.
    pub labels: BTreeMap<String, String>,
}

impl Location {
    /// The place of an instance of this offer, for a claim that is here.
    #[must_use]
    pub fn with(&self, offer: &CatalogueOffer) -> Self {
        Self {
            instance_type: offer.instance_type.name.to_owned(),
            zone: offer.zone.to_owned(),
            capacity_type: offer.capacity_type.to_owned(),
            ..self.clone()
        }
    }
}

/// A matcher of offerings, and their weather. An absent matcher field matches everything.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeatherRule {
    node_pool: Option<String>,
    slot: Option<String>,
    instance_type: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    /// Labels that the claim has.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Maximum number of live instances in this place.
    capacity: Option<usize>,
    /// Minimum duration of a launch, while the rule is present.
    launch_delay: Option<Span>,
    /// Every launch fails with this condition on the NodeClaim.
    create_error: Option<CreateError>,
    /// Minimum time from launch to the Node's appearance, while the rule is present.
    registration_delay: Option<Span>,
    /// The kubelet of a Node never starts.
    #[serde(default)]
    never_ready: bool,
    /// Resources that the Node does not report.
    #[serde(default)]
    missing_resources: Vec<String>,
    /// Amounts that the Node reports instead of those of its type.
    #[serde(default)]
    shows: BTreeMap<String, String>,
    /// Devices that drivers publish on the Node, by driver.
    #[serde(default)]
    devices: BTreeMap<String, u32>,
    /// Time from when the Node is Ready until drivers publish them.
    devices_delay: Option<Span>,
    /// Multiplies the price of the offers.
    price_factor: Option<f64>,
}

/// A launch failure.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct CreateError {
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
}

impl WeatherRule {
    fn matches(&self, place: &Location) -> bool {
        let same = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|w| w == is);
        same(&self.node_pool, &place.node_pool)
            && same(&self.slot, &place.slot)
            && same(&self.instance_type, &place.instance_type)
            && same(&self.zone, &place.zone)
            && same(&self.capacity_type, &place.capacity_type)
            && self.labels.iter().all(|(key, wanted)| place.labels.get(key) == Some(wanted))
    }
}

/// All current rules.
#[derive(Clone, Debug, Default)]
pub struct Weather(Vec<WeatherRule>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    rules: Vec<WeatherRule>,
}

impl Weather {
    /// Reads the ConfigMap. Invalid documents are ignored.
    pub fn read(config_map: Option<&Value>) -> Self {
        let data = config_map.and_then(|c| c.get("data")).and_then(Value::as_object);
        let documents = data.into_iter().flatten().filter_map(|(_, text)| text.as_str());
        let rules =
            |text: &str| serde_yaml::from_str::<Document>(text).map_or_else(|_| Vec::new(), |d| d.rules);
        Self(documents.flat_map(rules).collect())
    }

    fn at<'w>(&'w self, place: &'w Location) -> impl Iterator<Item = &'w WeatherRule> {
        self.0.iter().filter(|r| r.matches(place))
    }

    /// Whether one more instance at `place` would exceed the capacity.
    pub fn is_full(&self, place: &Location, live: &BTreeMap<String, Location>) -> bool {
        self.at(place).any(|rule| {
            rule.capacity.is_some_and(|room| live.values().filter(|p| rule.matches(p)).count() >= room)
        })
    }

    /// Whether a rule sets the reserved capacity at `place`.
    pub fn reserves(&self, place: &Location) -> bool {
        self.at(place).any(|rule| rule.capacity.is_some() && rule.capacity_type.as_deref() == Some(RESERVED))
    }

    /// Minimum duration of a launch.
    pub fn launch_delay(&self, place: &Location) -> Duration {
        longest(self.at(place).filter_map(|r| r.launch_delay))
    }

    /// Minimum time until the Node appears.
    pub fn registration_delay(&self, place: &Location) -> Duration {
        longest(self.at(place).filter_map(|r| r.registration_delay))
    }

    /// The error of every launch, if any.
    pub fn create_error(&self, place: &Location) -> Option<&CreateError> {
        self.0.iter().filter(|r| r.matches(place)).find_map(|r| r.create_error.as_ref())
    }

    /// Whether the Node never becomes ready.
    pub fn never_ready(&self, place: &Location) -> bool {
        self.at(place).any(|r| r.never_ready)
    }

    /// Whether the Node does not report this resource.
    pub fn hides(&self, place: &Location, resource: &str) -> bool {
        self.at(place).any(|r| r.missing_resources.iter().any(|m| m == resource))
    }

    /// The amount of this resource that the Node reports instead of that of its type.
    pub fn shows(&self, place: &Location, resource: &str) -> Option<String> {
        self.at(place).find_map(|r| r.shows.get(resource)).cloned()
    }

    /// The devices that drivers publish on the Node, by driver.
    pub fn devices(&self, place: &Location) -> BTreeMap<String, u32> {
        self.at(place).flat_map(|rule| rule.devices.clone()).collect()
    }

    /// Minimum time from when the Node is Ready until drivers publish its devices.
    pub fn devices_delay(&self, place: &Location) -> Duration {
        longest(self.at(place).filter_map(|r| r.devices_delay))
    }

    /// The price factor.
    pub fn price_factor(&self, place: &Location) -> f64 {
        self.at(place).filter_map(|r| r.price_factor).product()
    }
}

fn longest(spans: impl Iterator<Item = Span>) -> Duration {
    spans.map(|s| s.0).max().unwrap_or_default()
}
