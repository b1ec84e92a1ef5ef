//! `setu inspect`: lists gangs with their state and why they wait.

use super::cluster::{ClusterObjects, ClusterReader, Connection, Scope};
use super::known::ControllersPolicy;
use super::report::{self, GangReport};
use super::watch::Live;
use super::workload_phase::WorkloadPhase;
use super::{CliError, find};
use crate::cli::render::{self, table};
use clap::ValueEnum;
use serde::Serialize;

/// Shows gangs: their state, nodes ready of all, attempt, tier, age, and why they wait.
///
/// Reads Workloads, NodeClaims and Nodes; the controller itself is not asked.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  setu inspect -A
  setu inspect job/train -n team-a --watch
  setu inspect -A -o json | jq '.gangs[] | select(.gang.state == \"BackingOff\") | .why'")]
pub struct Args {
    /// Name of a Workload or of the Job it was made for, as NAME or KIND/NAME; all without it.
    workload: Option<String>,
    /// Gangs of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Gangs of finished Workloads too.
    #[arg(long)]
    finished: bool,
    /// How they are printed.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    policy: ControllersPolicy,
    /// Stay, and print again whenever something changes.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

/// How gangs are printed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// One line for each gang, cut to the terminal's width.
    #[default]
    Table,
    /// With owner, queue, check and trace, and nothing cut.
    Wide,
    /// JSON: an object with the list `gangs`.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Gangs, for JSON and YAML output.
#[derive(Serialize)]
pub(super) struct GangList<'a> {
    pub(super) gangs: &'a [GangReport],
}

impl Args {
    /// Prints the gangs, once or until interrupted.
    pub async fn run(self) -> Result<(), CliError> {
        let settings = self.policy.settings()?;
        let cluster = self.connection.connect(self.all_namespaces).await?;
        let mut objects = match &self.workload {
            Some(wanted) => find::read(&cluster, wanted).await?,
            None => cluster.read().await?,
        };
        objects.settings = settings;
        objects.market = self.policy.market().await?;
        objects.notes.iter().for_each(|note| render::remark(note));
        let gangs = self.select(&cluster, &objects).await?;
        let text = self.text(&gangs, &objects)?;
        if gangs.is_empty() && matches!(self.output, Output::Table | Output::Wide) {
            let hint = if self.finished { "" } else { "; --finished shows those of finished Workloads" };
            render::remark(&format!("no gang here{hint}"));
        }
        if self.output == Output::Wide
            && let Some(line) = table::priced_by(gangs.iter().filter_map(|gang| Some(gang.cost?.priced_by)))
        {
            render::remark(&line);
        }
        let still_read = render::show(&text);
        if self.watch && still_read { self.follow(&cluster, objects, gangs).await } else { Ok(()) }
    }

    async fn select(
        &self,
        cluster: &ClusterReader,
        objects: &ClusterObjects,
    ) -> Result<Vec<GangReport>, CliError> {
        match &self.workload {
            Some(wanted) => find::gangs(cluster, objects, wanted).await,
            None => Ok(self.shown(report::gangs_in(objects, &cluster.scope))),
        }
    }

    fn shown(&self, mut gangs: Vec<GangReport>) -> Vec<GangReport> {
        let hides = !self.finished && self.workload.is_none();
        let is_over =
            |gang: &GangReport| matches!(gang.workload_phase, WorkloadPhase::Finished | WorkloadPhase::Ended);
        gangs.retain(|gang| !(hides && is_over(gang)));
        gangs
    }

    fn text(&self, gangs: &[GangReport], objects: &ClusterObjects) -> Result<String, CliError> {
        let list = GangList { gangs };
        match self.output {
            Output::Json => super::json(&list),
            Output::Yaml => serde_yaml::to_string(&list)
                .map_err(|e| CliError::Failed(format!("rendering the result: {e}"))),
            Output::Table | Output::Wide => {
                let layout = table::Columns {
                    wide: self.output == Output::Wide,
                    namespaces: self.all_namespaces,
                    width: render::terminal_width(),
                };
                Ok(if gangs.is_empty() { String::new() } else { table::gangs(gangs, objects.now, layout) })
            }
        }
    }

