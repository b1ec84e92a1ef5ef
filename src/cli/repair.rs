//! `setu repair`: rebuilds a gang's journal from its NodeClaims and its Workload.

use super::cluster::{ClusterObjects, Connection};
use super::gang_objects::GangObjects;
use super::{CliError, find, report};
use crate::api::Workload;
use crate::effects::journal::{Entry, commit};
use crate::error::Error;
use crate::gang::report::message;
use crate::gang::statechart::journal::JournalError;
use crate::gang::{Journal, Precondition};
use crate::telemetry::logs;
use crate::words::counted;
use kube::Client;

/// Rebuilds the journal of a gang from the labels of its NodeClaims and the state of its Workload.
///
/// For a journal that was written by another release, or by somebody else. The controller takes the gang
/// from there; nothing but the annotation is written, and only if nobody writes it meanwhile. Where the
/// chart's admission policies are installed, only the groups they name may do this.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  setu repair job/train -n team-a --yes")]
pub struct Args {
    /// Name of a Workload or of the Job it was made for, as NAME or KIND/NAME.
    workload: String,
    /// Do it, instead of saying what would be done.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The current and the rebuilt journal of one check.
#[derive(Debug)]
struct Repair {
    check: String,
    /// The annotation.
    old: Option<String>,
    /// A description of its content.
    says: String,
    /// The rebuilt journal, or why it cannot be rebuilt now.
    new: Result<Journal, String>,
}

impl Args {
    /// Prints what would be done, or does it.
    pub async fn run(self) -> Result<(), CliError> {
        logs::init(logs::Format::default(), "warn", None).map_err(|e| CliError::Invalid(e.to_string()))?;
        let cluster = self.connection.connect(false).await?;
        let objects = find::read(&cluster, &self.workload).await?;
        if objects.claims.is_none() {
            return Err(CliError::Failed(
                "you may not list nodeclaims, and a journal cannot be rebuilt without them".to_owned(),
            ));
        }
        // Fails with a hint about what to type if there is no such gang.
        find::gangs(&cluster, &objects, &self.workload).await?;
        for workload in find::matches(&objects.workloads, &self.workload) {
            if objects.is_deleted_request(workload) {
                super::print(&format!(
                    "{} was deleted, so there is no journal to repair\n",
                    workload.full_name()
                ));
                continue;
            }
            let repairs: Vec<Repair> = report::gangs_of(&objects, workload)
                .iter()
                .map(|gang| repair(&objects, workload, &gang.check))
                .collect();
            super::print(&in_words(workload, &repairs, self.yes));
            if self.yes {
                write(&cluster.client, workload, repairs).await?;
            }
        }
        Ok(())
    }
}

fn repair(objects: &ClusterObjects, workload: &Workload, check: &str) -> Repair {
    let gang = GangObjects::of(objects, workload, check);
    let says = match gang.journal() {
        None => "there is none".to_owned(),
        Some(Ok(journal)) => gist(journal),
        Some(Err(error @ JournalError::Newer(_))) => error.to_string(),
        Some(Err(error)) => format!("it cannot be read: {error}"),
    };
    let new = gang.rebuild_journal().map_err(|ending| {
        format!("Kueue is taking the Workload down ({ending:?}); try again when its pods are gone")
    });
    Repair { check: check.to_owned(), old: gang.annotation().map(str::to_owned), says, new }
}

fn gist(journal: &Journal) -> String {
    let memory = &journal.memory;
    format!("{}, attempt {}, {}", journal.state.name(), memory.attempt, counted(memory.slots, "node"))
}

fn in_words(workload: &Workload, repairs: &[Repair], doing: bool) -> String {
    let of = workload.full_name();
    let mut lines: Vec<String> = Vec::new();
    for Repair { check, says, new, .. } in repairs {
        lines.push(format!("journal of {of} under check {check}"));
        lines.push(format!("  now:  {says}"));
        lines.push(match new {
            Ok(journal) => format!("  anew: {}", gist(journal)),
            Err(why) => format!("  left as it is: {why}"),
        });
    }
    if !doing && repairs.iter().any(|r| r.new.is_ok()) {
        lines.push("nothing was changed: add --yes to do this".to_owned());
    }
    lines.join("\n") + "\n"
}

async fn write(client: &Client, workload: &Workload, repairs: Vec<Repair>) -> Result<(), CliError> {
    for Repair { check, old, new, .. } in repairs {
        let Ok(journal) = new else { continue };
        let headline = message::headline(&journal, "the journal was rebuilt");
        let text = journal.encode();
        let entry = Entry {
            check: &check,
            old: old.as_deref(),
            journal: &text,
            headline: &headline,
            precondition: Precondition::Journal,
        };
        let failed = |e: Error| {
            CliError::Failed(format!(
                "{}. Run the command again if somebody else has written it",
                e.in_full()
            ))
        };
        commit(client, workload, &entry).await.map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeClaim;
    use crate::names;
    use serde_json::json;

    #[test]
    fn the_current_and_the_rebuilt_journal_are_printed() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "namespace": "ns", "name": "w", "uid": "u",
                "annotations": {(names::journal_key("c")): "{\"version\":99}"},
            },
            "spec": {},
            "status": {
                "admission": {"clusterQueue": "q"}, "admissionChecks": [{"name": "c", "state": "Ready"}],
                "conditions": [condition("QuotaReserved"), condition("Admitted")],
            },
        }))
        .unwrap();
        let claim = |uid: &str, slot: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {
                    "name": slot, "annotations": {(names::CHECK): "c", (names::SLOT): slot},
                    "labels": {(names::WORKLOAD_UID): uid, (names::ATTEMPT): "4"},
                },
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            }))
            .unwrap()
        };
        let objects = ClusterObjects {
            claims: Some(vec![claim("u", "0"), claim("u", "1"), claim("other", "2")]),
            ..ClusterObjects::default()
        };
        let repairs = [repair(&objects, &workload, "c")];
        assert_eq!(
            in_words(&workload, &repairs, false),
            "journal of ns/w under check c\n  \
             now:  journal of a newer release (version 99); this release leaves it alone\n  \
             anew: Approved, attempt 4, 2 nodes\n\
             nothing was changed: add --yes to do this\n"
        );
        assert!(!in_words(&workload, &repairs, true).contains("--yes"));
    }
}
