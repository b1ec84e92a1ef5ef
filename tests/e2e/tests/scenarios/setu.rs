//! The process under test: one `setu run` for each scenario, with its own controller name.

#![allow(dead_code, reason = "each test uses a part of it")]

use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

/// The command that starts Setu, and its process once started.
pub struct Setu {
    binary: PathBuf,
    kubeconfig: PathBuf,
    controller_name: String,
    policy: PathBuf,
    log: PathBuf,
    /// Its environment variables, from the next start on.
    pub environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    host: String,
    child: Option<Child>,
}

impl Setu {
    /// Prepares a process. `folder` will contain its policy file and its log.
    pub fn new(kubeconfig: &Path, controller_name: &str, policy: &str, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let policy_file = folder.join("policy.yaml");
        std::fs::write(&policy_file, policy)?;
        Ok(Self {
            binary: binary()?,
            kubeconfig: kubeconfig.to_owned(),
            controller_name: controller_name.to_owned(),
            policy: policy_file,
            log: folder.join("setu.log"),
            environment: Vec::new(),
            arguments: Vec::new(),
            host: "setu".to_owned(),
            child: None,
        })
    }

    /// The same with more arguments.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|a| (*a).to_owned()));
        self
    }

    /// The same on a host with this name.
    #[must_use]
    pub fn on(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    /// Starts it. With `kill_after`, it kills itself right after that write.
    pub fn start(&mut self, kill_after: Option<u64>) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.binary);
        command
            .args(["run", "--log-level", "info,setu=debug", "--controller-name", &self.controller_name])
            .args(["--health-probe-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"])
            .arg("--config")
            .arg(&self.policy)
            .args(&self.arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOSTNAME", &self.host)
            .env_remove("SETU_KILL_AFTER_WRITE")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(write) = kill_after {
            command.env("SETU_KILL_AFTER_WRITE", write.to_string());
        }
        self.child = Some(command.spawn().with_context(|| format!("starting {}", self.binary.display()))?);
        Ok(())
    }

    /// Its exit status, if it has exited.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?,
            None => None,
        })
    }

    /// Sends it a signal by name, for example `TERM`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.as_ref().context("Setu does not run")?.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status().context("starting kill")?;
        anyhow::ensure!(status.success(), "kill -s {name} {id} ended with {status}");
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its process ID.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The number of its writes so far, from its metrics.
    pub fn writes(&self) -> Result<u64> {
        self.writes_like("")
    }

    /// The same for one resource, for example `nodeclaims`.
    pub fn writes_of(&self, kind: &str) -> Result<u64> {
        self.writes_like(&format!("resource=\"{kind}\""))
    }

    fn writes_like(&self, label: &str) -> Result<u64> {
        let text = self.get("metrics", "/metrics")?;
        let lines = text.lines().filter(|l| {
            l.starts_with("setu_api_requests_total{") && !l.contains("verb=\"get\"") && l.contains(label)
        });
        Ok(lines.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// The address of one of its two servers, from its log.
    pub fn address(&self, server: &str) -> Result<String> {
        let log = std::fs::read_to_string(&self.log)?;
        let line = format!("what=\"{server}\" address=\"");
        let found = log.lines().rev().find_map(|l| l.split(&line).nth(1)?.split('"').next());
        found.map(str::to_owned).context("Setu has not said where it listens")
    }

    /// The answer of one of its two servers, with the headers.
    pub fn get(&self, server: &str, path: &str) -> Result<String> {
        get(&self.address(server)?, path)
    }

    /// Its whole log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Setu {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The answer of the server at this address, with the headers.
pub fn get(address: &str, path: &str) -> Result<String> {
    asked(address, path, "HTTP/1.1")
}

/// The same without chunked encoding, whose chunks may end in the middle of a line.
pub fn get_whole(address: &str, path: &str) -> Result<String> {
    asked(address, path, "HTTP/1.0")
}

fn asked(address: &str, path: &str, version: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} {version}\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// The binary with fail points, which is built before the tests.
pub fn binary() -> Result<PathBuf> {
    let path = match std::env::var_os("SETU_BIN") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/e2e/setu/debug/setu"),
    };
    if !path.is_file() {
        bail!("{} does not exist; run the tests with `just e2e`, which builds it", path.display());
    }
    Ok(path)
}
