//! Sets of versions of Kubernetes, Karpenter and Kueue. Each is built and run beside the others, in its own folder.
//! The one rule: a module of `programs/` has a file `NAME.mod` for each set in which its versions differ from those in its `go.mod`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::HarnessLayout;

/// The environment variable that names the set, for everything that is built and run.
pub(crate) const VARIABLE: &str = "SETU_E2E_VERSIONS";

/// One set of versions.
#[derive(Debug)]
pub struct StackVersions {
    /// Its name; empty for the usual one.
    pub name: &'static str,
    /// Go's build tags: what our cloud provider needs of this Karpenter.
    pub(crate) tags: &'static str,
    /// Whether Karpenter handles dynamic resource allocation. By its default it does not.
    pub(crate) handles_devices: bool,
}

/// The usual set first, then from the oldest to the newest.
pub const ALL: [StackVersions; 4] = [
    StackVersions { name: "", tags: "", handles_devices: false },
    StackVersions { name: "oldest", tags: "karpenter_1_6,no_devices", handles_devices: false },
    StackVersions { name: "between", tags: "no_devices", handles_devices: false },
    StackVersions { name: "newest", tags: "karpenter_1_15", handles_devices: true },
];

/// The programs in which the sets differ: the name of each, its folder in `programs/` and its Go module.
pub const PROGRAMS: [(&str, &str, &str); 5] = [
    ("kubernetes", "k8s", "k8s.io/kubernetes"),
    ("karpenter", "karpenter", "sigs.k8s.io/karpenter"),
    ("kueue", "kueue", "sigs.k8s.io/kueue"),
    ("jobset", "kueue", "sigs.k8s.io/jobset"),
    ("lws", "kueue", "sigs.k8s.io/lws"),
];

/// The set of versions of a layout. The error lists the names.
pub fn of(layout: &HarnessLayout) -> Result<&'static StackVersions> {
    let name = layout.versions().unwrap_or_default();
    ALL.iter().find(|set| set.name == name).with_context(|| {
        let names: Vec<&str> = ALL.iter().map(|set| set.name).filter(|name| !name.is_empty()).collect();
        format!("{VARIABLE} is {name:?}, which is none of: {}", names.join(", "))
    })
}

impl StackVersions {
    /// The file that names the versions of a module in this set.
    pub(crate) fn module_file(&self, folder: &Path) -> PathBuf {
        let own = folder.join(format!("{}.mod", self.name));
        if own.exists() { own } else { folder.join("go.mod") }
    }

    /// The version of one of [`PROGRAMS`], such as `1.36.3`.
    pub fn version(&self, layout: &HarnessLayout, program: &str) -> Result<String> {
        let known = PROGRAMS.iter().find(|(name, _, _)| *name == program);
        let Some((_, folder, module)) = known else {
            bail!("{program:?} is none of: {}", PROGRAMS.map(|(name, _, _)| name).join(", "))
        };
        let file = self.module_file(&layout.module(folder));
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let found = text.lines().find_map(|line| {
            let line = line.trim_start().trim_start_matches("require ");
            line.strip_prefix(module)?.strip_prefix(" v")?.split(' ').next().map(str::to_owned)
        });
        found.with_context(|| format!("{} does not require {module}", file.display()))
    }

    /// Whether Kueue finds another Node for a Workload that lost one as soon as there is one. An earlier Kueue looks only once.
    pub fn replaces_nodes_later(&self, layout: &HarnessLayout) -> Result<bool> {
        self.has(layout, "kueue", "0.19")
    }

    /// Whether one of [`PROGRAMS`] has this version, such as `1.36`, or a newer one.
    pub fn has(&self, layout: &HarnessLayout, program: &str, version: &str) -> Result<bool> {
        self.reach(layout, &BTreeMap::from([(program.to_owned(), version.to_owned())]))
    }

