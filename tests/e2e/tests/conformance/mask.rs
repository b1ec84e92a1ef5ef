//! Takes out of an answer what may differ between two right answers: identifiers and versions become
//! the order in which they were first seen, times go. The rule: what is masked is listed here, with why.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::play::Transcript;

/// Masks the answers of one transcript, in their order.
pub struct Mask {
    here: String,
    uids: Vec<String>,
    /// Versions in the order they were seen, with what each is called.
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
                    // Columns are described at length for who reads the raw answer; nobody does.
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
            // A list is as new as the newest write to anything, by anyone.
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
                // An apply that changed nothing may be one that never happened.
                if let Some(manager) = manager.as_object_mut() {
                    manager.remove("time");
                }
            }
            // Their order follows their times, and those depend on when the second turns.
            managers.sort_by_cached_key(ToString::to_string);
        }
    }

    /// A name for a version that tells its place among those seen before.
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

/// A server that found a schema broken adds that it did not go on to the rules; there is no news in it.
fn mask_unchecked(status: &mut serde_json::Map<String, Value>) {
    let Some(Value::Object(details)) = status.get_mut("details") else { return };
    let Some(Value::Array(causes)) = details.get_mut("causes") else { return };
    causes.retain(|cause| cause.get("field").is_none_or(|field| field != "<nil>"));
    // The same fault is told as often as it happens to be looked for.
    causes.dedup();
    // Nor are conflicts told in any order.
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
        // The rest repeats the causes.
        message.truncate(end);
    }
}

/// Versions in a message are of no number that both servers could share.
fn mask_message(status: &mut serde_json::Map<String, Value>) {
    let Some(Value::String(message)) = status.get_mut("message") else { return };
    if let Some(end) = message.find(" (must be of type").filter(|_| message.contains("is missing in")) {
        // The rest repeats the request.
        message.truncate(end);
    }
    if message.starts_with("unable to parse requirement") || message.starts_with("found '") {
        // Each server's own parser says what it stumbled over.
        "a label selector that cannot be read".clone_into(message);
    }
    if let (Some(start), Some(end)) = (message.find("StorageError"), message.find("Precondition failed")) {
        // Where etcd keeps the object is the real server's own affair.
        message.replace_range(start..end, "");
    }
    if let Some(end) = message.find("continue key is not valid") {
        // The rest is what a parser says of random bytes.
        message.truncate(end);
    }
    if !message.to_lowercase().replace(' ', "").contains("resourceversion") {
        return;
    }
    let mut out = String::new();
    for character in message.chars() {
        let alone = out.ends_with(' ') || out.ends_with('(') || out.ends_with('#');
        // The value of a missing version is given as a number too, and always the same one.
        let missing = out.ends_with("Invalid value: ");
        match character {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' if alone && !missing => out.push('#'),
            other => out.push(other),
        }
    }
    *message = out;
}

/// A cell of a table that tells an age: each server was asked at its own moment.
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

/// Generated names end at random, so their order among themselves is no one's promise.
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
