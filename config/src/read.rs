//! Reading a document into a type without stopping at the first fault.
//!
//! A serde deserializer over [`Node`] that never fails: what does not fit is reported with its place and
//! replaced by the type's zero value. Unknown and repeated keys are reported too. The types that are read
//! must have defaults for all fields (`#[serde(default)]`); that something is missing is the checks' to say.

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
};

use serde::{
    de::{
        DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{Error, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::Number;

use crate::{
    document::{Content, Key, Node},
    duration,
    fault::{Fault, Position, clip, is_full, note},
};

/// How a kind of document is read.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Whether `key: null` means the same as no key (Kubernetes objects), or is a fault.
    pub(crate) null_is_absent: bool,
    /// Names of Rust structs whose unknown keys are of no concern.
    pub(crate) open: &'static [&'static str],
    /// Keys of later releases: name of the Rust struct, key.
    pub(crate) later: &'static [(&'static str, &'static str)],
}

/// Reads `node`; the field paths of faults begin with `field`.
pub(crate) fn read<T: DeserializeOwned + Default>(
    node: &Node,
    field: &str,
    rules: Rules,
    faults: &mut Vec<Fault>,
) -> T {
    let found = RefCell::new(Vec::new());
    let reader = Reader { node, field: field.to_owned(), rules, faults: &found };
    let value = T::deserialize(reader).unwrap_or_else(|error| {
        found.borrow_mut().push(Fault {
            position: Some(node.position),
            field: field.to_owned(),
            message: error.to_string(),
            meant: None,
        });
        T::default()
    });
    faults.append(&mut found.into_inner());
    value
}

#[derive(Clone)]
struct Reader<'n> {
    node: &'n Node,
    field: String,
    rules: Rules,
    faults: &'n RefCell<Vec<Fault>>,
}

impl<'n> Reader<'n> {
    fn report(&self, position: Position, field: String, message: String) {
        note(&mut self.faults.borrow_mut(), Fault { position: Some(position), field, message, meant: None });
    }

    /// Reports that the value is not what is wanted.
    fn unfit(&self, want: &str) {
        if !self.is_absent() {
            let message = match (&self.node.content, want) {
                (Content::Text(text), "an integer" | "a number" | "true or false") => {
                    format!("is the text {:?}; want {want}, without quotes", clip(text))
                }
                (Content::Number(n), "text") => format!("is the number {n}; want text: put it in quotes"),
                (Content::Boolean(b), "text") => format!("is the boolean {b}; want text: put it in quotes"),
                (content, _) => format!("is {}; want {want}", content.describe()),
            };
            self.report(self.node.position, self.field.clone(), message);
        }
    }

    fn is_absent(&self) -> bool {
        self.rules.null_is_absent && matches!(self.node.content, Content::Null)
    }

    /// The integer, if it lies in the range.
    fn integer(&self, min: i64, max: i64) -> i64 {
        match &self.node.content {
            Content::Number(n) if n.as_i64().is_some_and(|n| (min..=max).contains(&n)) => {
                n.as_i64().unwrap_or_default()
            }
            Content::Number(n) if !n.is_f64() => {
                self.report(
                    self.node.position,
                    self.field.clone(),
                    format!("is {n}; want an integer from {min} to {max}"),
                );
                0
            }
            _ => {
                self.unfit("an integer");
                0
            }
        }
    }

    fn child(&self, node: &'n Node, field: String) -> Self {
        Self { node, field, rules: self.rules, faults: self.faults }
    }

    /// The entries of a map, without repetitions.
    fn entries(&self) -> Vec<&'n (Key, Node)> {
        let entries = match &self.node.content {
            Content::Map(entries) => entries.as_slice(),
            _ => {
                self.unfit("a map");
                &[]
            }
        };
        let mut kept: Vec<&'n (Key, Node)> = Vec::with_capacity(entries.len());
        let mut seen: HashMap<&str, Position> = HashMap::with_capacity(entries.len());
        for entry in entries {
            match seen.entry(&entry.0.name) {
                Entry::Occupied(first) => {
                    let message = format!("is given twice, first at {}; want it once", first.get());
                    self.report(entry.0.position, join(&self.field, &entry.0.name), message);
                }
                Entry::Vacant(place) => {
                    place.insert(entry.0.position);
                    kept.push(entry);
                }
            }
        }
        kept
    }

    fn report_unknown(&self, structure: &str, key: &Key, known: &[&str]) {
        if is_full(&self.faults.borrow()) {
            return;
        }
        let is_later = self.rules.later.contains(&(structure, &key.name));
        let near = nearest(&key.name, known).filter(|_| !is_later);
        let message = match near {
            _ if is_later => format!("is not served by this release; want one of {}", known.join(", ")),
            Some(near) => format!("is no known key; want {near}, perhaps"),
            None => format!("is no known key; want one of {}", known.join(", ")),
        };
        let meant = near.filter(|near| self.node.get(near).is_none()).map(|near| join(&self.field, near));
        let field = join(&self.field, &key.name);
        note(&mut self.faults.borrow_mut(), Fault { position: Some(key.position), field, message, meant });
    }
}

