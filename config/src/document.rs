//! YAML documents as trees of values that know where they stand in the file.

use std::{fmt, io::Read, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;
use serde_yaml::{DuplicateKeyPolicy, Location, Spanned};

use crate::fault::{ConfigError, Fault, Position, clip};

/// Longest file that is read, in bytes: some thousands of objects. The parser itself stops at 250,000 values.
const MAX_BYTES: u64 = 16 << 20;

/// Deepest nesting that is read. Objects of Kubernetes have half of it; half as much again overflows a
/// thread of 2 MiB in an unoptimised build.
const MAX_DEPTH: usize = 32;
/// Documents that are looked at one by one when a text is no YAML as a whole: as many as the parser takes.
const MAX_PARTS: usize = 1024;
/// Values that aliases may stand for, all together.
const MAX_ALIASED: usize = 10_000;

/// One value.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) content: Content,
}

/// What a [`Node`] holds. Keys of a map keep their order, and their repetitions.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key of a map.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) position: Position,
    pub(crate) name: String,
}

impl Content {
    /// How messages name it.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "no value".to_owned(),
            Self::Boolean(b) => format!("the boolean {b}"),
            Self::Number(n) => format!("the number {n}"),
            Self::Text(text) => format!("the text {:?}", clip(text)),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a map".to_owned(),
        }
    }
}

impl Node {
    /// The value of a key of this map.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let Content::Map(entries) = &self.content else { return None };
        entries.iter().find(|(k, _)| k.name == key).map(|(_, node)| node)
    }

    /// The text of a key of this map.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Gives a map a text, unless it has the key.
    pub(crate) fn give(&mut self, key: &str, text: &str) {
        let position = self.position;
        let Content::Map(entries) = &mut self.content else { return };
        if !entries.iter().any(|(k, _)| k.name == key) {
            let value = Node { position, content: Content::Text(text.to_owned()) };
            entries.push((Key { position, name: key.to_owned() }, value));
        }
    }

    /// Moves it so many lines down.
    fn shift(&mut self, lines: u64) {
        self.position.line += lines;
        match &mut self.content {
            Content::List(items) => items.iter_mut().for_each(|item| item.shift(lines)),
            Content::Map(entries) => {
                for (key, node) in entries {
                    key.position.line += lines;
                    node.shift(lines);
                }
            }
            _ => {}
        }
    }

    /// The value of `field` (`spec.rules[0].verbs`).
    pub(crate) fn find(&self, field: &str) -> Option<&Node> {
        field.split(['.', '[']).try_fold(self, Self::step)
    }

    /// Where `field` stands, or the nearest value around it that is there.
    pub(crate) fn locate(&self, field: &str) -> Position {
        let mut node = self;
        for name in field.split(['.', '[']) {
            let Some(next) = node.step(name) else { break };
            node = next;
        }
        node.position
    }

    /// The value of a key, or of an index (`0]`).
    fn step(&self, name: &str) -> Option<&Node> {
        match (&self.content, name.strip_suffix(']')) {
            (Content::List(items), Some(index)) => index.parse().ok().and_then(|i: usize| items.get(i)),
            _ => self.get(name),
        }
    }
}

/// Reads a file as text.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    let fail = |message: String| {
        ConfigError::new(path, vec![Fault { position: None, field: String::new(), message, meant: None }])
    };
    let metadata = std::fs::metadata(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
    // Opening a pipe would wait for whoever writes to it, and a device may never end.
    if !metadata.is_file() {
        return Err(fail("is a directory, a pipe or a device; want a regular file".into()));
    }
    if metadata.len() > MAX_BYTES {
        return Err(fail(format!("has {} bytes; want at most {MAX_BYTES}", metadata.len())));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
    // It may have grown since.
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(|e| fail(format!("cannot be read: {e}; want UTF-8 text")))?;
    Ok(text)
}

/// Parses the documents of a text; what is no YAML in one of them hides nothing of the others.
pub(crate) fn parse_each(text: &str) -> (Vec<Node>, Vec<Fault>) {
    let whole = match parse(text) {
        Ok(documents) => return (documents, Vec::new()),
        Err(fault) => fault,
    };
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for (line, part) in parts(text) {
        match parse(part) {
            Ok(mut nodes) => {
                nodes.iter_mut().for_each(|node| node.shift(line));
                documents.append(&mut nodes);
            }
            Err(fault) => {
                let position = fault.position.map(|p| Position { line: p.line + line, ..p });
                faults.push(Fault { position, ..fault });
            }
        }
    }
    // All of it is too much, though no part is.
    if faults.is_empty() {
        faults.push(whole);
    }
    (documents, faults)
}

/// The documents of a text, each with the number of lines before it. A line that begins with `---` begins a document
/// wherever it stands (YAML 1.2.2, 9.1.2).
fn parts(text: &str) -> Vec<(u64, &str)> {
    let (mut parts, mut begin, mut begin_line, mut at) = (Vec::new(), 0, 0, 0);
    for (number, line) in (0..).zip(text.split_inclusive('\n')) {
        if line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            parts.push((begin_line, text.get(begin..at).unwrap_or_default()));
            (begin, begin_line) = (at, number);
        }
        at += line.len();
    }
    parts.push((begin_line, text.get(begin..).unwrap_or_default()));
    parts.truncate(MAX_PARTS);
    parts
}

