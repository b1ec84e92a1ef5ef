//! `setu run` as a process of its own.

use setu::sim::scenario;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Killed on drop.
pub struct Process {
    child: Child,
    metrics: u16,
}

impl Process {
    /// Starts the binary in `SETU_BIN` on the cluster of a kubeconfig.
    pub fn start(kubeconfig: &Path, id: &str) -> Self {
        let binary = std::env::var_os("SETU_BIN").map(PathBuf::from);
        let binary = binary.unwrap_or_else(|| panic!("SETU_BIN names no binary: run `just bench-big`"));
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let metrics = free.local_addr().unwrap().port();
        drop(free);
        let log = std::fs::File::create(std::env::temp_dir().join("setu-big.log")).unwrap();
        let child = Command::new(&binary)
            .args(["run", "--controller-name", &scenario::controller_name_of(id)])
            .args(["--metrics-bind-address", &format!("127.0.0.1:{metrics}")])
            .args(["--health-probe-bind-address", "127.0.0.1:0"])
            .args(["--leader-elect", "--leader-election-namespace", id])
            .env("KUBECONFIG", kubeconfig)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        let child = child.unwrap_or_else(|e| panic!("{}: {e}", binary.display()));
        Self { child, metrics }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port of its metrics.
    pub fn metrics(&self) -> u16 {
        self.metrics
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
