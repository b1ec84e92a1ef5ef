//! Reads the tree into the types and finds all problems at once.
//!
//! serde stops at the first error. So each faulty value is recorded and removed from the tree, and the rest is read again
//! until no error is left. The types are the only schema.

use super::path::{Path, PathStep};
use super::tree::{MapEntry, Problem, TextPosition, YamlNode, YamlValue};
use crate::words::nearest;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, Expected, IntoDeserializer,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// Most problems that are reported for one file.
const MOST_PROBLEMS: usize = 100;

/// Reads `tree` as a `T`, and removes from it what cannot be read. `None` if nothing is left. Also returns the
/// problems.
pub fn decode<T: DeserializeOwned>(tree: &mut YamlNode) -> (Option<T>, Vec<Problem>) {
    let mut problems: Vec<Problem> = Vec::new();
    let mut removed: BTreeSet<Path> = BTreeSet::new();
    while problems.len() < MOST_PROBLEMS {
        let fault = match T::deserialize(NodeReader(tree)) {
            Ok(value) => return (Some(value), problems),
            Err(fault) => fault,
        };
        let path = fault.path();
        let (lacking, is_reported) = match &fault.kind {
            FaultKind::Missing(field) => (true, removed.contains(&path.key(field))),
            FaultKind::Other(_) => (false, false),
        };
        if !is_reported {
            let position = fault.position.unwrap_or_else(|| tree.position_of(&path));
            problems.push(Problem { position, path: path.clone(), message: fault.to_string() });
        }
        if path.0.is_empty() {
            break;
        }
        tree.remove(&path.0);
        if !lacking || is_reported {
            removed.insert(path);
        }
    }
    (None, problems)
}

/// An error of serde.
#[derive(Debug)]
struct DecodeFault {
    position: Option<TextPosition>,
    /// From the innermost step outwards.
    steps: Vec<PathStep>,
    kind: FaultKind,
}

#[derive(Debug)]
enum FaultKind {
    Missing(&'static str),
    Other(String),
}

impl DecodeFault {
    fn other(message: String) -> Self {
        Self { position: None, steps: Vec::new(), kind: FaultKind::Other(message) }
    }

    fn under(mut self, step: PathStep, position: TextPosition) -> Self {
        self.position.get_or_insert(position);
        self.steps.push(step);
        self
    }

    fn path(&self) -> Path {
        Path(self.steps.iter().rev().cloned().collect())
    }
}

impl fmt::Display for DecodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FaultKind::Missing(field) => write!(f, "key {field} is missing"),
            FaultKind::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for DecodeFault {}

impl Error for DecodeFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::other(message.to_string())
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        // The key itself is in the path.
        Self::other(format!("unknown key; {}", advice(field, known)))
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self::other(format!("{variant:?} is not known; {}", advice(variant, known)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { position: None, steps: Vec::new(), kind: FaultKind::Missing(field) }
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let quotes = match found {
            Unexpected::Bool(_) | Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_)
                if wanted.to_string().contains("string") =>
            {
                if wanted.to_string().contains("duration") {
                    "; add the unit"
                } else {
                    "; write it in quotes"
                }
            }
            _ => "",
        };
        let found = match found {
            Unexpected::Unit => "nothing".to_owned(),
            Unexpected::Map => "a map".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Str(text) => format!("{text:?}"),
            Unexpected::Unsigned(number) => number.to_string(),
            Unexpected::Signed(number) => number.to_string(),
            Unexpected::Float(number) => number.to_string(),
            other => other.to_string(),
        };
        let wanted = wanted.to_string();
        let wanted = match wanted.split_once(' ') {
            Some(("struct", _)) => "a map",
            Some(("enum", _)) => "a word",
            None if wanted.starts_with('u') => "a whole number",
            _ if wanted == "a sequence" => "a list",
            _ => &wanted,
        };
        Self::other(format!("found {found}, expected {wanted}{quotes}"))
    }
}

/// Advice with the most similar known word, or with all of them.
fn advice(word: &str, known: &[&str]) -> String {
    match (nearest(word, known), known) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => "none is known here".to_owned(),
        (None, [only]) => format!("known is {only}"),
        (None, [first @ .., last]) => format!("known are {} and {last}", first.join(", ")),
    }
}

