//! Masks what may differ between two correct answers: UIDs and versions are replaced by the order in which they
//! were first seen, and times are removed. The rule: everything that is masked is listed here, with the reason.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::play::Transcript;

/// Masks the answers of one transcript, in order.
pub struct Mask {
    here: String,
    uids: Vec<String>,
    /// The versions seen so far, each with its replacement name.
    versions: BTreeMap<u64, String>,
    generated: Vec<String>,
}

impl Mask {
    pub fn new(transcript: &Transcript) -> Self {
        Self {
            here: transcript.here.clone(),
            uids: Vec::new(),
            versions: BTreeMap::new(),
            generated: Vec::new(),
        }
    }

    pub fn apply(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                    let list = !metadata.contains_key("uid");
                    self.metadata(metadata, list);
                }
                if fields.contains_key("priority") && fields.contains_key("format") {
                    // Long column descriptions are for readers of the raw answer only.
                    fields.remove("description");
                }
                if let Some(Value::Array(cells)) = fields.get_mut("cells") {
                    cells.iter_mut().for_each(mask_age);
                }
                for (_, field) in fields.iter_mut() {
                    self.apply(field);
                }
                if fields.get("kind").is_some_and(|kind| kind == "Status") {
                    mask_unchecked(fields);
                    mask_message(fields);
                }
            }
            Value::Array(items) => {
                for item in items.iter_mut() {
                    self.apply(item);
                }
                sort_generated(items);
            }
            Value::String(text) => self.text(text),
            _ => {}
        }
    }

    fn metadata(&mut self, metadata: &mut serde_json::Map<String, Value>, list: bool) {
        if let Some(Value::String(version)) = metadata.get_mut("resourceVersion") {
            // The version of a list depends on all writes to the server.
            *version = if list { "newest".to_owned() } else { self.version(version) };
        }
        if let Some(Value::String(token)) = metadata.get_mut("continue")
            && !token.is_empty()
        {
            // Opaque by definition.
            "token".clone_into(token);
        }
        for field in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(time) = metadata.get_mut(field) {
                mask_time(time);
            }
        }
        if let Some(Value::Array(managers)) = metadata.get_mut("managedFields") {
            for manager in managers.iter_mut() {
                // Servers may ignore an apply that changes nothing.
                if let Some(manager) = manager.as_object_mut() {
                    manager.remove("time");
                }
            }
            // They are sorted by time in seconds, so their order depends on timing.
            managers.sort_by_cached_key(ToString::to_string);
        }
    }

    /// The replacement name of a version, with its place among those seen before.
    fn version(&mut self, text: &str) -> String {
        let Ok(number) = text.parse::<u64>() else { return text.to_owned() };
        let count = self.versions.len();
        if let Some(name) = self.versions.get(&number) {
            return name.clone();
        }
        let before = self.versions.range(..number).next_back().map(|(_, name)| name.as_str());
        let before = before.and_then(|name| name.split(' ').next()).unwrap_or("all");
        let name = format!("v{count} after {before}");
        self.versions.insert(number, name.clone());
        name
    }

    fn text(&mut self, text: &mut String) {
        if text.contains(&self.here) {
            *text = text.replace(&self.here, "here");
        }
        while let Some(found) = find_uid(text) {
            let uid = &text[found..found + 36];
            let place = self.uids.iter().position(|known| known == uid).unwrap_or_else(|| {
                self.uids.push(uid.to_owned());
                self.uids.len() - 1
            });
            text.replace_range(found..found + 36, &format!("uid-{place}"));
        }
        while let Some(found) = find_generated(text) {
            let name = &text[found..found + 9];
            let place = self.generated.iter().position(|known| known == name).unwrap_or_else(|| {
                self.generated.push(name.to_owned());
                self.generated.len() - 1
            });
            text.replace_range(found..found + 9, &format!("generated #{place}"));
        }
    }
}

fn mask_time(time: &mut Value) {
    let whole = |text: &str| text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
    if time.as_str().is_some_and(whole) {
        *time = json!("a time");
    }
}

/// Removes the cause that says rules were not checked because the schema failed, and puts the causes in a fixed order.
fn mask_unchecked(status: &mut serde_json::Map<String, Value>) {
    let Some(Value::Object(details)) = status.get_mut("details") else { return };
    let Some(Value::Array(causes)) = details.get_mut("causes") else { return };
    causes.retain(|cause| cause.get("field").is_none_or(|field| field != "<nil>"));
    // A server may report the same fault several times.
    causes.dedup();
    // Conflicts have no fixed order.
    causes.sort_by_cached_key(ToString::to_string);
    let faults: Vec<String> = causes.iter().map(ToString::to_string).collect();
    let mut at = 0;
    causes.retain(|_| {
        at += 1;
        !faults[..at - 1].contains(&faults[at - 1])
    });
    if let Some(Value::String(message)) = status.get_mut("message")
        && let Some(end) = message.find(" is invalid: ").or_else(|| message.find(" conflict"))
    {
        // The rest of the message repeats the causes.
        message.truncate(end);
    }
}

/// Masks the resource versions in a message, which differ between servers, and other server-specific text.
fn mask_message(status: &mut serde_json::Map<String, Value>) {
    let Some(Value::String(message)) = status.get_mut("message") else { return };
    if let Some(end) = message.find(" (must be of type").filter(|_| message.contains("is missing in")) {
        // The rest of the message repeats the request.
        message.truncate(end);
    }
    if message.starts_with("unable to parse requirement") || message.starts_with("found '") {
        // The text depends on each server's parser.
        "a label selector that cannot be read".clone_into(message);
    }
    if let (Some(start), Some(end)) = (message.find("StorageError"), message.find("Precondition failed")) {
        // Only the real server has an etcd key.
        message.replace_range(start..end, "");
    }
    if let Some(end) = message.find("continue key is not valid") {
        // The rest is a parser's error about random bytes.
        message.truncate(end);
    }
    if !message.to_lowercase().replace(' ', "").contains("resourceversion") {
        return;
    }
    let mut out = String::new();
    for character in message.chars() {
        let alone = out.ends_with(' ') || out.ends_with('(') || out.ends_with('#');
        // A missing version is reported as a number too, but always as the same one.
        let missing = out.ends_with("Invalid value: ");
        match character {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' if alone && !missing => out.push('#'),
            other => out.push(other),
        }
    }
    *message = out;
}

/// Masks a table cell with an age, because the servers answer at different times.
fn mask_age(cell: &mut Value) {
    let age = |text: &str| {
        text.strip_suffix('s')
            .is_some_and(|count| !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()))
    };
    if cell.as_str().is_some_and(age) {
        *cell = json!("an age");
    }
}

fn find_uid(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(35)).find(|start| {
        bytes[*start..start + 36].iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    })
}

fn find_generated(text: &str) -> Option<usize> {
    text.match_indices("gen-").map(|(at, _)| at).find(|at| {
        text.as_bytes()
            .get(at + 4..at + 9)
            .is_some_and(|end| end.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
    })
}

/// Sorts objects with generated names, whose random suffixes give no fixed order.
fn sort_generated(items: &mut [Value]) {
    let generated = |item: &Value| {
        let metadata = item.get("metadata").or_else(|| item.pointer("/object/metadata"));
        metadata.and_then(|m| m.get("name")).is_some_and(|name| name.to_string().contains("generated #"))
    };
    let mut at = 0;
    while at < items.len() {
        let end = (at..items.len()).find(|other| !generated(&items[*other])).unwrap_or(items.len());
        items[at..end].sort_by_cached_key(ToString::to_string);
        at = end.max(at) + 1;
    }
}