/// `field.key`, or `key` at the top.
pub(crate) fn join(field: &str, key: &str) -> String {
    let key = clip(key);
    if field.is_empty() { key.into_owned() } else { format!("{field}.{key}") }
}

/// Longest key that is compared with the known ones, in bytes.
const ALIKE_MAX: usize = 64;

/// The known key that is spelt most alike, when it is alike at all.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    if key.len() > ALIKE_MAX {
        return None;
    }
    let (lower, limit) = (key.to_lowercase(), 1 + key.len() / 5);
    let ranked = known.iter().map(|k| (distance(&lower, &k.to_lowercase()), *k));
    ranked.min().filter(|(distance, _)| *distance <= limit).map(|(_, k)| k)
}

/// Levenshtein's distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.chars()) {
            let new = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            left = new;
            *cell = new;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
            let max = i64::try_from(<$type>::MAX).unwrap_or(i64::MAX);
            let min = i64::try_from(<$type>::MIN).unwrap_or(i64::MIN);
            let value = self.integer(min, max);
            visitor.$visit(<$type>::try_from(value).unwrap_or_default())
        }
    )*};
}

impl<'n> Deserializer<'n> for Reader<'n> {
    type Error = Error;

    integers!(
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64
    );

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.content {
            Content::Boolean(b) => visitor.visit_bool(b),
            _ => {
                self.unfit("true or false");
                visitor.visit_bool(false)
            }
        }
    }

    fn deserialize_f64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Number(n) => visitor.visit_f64(n.as_f64().unwrap_or_default()),
            _ => {
                self.unfit("a number");
                visitor.visit_f64(0.0)
            }
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Text(text) => visitor.visit_str(text),
            _ => {
                self.unfit("text");
                visitor.visit_str("")
            }
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.content {
            Content::Null => {
                self.unfit("a value, or no such key");
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        let items = match &self.node.content {
            Content::List(items) => items.as_slice(),
            _ => {
                self.unfit("a list");
                &[]
            }
        };
        visitor.visit_seq(Items { reader: self, items: items.iter().enumerate() })
    }

    fn deserialize_tuple<V: Visitor<'n>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::List(items) if items.len() == len => {
                visitor.visit_seq(Items { reader: self, items: items.iter().enumerate() })
            }
            _ => {
                self.unfit(&format!("a list of {len} values"));
                visitor.visit_seq(SeqDeserializer::new(std::iter::repeat_n(0_u32, len)))
            }
        }
    }

    /// A duration is text, but who writes a bare number means one: it is for the check to say which unit is missing.
    fn deserialize_newtype_struct<V: Visitor<'n>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Number(n) if name == duration::NAME => {
                visitor.visit_newtype_struct(n.to_string().into_deserializer())
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        let entries = self.entries();
        visitor.visit_map(Entries { reader: self, entries: entries.into_iter(), value: None })
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut entries = self.entries();
        entries.retain(|(key, _)| {
            let is_known = known.contains(&&*key.name);
            if !is_known && !self.rules.open.contains(&name) {
                self.report_unknown(name, key, known);
            }
            is_known
        });
        visitor.visit_map(Entries { reader: self, entries: entries.into_iter(), value: None })
    }

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Null => visitor.visit_unit(),
            Content::Boolean(b) => visitor.visit_bool(*b),
            Content::Number(n) => visit_number(n, visitor),
            Content::Text(text) => visitor.visit_str(text),
            Content::List(_) => self.deserialize_seq(visitor),
            Content::Map(_) => self.deserialize_map(visitor),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i128 u8 u16 u128 f32 char bytes byte_buf unit unit_struct tuple_struct
        enum identifier ignored_any
    }
}

