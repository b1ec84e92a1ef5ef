//! The `Theatre` for the real control plane: one cluster for all scenarios, one `setu` process for each.

#[path = "page.rs"]
mod page;
#[path = "weather.rs"]
pub mod weather;

use crate::setu::Setu;
use anyhow::{Context as _, Result, bail, ensure};
use kube::Client;
use kube::discovery::{ApiGroup, ApiResource, Discovery, Scope};
use page::Page;
use serde_json::Value;
use setu::sim::scenario::{KarpenterProvider, Run, ScenarioStep, Theatre, controller_name, policy};
use setu_e2e::{Program, Stack, aws};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The real control plane, and the process under test.
pub struct Real {
    stack: Arc<Stack>,
    client: Client,
    kinds: Arc<Discovery>,
    /// The process under test.
    pub setu: Setu,
    /// Karpenter's metrics page, if the scenario has one.
    page: Option<Page>,
    /// With the AWS provider, the instance type that replaces the world's.
    pub aws_type: Option<&'static str>,
}

/// The state that all runs in a cluster share.
#[derive(Clone)]
pub struct Shared {
    /// The kinds that the API server serves.
    pub kinds: Arc<Discovery>,
    /// Setu's kubeconfig.
    pub kubeconfig: Arc<Path>,
}

impl Real {
    /// Prepares the process of a run without starting it.
    pub fn new(stack: &Arc<Stack>, shared: &Shared, run: &Run) -> Result<Self> {
        let folder = stack.folder().join("scenarios").join(&run.id);
        let arguments: Vec<&str> = run.scenario.arguments.iter().map(String::as_str).collect();
        let setu = Setu::new(
            &shared.kubeconfig,
            &controller_name(run),
            &policy(run, jiff::Timestamp::now())?,
            &folder,
        )?
        .with(&arguments);
        let needs_page = run.scenario.steps.iter().any(|step| matches!(step, ScenarioStep::KarpenterSays(_)));
        let page = if needs_page { Some(Page::serve()?) } else { None };
        let url = page.as_ref().map(Page::url);
        let setu = match &url {
            Some(url) => setu.with(&["--karpenter-metrics", url]),
            None => setu,
        };
        let (client, kinds) = (stack.client()?, Arc::clone(&shared.kinds));
        Ok(Self { stack: Arc::clone(stack), client, kinds, setu, page, aws_type: None })
    }
}

/// The message that Setu logs once the API server answers again.
const IS_BACK: &str = "the API server answers again";

/// The lines up to that one, without debug lines.
fn until_it_is_back(log: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in log.lines().filter(|line| !line.contains(" DEBUG ")) {
        lines.push(line.to_owned());
        if line.contains(IS_BACK) {
            break;
        }
    }
    lines
}

/// Checks that the log has exactly two lines about an outage of this many seconds: one at its start, one at its end.
fn check_outage_lines(lines: &[String], seconds: u64) -> Result<()> {
    let [begin, end] = lines else { bail!("an outage has two lines: {lines:#?}") };
    let lasted = end.rsplit_once("seconds=").and_then(|(_, lasted)| lasted.trim().parse::<u64>().ok());
    let range = seconds..=seconds.saturating_add(30);
    ensure!(
        begin.contains(" WARN ") && begin.contains("the API server does not answer"),
        "how it begins: {begin}"
    );
    ensure!(
        end.contains(" INFO ")
            && end.contains(IS_BACK)
            && lasted.is_some_and(|lasted| range.contains(&lasted)),
        "how it ends: {end}"
    );
    Ok(())
}

impl Theatre for Real {
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn provided(&self, object: Value, _provider: KarpenterProvider) -> Result<Value> {
        self.aws_type
            .map_or_else(|| Ok(object.clone()), |instance_type| aws::provided(&object, instance_type))
    }

    fn weather(&self, rules: &[Value]) -> Result<()> {
        match self.aws_type {
            Some(_) => weather::set(self.stack.cloud()?, rules),
            None => Ok(()),
        }
    }

    async fn karpenter_says(&mut self, page: &str) -> Result<()> {
        let served = self.page.as_ref().context("nobody serves the page")?;
        let before = served.set(page);
        // Setu reads it once a minute.
        let deadline = Instant::now() + Duration::from_secs(90);
        while served.reads() == before {
            ensure!(Instant::now() < deadline, "Setu does not read Karpenter's metrics page");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn kind(&self, kind: &str) -> Option<(ApiResource, Scope)> {
        let recommended = self.kinds.groups().flat_map(ApiGroup::recommended_resources);
        // A beta kind is not recommended where its group has a stable version.
        let others = self.kinds.groups().flat_map(ApiGroup::resources_by_stability);
        let found = recommended.chain(others).find(|(resource, _)| resource.kind == kind);
        found.map(|(resource, capabilities)| (resource, capabilities.scope))
    }

    /// Several scenarios share the cores. The tests on the embedded cluster check promptness.
    fn time_factor(&self) -> u64 {
        2
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn start_setu(&mut self, kill_after: Option<u64>) -> Result<()> {
        self.setu.start(kill_after)
    }

    fn kill_setu(&mut self) {
        self.setu.kill();
    }

    fn revive_setu(&mut self) -> Result<()> {
        match self.setu.ended()? {
            Some(status) if status.signal() == Some(9) => self.setu.start(None),
            Some(status) => bail!("Setu ended by itself: {status}\n{}", self.setu.log_tail(25)),
            None => Ok(()),
        }
    }

    fn writes(&self) -> Result<u64> {
        self.setu.writes()
    }

    fn log_tail(&self) -> String {
        self.setu.log_tail(25)
    }

    async fn api_server_gone(&mut self, seconds: u64) -> Result<()> {
        let before = self.setu.log().len();
        self.stack.stop_program(Program::ApiServer).await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.stack.start_program(Program::ApiServer).await?;
        let deadline = Instant::now() + Duration::from_mins(1);
        let lines = loop {
            let log = self.setu.log();
            let log = log.get(before..).unwrap_or_default();
            if log.contains(IS_BACK) {
                break until_it_is_back(log);
            }
            ensure!(Instant::now() < deadline, "Setu does not say that the API server is back:\n{log}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        check_outage_lines(&lines, seconds)
    }
}
