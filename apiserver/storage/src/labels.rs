//! The labels of an object as they stand in its stored bytes, found without reading the object.
//!
//! Only compact JSON is understood, as the server writes it; of anything else nothing is said, and who asks must parse
//! it. What stands behind the labels is not looked at.
//!
//! Two bytes of each label stand beside the packed object, so that most of what a list or watch by labels does not want is
//! left out without a look at the object, see [`Wanted`].

use crc32fast::Hasher;
use memchr::memchr2;

/// In place of the number of labels: they are not known, or too many.
const UNKNOWN: u8 = u8::MAX;

/// Labels that a reader wants an object to have. The store leaves out what surely lacks one of them, and may leave in what
/// lacks it too: whoever reads must look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted(Vec<(u8, Vec<u8>)>);

impl Wanted {
    /// Also a label with this key and one of these values, or any value if there are none.
    #[must_use]
    pub fn and<'a>(mut self, key: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        let (of_key, _) = tag(key, "");
        self.0.push((of_key, values.into_iter().map(|value| tag(key, value).1).collect()));
        self
    }

    /// Whether nothing is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object with these tags may be wanted.
    pub(crate) fn admits(&self, tags: Tags<'_>) -> bool {
        let has = |(key, values): &(u8, Vec<u8>)| {
            tags.0.iter().any(|[of_key, of_both]| of_key == key && (values.is_empty() || values.contains(of_both)))
        };
        !tags.1 || self.0.iter().all(has)
    }
}

/// Eight bits of a key, and of key and value.
fn tag(key: &str, value: &str) -> (u8, u8) {
    let mut sum = Hasher::new();
    sum.update(key.as_bytes());
    let of_key = sum.clone().finalize();
    sum.update(b"=");
    sum.update(value.as_bytes());
    (of_key.to_le_bytes()[0], sum.finalize().to_le_bytes()[0])
}

/// Tags of the labels of an object, and whether they are known.
#[derive(Clone, Copy)]
pub(crate) struct Tags<'a>(&'a [[u8; 2]], bool);

impl<'a> Tags<'a> {
    /// Appends those of an object: their number, then themselves.
    pub(crate) fn write(object: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.push(UNKNOWN);
        let Some(labels) = Labels::of(object) else { return };
        labels.iter().map(|(key, value)| tag(key, value)).for_each(|(key, both)| out.extend([key, both]));
        match u8::try_from((out.len() - start) / 2) {
            Ok(count) if count < UNKNOWN => out.splice(start..=start, [count]).for_each(drop),
            _ => out.truncate(start + 1),
        }
    }

    /// Takes what was written from the beginning of `rest`.
    pub(crate) fn take(rest: &mut &'a [u8]) -> Self {
        let (count, behind) = rest.split_first().map_or((UNKNOWN, *rest), |(count, behind)| (*count, behind));
        let length = if count == UNKNOWN { 0 } else { 2 * usize::from(count) };
        let (tags, behind) = behind.split_at_checked(length).unwrap_or_default();
        *rest = behind;
        Self(tags.as_chunks().0, count != UNKNOWN)
    }
}

/// `metadata.labels` of a stored object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels<'a>(&'a [u8]);

impl<'a> Labels<'a> {
    /// The labels of an object, none if it has none; `None` when that cannot be said.
    pub fn of(object: &'a [u8]) -> Option<Self> {
        let Some(metadata) = seek(object, "metadata")? else { return Some(Self::default()) };
        let Some(labels) = seek(metadata, "labels")? else { return Some(Self::default()) };
        let mut rest = Members::of(labels)?;
        while rest.name()?.is_some() {
            text(rest.value()?)?;
        }
        Some(Self(labels))
    }

    /// The labels, in the order in which they stand there.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = Members::of(self.0);
        std::iter::from_fn(move || {
            let rest = rest.as_mut()?;
            Some((rest.name()??, text(rest.value()?)?))
        })
    }

    /// The value of one label.
    pub fn get(self, key: &str) -> Option<&'a str> {
        self.iter().find_map(|(name, value)| (name == key).then_some(value))
    }
}

/// The bytes of a member of a JSON object, if it has it; `None` outside when that cannot be said.
pub fn member<'a>(object: &'a [u8], name: &str) -> Option<Option<&'a [u8]>> {
    let Some(from) = seek(object, name)? else { return Some(None) };
    from.get(..value_end(from)?).map(Some)
}

/// The same with everything behind it, which is not looked at.
fn seek<'a>(object: &'a [u8], name: &str) -> Option<Option<&'a [u8]>> {
    let mut rest = Members::of(object)?;
    while let Some(found) = rest.name()? {
        if found == name {
            return Some(Some(rest.rest));
        }
        rest.value()?;
    }
    Some(None)
}

/// What is not read yet of the members of an object.
struct Members<'a> {
    rest: &'a [u8],
    is_first: bool,
}

impl<'a> Members<'a> {
    fn of(object: &'a [u8]) -> Option<Self> {
        Some(Self { rest: object.strip_prefix(b"{")?, is_first: true })
    }

    /// The name of the next member, `None` inside at the end. Its value is to be read next.
    fn name(&mut self) -> Option<Option<&'a str>> {
        match self.rest.split_first()? {
            (b'}', _) => return Some(None),
            (b',', behind) if !self.is_first => self.rest = behind,
            _ if self.is_first => {}
            _ => return None,
        }
        self.is_first = false;
        let name = text(self.take(string_end(self.rest)?)?)?;
        self.rest = self.rest.strip_prefix(b":")?;
        Some(Some(name))
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.take(value_end(self.rest)?)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, behind) = self.rest.split_at_checked(length)?;
        self.rest = behind;
        Some(taken)
    }
}

