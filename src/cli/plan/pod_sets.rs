//! The pod sets that stand in a manifest: how many pods each has, and from which template.

use crate::cli::frameworks::{Framework, PodCount, PodSetName, PodsAt, When};
use serde_json::{Value, json};

/// The row of an object's kind.
pub fn framework(manifest: &Value) -> Option<&'static Framework> {
    Framework::of(manifest.get("apiVersion").and_then(Value::as_str), text(manifest, "/kind"))
}

/// The text there; empty if there is none.
pub fn text<'v>(value: &'v Value, at: &str) -> &'v str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

/// A label of an object, if it has it.
pub fn label<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    object.pointer("/metadata/labels")?.get(key)
}

/// An annotation of an object; empty if it does not have it.
pub fn annotation<'v>(object: &'v Value, key: &str) -> &'v str {
    let all = object.pointer("/metadata/annotations");
    all.and_then(|all| all.get(key)?.as_str()).unwrap_or_default()
}

/// A JSON pointer as users write it.
pub fn path(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// The pod sets at these places of a manifest.
pub fn listed(framework: &Framework, places: &[PodsAt], manifest: &Value) -> Result<Vec<Value>, String> {
    let kind = framework.kind;
    refuse(framework, manifest)?;
    known_roles(framework, manifest)?;
    let mut made = Vec::new();
    for pods in places.iter().filter(|pods| pods.when.holds(manifest)) {
        let place =
            manifest.pointer(pods.at).ok_or_else(|| format!("the {kind} has no {}", path(pods.at)))?;
        let PodSetName::Field(field) = pods.name else {
            made.push(pods.pod_set(framework, manifest, place)?);
            continue;
        };
        let entries =
            place.as_array().ok_or_else(|| format!("{} of the {kind} is not a list", path(pods.at)))?;
        if let Some(nameless) =
            entries.iter().position(|entry| entry.get(field).is_none_or(|name| !name.is_string()))
        {
            return Err(format!("entry {nameless} of {} of the {kind} has no {field}", path(pods.at)));
        }
        for entry in entries {
            made.push(pods.pod_set(framework, manifest, entry)?);
        }
    }
    if made.is_empty() {
        let needed: Vec<String> = places.iter().map(|pods| path(pods.at)).collect();
        return Err(format!("the {kind} has no pods; it needs {}", needed.join(" or ")));
    }
    Ok(made)
}

/// Refuses a switch that must be off, if it is on.
pub fn refuse(framework: &Framework, manifest: &Value) -> Result<(), String> {
    let on = |at: &str| manifest.pointer(at).and_then(Value::as_bool) == Some(true);
    match framework.refused.iter().find(|(at, _)| on(at)) {
        None => Ok(()),
        Some((at, why)) => Err(format!("the {} has {}: true; {why}", framework.kind, path(at))),
    }
}

/// Refuses a role that the kind does not have, which its operator would ignore or refuse.
fn known_roles(framework: &Framework, manifest: &Value) -> Result<(), String> {
    let Some(folder) = framework.roles else { return Ok(()) };
    let given = manifest.pointer(folder).and_then(Value::as_object);
    let roles =
        framework.pods.places().iter().filter_map(|pods| pods.at.strip_prefix(folder)?.strip_prefix('/'));
    let roles: Vec<&str> = roles.collect();
    match given.into_iter().flatten().find(|(name, _)| !roles.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => Err(format!(
            "the {} has {}.{name}; its roles are {}",
            framework.kind,
            path(folder),
            roles.join(", ")
        )),
    }
}

impl When {
    fn holds(self, manifest: &Value) -> bool {
        let found = |at: &str| manifest.pointer(at).filter(|value| !value.is_null());
        match self {
            Self::Always => true,
            Self::Present(at) => found(at).is_some(),
            Self::Absent(at) => found(at).is_none(),
            Self::Is { at, value, default } => {
                found(at).map_or(default, |text| text.as_str().unwrap_or("")) == value
            }
        }
    }
}

impl PodsAt {
    /// The pod set that stands at a place of the manifest.
    fn pod_set(&self, framework: &Framework, manifest: &Value, place: &Value) -> Result<Value, String> {
        let name = match self.name {
            PodSetName::Is(name) => name.to_owned(),
            PodSetName::Field(field) => {
                place.get(field).and_then(Value::as_str).unwrap_or_default().to_lowercase()
            }
        };
        let whose = format!("pod set {name} of the {}", framework.kind);
        let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|e| format!("{whose}: {e}"));
        let mut template = match (place.pointer(self.template), self.otherwise) {
            (Some(template), _) if !template.is_null() => template.clone(),
            (_, Some(otherwise)) => json(otherwise)?,
            (_, None) => return Err(format!("{whose} has no {}", path(self.template))),
        };
        if let Some((_, container)) = self.adds.filter(|(when, _)| when.holds(manifest)) {
            let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
            containers.ok_or_else(|| format!("{whose} has no containers"))?.push(json(container)?);
        }
        Ok(json!({"name": name, "count": self.count.of(place, &whose)?, "template": template}))
    }
}

impl PodCount {
    /// The number of pods at a place.
    fn of(&self, place: &Value, whose: &str) -> Result<i64, String> {
        let mut count = match self.job.map(|at| place.pointer(at)) {
            None => 1,
            Some(None) => return Err(format!("{whose} has no spec of a Job")),
            Some(Some(job)) => at_a_time(job, whose)?,
        };
        for (field, default) in self.factors {
            count = count.saturating_mul(number(place, field, whose)?.unwrap_or(*default));
        }
        Ok(count.saturating_sub(self.less).max(0))
    }
}

/// The number of pods of a Job that run at a time.
fn at_a_time(job: &Value, whose: &str) -> Result<i64, String> {
    let parallelism = number(job, "parallelism", whose)?.unwrap_or(1);
    Ok(number(job, "completions", whose)?.map_or(parallelism, |completions| parallelism.min(completions)))
}

/// A non-negative integer; `None` if the field is absent.
pub fn number(of: &Value, field: &str, whose: &str) -> Result<Option<i64>, String> {
    match of.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64() {
            Some(number) if number >= 0 => Ok(Some(number)),
            _ => Err(format!("{whose} has {field}: {value}; write a whole number, 0 or more")),
        },
    }
}
