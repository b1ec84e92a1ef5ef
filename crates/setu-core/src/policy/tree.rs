//! YAML as a tree in which every node has its position, so that an error can name line and column.
//!
//! Anchors, aliases and merge keys (`<<`) are resolved here. Scalars follow the core schema of YAML 1.2, in which `on`,
//! `off`, `yes` and `no` are words. Rule: reading always terminates, within limits of depth and size.

use super::path::{Path, PathStep};
use saphyr_parser::{Event, Parser, ScalarStyle, Span as Range, Tag};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Most nodes of a file with all aliases expanded: far more than any policy has, and little memory.
const MOST_NODES: usize = 200_000;
/// Deepest nesting.
const DEEPEST: usize = 64;

/// A position in a file; both count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl From<Range> for TextPosition {
    fn from(range: Range) -> Self {
        Self { line: range.start.line(), column: range.start.col() + 1 }
    }
}

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub position: TextPosition,
    /// At which key; empty for the file as a whole.
    pub path: Path,
    /// What, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.path.0.is_empty() { "" } else { ": " };
        write!(f, "{}: {}{colon}{}", self.position, self.path, self.message)
    }
}

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode {
    /// Where it begins.
    pub position: TextPosition,
    /// The value.
    pub value: YamlValue,
}

/// The value of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Another number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list; each item keeps its index when others are taken out.
    List(Vec<(usize, Rc<YamlNode>)>),
    /// A map, in the order written.
    Map(Vec<MapEntry>),
}

/// One entry of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct MapEntry {
    /// Its key.
    pub key: String,
    /// The position of the key.
    pub position: TextPosition,
    /// Its value.
    pub node: Rc<YamlNode>,
}

impl YamlNode {
    /// The position of the value at a path, or of the last value on the path that exists. For a map entry it is the position of
    /// its key.
    pub fn position_of(&self, path: &Path) -> TextPosition {
        let (mut node, mut position) = (self, self.position);
        for step in &path.0 {
            let next = match (&node.value, step) {
                (YamlValue::Map(entries), PathStep::Key(key)) => {
                    entries.iter().find(|e| e.key == *key).map(|e| (&e.node, e.position))
                }
                (YamlValue::List(items), PathStep::Index(index)) => {
                    items.iter().find(|(i, _)| i == index).map(|(_, n)| (n, n.position))
                }
                _ => None,
            };
            let Some((found, at)) = next else { break };
            (node, position) = (found, at);
        }
        position
    }

    /// Converts a path whose indices count the remaining list items into one that counts the written ones.
    pub fn as_written(&self, path: &Path) -> Path {
        let mut node = Some(self);
        let step = |step: &PathStep| {
            let (next, step) = match (node.map(|n| &n.value), step) {
                (Some(YamlValue::Map(entries)), PathStep::Key(key)) => {
                    (entries.iter().find(|e| e.key == *key).map(|e| &*e.node), step.clone())
                }
                (Some(YamlValue::List(items)), PathStep::Index(index)) => match items.get(*index) {
                    Some((written, item)) => (Some(&**item), PathStep::Index(*written)),
                    None => (None, step.clone()),
                },
                _ => (None, step.clone()),
            };
            node = next;
            step
        };
        Path(path.0.iter().map(step).collect())
    }

    /// Removes the value at a path.
    pub fn remove(&mut self, path: &[PathStep]) {
        match (&mut self.value, path) {
            (YamlValue::Map(entries), [PathStep::Key(key)]) => entries.retain(|e| e.key != *key),
            (YamlValue::List(items), [PathStep::Index(index)]) => items.retain(|(i, _)| i != index),
            (YamlValue::Map(entries), [PathStep::Key(key), rest @ ..]) => {
                if let Some(entry) = entries.iter_mut().find(|e| e.key == *key) {
                    Rc::make_mut(&mut entry.node).remove(rest);
                }
            }
            (YamlValue::List(items), [PathStep::Index(index), rest @ ..]) => {
                if let Some((_, item)) = items.iter_mut().find(|(i, _)| i == index) {
                    Rc::make_mut(item).remove(rest);
                }
            }
            _ => {}
        }
    }
}

/// Reads a text. The tree is `None` only if the text is not YAML. Also returns the other problems, such as a duplicate
/// key.
pub fn read(text: &str) -> (Option<YamlNode>, Vec<Problem>) {
    let mut reader = TreeReader::new(text);
    let node = match reader.document() {
        Ok(node) => node,
        Err(problem) => {
            reader.problems.push(problem);
            None
        }
    };
    (node.map(|n| (*n).clone()), reader.problems)
}

