//! One control plane: starts the programs in order, waits until each one answers, stops and starts single
//! programs for tests, and cleans up. The one rule: when a stack is dropped, its processes are gone.
//! Its logs are kept unless the test called [`Stack::stop`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::identity::{self, Identity};
use crate::ports::Ports;
use crate::process::{Logs, Process, Program, ProgramCommand, Watchdog};
use crate::{
    HarnessLayout, StackJobKinds, StackOptions, StackProvider, StackScope, apply, aws, jaeger, jobs,
    kubernetes, kueue, node, nodes, operators, probe, programs, ready, requests, spark, versions,
};

const START_LIMIT: Duration = Duration::from_secs(90);
/// How often the stack checks that all programs still run.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A running control plane.
pub struct Stack {
    layout: HarnessLayout,
    ports: Ports,
    identity: Identity,
    logs: Logs,
    running: Mutex<Running>,
    client: Option<Client>,
    provider: StackProvider,
    cloud: Option<aws::Cloud>,
    /// The task that forwards a real node's connections to the API server.
    forwarder: Option<JoinHandle<()>>,
    /// The tasks that stand in for containers: the dashboards of Ray's head pods, and Spark's drivers.
    stand_ins: Vec<JoinHandle<()>>,
    /// Deleted when the stack is dropped; on failure the logs are saved first.
    folder: TempDir,
    outcome: StackOutcome,
}

struct Running {
    launches: BTreeMap<Program, ProgramCommand>,
    processes: BTreeMap<Program, Process>,
    watchdog: Watchdog,
}

#[derive(PartialEq, Eq)]
enum StackOutcome {
    /// Not ended by [`Stack::stop`], so the logs are kept.
    Open,
    Stopped,
}

impl Stack {
    /// Builds what is missing, starts everything and waits until it is ready. If a program does not come up,
    /// the error includes the last lines of its log.
    pub async fn start(options: StackOptions) -> Result<Self> {
        let (layout, provider, scope) = (options.layout.clone(), options.provider, options.scope);
        if scope == StackScope::RealNode {
            node::possible()?;
        }
        let operators = options.job_kinds == StackJobKinds::Frameworks;
        let build = move || {
            programs::build(&layout, provider, scope)?;
            if operators { programs::build_operators(&layout) } else { Ok(()) }
        };
        tokio::task::spawn_blocking(build).await.context("building programs")??;
        let mut stack = Self::prepare(&options)?;
        stack.start_api_server().await?;
        if scope != StackScope::ApiServer {
            stack.start_everything_else(&options).await?;
        }
        if options.jaeger {
            stack.start_program(Program::Jaeger).await?;
        }
        if scope == StackScope::RealNode {
            stack.start_node().await?;
        }
        let client = stack.client()?;
        for path in &options.apply {
            apply::path(&client, path).await.with_context(|| format!("applying {}", path.display()))?;
        }
        Ok(stack)
    }

    fn prepare(options: &StackOptions) -> Result<Self> {
        let (layout, provider, scope) = (options.layout.clone(), options.provider, options.scope);
        let integrations: &[&str] = match options.job_kinds {
            StackJobKinds::Frameworks => &operators::INTEGRATIONS,
            StackJobKinds::Kubernetes | StackJobKinds::Sets => &[],
        };
        fs::create_dir_all(layout.runs()).with_context(|| format!("creating {}", layout.runs().display()))?;
        let folder =
            TempDir::with_prefix_in("stack-", layout.runs()).context("creating the stack's folder")?;
        let logs = Logs(folder.path().join("logs"));
        fs::create_dir_all(&logs.0).context("creating the folder of the logs")?;
        let ports = Ports::free()?;
        let identity = Identity::create(folder.path(), ports.api_server)?;
        let mut launches = BTreeMap::new();
        for launch in [
            kubernetes::etcd(folder.path(), ports),
            kubernetes::api_server(&identity, ports, scope),
            kubernetes::controller_manager(&identity, ports),
            kubernetes::scheduler(&identity, ports),
            nodes::kwok(&layout, folder.path(), &identity, ports)?,
            match provider {
                StackProvider::Kwok => nodes::karpenter(&layout, &identity, ports)?,
                StackProvider::Aws => aws::karpenter(&identity, ports),
            },
            aws::launch_moto(ports),
            kueue::launch(&layout, folder.path(), &identity, ports, integrations)?,
            jobs::launch(Program::JobSet, folder.path(), &identity, ports.jobset)?,
            jobs::launch(Program::LeaderWorkerSet, folder.path(), &identity, ports.lws)?,
            jaeger::launch(&identity, ports),
        ] {
            launches.insert(launch.program, launch);
        }
        for launch in operators::launches(&layout, folder.path(), &identity, ports)? {
            launches.insert(launch.program, launch);
        }
        if scope == StackScope::RealNode {
            let launch = node::launch(&layout, folder.path(), &identity, ports)?;
            launches.insert(launch.program, launch);
        }
        if versions::of(&layout)?.has(&layout, "kubernetes", kubernetes::WITH_PODGROUPS)? {
            launches.values_mut().for_each(kubernetes::turn_on_podgroups);
        }
        let running = Running { launches, processes: BTreeMap::new(), watchdog: Watchdog::start()? };
        Ok(Self {
            layout,
            ports,
            identity,
            logs,
            running: Mutex::new(running),
            client: None,
            provider,
            cloud: None,
            forwarder: None,
            stand_ins: Vec::new(),
            folder,
            outcome: StackOutcome::Open,
        })
    }

