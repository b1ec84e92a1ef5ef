//! A sequence of requests, as generated and stored: plain HTTP, with placeholders for values that only answers
//! contain. The rule: a sequence means the same on every server and in every namespace.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use http::{Request, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Consecutive requests by one user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// Why the sequence is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    pub steps: Vec<Step>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Method, path and query.
    pub request: String,
    /// Content type; JSON by default if there is a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// The object to merge the body into, as last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// A body that is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The expected status code, if a kept sequence tests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
}

/// More bytes than all annotations of an object may have together.
const TOO_MUCH: usize = 262_200;

/// The data known from one server's answers so far.
#[derive(Debug, Default)]
pub struct Memory {
    /// The namespace, and the prefix of cluster-scoped names.
    pub here: String,
    /// The resource version before the first step.
    pub start: String,
    list: String,
    next: Option<String>,
    objects: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    first: Value,
    newest: Value,
}

impl Step {
    pub fn method(&self) -> &str {
        self.request.split(' ').next().unwrap_or_default()
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.request.split_once(' ').map_or("", |(_, target)| target)
    }

    pub fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target().split_once('?')?;
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
    }

    pub fn watches(&self) -> bool {
        self.method() == "GET" && matches!(self.query("watch"), Some("true" | "1"))
    }

    /// The request to send, with the placeholders replaced.
    pub fn request(&self, memory: &Memory) -> Result<Request<Vec<u8>>> {
        let mut request = Request::builder()
            .method(self.method())
            .uri(memory.fill(self.target()))
            .header(header::USER_AGENT, "conformance/1")
            .header(header::ACCEPT, self.accept.as_deref().unwrap_or("application/json"));
        let body = match (&self.text, &self.body) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(body)) => Some(serde_json::to_vec(&self.filled(body, memory))?),
            (None, None) => None,
        };
        if body.is_some() {
            let content = self.content.as_deref().unwrap_or("application/json");
            request = request.header(header::CONTENT_TYPE, content);
        }
        request.body(body.unwrap_or_default()).with_context(|| format!("making the request {}", self.request))
    }

    fn filled(&self, body: &Value, memory: &Memory) -> Value {
        let mut filled = body.clone();
        memory.fill_all(&mut filled);
        let Some(like) = &self.like else { return filled };
        let known = memory.objects.get(like).map_or_else(|| json!({}), |known| known.newest.clone());
        let mut whole = known;
        json_patch::merge(&mut whole, &filled);
        whole
    }
}

impl Memory {
    pub fn new(here: &str) -> Self {
        Self { here: here.to_owned(), start: "1".to_owned(), ..Self::default() }
    }

    /// Records an answer to a request for `path`.
    pub fn learn(&mut self, path: &str, answer: &Value) {
        let plural = crate::kinds::plural_of(path);
        if let Some(items) = answer.get("items").and_then(Value::as_array) {
            let text = |pointer| answer.pointer(pointer).and_then(Value::as_str);
            text("/metadata/resourceVersion").unwrap_or_default().clone_into(&mut self.list);
            self.next = text("/metadata/continue").filter(|token| !token.is_empty()).map(str::to_owned);
            for item in items {
                self.learn_object(plural, item, answer);
            }
        } else if answer.pointer("/metadata/uid").is_some() {
            self.learn_object(plural, answer, answer);
        }
    }

    fn learn_object(&mut self, plural: &str, object: &Value, list: &Value) {
        let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str) else { return };
        let name = name.strip_prefix(&format!("{}-", self.here)).unwrap_or(name);
        let key = format!("{plural}/{name}");
        let mut object = object.clone();
        // Items of a list have no kind and apiVersion.
        let kind = list.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
        if let (Some(kind), Some(fields)) = (kind, object.as_object_mut()) {
            fields.entry("kind").or_insert_with(|| json!(kind));
            fields.entry("apiVersion").or_insert_with(|| list["apiVersion"].clone());
        }
        let known =
            self.objects.entry(key).or_insert_with(|| Known { first: object.clone(), newest: Value::Null });
        known.newest = object;
    }

    fn value(&self, placeholder: &str) -> Option<String> {
        let of = |key: &str, first: bool, pointer: &str, none: &str| {
            let known = self.objects.get(key);
            let object = known.map(|known| if first { &known.first } else { &known.newest });
            let value = object.and_then(|object| object.pointer(pointer)).and_then(Value::as_str);
            Some(value.unwrap_or(none).to_owned())
        };
        match placeholder.split_once(':') {
            None => match placeholder {
                "here" => Some(self.here.clone()),
                "start" => Some(self.start.clone()),
                "list" if self.list.is_empty() => Some(self.start.clone()),
                "list" => Some(self.list.clone()),
                "next" => Some(self.next.clone().unwrap_or_else(|| "none".to_owned())),
                "huge" => Some("x".repeat(TOO_MUCH)),
                _ => None,
            },
            Some(("version", key)) => of(key, false, "/metadata/resourceVersion", &self.start),
            Some(("first", key)) => of(key, true, "/metadata/resourceVersion", &self.start),
            Some(("uid", key)) => of(key, false, "/metadata/uid", "11111111-2222-3333-4444-555555555555"),
            Some(_) => None,
        }
    }

    /// The text with its placeholders replaced. Other braces stay.
    pub fn fill(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            let found = after.split_once('}').and_then(|(inner, tail)| Some((self.value(inner)?, tail)));
            let Some((value, tail)) = found else {
                out.push('{');
                rest = after;
                continue;
            };
            out.push_str(&value);
            rest = tail;
        }
        out.push_str(rest);
        out
    }

    fn fill_all(&self, value: &mut Value) {
        match value {
            Value::String(text) if text.contains('{') => *text = self.fill(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.fill_all(item)),
            Value::Object(fields) => {
                let old = std::mem::take(fields);
                for (key, mut field) in old {
                    self.fill_all(&mut field);
                    fields.insert(self.fill(&key), field);
                }
            }
            _ => {}
        }
    }
}
