//! The smaller forms of a sequence: without one step, or without one part of a request. They are numbered,
//! the most promising first, so that a caller can continue where it stopped.

use serde_json::Value;

use crate::step::{Sequence, Step};

/// Deeper parts of a body are not removed.
const DEPTH: usize = 4;

/// The smaller form with this number, if there is one.
pub fn smaller(sequence: &Sequence, number: usize) -> Option<Sequence> {
    let steps = sequence.steps.len();
    if number < steps {
        let mut shorter = sequence.clone();
        // From the end, because later steps depend on earlier ones.
        shorter.steps.remove(steps - 1 - number);
        return Some(shorter);
    }
    let mut left = number - steps;
    for (at, step) in sequence.steps.iter().enumerate() {
        let simpler = simpler(step);
        if let Some(step) = simpler.get(left) {
            let mut smaller = sequence.clone();
            smaller.steps[at] = step.clone();
            return Some(smaller);
        }
        left -= simpler.len();
    }
    None
}

fn simpler(step: &Step) -> Vec<Step> {
    let mut out = Vec::new();
    if step.accept.is_some() {
        out.push(Step { accept: None, ..step.clone() });
    }
    if let Some((target, query)) = step.request.split_once('?') {
        let pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        // Without these a watch would become a different request.
        let optional = (0..pairs.len())
            .filter(|at| !["watch=", "timeoutSeconds="].iter().any(|keep| pairs[*at].starts_with(keep)));
        for at in optional {
            let mut fewer = pairs.clone();
            fewer.remove(at);
            let question = if fewer.is_empty() { "" } else { "?" };
            out.push(Step { request: format!("{target}{question}{}", fewer.join("&")), ..step.clone() });
        }
    }
    if let Some(body) = &step.body {
        let mut pointers = Vec::new();
        parts(body, "", DEPTH, &mut pointers);
        for pointer in pointers {
            let mut less = body.clone();
            remove(&mut less, &pointer);
            out.push(Step { body: Some(less), ..step.clone() });
        }
    }
    out
}

/// Collects JSON pointers to all parts of a value, outer ones first.
fn parts(value: &Value, pointer: &str, depth: usize, out: &mut Vec<String>) {
    if depth == 0 {
        return;
    }
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        _ => return,
    };
    for (key, value) in inner {
        let pointer = format!("{pointer}/{key}");
        out.push(pointer.clone());
        parts(value, &pointer, depth - 1, out);
    }
}

fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&last.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(items)) => {
            if let Ok(at) = last.parse::<usize>()
                && at < items.len()
            {
                items.remove(at);
            }
        }
        _ => {}
    }
}
