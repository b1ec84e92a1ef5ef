//! Merges the layers of a policy, and states a policy as one layer.
//!
//! Rule: layers merge field by field, and the later layer wins; lists and maps are replaced as a whole. A layer that states
//! `tiers` cancels an earlier `nodePoolName`, and vice versa. A new field is one row of `fields!`; a deadline is
//! also set in `in_force`.

use super::{Policy, ResolvedDeadlines, RetryStrategy, SharedLabel};
use crate::api::duration::Span;
use crate::api::parameters::{Colocation, ColocationMode, Compat, OnExhausted, ProvisioningParametersSpec};
use crate::names;

/// Paths of maps that are replaced as a whole: the administrator chooses their keys, they are not fields.
pub const ATOMIC: [&str; 5] = [
    "readiness.nodeLabels",
    "gates.budget.maxResources",
    "gates.budget.prices",
    "gates.budget.multiplier",
    "gates.placement.namespaces",
];

fn set<T: Clone>(value: &mut T, stated: Option<&T>) {
    if let Some(stated) = stated {
        value.clone_from(stated);
    }
}

fn set_some<T: Clone>(value: &mut Option<T>, stated: Option<&T>) {
    if let Some(stated) = stated {
        *value = Some(stated.clone());
    }
}

/// Generates `overlay` and `state` from a table of fields. Each row names the place of a field in a layer, and in the policy.
macro_rules! fields {
    (
        always { $([$($group:ident).*] $stated:ident => $($own:ident).+,)* }
        optional { $([$($opt_group:ident).*] $opt_stated:ident => $($opt_own:ident).+,)* }
    ) => {
        impl Policy {
            fn overlay(&mut self, layer: &ProvisioningParametersSpec) {
                $({
                    let group = Some(layer)$(.and_then(|group| group.$group.as_ref()))*;
                    set(&mut self.$($own).+, group.and_then(|group| group.$stated.as_ref()));
                })*
                $({
                    let group = Some(layer)$(.and_then(|group| group.$opt_group.as_ref()))*;
                    set_some(&mut self.$($opt_own).+, group.and_then(|group| group.$opt_stated.as_ref()));
                })*
            }

            fn state(&self, layer: &mut ProvisioningParametersSpec) {
                $({
                    let group = &mut *layer;
                    $(let group = group.$group.get_or_insert_default();)*
                    set_some(&mut group.$stated, Some(&self.$($own).+));
                })*
                $(if let Some(value) = &self.$($opt_own).+ {
                    let group = &mut *layer;
                    $(let group = group.$opt_group.get_or_insert_default();)*
                    set_some(&mut group.$opt_stated, Some(value));
                })*
            }
        }
    };
}

fields! {
    always {
        [] capacity_types => capacity_types,
        [] mixed_tiers => mixed_tiers,
        [] node_selector_requirements => requirements,
        [] managed_resources => managed_resources,
        [strategy] kind => strategy,
        [strategy] buffer_time => buffer_time,
        [packing] mode => packing,
        [packing] shapes => shapes,
        [] devices => devices,
        [deadlines] launch => deadlines.launch,
        [deadlines] register => deadlines.register,
        [deadlines] initialize => deadlines.initialize,
        [deadlines] gang => deadlines.gang,
        [deadlines] admit => deadlines.admit,
        [retry.in_check] limit => in_check.limit,
        [retry.in_check] base => in_check.base,
        [retry.in_check] max => in_check.max,
        [retry.yielding] limit => yielding.limit,
        [retry.yielding] base => yielding.base,
        [retry.yielding] max => yielding.max,
        [retry] on_exhausted => on_exhausted,
        [retry] compat => compat,
        [readiness] node_labels => readiness.node_labels,
        [readiness] node_conditions => readiness.node_conditions,
        [readiness] allocatable => readiness.allocatable,
        [custody] pinning => pinning,
        [custody] on_node_lost => on_node_lost,
        [custody] release => release,
        [custody] warm_for => warm_for,
        [custody] hold_limit => hold_limit,
        [custody] do_not_repair => do_not_repair,
        [gates] capacity => capacity_gate,
        [gates] unknown => unknown,
        [gates] quota => quota_gate,
        [gates] node_class => node_class_gate,
    }
    optional {
        [gates.budget] max_nodes => budget.max_nodes,
        [gates.budget] max_resources => budget.max_resources,
        [gates.budget] currency => budget.currency,
        [gates.budget] max_hourly_cost => budget.max_hourly_cost,
        [gates.budget] prices => budget.prices,
        [gates.budget] multiplier => budget.multiplier,
        [gates.placement] namespaces => placement.namespaces,
        [gates.placement] zones => placement.zones,
        [gates.placement] flavors => placement.flavors,
    }
}

