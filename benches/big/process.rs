//! `setu run` as a process of its own, and what it takes from the machine.

use setu::sim::scenario;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// It is killed when it is dropped.
pub struct Process(Child);

impl Process {
    /// Starts the release build, or the binary that `SETU_BIN` names, on the cluster of a kubeconfig.
    pub fn start(kubeconfig: &Path, id: &str) -> Self {
        let binary = std::env::var_os("SETU_BIN").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/release/setu"),
            PathBuf::from,
        );
        let log = std::fs::File::create(std::env::temp_dir().join("setu-big.log")).unwrap();
        let child = Command::new(&binary)
            .args(["run", "--controller-name", &scenario::controller_name_of(id)])
            .args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
            .env("KUBECONFIG", kubeconfig)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap_or_else(|e| panic!("{}: {e}; run `cargo build --release`", binary.display())))
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11..13].iter().map(|t| t.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    /// A line of its status that is in kB, such as `VmRSS:`, in MiB.
    pub fn mib(&self, of: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(of)).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