struct TreeReader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    anchors: BTreeMap<usize, (Rc<YamlNode>, usize)>,
    nodes: usize,
    problems: Vec<Problem>,
}

type Read<T> = Result<T, Problem>;

fn problem(position: TextPosition, message: impl Into<String>) -> Problem {
    Problem { position, path: Path::default(), message: message.into() }
}

impl<'t> TreeReader<'t> {
    fn new(text: &'t str) -> Self {
        Self { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), nodes: 0, problems: Vec::new() }
    }

    fn next(&mut self) -> Read<(Event<'t>, Range)> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let position = TextPosition { line: error.marker().line(), column: error.marker().col() + 1 };
                Err(problem(position, format!("not YAML: {}", error.info())))
            }
            None => Err(problem(TextPosition { line: 1, column: 1 }, "not YAML: it ends too early")),
        }
    }

    fn document(&mut self) -> Read<Option<Rc<YamlNode>>> {
        let mut found = None;
        loop {
            let (event, range) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if found.is_some() => {
                    return Err(problem(range.into(), "a second document; a policy is one document"));
                }
                Event::DocumentStart(_) => {
                    let first = self.next()?;
                    found = Some(self.node(first, 0)?);
                }
                _ => return Err(problem(range.into(), "not YAML: something stands outside the document")),
            }
        }
        if found.is_none() {
            self.problems.push(problem(TextPosition { line: 1, column: 1 }, "the file is empty"));
        }
        Ok(found)
    }

    fn node(&mut self, (event, range): (Event<'t>, Range), depth: usize) -> Read<Rc<YamlNode>> {
        let position = TextPosition::from(range);
        if depth > DEEPEST {
            return Err(problem(position, format!("nested more than {DEEPEST} levels deep")));
        }
        let before = self.nodes;
        self.count(1, position)?;
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err(problem(position, "an alias inside the value that it refers to"));
                };
                self.count(size, position)?;
                return Ok(node);
            }
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref()), anchor),
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            _ => return Err(problem(position, "not YAML: a value is missing")),
        };
        let node = Rc::new(YamlNode { position, value });
        if anchor > 0 {
            self.anchors.insert(anchor, (Rc::clone(&node), self.nodes - before));
        }
        Ok(node)
    }

    fn count(&mut self, more: usize, position: TextPosition) -> Read<()> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > MOST_NODES {
            return Err(problem(
                position,
                format!("more than {MOST_NODES} values, with all aliases written out"),
            ));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Read<YamlValue> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(YamlValue::List(items)),
                item => items.push((items.len(), self.node(item, depth + 1)?)),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Read<YamlValue> {
        let mut own: Vec<MapEntry> = Vec::new();
        let mut merged: Vec<MapEntry> = Vec::new();
        loop {
            let (event, range) = self.next()?;
            let position = TextPosition::from(range);
            let (key, is_merge) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, ..) => {
                    let is_merge = text == "<<" && style == ScalarStyle::Plain;
                    (text.into_owned(), is_merge)
                }
                _ => return Err(problem(position, "a key must be text")),
            };
            let next = self.next()?;
            let node = self.node(next, depth + 1)?;
            if is_merge {
                self.merge(&node, position, &mut merged);
            } else if own.iter().any(|e| e.key == key) {
                self.problems.push(problem(position, format!("duplicate key {key}; remove one")));
            } else {
                own.push(MapEntry { key, position, node });
            }
        }
        for entry in merged {
            if !own.iter().any(|e| e.key == entry.key) {
                own.push(entry);
            }
        }
        Ok(YamlValue::Map(own))
    }

    /// Adds the entries of a merge key: if several maps have a key, the first one counts.
    fn merge(&mut self, node: &YamlNode, position: TextPosition, merged: &mut Vec<MapEntry>) {
        match &node.value {
            YamlValue::Map(entries) => merged.extend(entries.iter().cloned()),
            YamlValue::List(items) if items.iter().all(|(_, i)| matches!(i.value, YamlValue::Map(_))) => {
                for (_, item) in items {
                    self.merge(item, position, merged);
                }
            }
            _ => self.problems.push(problem(position, "<< needs a map, such as *spec, or a list of maps")),
        }
    }
}

/// A scalar by the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> YamlValue {
    let is_text = tag.is_some_and(|t| t.is_yaml_core_schema() && t.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return YamlValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return YamlValue::Null,
        "true" | "True" | "TRUE" => return YamlValue::Bool(true),
        "false" | "False" | "FALSE" => return YamlValue::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse() {
        return YamlValue::Integer(number);
    }
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    match text.parse() {
        Ok(number) if numeric => YamlValue::Float(number),
        _ => YamlValue::Text(text.to_owned()),
    }
}
