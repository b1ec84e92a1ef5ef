//! Runs a sequence on a server and records every answer. The rule: nothing waits for a fixed time; a
//! watch is read until a sentinel object arrives.

use anyhow::{Context as _, Result, anyhow};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::{Method, Request};
use serde_json::{Value, json};
use std::time::Duration;

use crate::kinds::{self, Kind};
use crate::server::{Reply, Server};
use crate::step::{Memory, Sequence, Step};

/// How long to wait for the last event of a watch before it counts as missing.
const WATCH_LIMIT: Duration = Duration::from_secs(10);

/// A server's answer to one step.
#[derive(Debug)]
pub struct Answer {
    pub step: Step,
    pub code: u16,
    pub body: Value,
}

/// A server's answers to a sequence in namespace `here`.
#[derive(Debug)]
pub struct Transcript {
    pub here: String,
    pub answers: Vec<Answer>,
}

struct Open {
    answer: usize,
    step: Step,
    lines: BoxStream<'static, Result<Value>>,
}

/// Runs the sequence in the namespace `here`, which must be new.
pub async fn play(server: &Server, sequence: &Sequence, here: &str) -> Result<Transcript> {
    let mut player =
        Player { server, memory: Memory::new(here), answers: Vec::new(), open: Vec::new(), sentinels: 0 };
    player.prepare().await?;
    for step in &sequence.steps {
        player.step(step).await?;
    }
    for open in std::mem::take(&mut player.open) {
        let events = player.drain(open.step, open.lines).await?;
        if let Some(answer) = player.answers.get_mut(open.answer) {
            answer.body = Value::Array(events);
        }
    }
    Ok(Transcript { here: here.to_owned(), answers: player.answers })
}

struct Player<'a> {
    server: &'a Server,
    memory: Memory,
    answers: Vec<Answer>,
    open: Vec<Open>,
    sentinels: u32,
}

