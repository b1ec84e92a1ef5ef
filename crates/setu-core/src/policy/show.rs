//! The effective policy of a check as YAML, with the origin of each value beside it.

use super::resolve::ATOMIC;
use super::settings::{Origin, Settings};
use crate::api::parameters::{Compat, OnExhausted, ProvisioningParametersSpec};
use serde::Serialize;
use serde_yaml::{Mapping, Value};
use std::fmt::Write as _;

/// Column at which origins are written.
const ORIGIN_COLUMN: usize = 56;

/// The meaning of a rejection in Kueue, for a policy that rejects.
const REJECT_IN_KUEUE: &str = "\
# A Rejected check is a one-way door: Kueue deactivates the Workload (spec.active: false), and setting it
# active again does not queue it. Only a new Workload, as deleting and creating the Job makes it, is tried again.
";
const COMPAT_IN_SETU: &str = "\
# retry.compat: Setu retries as the first Setu did: 5 times with the quota held, after 5 s doubling to 80 s
# without jitter; ten minutes for the nodes to become ready; then Rejected. The quota is never given back to
# try later.
";

/// Renders the policy of one check; `parameters` are those that it names, if any.
pub fn show(
    settings: &Settings,
    check: &str,
    parameters: Option<(&str, &ProvisioningParametersSpec)>,
) -> String {
    let policy = settings.policy(check, parameters.map(|(_, spec)| spec));
    let mut page = PolicyPage::default();
    page.line(0, "check", &Value::from(check), None);
    page.controller(settings);
    let mut layers: Vec<(Origin, Value)> =
        settings.layers(check).into_iter().map(|(origin, spec)| (origin, value(spec))).collect();
    layers.extend(parameters.map(|(name, spec)| (Origin::Parameters(name.to_owned()), value(spec))));
    page.text.push_str("spec:\n");
    let compat = policy.compat == Compat::Setu;
    page.fields(1, &value(&policy.stated()), &mut Vec::new(), &|path| {
        if compat && is_of_compat(path) { Origin::Compat } else { origin(&layers, path) }
    });
    if compat {
        page.text.push_str(COMPAT_IN_SETU);
    }
    if policy.on_exhausted == OnExhausted::Reject {
        page.text.push_str(REJECT_IN_KUEUE);
    }
    page.text
}

/// The last layer that states the value at a path.
fn origin(layers: &[(Origin, Value)], path: &[String]) -> Origin {
    let states = |layer: &Value| path.iter().try_fold(layer, |value, key| value.get(key.as_str())).is_some();
    layers.iter().rev().find(|(_, layer)| states(layer)).map_or(Origin::Default, |(origin, _)| origin.clone())
}

/// Whether `retry.compat: Setu` sets the value at this path.
fn is_of_compat(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match path.as_slice() {
        ["deadlines", ..] | ["retry", "inCheck", ..] | ["retry", "yield", "limit"] => true,
        other => *other == ["retry", "onExhausted"],
    }
}

fn value(of: &impl Serialize) -> Value {
    serde_yaml::to_value(of).unwrap_or_default()
}

#[derive(Default)]
struct PolicyPage {
    text: String,
}

impl PolicyPage {
    /// Settings of the controller as a whole.
    fn controller(&mut self, settings: &Settings) {
        let (provider_origin, provider) = settings.cloud_provider();
        self.line(0, "cloudProvider", &Value::from(provider.to_string()), Some(&provider_origin));
        let line = &settings.command_line;
        let node_class = settings.policy("", None).node_class;
        let preset = |has: bool| if has { Origin::Preset(provider) } else { Origin::Default };
        let stated = |stated: &Option<(Origin, String)>| stated.as_ref().map(|(origin, _)| origin.clone());
        self.text.push_str("nodeClass:\n");
        for (key, value, origin) in [
            ("group", node_class.group.clone(), stated(&line.node_class_group)),
            ("kind", node_class.kind.clone(), stated(&line.node_class_kind)),
        ] {
            let origin = origin.unwrap_or(preset(value.is_some()));
            self.line(1, key, &value.map_or(Value::Null, Value::from), Some(&origin));
        }
        for (key, value, origin) in [
            ("default", node_class.default, stated(&line.node_class_default)),
            ("gpu", node_class.gpu, stated(&line.node_class_gpu)),
        ] {
            self.line(1, key, &Value::from(value), Some(&origin.unwrap_or(Origin::Default)));
        }
        let layers = [(Origin::File("guards"), value(&settings.file.guards))];
        self.text.push_str("guards:\n");
        let guards = value(&settings.file.guards.filled());
        self.fields(1, &guards, &mut Vec::new(), &|path| origin(&layers, path));
        let overrides = value(&settings.file.job_overrides);
        if !is_empty(&overrides) {
            self.line(0, "jobOverrides", &overrides, Some(&Origin::File("jobOverrides")));
        }
    }

