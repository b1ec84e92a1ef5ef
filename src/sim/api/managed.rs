//! Who owns which fields of an object, and server-side apply, which is decided by that.
//!
//! The rule: as `sigs.k8s.io/structured-merge-diff` has it. Every write takes over the fields it changes;
//! an apply takes over all it states, must not change what others own unless it is forced, and removes
//! what it stated before and nobody else owns.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{Difference, Fields};
use super::kinds::Kind;
use super::merge;
use crate::sim::values::seconds;

/// How a manager came to own its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// One manager of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Manager {
    name: String,
    operation: Operation,
    subresource: Option<&'static str>,
    api_version: String,
    time: Timestamp,
    fields: Fields,
}

/// Everybody who owns fields of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Managers(Vec<Manager>);

/// Who writes, to which part, when.
#[derive(Clone, Copy)]
pub(super) struct Writer<'w> {
    pub name: &'w str,
    pub subresource: Option<&'static str>,
    pub now: Timestamp,
}

/// A field that an apply would change although another manager owns it.
pub(super) struct Conflict {
    /// The other manager, as people read it.
    pub manager: String,
    pub path: String,
}

impl Managers {
    /// Whoever creates an object owns all of it.
    pub(super) fn create(&mut self, kind: &Kind, object: &Value, writer: Writer<'_>) {
        self.write(kind, &blank(kind), object, writer);
    }

    /// Whoever creates an object by applying it owns what it states.
    pub(super) fn state(&mut self, kind: &Kind, applied: &Value, writer: Writer<'_>) {
        let fields = Fields::of(kind, applied).owned(kind, writer.subresource);
        if !fields.is_empty() {
            self.0.push(writer.manager(kind, Operation::Apply, fields));
        }
    }

    /// What an update or patch did to who owns what. Where nobody owns anything, nobody begins to.
    pub(super) fn update(&mut self, kind: &Kind, old: &Value, new: &Value, writer: Writer<'_>) {
        if !self.0.is_empty() {
            self.write(kind, old, new, writer);
        }
    }

    fn write(&mut self, kind: &Kind, old: &Value, new: &Value, writer: Writer<'_>) {
        let difference = Difference::between(kind, old, new).owned(kind, writer.subresource);
        let taken = difference.added.union(&difference.modified);
        if taken.is_empty() && difference.removed.is_empty() {
            return;
        }
        for manager in &mut self.0 {
            if manager.operation == Operation::Update && manager.is(writer) {
                continue;
            }
            manager.fields = manager.fields.minus(&taken).minus(&difference.removed);
        }
        let mine = self.take(Operation::Update, writer);
        let before = mine.as_ref().map(|manager| manager.fields.clone()).unwrap_or_default();
        let fields = before.minus(&difference.removed).union(&taken);
        // The time is that of the last write that took anything.
        let time = match mine {
            Some(mine) if taken.is_empty() => mine.time,
            _ => writer.now,
        };
        self.0.push(Manager { time, ..writer.manager(kind, Operation::Update, fields) });
        self.0.retain(|manager| !manager.fields.is_empty());
    }

    /// The object that an apply makes of `live`, and who owns what then; or what is in its way.
    pub(super) fn apply(
        &self,
        kind: &Kind,
        live: &Value,
        applied: &Value,
        writer: Writer<'_>,
        force: Force,
    ) -> Result<(Value, Self), Vec<Conflict>> {
        let mut after = self.clone();
        let last = after.take(Operation::Apply, writer);
        let stated = Fields::of(kind, applied).owned(kind, writer.subresource);
        let mut merged = live.clone();
        merge::apply(kind, &mut merged, applied);
        if let Some(last) = &last {
            let kept = after.0.iter().fold(stated.clone(), |all, manager| all.union(&manager.fields));
            merged = pruned(kind, &merged, &last.fields, &kept);
        }
        let difference = Difference::between(kind, live, &merged).owned(kind, writer.subresource);
        let changed = difference.added.union(&difference.modified);
        if force == Force::No {
            let conflicts = after.conflicts(&changed);
            if !conflicts.is_empty() {
                return Err(conflicts);
            }
        }
        for manager in &mut after.0 {
            manager.fields = manager.fields.minus(&changed).minus(&difference.removed);
        }
        // Nothing but the time of the apply would change: then that does not either.
        let time = last.filter(|last| last.fields == stated).map_or(writer.now, |last| last.time);
        after.0.push(Manager { time, ..writer.manager(kind, Operation::Apply, stated) });
        after.0.retain(|manager| !manager.fields.is_empty());
        Ok((merged, after))
    }