    async fn start_api_server(&mut self) -> Result<()> {
        self.start_program(Program::Etcd).await?;
        self.start_program(Program::ApiServer).await?;
        let kubeconfig =
            Kubeconfig::read_from(&self.identity.kubeconfig).context("reading the kubeconfig")?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("making a client configuration")?;
        // A test that stops the API server needs a quick failure.
        config.connect_timeout = Some(Duration::from_secs(5));
        self.client = Some(Client::try_from(config).context("making the stack's client")?);
        Ok(())
    }

    async fn start_everything_else(&mut self, options: &StackOptions) -> Result<()> {
        let client = self.client()?;
        let has_kueue = options.scope != StackScope::WithoutKueue;
        let mut objects = if has_kueue { kueue::manifests(&self.layout, self.ports)? } else { Vec::new() };
        if options.job_kinds >= StackJobKinds::Sets {
            objects.extend(jobs::manifests(&self.layout, &self.identity, self.ports)?);
        }
        if options.job_kinds == StackJobKinds::Frameworks {
            objects.extend(operators::manifests(&self.layout, &self.identity, self.ports)?);
            self.stand_ins.push(operators::serve_dashboards(self.ports).await?);
            let folder = self.folder.path();
            let drivers =
                spark::serve_drivers(&self.layout, folder, &self.identity, client.clone(), self.ports);
            self.stand_ins.push(drivers);
        }
        let definitions = async {
            apply::one(&client, identity::rights()).await?;
            apply::path(&client, &nodes::karpenter_manifests(&self.layout, self.provider)).await?;
            if options.provisioning_requests {
                requests::install(&self.layout, &client).await?;
            }
            apply::all(&client, objects).await
        };
        tokio::try_join!(
            definitions,
            self.start_program(Program::ControllerManager),
            self.start_program(Program::Scheduler),
            self.start_program(Program::Kwok),
        )?;
        if self.provider == StackProvider::Aws {
            let listener = aws::listen(self.ports).await?;
            self.start_program(Program::Moto).await?;
            let cloud = aws::Cloud::start(self.ports, listener, client).await;
            self.cloud = Some(cloud.map_err(|error| self.with_log(Program::Moto, &error))?);
        }
        let controllers_of_jobs = Box::pin(async {
            if options.job_kinds >= StackJobKinds::Sets {
                tokio::try_join!(
                    self.start_program(Program::JobSet),
                    self.start_program(Program::LeaderWorkerSet)
                )?;
            }
            if options.job_kinds == StackJobKinds::Frameworks {
                tokio::try_join!(
                    self.start_program(Program::KubeRay),
                    self.start_program(Program::TrainingOperator),
                    self.start_program(Program::MpiOperator),
                    self.start_program(Program::Trainer),
                    self.start_program(Program::AppWrapper),
                    self.start_program(Program::SparkOperator),
                    self.start_program(Program::SparkWebhook)
                )?;
            }
            Ok(())
        });
        let kueue = async { if has_kueue { self.start_program(Program::Kueue).await } else { Ok(()) } };
        tokio::try_join!(kueue, self.start_program(Program::Karpenter), controllers_of_jobs)?;
        Ok(())
    }

    async fn start_node(&mut self) -> Result<()> {
        node::pack_images(&self.layout, self.folder.path())?;
        let (started, forwarder) = tokio::join!(self.start_program(Program::Node), node::forward(self.ports));
        self.forwarder = Some(started.and(forwarder).map_err(|error| self.with_log(Program::Node, &error))?);
        Ok(())
    }