/// A node as serde reads it.
struct NodeReader<'n>(&'n YamlNode);

impl NodeReader<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0.value {
            YamlValue::Null => Unexpected::Unit,
            YamlValue::Bool(value) => Unexpected::Bool(*value),
            YamlValue::Integer(value) => Unexpected::Signed(*value),
            YamlValue::Float(value) => Unexpected::Float(*value),
            YamlValue::Text(value) => Unexpected::Str(value),
            YamlValue::List(_) => Unexpected::Seq,
            YamlValue::Map(_) => Unexpected::Map,
        }
    }

    fn here<T>(&self, read: Result<T, DecodeFault>) -> Result<T, DecodeFault> {
        read.map_err(|mut fault| {
            fault.position.get_or_insert(self.0.position);
            fault
        })
    }
}

impl<'de> Deserializer<'de> for NodeReader<'_> {
    type Error = DecodeFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        let found = match &self.0.value {
            YamlValue::Null => visitor.visit_unit(),
            YamlValue::Bool(value) => visitor.visit_bool(*value),
            YamlValue::Integer(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            YamlValue::Float(value) => visitor.visit_f64(*value),
            YamlValue::Text(value) => visitor.visit_str(value),
            YamlValue::List(items) => {
                visitor.visit_seq(ListItems { items: items.iter(), position: self.0.position })
            }
            YamlValue::Map(entries) => visitor.visit_map(Entries { entries: entries.iter(), next: None }),
        };
        self.here(found)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match self.0.value {
            YamlValue::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        let text = match &self.0.value {
            YamlValue::Text(text) => text.as_str(),
            YamlValue::Bool(true) => "true",
            YamlValue::Bool(false) => "false",
            _ => return self.deserialize_any(visitor),
        };
        self.here(visitor.visit_enum(Word(text)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        self.deserialize_map(visitor)
    }

    /// A key without a value is an empty map where a map is expected.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match self.0.value {
            YamlValue::Null => self.here(visitor.visit_map(Entries { entries: [].iter(), next: None })),
            YamlValue::Map(_) => self.deserialize_any(visitor),
            _ => self.here(Err(DecodeFault::invalid_type(self.unexpected(), &visitor))),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct identifier ignored_any
    }
}

struct ListItems<'n> {
    items: std::slice::Iter<'n, (usize, Rc<YamlNode>)>,
    position: TextPosition,
}

impl<'de> SeqAccess<'de> for ListItems<'_> {
    type Error = DecodeFault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeFault> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let position = self.position;
        seed.deserialize(NodeReader(node)).map(Some).map_err(|f| f.under(PathStep::Index(*index), position))
    }
}

struct Entries<'n> {
    entries: std::slice::Iter<'n, MapEntry>,
    next: Option<&'n MapEntry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = DecodeFault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeFault> {
        self.next = self.entries.next();
        let Some(entry) = self.next else { return Ok(None) };
        let key: StrDeserializer<'_, DecodeFault> = entry.key.as_str().into_deserializer();
        let step = || PathStep::Key(entry.key.clone());
        seed.deserialize(key).map(Some).map_err(|f| f.under(step(), entry.position))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DecodeFault> {
        let Some(entry) = self.next.take() else {
            return Err(DecodeFault::other("a value without a key".to_owned()));
        };
        let step = || PathStep::Key(entry.key.clone());
        seed.deserialize(NodeReader(&entry.node)).map_err(|f| f.under(step(), entry.position))
    }
}

/// A variant without content.
struct Word<'n>(&'n str);

impl<'de> EnumAccess<'de> for Word<'_> {
    type Error = DecodeFault;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), DecodeFault> {
        let word: StrDeserializer<'_, DecodeFault> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'_> {
    type Error = DecodeFault;

    fn unit_variant(self) -> Result<(), DecodeFault> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, DecodeFault> {
        Err(DecodeFault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, DecodeFault> {
        Err(DecodeFault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, DecodeFault> {
        Err(DecodeFault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }
}