    fn conflicts(&self, changed: &Fields) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        for manager in &self.0 {
            let paths = manager.fields.and(changed).paths();
            conflicts.extend(paths.into_iter().map(|path| Conflict { manager: manager.shown(), path }));
        }
        conflicts
    }

    fn take(&mut self, operation: Operation, writer: Writer<'_>) -> Option<Manager> {
        let at = self.0.iter().position(|manager| manager.operation == operation && manager.is(writer))?;
        Some(self.0.remove(at))
    }

    /// Whether the same managers own the same fields, whenever that began.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        let owners = |managers: &Self| -> BTreeMap<(String, Operation, Option<&'static str>), Fields> {
            let all = managers.0.iter().cloned();
            all.map(|manager| ((manager.name, manager.operation, manager.subresource), manager.fields)).collect()
        };
        self.0.len() == other.0.len() && owners(self) == owners(other)
    }

    /// As `metadata.managedFields`: applies first, then by time and name. Null if there are none.
    pub(super) fn to_json(&self) -> Value {
        let mut managers: Vec<&Manager> = self.0.iter().collect();
        managers.sort_by_key(|manager| (manager.operation, seconds(manager.time), manager.name.clone()));
        match managers.is_empty() {
            true => Value::Null,
            false => managers.into_iter().map(Manager::to_json).collect(),
        }
    }
}

/// Whether an apply takes what others own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    No,
    Yes,
}

impl Writer<'_> {
    fn manager(self, kind: &Kind, operation: Operation, fields: Fields) -> Manager {
        Manager {
            name: self.name.to_owned(),
            operation,
            subresource: self.subresource,
            api_version: kind.api_version(),
            time: self.now,
            fields,
        }
    }
}

impl Manager {
    fn is(&self, writer: Writer<'_>) -> bool {
        self.name == writer.name && self.subresource == writer.subresource
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.name,
            "operation": match self.operation {
                Operation::Apply => "Apply",
                Operation::Update => "Update",
            },
            "apiVersion": self.api_version,
            "time": seconds(self.time),
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if let (Some(subresource), Some(entry)) = (self.subresource, entry.as_object_mut()) {
            entry.insert("subresource".to_owned(), json!(subresource));
        }
        entry
    }

    fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.name);
        if let Some(subresource) = self.subresource {
            shown.push_str(&format!(" with subresource {subresource:?}"));
        }
        if self.operation == Operation::Update {
            shown.push_str(&format!(" using {} at {}", self.api_version, seconds(self.time)));
        }
        shown
    }
}

/// What a kind's object has before anything is in it. Built-in kinds have parts that are always there.
fn blank(kind: &Kind) -> Value {
    match kind.kind {
        _ if kind.custom => json!({"metadata": {}}),
        "Job" | "DaemonSet" => {
            json!({"metadata": {}, "spec": {"template": {"metadata": {}, "spec": {}}}, "status": {}})
        }
        "Event" => json!({"metadata": {}, "regarding": {}, "deprecatedSource": {}}),
        _ => json!({"metadata": {}, "spec": {}, "status": {}}),
    }
}

/// The merged object without what was stated last, is not kept by anybody, and hangs on nothing else.
fn pruned(kind: &Kind, merged: &Value, last: &Fields, kept: &Fields) -> Value {
    let all = Fields::of(kind, merged).with_parents();
    let last = last.with_parents();
    let without_last = merge::without(kind, merged, &last);
    let keep = Fields::of(kind, &without_last).with_parents().union(&kept.with_parents());
    let owned_back = merge::without(kind, merged, &all.minus(&keep));
    let present = Fields::of(kind, &owned_back).with_parents();
    merge::without(kind, merged, &all.minus(&present).and(&last))
}