fn visit_number<'n, V: Visitor<'n>>(n: &Number, visitor: V) -> Result<V::Value, Error> {
    match (n.as_u64(), n.as_i64()) {
        (Some(n), _) => visitor.visit_u64(n),
        (_, Some(n)) => visitor.visit_i64(n),
        _ => visitor.visit_f64(n.as_f64().unwrap_or_default()),
    }
}

struct Items<'n> {
    reader: Reader<'n>,
    items: std::iter::Enumerate<std::slice::Iter<'n, Node>>,
}

impl<'n> SeqAccess<'n> for Items<'n> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((i, node)) = self.items.next() else { return Ok(None) };
        seed.deserialize(self.reader.child(node, format!("{}[{i}]", self.reader.field))).map(Some)
    }
}

struct Entries<'n> {
    reader: Reader<'n>,
    entries: std::vec::IntoIter<&'n (Key, Node)>,
    value: Option<&'n (Key, Node)>,
}

impl<'n> MapAccess<'n> for Entries<'n> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        self.value = self.entries.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        seed.deserialize(key.name.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, node) = self.value.expect("a value is read behind its key only");
        seed.deserialize(self.reader.child(node, join(&self.reader.field, &key.name)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::document;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Sample {
        count: u32,
        on: bool,
        name: String,
        list: Vec<Sample>,
        labels: BTreeMap<String, String>,
        limit: Option<i64>,
        ratio: f64,
        pair: (f64, f64),
    }

    fn read_sample(text: &str, null_is_absent: bool) -> (Sample, Vec<String>) {
        let mut faults = Vec::new();
        let rules = Rules { null_is_absent, open: &[], later: &[("Sample", "oidc")] };
        let sample = read(&document::parse(text).unwrap()[0], "", rules, &mut faults);
        (sample, faults.iter().map(|f| format!("{}: {}: {}", f.position.unwrap(), f.field, f.message)).collect())
    }

    #[test]
    fn all_faults_are_found_and_the_rest_is_read() {
        let text = "count: \"64\"\non: yes\nname: 5\nlimit: -7\nlist:\n- count: -1\n- cuont: 2\n- {limit: 1.5, name: a, name: b}\n- x\nlabels: {a: true, b: c}\noidc: {}\nzebra:\n";
        let (sample, faults) = read_sample(text, false);
        let known = "want one of count, on, name, list, labels, limit, ratio, pair";
        assert_eq!(
            faults,
            [
                &format!("11:1: oidc: is not served by this release; {known}"),
                &format!("12:1: zebra: is no known key; {known}"),
                "1:8: count: is the text \"64\"; want an integer, without quotes",
                "2:5: on: is the text \"yes\"; want true or false, without quotes",
                "3:7: name: is the number 5; want text: put it in quotes",
                "6:10: list[0].count: is -1; want an integer from 0 to 4294967295",
                "7:3: list[1].cuont: is no known key; want count, perhaps",
                "8:25: list[2].name: is given twice, first at 8:16; want it once",
                "8:11: list[2].limit: is the number 1.5; want an integer",
                "9:3: list[3]: is the text \"x\"; want a map",
                "10:13: labels.a: is the boolean true; want text: put it in quotes",
            ]
        );
        assert_eq!((sample.limit, sample.list[2].name.as_str(), sample.labels["b"].as_str()), (Some(-7), "a", "c"));
    }

    #[test]
    fn numbers_need_no_fraction_and_pairs_have_two() {
        let (sample, faults) = read_sample("ratio: 2\npair: [1, 2.5]\n", false);
        assert_eq!((sample.ratio, sample.pair, faults), (2.0, (1.0, 2.5), Vec::new()));
        let (_, faults) = read_sample("ratio: '2'\npair: [1]\n", false);
        assert_eq!(
            faults,
            [
                "1:8: ratio: is the text \"2\"; want a number, without quotes",
                "2:7: pair: is a list; want a list of 2 values"
            ]
        );
    }

    #[test]
    fn null_is_a_fault_unless_the_rules_say_otherwise() {
        let text = "count: null\nlist:\nlimit: ~\nname:\n";
        assert_eq!(read_sample(text, false).1.len(), 4);
        assert_eq!(read_sample(text, true), (Sample::default(), Vec::new()));
    }
}
