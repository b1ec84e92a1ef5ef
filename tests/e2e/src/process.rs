//! One child process per program, with its log file. A watchdog kills the children if the harness
//! dies without doing so, even by SIGKILL.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A program of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which simulates the kubelets.
    Kwok,
    /// Kueue.
    Kueue,
    /// The JobSet controller.
    JobSet,
    /// The LeaderWorkerSet controller.
    LeaderWorkerSet,
    /// KubeRay.
    KubeRay,
    /// The training operator.
    TrainingOperator,
    /// The MPI operator.
    MpiOperator,
    /// The trainer, which serves TrainJobs.
    Trainer,
    /// The AppWrapper controller.
    AppWrapper,
    /// The Spark operator, which runs `spark-submit`.
    SparkOperator,
    /// The webhooks of the Spark operator.
    SparkWebhook,
    /// moto, the AWS mock.
    Moto,
    /// Karpenter, with the stack's provider.
    Karpenter,
    /// Jaeger, all in one.
    Jaeger,
    /// A node: the kubelet, and what it needs.
    Node,
}

impl Program {
    /// Its name, which is also the name of its log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
            Self::Kueue => "kueue",
            Self::JobSet => "jobset",
            Self::LeaderWorkerSet => "lws",
            Self::KubeRay => "kuberay",
            Self::TrainingOperator => "training-operator",
            Self::MpiOperator => "mpi-operator",
            Self::Trainer => "trainer",
            Self::AppWrapper => "appwrapper",
            Self::SparkOperator => "spark-operator",
            Self::SparkWebhook => "spark-webhook",
            Self::Moto => "moto",
            Self::Karpenter => "karpenter",
            Self::Jaeger => "jaeger",
            Self::Node => "node",
        }
    }
}

/// The command of a program; the same for every start.
#[derive(Clone, Debug)]
pub(crate) struct ProgramCommand {
    pub program: Program,
    /// Its binary, in the folder of the built programs if the path is relative.
    pub binary: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, String)>,
}

impl ProgramCommand {
    pub(crate) fn new(program: Program, arguments: impl IntoIterator<Item = String>) -> Self {
        Self {
            program,
            binary: program.name().into(),
            arguments: arguments.into_iter().collect(),
            environment: Vec::new(),
        }
    }
}

/// A running program. Dropping it kills it.
pub(crate) struct Process {
    program: Program,
    child: Child,
}

impl Process {
    /// Starts the program in its own process group, so that Ctrl-C in the terminal does not reach it.
    /// Appends its output to `log`.
    pub(crate) fn start(launch: &ProgramCommand, bin: &Path, log: &Path) -> Result<Self> {
        let program = launch.program;
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let child = Command::new(bin.join(&launch.binary))
            .args(&launch.arguments)
            .envs(launch.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stderr(output.try_clone().context("sharing the log file")?)
            .stdout(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", program.name()))?;
        Ok(Self { program, child })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails once the process has exited by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("asking after a child process")? {
            Some(status) => bail!("{} has ended: {status}", self.program.name()),
            None => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell that has a list of the children, and kills them when the pipe to the harness breaks.
pub(crate) struct Watchdog {
    shell: Child,
}

const WATCHDOG: &str = r#"
trap '' INT TERM HUP
known=""
while read -r verb id; do
  case $verb in
    add) known="$known $id" ;;
    del) rest=""; for each in $known; do [ "$each" = "$id" ] || rest="$rest $each"; done; known=$rest ;;
  esac
done
for each in $known; do kill -s KILL -- "-$each"; done
"#;

impl Watchdog {
    pub(crate) fn start() -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", WATCHDOG])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the watchdog")?;
        Ok(Self { shell })
    }

    pub(crate) fn guard(&mut self, process: u32) -> Result<()> {
        self.send(&format!("add {process}\n"))
    }

    pub(crate) fn release(&mut self, process: u32) -> Result<()> {
        self.send(&format!("del {process}\n"))
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let pipe = self.shell.stdin.as_mut().context("the watchdog has no pipe")?;
        pipe.write_all(line.as_bytes()).context("telling the watchdog about a process")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The logs of one stack.
#[derive(Clone, Debug)]
pub(crate) struct Logs(pub PathBuf);

impl Logs {
    pub(crate) fn path(&self, program: Program) -> PathBuf {
        self.0.join(format!("{}.log", program.name()))
    }

    /// The last `count` lines; empty if there is no log.
    pub(crate) fn tail(&self, program: Program, count: usize) -> String {
        let text = fs::read(self.path(program)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut last = VecDeque::new();
        for line in text.lines() {
            if last.len() == count {
                last.pop_front();
            }
            last.push_back(line);
        }
        Vec::from(last).join("\n")
    }

    pub(crate) fn mark(&self, program: Program, what: &str) -> Result<()> {
        let path = self.path(program);
        let open = File::options().create(true).append(true).open(&path);
        let mut log = open.with_context(|| format!("opening {}", path.display()))?;
        writeln!(log, "--- {what} ---").with_context(|| format!("writing {}", path.display()))
    }

    /// Moves them into a folder of this name, and prints its path.
    pub(crate) fn keep(&self, folder: &Path, name: &OsStr) {
        let kept = folder.join(name);
        match fs::create_dir_all(folder).and_then(|()| fs::rename(&self.0, &kept)) {
            Ok(()) => eprintln!("the logs of the control plane are kept in {}", kept.display()),
            Err(error) => eprintln!("the logs of the control plane could not be kept: {error}"),
        }
    }
}