    /// The administrator's kubeconfig, with a current context.
    pub fn kubeconfig(&self) -> &Path {
        &self.identity.kubeconfig
    }

    /// A client with the administrator's permissions. It is bound to the runtime that started the stack.
    pub fn client(&self) -> Result<Client> {
        self.client.clone().context("the API server has not been started")
    }

    /// The cloud of a stack with [`StackProvider::Aws`].
    pub fn cloud(&self) -> Result<&aws::Cloud> {
        self.cloud.as_ref().context("the stack was started with another provider")
    }

    /// The address of the API server.
    pub fn api_server(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// The path of the CA of every certificate on loopback, as PEM.
    pub fn authority(&self) -> PathBuf {
        self.identity.certificate()
    }

    /// Jaeger's addresses for traces over gRPC, for traces over HTTPS, and for queries.
    pub fn jaeger(&self) -> [String; 3] {
        jaeger::addresses(self.ports)
    }

    /// The stack's folder, for files to delete with the stack.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of Karpenter's metrics.
    pub fn karpenter_metrics(&self) -> String {
        format!("127.0.0.1:{}", self.ports.karpenter_metrics)
    }

    /// The log file of a program.
    pub fn log_path(&self, program: Program) -> PathBuf {
        self.logs.path(program)
    }

    /// The last lines of a program's log.
    pub fn log_tail(&self, program: Program, lines: usize) -> String {
        self.logs.tail(program, lines)
    }

    /// The running programs, each with its process ID.
    pub async fn processes(&self) -> Vec<(Program, u32)> {
        let running = self.running.lock().await;
        running.processes.iter().map(|(program, process)| (*program, process.id())).collect()
    }

    /// Waits until a program exits without being stopped; the error names it.
    pub async fn broken(&self) -> anyhow::Error {
        loop {
            if let Some(ended) = self.ended().await {
                return ended;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the result of this work. If a program exits without being stopped, the error names that program instead of
    /// what failed because of it.
    pub async fn unless_broken<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            broken = self.broken() => Err(broken),
            outcome = work => match outcome {
                Ok(outcome) => Ok(outcome),
                Err(error) => Err(self.ended().await.unwrap_or(error)),
            },
        }
    }

    /// The error for a program that exited without being stopped, if there is one.
    async fn ended(&self) -> Option<anyhow::Error> {
        let mut running = self.running.lock().await;
        running.processes.values_mut().find_map(|process| process.check().err())
    }

    /// Kills a program immediately, as a node failure would.
    pub async fn stop_program(&self, program: Program) -> Result<()> {
        let mut running = self.running.lock().await;
        let process = running.processes.remove(&program);
        let process = process.with_context(|| format!("{} does not run", program.name()))?;
        let id = process.id();
        drop(process);
        running.watchdog.release(id)?;
        self.logs.mark(program, "stopped by the test")
    }

    /// Starts a program on the same ports as before, and waits until it is ready.
    pub async fn start_program(&self, program: Program) -> Result<()> {
        {
            let mut running = self.running.lock().await;
            if running.processes.contains_key(&program) {
                bail!("{} runs already", program.name());
            }
            self.ports.ensure_free(program)?;
            let launch = running.launches.get(&program).context("no such program")?;
            let process = Process::start(launch, &self.layout.bin(), &self.logs.path(program))?;
            running.watchdog.guard(process.id())?;
            running.processes.insert(program, process);
        }
        if program == Program::Kueue {
            kueue::mount_certificate(&self.client()?, self.folder.path())
                .await
                .map_err(|error| self.with_log(program, &error))?;
        }
        if program == Program::TrainingOperator {
            operators::mount_certificate(&self.client()?)
                .await
                .map_err(|error| self.with_log(program, &error))?;
        }
        let what = format!("{} is ready", program.name());
        let client = self.client.as_ref();
        let ready = probe::until(&what, START_LIMIT, async || {
            if let Err(ended) = self.check(program).await {
                // Do not wait for a process that is gone.
                return Ok(Err(ended));
            }
            ready::ready(program, self.ports, client).await.map(Ok)
        });
        ready.await.and_then(|outcome| outcome).map_err(|error| self.with_log(program, &error))
    }

    /// Replaces Kueue or Karpenter by that of another set of versions, with its CRDs, webhooks and rights. The set must have
    /// been built.
    pub async fn upgrade(&self, program: Program, to: &HarnessLayout) -> Result<()> {
        let (mut launch, objects) = match program {
            Program::Kueue => (
                kueue::launch(to, self.folder.path(), &self.identity, self.ports, &[])?,
                kueue::manifests(to, self.ports)?,
            ),
            Program::Karpenter => {
                let path = nodes::karpenter_manifests(to, self.provider);
                let text =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                (nodes::karpenter(to, &self.identity, self.ports)?, apply::documents(&text)?)
            }
            other => bail!("{} cannot be upgraded", other.name()),
        };
        launch.binary = to.bin().join(&launch.binary);
        self.stop_program(program).await?;
        apply::all(&self.client()?, objects).await?;
        self.running.lock().await.launches.insert(program, launch);
        self.start_program(program).await
    }

    async fn check(&self, program: Program) -> Result<()> {
        let mut running = self.running.lock().await;
        let process = running.processes.get_mut(&program);
        process.with_context(|| format!("{} was stopped", program.name()))?.check()
    }

    fn with_log(&self, program: Program, error: &anyhow::Error) -> anyhow::Error {
        let tail = self.log_tail(program, 20);
        anyhow!("{error:#}\nthe last lines of {}'s log:\n{tail}", program.name())
    }

    /// Ends the stack of a test that succeeded, and deletes its folder.
    pub fn stop(mut self) {
        self.outcome = StackOutcome::Stopped;
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // Before the mock stops, or it logs errors.
        self.cloud = None;
        for task in self.forwarder.take().into_iter().chain(self.stand_ins.drain(..)) {
            task.abort();
        }
        let running = self.running.get_mut();
        // Karpenter first, the API server after its clients: fewer errors in the logs.
        while let Some((_, process)) = running.processes.pop_last() {
            let id = process.id();
            drop(process);
            // If the watchdog is gone, there is nothing to release.
            let _ = running.watchdog.release(id);
        }
        node::remove_control_groups(self.folder.path());
        if self.outcome == StackOutcome::Open {
            let name = self.folder.path().file_name().unwrap_or_default();
            self.logs.keep(&self.layout.kept_logs(), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::process::Command;

    async fn prepared() -> Stack {
        let options = StackOptions { provider: StackProvider::Aws, ..StackOptions::default() };
        tokio::task::spawn_blocking(|| {
            programs::build(&HarnessLayout::default(), StackProvider::Aws, StackScope::Full)
        })
        .await
        .unwrap()
        .unwrap();
        Stack::prepare(&options).unwrap()
    }

    /// The error of a start when this port is taken. Checks that no started program is left running.
    async fn error_when_taken(port: impl Fn(Ports) -> u16) -> String {
        let mut stack = prepared().await;
        let port = port(stack.ports);
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let started = match stack.start_api_server().await {
            Ok(()) => stack.start_everything_else(&StackOptions::default()).await,
            failed => failed,
        };
        let processes = stack.processes().await;
        stack.stop();
        for (program, id) in processes {
            assert!(!Path::new(&format!("/proc/{id}")).exists(), "{program:?} still runs");
        }
        format!("{:#}", started.unwrap_err()).replace(&port.to_string(), "PORT")
    }

    const TAKEN: &str =
        "cannot listen on 127.0.0.1:PORT, which another program has taken: start again, for other ports";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_that_dies_fails_the_work_that_waits_for_it() {
        let stack = prepared().await;
        stack.start_program(Program::Moto).await.unwrap();
        let (_, id) = stack.processes().await.remove(0);
        let waits = async {
            let killed = Command::new("kill").args(["-s", "KILL", &id.to_string()]).status()?;
            assert!(killed.success());
            std::future::pending::<Result<()>>().await
        };
        let fails = async { bail!("moto does not answer") };
        let said: [Result<()>; 2] = [stack.unless_broken(waits).await, stack.unless_broken(fails).await];
        stack.stop();
        for said in said {
            assert_eq!(format!("{:#}", said.unwrap_err()), "moto has ended: signal: 9 (SIGKILL)");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_taken_port_is_named_in_the_error_and_no_process_is_left() {
        assert_eq!(error_when_taken(|ports| ports.etcd_peer).await, format!("etcd {TAKEN}"));
        let moto = |ports: Ports| ports.cloud.into_iter().next().unwrap();
        assert_eq!(error_when_taken(moto).await, format!("moto {TAKEN}"));
        let proxy = |ports: Ports| ports.cloud.into_iter().last().unwrap();
        assert_eq!(error_when_taken(proxy).await, format!("the proxy before moto {TAKEN}"));
    }
}
