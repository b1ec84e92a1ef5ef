//! Compares two transcripts of one sequence, answer by answer, and returns their first difference.

use std::fmt;

use serde_json::Value;

use crate::mask::Mask;
use crate::play::Transcript;

/// The first difference between two servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The index of the step.
    pub step: usize,
    pub request: String,
    /// Where in the answer, as a JSON pointer.
    pub pointer: String,
    pub left: String,
    pub right: String,
}

impl Difference {
    /// The sort of the difference, independent of object names.
    pub fn sort(&self) -> String {
        let mut words = self.request.split(' ');
        let method = words.next().unwrap_or_default();
        let target = words.next().unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default();
        let kind = crate::kinds::plural_of(path);
        let of = if path.ends_with("/status") { "/status" } else { "" };
        let watch = if target.contains("watch=true") { " watch" } else { "" };
        let pointer: String =
            self.pointer.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        let short = |text: &str| text.chars().take(60).filter(|c| !c.is_ascii_digit()).collect::<String>();
        format!("{method}{watch} {kind}{of} {pointer}: {} != {}", short(&self.left), short(&self.right))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {}: {}", self.step + 1, self.request)?;
        writeln!(f, "  at {}", if self.pointer.is_empty() { "the whole answer" } else { &self.pointer })?;
        writeln!(f, "  one:   {}", self.left)?;
        write!(f, "  other: {}", self.right)
    }
}

/// The first difference, if there is one.
pub fn first_difference(left: &Transcript, right: &Transcript) -> Option<Difference> {
    let (mut left_mask, mut right_mask) = (Mask::new(left), Mask::new(right));
    for (step, (one, other)) in left.answers.iter().zip(&right.answers).enumerate() {
        let difference = |pointer: String, left: String, right: String| {
            Some(Difference { step, request: one.step.request.clone(), pointer, left, right })
        };
        if one.code != other.code {
            return difference(
                "/code".to_owned(),
                format!("{} {}", one.code, one.body),
                format!("{} {}", other.code, other.body),
            );
        }
        if let Some(code) = one.step.code.filter(|code| *code != one.code) {
            return difference(
                "/code".to_owned(),
                format!("{} {}", one.code, one.body),
                format!("{code} is expected"),
            );
        }
        let (mut one_body, mut other_body) = (one.body.clone(), other.body.clone());
        left_mask.apply(&mut one_body);
        right_mask.apply(&mut other_body);
        if let Some((pointer, left, right)) = part(&one_body, &other_body, "") {
            return difference(pointer, left, right);
        }
    }
    None
}

fn part(left: &Value, right: &Value, pointer: &str) -> Option<(String, String, String)> {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => part(left, right, &pointer),
                    (one, other) => Some((pointer, shown(one), shown(other))),
                }
            })
        }
        (Value::Array(left), Value::Array(right)) => {
            let count = left.len().max(right.len());
            (0..count).find_map(|at| {
                let pointer = format!("{pointer}/{at}");
                match (left.get(at), right.get(at)) {
                    (Some(left), Some(right)) => part(left, right, &pointer),
                    (one, other) => Some((pointer, shown(one), shown(other))),
                }
            })
        }
        (left, right) if left == right => None,
        (left, right) => Some((pointer.to_owned(), left.to_string(), right.to_string())),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| value.to_string().chars().take(600).collect())
}