/// A string without escapes.
fn text(value: &[u8]) -> Option<&str> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    std::str::from_utf8(inner).ok().filter(|text| !text.contains('\\'))
}

/// Bytes of a string, with its quotes.
fn string_end(bytes: &[u8]) -> Option<usize> {
    bytes.strip_prefix(b"\"")?;
    let mut at = 1;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Bytes of any value.
fn value_end(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' => string_end(bytes),
        b'{' | b'[' => nested_end(bytes),
        _ => bytes.iter().position(|byte| matches!(byte, b',' | b'}' | b']')).filter(|length| *length > 0),
    }
}

fn nested_end(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => {
                at += string_end(bytes.get(at..)?)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            r#"[\\"{}\[\],:a]{0,12}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(r#"metadata|labels|[a-z"\\]{0,6}"#, inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn parsed(object: &Value) -> BTreeMap<&str, &Value> {
        let labels = object.get("metadata").and_then(|m| m.get("labels")).and_then(Value::as_object);
        labels.into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect()
    }

    proptest! {
        /// What is said is what a parser finds, of any object.
        #[test]
        fn labels_are_those_that_a_parser_finds(object in any_json(), labels in any_json(), place in any::<bool>()) {
            let mut object = object;
            if place && object.is_object() {
                object["metadata"] = json!({"annotations": {"a": "\"labels\":{"}, "labels": labels, "name": "x"});
            }
            let bytes = serde_json::to_vec(&object).unwrap();
            if let Some(labels) = Labels::of(&bytes) {
                let found: BTreeMap<&str, Value> = labels.iter().map(|(k, v)| (k, v.into())).collect();
                let found: BTreeMap<&str, &Value> = found.iter().map(|(k, v)| (*k, v)).collect();
                prop_assert_eq!(found, parsed(&object));
            }
        }

        #[test]
        fn labels_of_any_bytes_are_no_danger(bytes in prop::collection::vec(any::<u8>(), 0..80), end in any::<prop::sample::Index>()) {
            let object = br#"{"a":[{"b":"\"}"}],"metadata":{"labels":{"a":"b"}}}"#;
            for bytes in [&*bytes, &object[..end.index(object.len())], &[b"{\"metadata\":{\"labels\":{", &*bytes].concat()] {
                if let Some(labels) = Labels::of(bytes) {
                    labels.iter().for_each(drop);
                }
            }
        }
    }

    proptest! {
        /// Who has a label with one of the values is never left out.
        #[test]
        fn what_is_wanted_is_admitted(
            labels in prop::collection::btree_map("[ab./]{1,3}", "[xy]{0,2}", 0..300),
            pick in any::<prop::sample::Index>(),
            others in prop::collection::vec("[xyz]{0,2}", 0..3),
        ) {
            let object = serde_json::to_vec(&json!({"metadata": {"labels": labels}})).unwrap();
            let mut bytes = Vec::new();
            Tags::write(&object, &mut bytes);
            bytes.extend(b"rest");
            let mut rest = &*bytes;
            let tags = Tags::take(&mut rest);
            prop_assert_eq!(rest, b"rest");
            prop_assert!(Wanted::default().admits(tags));
            let labels: Vec<_> = labels.into_iter().collect();
            if !labels.is_empty() {
                let (key, value) = pick.get(&labels);
                let values = others.iter().map(String::as_str).chain([&**value]);
                prop_assert!(Wanted::default().and(key, values).and(key, []).admits(tags));
            }
        }
    }

    #[test]
    fn what_is_not_wanted_is_left_out() {
        let admits = |object: &[u8], wanted: &Wanted| {
            let mut bytes = Vec::new();
            Tags::write(object, &mut bytes);
            wanted.admits(Tags::take(&mut &*bytes))
        };
        let web = br#"{"metadata":{"labels":{"app":"web"}}}"#;
        let wanted = |values: &[&'static str]| Wanted::default().and("app", values.iter().copied());
        assert!(admits(web, &wanted(&["db", "web"])) && admits(web, &wanted(&[])));
        assert!(!admits(web, &wanted(&["db"])) && !admits(web, &wanted(&[]).and("tier", [])));
        assert!(!admits(b"{}", &wanted(&[])));
        assert!(admits(b"not JSON", &wanted(&["db"])), "nothing is known of it");
    }

    #[test]
    fn what_the_server_writes_is_understood() {
        let object = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"annotations":{"a":"{\"labels\":{\"app\":\"no\"}}"},"labels":{"app":"web","tier":""},"managedFields":[{"f":{".":{}}}],"name":"a"},"data":{"labels":"x"}}"#;
        let labels = Labels::of(object).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("app", "web"), ("tier", "")]);
        assert_eq!((labels.get("app"), labels.get("tier"), labels.get("name")), (Some("web"), Some(""), None));
        for none in [&br#"{"metadata":{}}"#[..], br#"{"metadata":{"labels":{}}}"#, b"{}", br#"{"kind":"x"}"#] {
            assert_eq!(Labels::of(none).unwrap().iter().count(), 0);
        }
        for foreign in [
            &br#"{"metadata":{"labels":{"a":1}}}"#[..],
            br#"{"metadata":{"labels":{"a":"\n"}}}"#,
            b"[]",
            b"",
            br#"{ "metadata":{}}"#,
        ] {
            assert!(Labels::of(foreign).is_none());
        }
    }
}