    /// The fields of a mapping, without empty lists and maps that no layer states.
    fn fields(
        &mut self,
        depth: usize,
        of: &Value,
        path: &mut Vec<String>,
        origin: &dyn Fn(&[String]) -> Origin,
    ) {
        for (key, value) in of.as_mapping().into_iter().flatten() {
            let Some(key) = key.as_str() else { continue };
            path.push(key.to_owned());
            let is_filled = value.is_mapping() && !is_empty(value);
            if is_filled && !ATOMIC.contains(&path.join(".").as_str()) {
                let _ = writeln!(self.text, "{:1$}{key}:", "", depth * 2);
                self.fields(depth + 1, value, path, origin);
            } else {
                let from = origin(path);
                if from != Origin::Default || !is_empty(value) {
                    self.line(depth, key, value, Some(&from));
                }
            }
            path.pop();
        }
    }

    fn line(&mut self, depth: usize, key: &str, value: &Value, origin: Option<&Origin>) {
        let line = format!("{:1$}{key}: {2}", "", depth * 2, inline(value));
        let _ = match origin {
            Some(origin) => writeln!(self.text, "{line:<ORIGIN_COLUMN$} # {origin}"),
            None => writeln!(self.text, "{line}"),
        };
    }
}

/// Whether a value is an empty list or map.
fn is_empty(value: &Value) -> bool {
    value.as_mapping().is_some_and(Mapping::is_empty) || value.as_sequence().is_some_and(Vec::is_empty)
}

/// A value on one line, valid in YAML 1.1 and 1.2.
fn inline(value: &Value) -> String {
    let quoted = || serde_json::to_string(value).unwrap_or_default();
    let Some(text) = value.as_str() else { return quoted() };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let other_meaning = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", ""];
    let is_number = text.parse::<f64>().is_ok();
    let is_word = text.chars().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_word && !is_number && !other_meaning.contains(&text.to_lowercase().as_str()) {
        return text.to_owned();
    }
    quoted()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyFile;
    use crate::policy::settings::CommandLine;

    fn settings(file: &str) -> Settings {
        let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{file}");
        let gates = serde_yaml::from_str("gates: {quota: Enforce}").unwrap();
        let layers = vec![(Origin::Flag("--enforce-quota".into()), gates)];
        let command_line = CommandLine { layers, ..CommandLine::default() };
        Settings { file: PolicyFile::parse(&text).unwrap(), command_line, served_groups: Vec::new() }
    }

    fn lines(page: &str) -> Vec<String> {
        page.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn each_value_is_shown_with_its_origin() {
        let settings = settings(
            "cloudProvider: aws\nguards: {gangNodes: 8}\ndefaults: {deadlines: {launch: 1m, gang: 20m}}\nchecks: {c: {deadlines: {gang: 30m}, readiness: {nodeLabels: {a: b}}}}",
        );
        let named = serde_yaml::from_str("custody: {pinning: Selector}").unwrap();
        let page = show(&settings, "c", Some(("gpu", &named)));
        let lines = lines(&page);
        for expected in [
            "cloudProvider: aws # file: cloudProvider",
            "group: karpenter.k8s.aws # preset: aws",
            "gpu: gpu # default",
            "gangNodes: 8 # file: guards",
            "claimsInFlight: 1000 # default",
            "launch: 1m # file: defaults",
            "gang: 30m # file: checks.c",
            "admit: 30m # default",
            "pinning: Selector # ProvisioningParameters gpu",
            "quota: Enforce # flag: --enforce-quota",
            "nodeLabels: {\"a\":\"b\"} # file: checks.c",
        ] {
            assert!(lines.iter().any(|l| l == expected), "{expected} is not in\n{page}");
        }
        assert!(!page.contains("one-way door"));
    }

    #[test]
    fn empty_lists_and_maps_are_shown_only_if_a_layer_states_them() {
        let settings = settings(
            "guards: {gangNodes: 8}\ndefaults: {capacityTypes: [spot]}\nchecks: {c: {capacityTypes: []}}",
        );
        let page = show(&settings, "c", None);
        let is_empty = |line: &String| line.contains("{}") || line.contains("[]");
        let empty: Vec<String> = lines(&page).into_iter().filter(is_empty).collect();
        assert_eq!(empty, ["capacityTypes: [] # file: checks.c"], "{page}");
    }

    #[test]
    fn the_output_is_yaml_and_its_spec_gives_the_same_policy() {
        let settings = settings("defaults: {gates: {capacity: Off}, colocation: {topologyKey: zone}}");
        let page: Value = serde_yaml::from_str(&show(&settings, "c", None)).unwrap();
        let spec: ProvisioningParametersSpec = serde_yaml::from_value(page["spec"].clone()).unwrap();
        let shown = crate::policy::Policy::default().overlaid(&spec);
        assert_eq!(shown, settings.policy("c", None));
    }

    #[test]
    fn compat_setu_is_shown_with_its_meaning_in_kueue() {
        let page = show(&settings("defaults: {retry: {compat: Setu}}"), "c", None);
        assert!(lines(&page).contains(&"gang: 10m # retry.compat: Setu".to_owned()), "{page}");
        assert!(lines(&page).contains(&"onExhausted: Reject # retry.compat: Setu".to_owned()), "{page}");
        assert!(page.contains("one-way door") && page.contains("without jitter"));
    }
}
