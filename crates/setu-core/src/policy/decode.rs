//! Reads the tree into the types and finds all problems at once.
//!
//! serde stops at the first error. So each faulty value is recorded and removed from the tree, and the rest is read again
//! until no error is left. The types are the only schema.

use super::tree::{Entry, Node, Path, Place, Problem, Step, Value};
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
pub fn decode<T: DeserializeOwned>(tree: &mut Node) -> (Option<T>, Vec<Problem>) {
    let mut problems: Vec<Problem> = Vec::new();
    let mut removed: BTreeSet<Path> = BTreeSet::new();
    while problems.len() < MOST_PROBLEMS {
        let fault = match T::deserialize(Reader(tree)) {
            Ok(value) => return (Some(value), problems),
            Err(fault) => fault,
        };
        let path = fault.path();
        let (lacking, is_reported) = match &fault.kind {
            FaultKind::Missing(field) => (true, removed.contains(&path.key(field))),
            FaultKind::Other(_) => (false, false),
        };
        if !is_reported {
            let place = fault.place.unwrap_or_else(|| tree.place_of(&path));
            problems.push(Problem { place, path: path.clone(), message: fault.to_string() });
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
struct Fault {
    place: Option<Place>,
    /// From the innermost step outwards.
    steps: Vec<Step>,
    kind: FaultKind,
}

#[derive(Debug)]
enum FaultKind {
    Missing(&'static str),
    Other(String),
}

impl Fault {
    fn other(message: String) -> Self {
        Self { place: None, steps: Vec::new(), kind: FaultKind::Other(message) }
    }

    fn under(mut self, step: Step, place: Place) -> Self {
        self.place.get_or_insert(place);
        self.steps.push(step);
        self
    }

    fn path(&self) -> Path {
        Path(self.steps.iter().rev().cloned().collect())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FaultKind::Missing(field) => write!(f, "key {field} is missing"),
            FaultKind::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Fault {}

impl Error for Fault {
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
        Self { place: None, steps: Vec::new(), kind: FaultKind::Missing(field) }
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
struct Reader<'n>(&'n Node);

impl Reader<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Integer(value) => Unexpected::Signed(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::Text(value) => Unexpected::Str(value),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }

    fn here<T>(&self, read: Result<T, Fault>) -> Result<T, Fault> {
        read.map_err(|mut fault| {
            fault.place.get_or_insert(self.0.place);
            fault
        })
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let found = match &self.0.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_str(value),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), place: self.0.place }),
            Value::Map(entries) => visitor.visit_map(Entries { entries: entries.iter(), next: None }),
        };
        self.here(found)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let text = match &self.0.value {
            Value::Text(text) => text.as_str(),
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            _ => return self.deserialize_any(visitor),
        };
        self.here(visitor.visit_enum(Word(text)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    /// A key without a value is an empty map where a map is expected.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0.value {
            Value::Null => self.here(visitor.visit_map(Entries { entries: [].iter(), next: None })),
            Value::Map(_) => self.deserialize_any(visitor),
            _ => self.here(Err(Fault::invalid_type(self.unexpected(), &visitor))),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct identifier ignored_any
    }
}

struct Items<'n> {
    items: std::slice::Iter<'n, (usize, Rc<Node>)>,
    place: Place,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let place = self.place;
        seed.deserialize(Reader(node)).map(Some).map_err(|f| f.under(Step::Index(*index), place))
    }
}

struct Entries<'n> {
    entries: std::slice::Iter<'n, Entry>,
    next: Option<&'n Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        self.next = self.entries.next();
        let Some(entry) = self.next else { return Ok(None) };
        let key: StrDeserializer<'_, Fault> = entry.key.as_str().into_deserializer();
        let step = || Step::Key(entry.key.clone());
        seed.deserialize(key).map(Some).map_err(|f| f.under(step(), entry.place))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some(entry) = self.next.take() else {
            return Err(Fault::other("a value without a key".to_owned()));
        };
        let step = || Step::Key(entry.key.clone());
        seed.deserialize(Reader(&entry.node)).map_err(|f| f.under(step(), entry.place))
    }
}

/// A variant without content.
struct Word<'n>(&'n str);

impl<'de> EnumAccess<'de> for Word<'_> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Fault> {
        let word: StrDeserializer<'_, Fault> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, Fault> {
        Err(Fault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Fault> {
        Err(Fault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Fault> {
        Err(Fault::invalid_type(Unexpected::Str(self.0), &"a map"))
    }
}
