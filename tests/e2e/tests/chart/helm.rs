//! Runs the real helm, which is built with the control plane.

use setu_e2e::{HarnessLayout, programs};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Values that enable every part of the chart.
pub const EVERYTHING: Option<&str> = Some("ci/everything-values.yaml");

/// The tested sets of values, by name.
pub const SETS: [(&str, Option<&str>); 3] =
    [("default", None), ("ha", Some("values-ha.yaml")), ("everything", EVERYTHING)];

/// Values with a custom name and host network, which no test installs.
pub const HOST: (&str, Option<&str>) = ("host", Some("ci/host-values.yaml"));

/// The template with the ClusterRole.
const RIGHTS: &str = "templates/rbac.yaml";

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The chart.
pub fn chart() -> PathBuf {
    root().join("charts/setu")
}

/// A released chart.
pub struct PreviousChart {
    pub version: String,
    /// Its unpacked folder.
    pub path: PathBuf,
}

/// The charts in `previous`, as `helm package` made them, unpacked into this folder. The newest is last. Each release adds its own.
/// 0.0.9 is from before the first release.
pub fn previous_charts(folder: &Path) -> Vec<PreviousChart> {
    let packed = std::fs::read_dir(root().join("tests/e2e/tests/chart/previous")).unwrap();
    let mut charts: Vec<_> =
        packed.map(|packed| unpack(&packed.unwrap().path(), &folder.join("previous"))).collect();
    let number = |part: &str| part.parse::<u32>().unwrap();
    charts.sort_by_key(|chart| chart.version.split('.').map(number).collect::<Vec<_>>());
    charts
}

fn unpack(packed: &Path, into: &Path) -> PreviousChart {
    let name = packed.file_stem().unwrap().to_string_lossy();
    let version = name.strip_prefix("setu-").unwrap().to_owned();
    let into = into.join(&version);
    std::fs::create_dir_all(&into).unwrap();
    let unpacked = Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&into).status().unwrap();
    assert!(unpacked.success(), "{} is not unpacked", packed.display());
    let path = into.join("setu");
    // Every revision runs the current controller, so it needs the current permissions.
    std::fs::copy(chart().join(RIGHTS), path.join(RIGHTS)).unwrap();
    PreviousChart { version, path }
}

/// A helm command with its own folders.
pub fn command(folder: &Path) -> Command {
    let layout = HarnessLayout::default();
    let mut command = Command::new(programs::helm(&layout).unwrap());
    for (key, name) in
        [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
    {
        command.env(key, folder.join(name));
    }
    command
}

/// Arguments that select a set of values, in addition to the required values.
pub fn values(file: Option<&str>) -> Vec<String> {
    let files = [Some("ci/default-values.yaml"), file].into_iter().flatten();
    files.flat_map(|f| ["--values".to_owned(), chart().join(f).display().to_string()]).collect()
}

/// Runs helm, checks that it succeeds, and returns its output.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Its standard output and standard error.
pub fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b).into_owned()).concat()
}
