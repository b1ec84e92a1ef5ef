//! Reads and checks the policy file.
//!
//! Rule: an unknown key or a value of the wrong type is an error that names the position. Nothing is guessed.

use super::check;
use super::decode::decode;
use super::file::PolicyFile;
use super::path::Finding;
use super::tree::{self, Problem, YamlNode};
use std::path::{Path, PathBuf};

/// Why a policy file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("reading the policy file {path}: {cause}; check the path and its permissions")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
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

    /// Reads and checks the text of a policy file; on failure all problems, in the order of the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (root, mut problems) = tree::read(text);
        let Some(mut root) = root else { return Err(problems) };
        let (file, more) = decode::<Self>(&mut root);
        problems.extend(more);
        problems.extend(file.iter().flat_map(check::file).map(|finding| at(&root, finding)));
        // A problem behind an alias is found once for each use of the alias.
        problems.sort_by(|a, b| {
            let key = |p: &Problem| (p.position, p.message.clone(), p.path.0.len());
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
        });
        problems.dedup_by(|b, a| (a.position, &a.message) == (b.position, &b.message));
        match file {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(problems),
        }
    }
}

/// Problems that `find` reports about a valid policy file, in the order of the text.
pub fn located(text: &str, find: impl Fn(&PolicyFile) -> Vec<Finding>) -> Vec<Problem> {
    let Some(mut root) = tree::read(text).0 else { return Vec::new() };
    let Some(file) = decode::<PolicyFile>(&mut root).0 else { return Vec::new() };
    let mut found: Vec<Problem> = find(&file).into_iter().map(|finding| at(&root, finding)).collect();
    found.sort_by_key(|problem| problem.position);
    found
}

/// A finding with its position in the text.
fn at(root: &YamlNode, (path, message): Finding) -> Problem {
    let path = root.as_written(&path);
    Problem { position: root.position_of(&path), path, message }
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
    fn selectors_and_least_numbers_of_values_that_nothing_can_meet_are_problems() {
        let of = |requirement: &str| {
            problems(&format!("defaults:\n  nodeSelectorRequirements: [{requirement}]\n"))
        };
        parse("defaults:\n  nodeSelectorRequirements: [{key: a, operator: Exists, minValues: 50}]\n");
        for least in ["0", "-1", "51"] {
            let reported = of(&format!("{{key: a, operator: Exists, minValues: {least}}}"));
            assert!(reported.concat().contains("minValues: must be from 1 to 50"), "{least}: {reported:?}");
        }
        let of = |expression: &str| {
            problems(&format!(
                "defaults:\n  gates: {{placement: {{namespaces: {{matchExpressions: [{expression}]}}}}}}\n"
            ))
        };
        parse(
            "defaults: {gates: {placement: {namespaces: {matchExpressions: [{key: a, operator: In, values: [b]}]}}}}\n",
        );
        for (expression, wrong) in [
            ("{key: team, operator: Exists, values: [ml]}", "operator Exists takes no values"),
            ("{key: team, operator: NotIn}", "operator NotIn needs values"),
            ("{key: \"-\", operator: Exists}", "is not a label key"),
        ] {
            assert!(of(expression).concat().contains(wrong), "{expression}: {:?}", of(expression));
        }
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