impl Policy {
    /// This policy with the values of `spec` in place of its own.
    #[must_use]
    pub fn overlaid(mut self, spec: &ProvisioningParametersSpec) -> Self {
        if spec.node_pool_name.is_some() {
            self.node_pool.clone_from(&spec.node_pool_name);
            self.tiers.clear();
        }
        if let Some(tiers) = &spec.tiers {
            self.tiers.clone_from(tiers);
            if !tiers.is_empty() {
                self.node_pool = None;
            }
        }
        if let Some(stated) = &spec.colocation {
            self.colocate(stated);
        }
        self.overlay(spec);
        self
    }

    fn colocate(&mut self, stated: &Colocation) {
        let old = self.colocation.take();
        let mode = stated.mode.or(old.as_ref().map(|c| c.mode)).unwrap_or_default();
        let key = stated.topology_key.clone().or(old.map(|c| c.topology_key));
        let topology_key = key.unwrap_or_else(|| names::ZONE.to_owned());
        self.colocation = (mode != ColocationMode::None).then_some(SharedLabel { topology_key, mode });
    }

    /// This policy with the values that `compat` sets.
    #[must_use]
    pub fn in_force(mut self) -> Self {
        if self.compat == Compat::Setu {
            self.in_check = RetryStrategy { limit: 5, base: Span::seconds(5), max: Span::seconds(80) };
            self.yielding.limit = 0;
            self.on_exhausted = OnExhausted::Reject;
            // One deadline for all: the limits of the phases never end first.
            self.deadlines = ResolvedDeadlines {
                launch: Span::minutes(15),
                register: Span::minutes(15),
                initialize: Span::minutes(15),
                gang: Span::minutes(10),
                admit: self.hold_limit,
            };
        }
        self
    }

    /// The layer that states every value of this policy.
    pub fn stated(&self) -> ProvisioningParametersSpec {
        let named = self.tiers.is_empty();
        let colocation = self.colocation.as_ref();
        let mut layer = ProvisioningParametersSpec {
            node_pool_name: self.node_pool.clone().filter(|_| named),
            tiers: Some(self.tiers.clone()).filter(|_| !named),
            colocation: Some(Colocation {
                topology_key: colocation.map(|c| c.topology_key.clone()),
                mode: Some(colocation.map_or(ColocationMode::None, |c| c.mode)),
            }),
            ..ProvisioningParametersSpec::default()
        };
        self.state(&mut layer);
        layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::Pinning;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn spec(yaml: &str) -> ProvisioningParametersSpec {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn the_wait_doubles_up_to_its_maximum_and_never_overflows() {
        let strategy = Policy::default().in_check;
        let waits: Vec<u64> = (1..=7).map(|n| strategy.wait(n).0.as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 80, 80]);
        assert_eq!(strategy.wait(u32::MAX), strategy.max);
    }

    #[test]
    fn parameters_replace_only_what_they_state() {
        let policy = Policy::default().overlaid(&spec(
            "nodePoolName: gpu\nretry: {inCheck: {limit: 2}}\ndeadlines: {launch: 90s}\ncustody: {pinning: Selector}",
        ));
        let expected = Policy {
            node_pool: Some("gpu".into()),
            pinning: Pinning::Selector,
            in_check: RetryStrategy { limit: 2, ..Policy::default().in_check },
            deadlines: ResolvedDeadlines { launch: Span::seconds(90), ..Policy::default().deadlines },
            ..Policy::default()
        };
        assert_eq!(policy, expected);
    }

    /// Every field of the vocabulary, with a value that is not its default.
    pub const EVERYTHING: &str = "
tiers:
- {name: reserved, nodePoolName: gpu-reserved, zones: [a], reservations: [{id: cr-1, type: capacity-block, instanceType: p5.48xlarge, zone: a, nodes: 4, opens: 2026-12-01T08:00:00Z, closes: 2026-12-08T08:00:00Z}]}
- {name: spot, nodePoolName: gpu, requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}], launchTimeout: 90s}
capacityTypes: [on-demand, spot]
mixedTiers: true
nodeSelectorRequirements: [{key: example.com/x, operator: Exists, minValues: 2}]
strategy: {type: LastCheck, bufferTime: 15s}
managedResources: [nvidia.com/gpu]
packing: {mode: Fill, shapes: [{instanceType: p5.48xlarge, allocatable: {cpu: 190, memory: 2000Gi, nvidia.com/gpu: 8}}]}
devices: [{deviceClass: gpu.nvidia.com, driver: gpu.nvidia.com, extendedResource: nvidia.com/gpu, perNode: 8, requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [p5.48xlarge]}]}]
colocation: {topologyKey: topology.kubernetes.io/zone, mode: Preferred}
deadlines: {launch: 1m, register: 2m, initialize: 3m, gang: 4m, admit: 5m}
retry: {inCheck: {limit: 1, base: 1s, max: 2s}, yield: {limit: 2, base: 3s, max: 4s}, onExhausted: Reject, compat: Setu}
readiness: {nodeLabels: {a: b}, nodeConditions: [{type: Good}], allocatable: Devices}
custody: {pinning: None, onNodeLost: Ignore, release: Warm, warmFor: 10m, holdLimit: 1h, doNotRepair: true}
gates:
  capacity: Off
  unknown: Warn
  quota: Enforce
  nodeClass: Warn
  budget: {maxNodes: 64, maxResources: {nvidia.com/gpu: 512}, currency: EUR, maxHourlyCost: '2500', prices: {p5.48xlarge: {spot: '39.33'}}, multiplier: {p5: '0.7'}}
  placement: {namespaces: {matchLabels: {team: ml}, matchExpressions: [{key: a, operator: Exists}]}, zones: [a], flavors: [gpu]}
