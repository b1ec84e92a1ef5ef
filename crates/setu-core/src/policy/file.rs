//! The policy file: its types, and the policy that it gives a check.
//!
//! Rule: an unknown key or a value of the wrong type is an error that names the place. Nothing is guessed.

use super::decode::decode;
use super::preset::CloudProvider;
use super::tree::{self, Problem};
use super::{Policy, check, warnings};
use crate::api::amount::{self, Amounts, Price};
use crate::api::duration::Span;
use crate::api::parameters::ProvisioningParametersSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The policy of a Setu controller.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyFile {
    /// Always `setu.kueue.x-k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// Always `Policy`.
    pub kind: Kind,
    /// Preset of the NodeClass's group and kind, used where a NodePool does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<CloudProvider>,
    /// Bounds of the whole controller: a bug in retrying is a bill.
    #[serde(default)]
    pub guards: Guards,
    /// What a Job may change by annotations `provreq.kueue.x-k8s.io/setu-<key>`, and within which bounds.
    #[serde(default)]
    pub job_overrides: JobOverrides,
    /// For every check.
    #[serde(default)]
    pub defaults: ProvisioningParametersSpec,
    /// For the check of that name, on top of `defaults`.
    #[serde(default)]
    pub checks: BTreeMap<String, ProvisioningParametersSpec>,
}

/// The versions of the file that are understood.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiVersion {
    /// The first.
    #[default]
    #[serde(rename = "setu.kueue.x-k8s.io/v1alpha1")]
    V1alpha1,
}

/// The kinds of file that are understood.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A policy.
    #[default]
    Policy,
}

/// Bounds of the whole controller: a bug in retrying is a bill. What is absent has its default.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guards {
    /// Most nodes one gang may have; 256 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_nodes: Option<u32>,
    /// Most NodeClaims that have been created and are not ready yet; 1000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_in_flight: Option<u32>,
    /// Most NodeClaims created in a minute; 1200 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_minute: Option<u32>,
    /// Bounds of each LocalQueue.
    #[serde(default)]
    pub per_local_queue: QueueGuards,
}

/// Bounds of one LocalQueue. What is absent is unbounded.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueGuards {
    /// Most nodes held for its gangs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Most NodeClaims created for its gangs in an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_hour: Option<u32>,
    /// Most of each resource, devices above all, on the nodes held for its gangs at a time.
    #[serde(default, deserialize_with = "amount::some_amounts", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "amount::amounts_schema")]
    pub max_resources: Option<Amounts>,
    /// Most money per hour for the nodes held for its gangs at a time, by the prices that
    /// the check's `gates.budget` counts by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hourly_cost: Option<Price>,
}

impl QueueGuards {
    /// Whether any bound is set for LocalQueues.
    pub fn is_bounded(&self) -> bool {
        *self != Self::default()
    }
}

/// Default of `guards.claimsInFlight`.
const CLAIMS_IN_FLIGHT: u32 = 1_000;
/// Default of `guards.createsPerMinute`.
const CREATES_PER_MINUTE: u32 = 1_200;

impl Guards {
    /// Most NodeClaims that have been created and are not ready yet.
    pub fn claims_in_flight(&self) -> u32 {
        self.claims_in_flight.unwrap_or(CLAIMS_IN_FLIGHT)
    }

    /// Most NodeClaims created in a minute.
    pub fn creates_per_minute(&self) -> u32 {
        self.creates_per_minute.unwrap_or(CREATES_PER_MINUTE)
    }

    /// These guards with every default filled in.
    #[must_use]
    pub fn filled(&self) -> Self {
        Self {
            gang_nodes: self.gang_nodes.or(Some(Policy::default().gang_nodes)),
            claims_in_flight: Some(self.claims_in_flight()),
            creates_per_minute: Some(self.creates_per_minute()),
            per_local_queue: self.per_local_queue.clone(),
        }
    }
}

/// What a Job may change, each within its bounds. A key that is absent is closed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobOverrides {
    /// How long one attempt, or one wait before it, may take: `deadlines.gang`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<SpanBounds>,
    /// Capacity types to choose from, as a requirement on `karpenter.sh/capacity-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<ChoiceBounds>,
    /// Zones to choose from, as a requirement on `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<ChoiceBounds>,
}

/// Bounds of a span of time.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpanBounds {
    /// The longest that may be asked for.
    pub max: Span,
}

/// Bounds of a choice.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChoiceBounds {
    /// The values that may be asked for.
    pub values: Vec<String>,
}

/// Why a policy file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("reading the policy file {path}: {cause}; check the path and its permissions")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The file is no valid policy.
    #[error("the policy file {} cannot be used:\n{}", path.display(), in_words(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// One line per problem, in the form that editors and terminals turn into links.