impl Player<'_> {
    async fn prepare(&mut self) -> Result<()> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.memory.here}});
        let (code, body) = self.ask(Method::POST, "/api/v1/namespaces", Some(&namespace)).await?;
        anyhow::ensure!(code == 201, "the namespace was refused: {body}");
        let list = format!("/api/v1/namespaces/{}/configmaps", self.memory.here);
        let (_, body) = self.ask(Method::GET, &list, None).await?;
        let version = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        version.context("a list without a version")?.clone_into(&mut self.memory.start);
        Ok(())
    }

    /// Sends a request of the harness, which is not recorded.
    async fn ask(&self, method: Method, target: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let content =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(target).header("content-type", content);
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        match self.server.send(request.body(body)?, false).await? {
            Reply::Whole { code, body } => Ok((code, body)),
            Reply::Stream(_) => Err(anyhow!("a watch instead of an answer")),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        if let (Some(_), Some(kind)) = (step.query("resourceVersion"), kinds::of_path(step.path())) {
            // This step reads from the cache. A consistent list first brings the cache up to date.
            self.ask(Method::GET, &self.memory.fill(&kind.collection()), None).await?;
        }
        let request = step.request(&self.memory)?;
        let (code, body) = match self.server.send(request, step.watches()).await? {
            Reply::Whole { code, body } => (code, self.without_others(body)),
            Reply::Stream(lines) => {
                self.open.push(Open { answer: self.answers.len(), step: step.clone(), lines });
                (200, Value::Null)
            }
        };
        self.memory.learn(step.path(), &body);
        self.answers.push(Answer { step: step.clone(), code, body });
        Ok(())
    }

    /// Removes the objects of parallel sequences from a list of cluster-scoped objects.
    fn without_others(&self, mut body: Value) -> Value {
        let here = &self.memory.here;
        let ours = |item: &Value| {
            let metadata = item.pointer("/object/metadata").or_else(|| item.get("metadata"));
            let text =
                |field| metadata.and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default();
            text("namespace") == here || text("name").starts_with(here.as_str())
        };
        for field in ["items", "rows"] {
            if let Some(items) = body.get_mut(field).and_then(Value::as_array_mut) {
                items.retain(ours);
            }
        }
        body
    }

    /// Reads a watch up to a sentinel, which is created now and passes the watch's filter.
    async fn drain(
        &mut self,
        step: Step,
        mut lines: BoxStream<'static, Result<Value>>,
    ) -> Result<Vec<Value>> {
        let kind = kinds::of_path(step.path()).with_context(|| format!("no kind for {}", step.request))?;
        let mark = self.sentinel(kind, &step).await?;
        let mut events = Vec::new();
        let mut columns = Value::Null;
        loop {
            let mut line = match tokio::time::timeout(WATCH_LIMIT, lines.next()).await {
                Err(_) => {
                    events.push(json!({"type": "MISSING", "object": "the last event did not come"}));
                    return Ok(events);
                }
                Ok(None) => {
                    events.push(json!({"type": "END"}));
                    return Ok(events);
                }
                Ok(Some(line)) => line?,
            };
            if line.to_string().contains(&mark) {
                return Ok(events);
            }
            if line.get("type").is_some_and(|kind| kind == "ERROR") {
                events.push(line);
                return Ok(events);
            }
            // Only the first table of a watch has the columns, even if its row is another sequence's.
            if let Some(named) =
                line.pointer_mut("/object/columnDefinitions").filter(|named| !named.is_null())
            {
                columns = named.take();
            }
            if line.get("type").is_some_and(|kind| kind == "BOOKMARK") && self.concerns_us(&line) {
                // Its object has only a version, which servers format differently.
                line = json!({"type": "BOOKMARK"});
                events.push(line);
                continue;
            }
            if self.concerns_us(&line) {
                if let Some(columns_field) = line.pointer_mut("/object/columnDefinitions") {
                    *columns_field = columns.take();
                }
                events.push(line);
            }
        }
    }

    fn concerns_us(&self, event: &Value) -> bool {
        if event.get("type").is_some_and(|kind| kind == "BOOKMARK") {
            return event.to_string().contains("initial-events-end");
        }
        let object = event.get("object");
        let object = object.and_then(|o| o.pointer("/rows/0/object")).or(object);
        let text =
            |field: &str| object.and_then(|o| o.pointer(field)).and_then(Value::as_str).unwrap_or_default();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        !name.contains("zz-") && (namespace == self.memory.here || name.starts_with(&self.memory.here))
    }

    /// Creates an object that passes the filter of the watch, and returns its unique mark.
    async fn sentinel(&mut self, kind: &Kind, step: &Step) -> Result<String> {
        self.sentinels += 1;
        let here = &self.memory.here;
        let mark = format!("sentinel-{here}-{}", self.sentinels);
        let mut object = kind.base();
        let mut name = "zz-sentinel".to_owned();
        let (mut labels, mut node) = (json!({}), None);
        for term in step.query("fieldSelector").unwrap_or_default().split("%2C") {
            match term.split_once("%3D") {
                Some(("metadata.name", value)) => self.memory.fill(value).clone_into(&mut name),
                Some(("spec.nodeName", value)) => node = Some(value.to_owned()),
                _ => {}
            }
        }
        if let Some((key, value)) = step.query("labelSelector").and_then(|text| text.split_once("%3D")) {
            labels = json!({key: value});
        }
        if let Some(node) = node {
            object["spec"]["nodeName"] = json!(node);
        }
        if !kind.namespaced && !name.starts_with(here.as_str()) {
            name = format!("{here}-{name}");
        }
        object["metadata"] =
            json!({"name": name, "labels": labels, "annotations": {"conformance/sentinel": mark}});
        let collection = self.memory.fill(&kind.collection());
        let one = format!("{collection}/{name}");
        let unhold = json!({"metadata": {"finalizers": null}});
        let delete = format!("{one}?gracePeriodSeconds=0&propagationPolicy=Background");
        self.ask(Method::DELETE, &delete, None).await?;
        self.ask(Method::PATCH, &one, Some(&unhold)).await?;
        let (code, body) = self.ask(Method::POST, &collection, Some(&object)).await?;
        anyhow::ensure!(code == 201, "the last object for a watch of {} was refused: {body}", kind.plural);
        Ok(mark)
    }
}