";

    #[test]
    fn a_policy_survives_being_stated_and_read_again() {
        let everything = Policy::default().overlaid(&spec(EVERYTHING));
        for policy in [Policy::default(), everything.clone()] {
            assert_eq!(Policy::default().overlaid(&policy.stated()), policy);
            assert_eq!(everything.clone().overlaid(&policy.stated()).stated().retry, policy.stated().retry);
        }
    }

    /// Names of the fields of a schema, at any depth.
    fn fields(schema: &Value) -> BTreeSet<&String> {
        let own = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|p| p.keys());
        let below = schema.as_object().into_iter().flat_map(|map| map.values()).flat_map(fields);
        own.chain(below).collect()
    }

    #[test]
    fn the_tests_cover_every_field_of_the_vocabulary() {
        let schema = schemars::schema_for!(ProvisioningParametersSpec).to_value();
        let written = serde_json::to_string(&spec(EVERYTHING)).unwrap();
        let is_left_out = |field: &&&String| !written.contains(&format!("\"{field}\":"));
        let left_out: Vec<&String> = fields(&schema).iter().filter(is_left_out).copied().collect();
        assert!(left_out.is_empty(), "{left_out:?}");
    }

    #[test]
    fn every_field_reaches_the_policy() {
        let written = serde_json::to_value(spec(EVERYTHING)).unwrap();
        let stated = serde_json::to_value(Policy::default().overlaid(&spec(EVERYTHING)).stated()).unwrap();
        assert_eq!(written, stated);
    }

    #[test]
    fn tiers_cancel_an_earlier_node_pool_and_vice_versa() {
        let named = Policy::default().overlaid(&spec("nodePoolName: a"));
        let tiered = named.overlaid(&spec("tiers: [{name: t}]"));
        assert_eq!((tiered.node_pool.as_deref(), tiered.tiers.len()), (None, 1));
        let named = tiered.overlaid(&spec("nodePoolName: b"));
        assert_eq!((named.node_pool.as_deref(), named.tiers.len()), (Some("b"), 0));
        assert_eq!(named.overlaid(&spec("tiers: []")).node_pool.as_deref(), Some("b"));
    }

    #[test]
    fn a_later_layer_can_undo_an_earlier_one() {
        let near = Policy::default().overlaid(&spec("colocation: {topologyKey: zone}"));
        assert_eq!(near.colocation.as_ref().map(|c| c.mode), Some(ColocationMode::Required));
        let preferred = near.overlaid(&spec("colocation: {mode: Preferred}"));
        assert_eq!(preferred.colocation.as_ref().map(|c| c.topology_key.as_str()), Some("zone"));
        assert_eq!(preferred.overlaid(&spec("colocation: {mode: None}")).colocation, None);
    }

    #[test]
    fn compat_setu_means_five_retries_ten_minutes_and_then_rejected() {
        let policy =
            Policy::default().overlaid(&spec("retry: {compat: Setu, inCheck: {limit: 9}}")).in_force();
        let waits: Vec<u64> =
            (1..=policy.in_check.limit).map(|n| policy.in_check.wait(n).0.as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80]);
        assert_eq!(policy.deadlines.gang, Span::minutes(10));
        assert_eq!((policy.yielding.limit, policy.on_exhausted), (0, OnExhausted::Reject));
    }
}