fn in_words(path: &Path, problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(|p| format!("{}:{p}", path.display())).collect();
    lines.join("\n")
}

impl PolicyFile {
    /// Reads and checks a policy file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text =
            std::fs::read_to_string(path).map_err(|cause| FileError::Read { path: path.into(), cause })?;
        Self::parse(&text).map_err(|problems| FileError::Invalid { path: path.into(), problems })
    }

    /// Values of a valid policy file that are probably mistakes, in the order of the text.
    pub fn warnings(text: &str) -> Vec<Problem> {
        let Some(mut root) = tree::read(text).0 else { return Vec::new() };
        let Some(file) = decode::<Self>(&mut root).0 else { return Vec::new() };
        let found = warnings::warnings(&file).into_iter().map(|(path, message)| {
            let path = root.as_written(&path);
            Problem { place: root.place_of(&path), path, message }
        });
        let mut found: Vec<Problem> = found.collect();
        found.sort_by_key(|problem| problem.place);
        found
    }

    /// Reads and checks the text of a policy file; on failure all problems, in the order of the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (root, mut problems) = tree::read(text);
        let Some(mut root) = root else { return Err(problems) };
        let (file, more) = decode::<Self>(&mut root);
        problems.extend(more);
        for (path, message) in file.iter().flat_map(check::file) {
            let path = root.as_written(&path);
            problems.push(Problem { place: root.place_of(&path), path, message });
        }
        // A problem behind an alias is found once for each use of the alias.
        problems.sort_by(|a, b| {
            let key = |p: &Problem| (p.place, p.message.clone(), p.path.0.len());
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
        });
        problems.dedup_by(|b, a| (a.place, &a.message) == (b.place, &b.message));
        match file {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const HEAD: &str = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";

    fn problems(body: &str) -> Vec<String> {
        let problems = PolicyFile::parse(&format!("{HEAD}{body}")).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    fn parse(body: &str) -> PolicyFile {
        PolicyFile::parse(&format!("{HEAD}{body}"))
            .unwrap_or_else(|p| panic!("{}", in_words(Path::new(""), &p)))
    }

    #[test]
    fn a_phase_limit_longer_than_the_gangs_is_a_warning() {
        let warnings = |body: &str| {
            let found = PolicyFile::warnings(&format!("{HEAD}{body}"));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let long = "defaults:\n  deadlines: {launch: 30m}\n";
        parse(long);
        assert_eq!(
            warnings(long),
            [
                "4:15: defaults.deadlines.launch: 30m is longer than deadlines.gang, 15m, which ends the attempt first"
            ]
        );
        let short = "defaults: {deadlines: {register: 8m}}\nchecks:\n  c:\n    deadlines: {gang: 9m}\n";
        assert_eq!(
            warnings(short),
            [
                "6:17: checks.c.deadlines.gang: 9m is shorter than deadlines.initialize, 10m, which never comes into play"
            ]
        );
        let tier = "defaults:\n  tiers:\n  - {name: a, nodePoolName: g, launchTimeout: 15m}\n  - {name: b, nodePoolName: g, launchTimeout: 16m}\n";
        assert_eq!(
            warnings(tier),
            [
                "6:32: defaults.tiers[1].launchTimeout: 16m is longer than deadlines.gang, 15m, which ends the attempt first"
            ]
        );
        let short = "defaults:\n  deadlines: {gang: 30m}\n  tiers: [{name: a, nodePoolName: g, launchTimeout: 16m}]\nchecks:\n  c:\n    deadlines: {gang: 15m}\n";
        assert_eq!(
            warnings(short),
            [
                "8:17: checks.c.deadlines.gang: 15m is shorter than tiers[0].launchTimeout, 16m, which never comes into play"
            ]
        );
        let none = warnings(
            "defaults: {deadlines: {launch: 5m, initialize: 15m}}\nchecks: {c: {custody: {pinning: Auto}}}\n",
        );
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn a_shape_larger_than_its_instance_type_is_a_warning() {
        let shape = |memory: &str| {
            let allocatable = format!("allocatable: {{memory: {memory}, nvidia.com/gpu: 8}}");
            format!(
                "{HEAD}defaults: {{packing: {{shapes: [{{instanceType: p5.48xlarge, {allocatable}}}]}}}}\n"
            )
        };
        let [found] = PolicyFile::warnings(&shape("2000Gi")).try_into().unwrap();
        assert!(found.message.starts_with("2000Gi is more than the 1938410Mi that pods can use"), "{found}");
        assert_eq!(found.path.to_string(), "defaults.packing.shapes[0].allocatable.memory");
        assert_eq!(PolicyFile::warnings(&shape("1800Gi")), []);
    }

    #[test]
    fn all_problems_are_reported_at_once_with_place_and_advice() {
        let text = "
cloudProvider: asw
gaurds: {gangNodes: 8}
defaults:
  deadlines: {lunch: 4m, register: soon, gang: 0s}
  tiers:
  - {nodePoolName: gpu}
  - name: spot
    launchTimeout: 90
    requirements:
    - {key: a, operator: Inn, values: [x]}
    - {key: b, operator: In, value: [x]}
    - {key: c, operator: In}
  retry: {inCheck: {limit: many, base: 10s, max: 5s}}
  gates: {budget: {maxHourlyCost: 98.32, maxResources: {nvidia.com/gpu: lots}}}
checks:
  c: [1]
";
        let expected = [
            "4:16: cloudProvider: \"asw\" is not known; did you mean aws?",
            "5:1: gaurds: unknown key; did you mean guards?",
            "7:15: defaults.deadlines.lunch: unknown key; did you mean launch?",
            "7:36: defaults.deadlines.register: \"soon\" is not a valid duration such as 90s or 15m: expected number at 0",
            "7:42: defaults.deadlines.gang: is zero; write one such as 90s",
            "9:5: defaults.tiers[0]: key name is missing",
            "11:20: defaults.tiers[1].launchTimeout: found 90, expected a string with a duration such as 90s or 15m; add the unit",
            "13:26: defaults.tiers[1].requirements[0].operator: \"Inn\" is not known; did you mean In?",
            "14:30: defaults.tiers[1].requirements[1].value: unknown key; did you mean values?",
            "14:7: defaults.tiers[1].requirements[1]: operator In needs values",
            "15:7: defaults.tiers[1].requirements[2]: operator In needs values",
        ];
        let reported = problems(text);
        for line in expected {
            assert!(reported.iter().any(|t| t == line), "{line} is not in\n{}", reported.join("\n"));
        }
        assert_eq!(reported.len(), 16, "{}", reported.join("\n"));
    }

    #[test]
    fn anchors_and_merge_keys_work_and_their_problems_are_reported_once() {
        let file = parse(
            "defaults: &spec\n  nodePoolName: gpu\n  managedResources: [x]\nchecks:\n  c: {<<: *spec, nodePoolName: other}\n",
        );
        assert_eq!(file.checks["c"].node_pool_name.as_deref(), Some("other"));
        assert_eq!(file.checks["c"].managed_resources.as_deref(), Some(&["x".to_owned()][..]));
        let reported = problems("defaults: &spec {nodePool: gpu}\nchecks:\n  c: {<<: *spec}\n  d: *spec\n");
        assert_eq!(reported, ["3:18: defaults.nodePool: unknown key; did you mean nodePoolName?"]);
    }

    #[test]
    fn a_text_that_is_not_a_policy_gives_one_problem() {
        let one = |text: &str| {
            let problems = PolicyFile::parse(text).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:?}");
            problems[0].to_string()
        };
        assert_eq!(one(""), "1:1: the file is empty");
        assert!(one("a: [").contains("not YAML"));
        assert_eq!(one("[]"), "1:1: found a list, expected a map");
        assert_eq!(one(&format!("{HEAD}---\na: b")), "3:1: a second document; a policy is one document");
        assert_eq!(one(&format!("{HEAD}kind: Policy")), "3:1: duplicate key kind; remove one");
        assert_eq!(one("kind: Policy"), "1:1: key apiVersion is missing");
        let other = one("apiVersion: v1\nkind: Policy");
        assert_eq!(other, "1:13: apiVersion: \"v1\" is not known; known is setu.kueue.x-k8s.io/v1alpha1");
    }

    #[test]
    fn a_file_with_exponential_aliases_or_deep_nesting_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..20 {
            let before = n - 1;
            let ten = vec![format!("*a{before}"); 10].join(", ");
            writeln!(text, "a{n}: &a{n} [{ten}]").unwrap();
        }
        assert!(PolicyFile::parse(&text).unwrap_err()[0].message.contains("more than 200000 values"));
        assert!(PolicyFile::parse("a: &a [*a]").is_err());
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let reported = PolicyFile::parse(&deep).unwrap_err();
        assert!(reported[0].message.contains("levels deep"), "{reported:?}");
    }

    #[test]
    fn words_that_yaml_1_1_reads_as_booleans_are_words() {
        let file = parse("defaults: {gates: {capacity: Off, quota: \"Off\"}, custody: {pinning: None}}");
        let gates = file.defaults.gates.unwrap();
        assert_eq!(gates.capacity, gates.quota);
    }
}