/// Parses the documents of a text. Empty documents are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, Fault> {
    let options = serde_yaml::options! {
        strict_booleans: true,
        with_snippet: false,
        budget: serde_yaml::budget! { max_depth: MAX_DEPTH },
        alias_limits: serde_yaml::alias_limits! { max_total_replayed_events: MAX_ALIASED },
        // The reader of the tree reports them with both places.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
    };
    serde_yaml::from_multiple_with_options(text, options).map_err(|error| {
        let why = error.without_snippet().to_string();
        // The place is told once.
        let why = why.rsplit_once(" at line ").map_or(&*why, |(why, _)| why);
        let message = format!("is not YAML: {}; the rest of the document is not checked", clip(why));
        Fault::at(error.location().map_or(Position::START, position), message)
    })
}

/// The document of a text that must have one, which is called `what`.
pub(crate) fn one(text: &str, what: &str) -> Result<Node, Fault> {
    let documents = parse(text)?;
    let number = documents.len();
    let mut documents = documents.into_iter();
    match (documents.next(), documents.next()) {
        (Some(node), None) => Ok(node),
        (None, _) => Err(Fault::at(Position::START, format!("is empty; want one {what}"))),
        (_, Some(second)) => {
            Err(Fault::at(second.position, format!("is the second of {number} documents; want one {what}")))
        }
    }
}

fn position(location: Location) -> Position {
    Position { line: location.line(), column: location.column() }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(deserializer)?;
        Ok(Self { position: position(spanned.referenced), content: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(Self { position: position(spanned.referenced), name: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Content, E> {
        Ok(Content::Boolean(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Content, E> {
        Ok(Content::Number(n.into()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Content, E> {
        Ok(Content::Number(n.into()))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Content, E> {
        Ok(Number::from_f64(n).map_or_else(|| Content::Text(n.to_string()), Content::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Content::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Content::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_places_and_types() {
        let text = "a: {b: [1, yes, 'true']}\nc:\n- d: null\n  e: \"64\"\n---\n---\nx: !!str 5\nx: 6\n";
        let documents = parse(text).unwrap();
        assert_eq!(documents.len(), 2);
        let at = |field| documents[0].locate(field).to_string();
        assert_eq!(
            (at("a.b[1]"), at("c[0].e"), at("c[0].nothing.here"), at("zz")),
            ("1:12".into(), "4:6".into(), "3:3".into(), "1:1".into())
        );
        let described: Vec<_> = [("a", "b"), ("c", "")]
            .iter()
            .map(|(a, b)| documents[0].get(a).unwrap().get(b).map(|n| n.content.describe()))
            .collect();
        assert_eq!(described, [Some("a list".to_owned()), None]);
        let Content::Map(entries) = &documents[1].content else { panic!("not a map") };
        assert_eq!(
            entries
                .iter()
                .map(|(k, v)| format!("{}@{}={}", k.name, k.position, v.content.describe()))
                .collect::<Vec<_>>(),
            ["x@7:1=the text \"5\"", "x@8:1=the number 6"]
        );
    }

    #[test]
    fn broken_text_is_one_fault_with_its_place() {
        let fault = parse("a: 1\nb: [1,\n").unwrap_err();
        assert!(fault.position.is_some(), "{fault:?}");
        assert!(fault.message.starts_with("is not YAML: "), "{fault:?}");
    }

    #[test]
    fn only_regular_files_are_read() {
        for path in ["/dev/zero", "/"] {
            let refused = read(Path::new(path)).unwrap_err().to_string();
            assert!(refused.contains("want a regular file"), "{refused}");
        }
    }

    #[test]
    fn hostile_texts_are_refused_not_followed() {
        for text in ["[".repeat(20_000), "{a: ".repeat(20_000), "- ".repeat(20_000)] {
            assert!(parse(&text).is_err());
        }
        let bomb: String = (1..40).map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1)).collect();
        assert!(parse(&format!("a0: &a0 x\n{bomb}")).is_err());
    }
}