    /// Prints again after every change: the whole table in place on a terminal, only changed gangs elsewhere. Remarks are a part of
    /// the table, or are printed once.
    async fn follow(
        &self,
        cluster: &ClusterReader,
        first: ClusterObjects,
        mut last: Vec<GangReport>,
    ) -> Result<(), CliError> {
        let lines = matches!(self.output, Output::Table | Output::Wide);
        let in_place = lines && render::terminal_width().is_some();
        let mut live = Live::start(cluster, first, self.workload.as_deref());
        let mut printed: Vec<String> = Vec::new();
        loop {
            let objects = live.next(cluster).await?;
            let (gangs, lack) = self.current(&cluster.scope, &objects);
            let remarks: Vec<String> = lack.into_iter().chain(live.outages(objects.now)).collect();
            if !in_place {
                remarks.iter().filter(|text| !printed.contains(text)).for_each(|text| render::remark(text));
            }
            let text = if in_place {
                format!("{CLEAR}{}{}", self.text(&gangs, &objects)?, below(&remarks))
            } else if gangs == last {
                String::new()
            } else if lines {
                let changed: Vec<GangReport> = gangs.iter().filter(|g| !last.contains(g)).cloned().collect();
                without_head(&self.text(&changed, &objects)?)
            } else {
                self.text(&gangs, &objects)?
            };
            if !render::show(&text) {
                return Ok(());
            }
            (last, printed) = (gangs, remarks);
        }
    }

    /// The gangs to show, and why there is none of the named Workload.
    fn current(&self, scope: &Scope, objects: &ClusterObjects) -> (Vec<GangReport>, Option<String>) {
        match &self.workload {
            Some(wanted) => named(objects, wanted),
            None => (self.shown(report::gangs_in(objects, scope)), None),
        }
    }
}

/// The gangs of the Workload that the user named, or why there is none.
fn named(objects: &ClusterObjects, wanted: &str) -> (Vec<GangReport>, Option<String>) {
    let found = find::matches(&objects.workloads, wanted);
    let Some(first) = found.first() else { return (Vec::new(), Some(format!("{wanted} is gone"))) };
    let gangs: Vec<GangReport> = found.iter().flat_map(|w| report::gangs_of(objects, w)).collect();
    if !gangs.is_empty() {
        return (gangs, None);
    }
    if first.has_quota() && first.checks().is_empty() && !first.is_admitted() {
        return (gangs, Some(format!("Kueue is about to list the checks of {wanted}")));
    }
    match find::early(objects, first) {
        Ok(gang) => (vec![gang], None),
        Err(why) => (gangs, Some(why.to_string())),
    }
}

/// Remarks below a table, one on each line.
fn below(remarks: &[String]) -> String {
    let line = |text: &String| render::paint(render::DIM, &render::clean(text)) + "\n";
    remarks.iter().map(line).collect()
}

fn without_head(table: &str) -> String {
    table.split_once('\n').map_or("", |(_, rows)| rows).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Workload;
    use serde_json::json;

    /// The number of gangs shown for Workload `w` with these true conditions and checks, and the text if there is none.
    fn shown(conditions: &[&str], checks: &[&str]) -> (usize, String) {
        let conditions: Vec<serde_json::Value> = conditions
            .iter()
            .map(|kind| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let checks: Vec<serde_json::Value> = checks.iter().map(|name| json!({"name": name})).collect();
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ns", "name": "w", "uid": "u"}, "spec": {},
            "status": {"conditions": conditions, "admissionChecks": checks},
        }))
        .unwrap();
        let objects = ClusterObjects { workloads: vec![workload], ..ClusterObjects::default() };
        let (gangs, lack) = named(&objects, "w");
        (gangs.len(), lack.unwrap_or_default())
    }

    #[test]
    fn a_followed_workload_without_a_gang_is_shown_or_it_is_said_why_not() {
        assert_eq!(shown(&[], &[]), (1, String::new()), "it waits for quota");
        assert_eq!(shown(&["QuotaReserved"], &[]), (0, "Kueue is about to list the checks of w".to_owned()));
        let (gangs, lack) = shown(&["QuotaReserved"], &["budget"]);
        assert!(gangs == 0 && lack.contains("has only checks budget"), "{lack}");
        let gone = named(&ClusterObjects::default(), "job/train");
        assert_eq!(gone, (Vec::new(), Some("job/train is gone".to_owned())));
        assert_eq!(below(&["a\u{1b}[2J".to_owned()]), render::paint(render::DIM, "a[2J") + "\n");
    }
}