    /// Whether no program is older than these versions, such as `{"kueue": "0.18"}`.
    pub fn reach(&self, layout: &HarnessLayout, since: &BTreeMap<String, String>) -> Result<bool> {
        for (program, oldest) in since {
            if minor(&self.version(layout, program)?)? < minor(oldest)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The major and minor version.
fn minor(version: &str) -> Result<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => bail!("{version:?} is no version such as 1.36"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use setu::sim::scenario::{self, KarpenterProvider};

    /// The table of the sets, with how many scenarios each can run, and what needs more than the oldest.
    fn table(layout: &HarnessLayout, root: &Path) -> String {
        let folders = ["examples/scenarios", "tests/e2e/scenarios"];
        let runs = folders.into_iter().flat_map(|folder| scenario::read(&root.join(folder)).unwrap());
        let runs = runs.filter(|run| run.scenario.provider == KarpenterProvider::Kwok);
        let scenarios: BTreeMap<String, BTreeMap<String, String>> =
            runs.map(|run| (run.scenario.title, run.scenario.since)).collect();
        let [usual, oldest, between, newest] = &ALL;
        let mut lines = vec![
            "| set | Kubernetes | Karpenter | Kueue | JobSet | LeaderWorkerSet | scenarios that it can run |"
                .to_owned(),
            "|---|---|---|---|---|---|---|".to_owned(),
        ];
        for set in [oldest, between, usual, newest] {
            let versions = PROGRAMS.map(|(program, _, _)| set.version(layout, program).unwrap());
            let count = scenarios.values().filter(|since| set.reach(layout, since).unwrap()).count();
            let name = if set.name.is_empty() { "each change" } else { set.name };
            lines.push(format!("| {name} | {} | {count} of {} |", versions.join(" | "), scenarios.len()));
        }
        lines.extend(["", "What needs more than the oldest set:", ""].map(str::to_owned));
        for (title, since) in scenarios.iter().filter(|(_, since)| !since.is_empty()) {
            let since: Vec<String> =
                since.iter().map(|(program, version)| format!("{program} {version}")).collect();
            lines.push(format!("- {title} ({})", since.join(", ")));
        }
        lines.join("\n") + "\n"
    }

    #[test]
    fn the_table_of_versions_is_generated_from_the_modules_and_the_scenarios() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let document = root.join("docs/compatibility.md");
        let text = fs::read_to_string(&document).unwrap();
        let (before, rest) = text.split_once("<!-- versions -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- /versions -->").unwrap();
        let table = table(&HarnessLayout::default(), &root);
        let generated = format!("{before}<!-- versions -->\n{table}<!-- /versions -->{after}");
        if std::env::var_os("SETU_REGENERATE").is_some() {
            fs::write(&document, &generated).unwrap();
        }
        let text = fs::read_to_string(&document).unwrap();
        assert_eq!(text, generated, "the table of versions is out of date: run `just generate`");
    }

    #[test]
    fn each_set_has_versions_and_the_oldest_comes_before_the_newest() {
        let layout = HarnessLayout::default();
        for program in ["kubernetes", "karpenter", "kueue"] {
            let [usual, oldest, between, newest] =
                ALL.each_ref().map(|set| minor(&set.version(&layout, program).unwrap()).unwrap());
            assert!(oldest < between && between < newest.max(usual) && usual <= newest, "{program}");
        }
    }

    #[test]
    fn a_set_reaches_versions_that_are_not_newer() {
        let (layout, [usual, oldest, ..]) = (HarnessLayout::default(), ALL);
        let reaches = |set: &StackVersions, program: &str, version: &str| {
            let since = BTreeMap::from([(program.to_owned(), version.to_owned())]);
            set.reach(&layout, &since).map_err(|error| error.to_string())
        };
        assert_eq!(reaches(&usual, "kubernetes", "1.34"), Ok(true));
        assert_eq!(reaches(&oldest, "kubernetes", "1.34"), Ok(false));
        assert_eq!(
            reaches(&usual, "cilium", "1.0"),
            Err(r#""cilium" is none of: kubernetes, karpenter, kueue, jobset, lws"#.to_owned())
        );
        assert_eq!(reaches(&usual, "kueue", "new"), Err(r#""new" is no version such as 1.36"#.to_owned()));
    }
}
