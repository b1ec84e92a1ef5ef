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

/// An older chart, with an older version number. Each release replaces previous.tgz with its own chart.
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
    // Every revision runs the current controller, so it needs the current permissions.
    std::fs::copy(chart().join(RIGHTS), copy.join(RIGHTS)).unwrap();
    copy
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
