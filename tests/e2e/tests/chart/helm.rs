//! The real helm, built with the rest of the control plane.

use setu_e2e::{Layout, programs};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Every part of the chart.
pub const EVERYTHING: Option<&str> = Some("ci/everything-values.yaml");

/// The sets of values that are tried, by name.
pub const SETS: [(&str, Option<&str>); 3] =
    [("default", None), ("ha", Some("values-ha.yaml")), ("everything", EVERYTHING)];

/// A name and a network of its own, which nobody installs here.
pub const HOST: (&str, Option<&str>) = ("host", Some("ci/host-values.yaml"));

/// Where the chart has its ClusterRole.
const RIGHTS: &str = "templates/rbac.yaml";

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The chart.
pub fn chart() -> PathBuf {
    root().join("charts/setu")
}

/// An older chart, as it was once, under an older number. Each release puts its own in the place of previous.tgz.
pub fn previous_chart(folder: &Path) -> PathBuf {
    let older = folder.join("previous");
    std::fs::create_dir_all(&older).unwrap();
    let packed = root().join("tests/e2e/tests/chart/previous.tgz");
    let unpacked = Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&older).status().unwrap();
    assert!(unpacked.success(), "the older chart is not unpacked to {}", older.display());
    let copy = older.join("charts/setu");
    let about = std::fs::read_to_string(copy.join("Chart.yaml")).unwrap();
    let earlier = about.replace("ersion: 0.1.0", "ersion: 0.0.9");
    assert_eq!(earlier.matches("0.0.9").count(), 2, "version and appVersion\n{about}");
    std::fs::write(copy.join("Chart.yaml"), earlier).unwrap();
    // The controller that runs is today's in every revision, and so are its rights.
    std::fs::copy(chart().join(RIGHTS), copy.join(RIGHTS)).unwrap();
    copy
}

/// Helm, with folders of its own.
pub fn command(folder: &Path) -> Command {
    let layout = Layout::default();
    let mut command = Command::new(programs::helm(&layout).unwrap());
    for (key, name) in
        [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
    {
        command.env(key, folder.join(name));
    }
    command
}

/// Arguments that choose a set of values, on top of what the chart asks for.
pub fn values(file: Option<&str>) -> Vec<String> {
    let files = [Some("ci/default-values.yaml"), file].into_iter().flatten();
    files.flat_map(|f| ["--values".to_owned(), chart().join(f).display().to_string()]).collect()
}

/// Runs helm and returns what it printed; it must succeed.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Everything it said.
pub fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b).into_owned()).concat()
}
