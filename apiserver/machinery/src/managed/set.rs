//! Sets of fields, as `managedFields` store them: a trie whose steps are members of maps (`f:name`), items of lists by
//! their keys (`k:{"uid":"u"}`), items of sets (`v:"a"`) and places in lists (`i:0`).
//!
//! A step is kept as the text it has in `fieldsV1`, values in it in one form, so equal steps are equal texts. No entry
//! stands for nothing: each is a member itself or has members below. All operations are one walk over both tries;
//! their depth is that of the parsed JSON (128).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
};

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step(Box<str>);

impl Step {
    /// The member of this name.
    pub(crate) fn member(name: &str) -> Self {
        Self(format!("f:{name}").into())
    }

    /// The item whose field `key` has this value.
    pub(crate) fn item(key: &str, value: &Value) -> Self {
        let keys: Map<String, Value> = [(key.to_owned(), value.clone())].into_iter().collect();
        Self(format!("k:{}", Value::Object(keys)).into())
    }

    /// The item of a set.
    pub(crate) fn value(value: &Value) -> Self {
        Self(format!("v:{value}").into())
    }

    /// The member's name, if it is the step to one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.strip_prefix("f:")
    }

    /// Reads a step of `fieldsV1`; `None` for a kind of step that later versions may add.
    fn parse(text: &str) -> Result<Option<Self>, FieldSetError> {
        let wrong = || FieldSetError::Step(text.to_owned());
        let canonical = match text.split_once(':').ok_or_else(wrong)? {
            ("f", _) => text.to_owned(),
            ("i", index) => format!("i:{}", index.parse::<u32>().map_err(|_| wrong())?),
            ("v", json) => format!("v:{}", serde_json::from_str::<Value>(json).map_err(|_| wrong())?),
            ("k", json) => {
                let keys: Map<String, Value> = serde_json::from_str(json).map_err(|_| wrong())?;
                format!("k:{}", Value::Object(keys))
            }
            _ => return Ok(None),
        };
        Ok(Some(Self(canonical.into())))
    }
}

/// As paths are written in messages: `.data`, `[uid="u"]`, `[="a"]`, `[0]`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_at_checked(2) {
            Some(("f:", name)) => write!(f, ".{name}"),
            Some(("v:", value)) => write!(f, "[={value}]"),
            Some(("k:", keys)) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            _ => write!(f, "[{}]", self.0.trim_start_matches("i:")),
        }
    }
}

/// Why `fieldsV1` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldSetError {
    /// A step of none of the known forms.
    #[error("{0:?} is no path element: want f:<name>, k:<keys as JSON>, v:<value as JSON> or i:<index>")]
    Step(String),
    /// Something else than a map.
    #[error("found {0} where fieldsV1 has a map")]
    NoMap(String),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<Step, Node>);

/// What is known of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    /// Whether the path itself is in the set.
    is_member: bool,
    /// The paths behind it.
    below: FieldSet,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.is_member && self.below.is_empty()
    }
}

impl FieldSet {
    /// Reads `fieldsV1`.
    ///
    /// # Errors
    /// See [`FieldSetError`].
    pub fn parse(fields: &Value) -> Result<Self, FieldSetError> {
        let members = fields.as_object().ok_or_else(|| FieldSetError::NoMap(fields.to_string()))?;
        let mut set = Self::default();
        for (text, below) in members.iter().filter(|(text, _)| *text != ".") {
            let Some(step) = Step::parse(text)? else { continue };
            let members = below.as_object().ok_or_else(|| FieldSetError::NoMap(below.to_string()))?;
            let node = Node { is_member: members.is_empty() || members.contains_key("."), below: Self::parse(below)? };
            set.put(step, node);
        }
        Ok(set)
    }

    /// Writes `fieldsV1`.
    pub fn to_value(&self) -> Value {
        let nodes = self.0.iter().map(|(step, node)| {
            let mut below = node.below.to_value();
            if node.is_member
                && let Value::Object(members) = &mut below
                && !members.is_empty()
            {
                members.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (step.0.to_string(), below)
        });
        Value::Object(nodes.collect())
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is in at least one of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.add(other);
        all
    }

    /// Adds what is in the other one. Costs what that is large, however much is here: many can be united.
    pub(crate) fn add(&mut self, other: &Self) {
        for (step, node) in &other.0 {
            match self.0.entry(step.clone()) {
                Entry::Vacant(place) => drop(place.insert(node.clone())),
                Entry::Occupied(mut mine) => {
                    let mine = mine.get_mut();
                    mine.is_member |= node.is_member;
                    mine.below.add(&node.below);
                }
            }
        }
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.filtered(|step, node| {
            let Some(theirs) = other.0.get(step) else { return Node::default() };
            let below = node.below.intersection(&theirs.below);
            Node { is_member: node.is_member && theirs.is_member, below }
        })
    }

    /// What is in this one only. A path takes no path behind it along.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.filtered(|step, node| match other.0.get(step) {
            None => node.clone(),
            Some(theirs) => {
                Node { is_member: node.is_member && !theirs.is_member, below: node.below.difference(&theirs.below) }
            }
        })
    }

    fn filtered(&self, keep: impl Fn(&Step, &Node) -> Node) -> Self {
        let kept = self.0.iter().map(|(step, node)| (step.clone(), keep(step, node)));
        Self(kept.filter(|(_, node)| !node.is_empty()).collect())
    }

    /// The part that begins with members that `keep` wants.
    #[must_use]
    pub(crate) fn beginning_with(&self, keep: impl Fn(&str) -> bool) -> Self {
        self.filtered(|step, node| if step.name().is_some_and(&keep) { node.clone() } else { Node::default() })
    }

    /// Adds a path. The empty path stands for the whole object and is in no set.
    pub(crate) fn insert(&mut self, path: &[Step]) {
        match path {
            [] => {}
            [last] => self.0.entry(last.clone()).or_default().is_member = true,
            [first, rest @ ..] => self.0.entry(first.clone()).or_default().below.insert(rest),
        }
    }

    /// Adds this step and what is behind it, if that is anything.
    pub(crate) fn insert_below(&mut self, step: Step, is_member: bool, below: Self) {
        self.put(step, Node { is_member, below });
    }

    fn put(&mut self, step: Step, node: Node) {
        if !node.is_empty() {
            self.0.insert(step, node);
        }
    }

    /// Whether the path of this single step is in it.
    pub(crate) fn has(&self, step: &Step) -> bool {
        self.0.get(step).is_some_and(|node| node.is_member)
    }

    /// What is behind a step.
    pub(crate) fn below(&self, step: &Step) -> Option<&Self> {
        self.0.get(step).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// Each step at its beginning, whether its path is in the set, and what is behind it.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&Step, bool, &Self)> {
        self.0.iter().map(|(step, node)| (step, node.is_member, &node.below))
    }

    /// All paths in it, as messages write them.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.add_paths("", &mut paths);
        paths
    }

    fn add_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        // Upstream tells the members of a place before what is behind them.
        paths.extend(self.0.iter().filter(|(_, node)| node.is_member).map(|(step, _)| format!("{prefix}{step}")));
        for (step, node) in &self.0 {
            node.below.add_paths(&format!("{prefix}{step}"), paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            "[a-c]".prop_map(|name| Step::member(&name)),
            "[ab]".prop_map(|key| Step::item("uid", &json!(key))),
            (0..3).prop_map(|n| Step::value(&json!(n))),
        ]
    }

    fn set() -> impl Strategy<Value = FieldSet> {
        let paths = prop::collection::vec(prop::collection::vec(step(), 1..4), 0..12);
        paths.prop_map(|paths| {
            let mut set = FieldSet::default();
            paths.iter().for_each(|path| set.insert(path));
            set
        })
    }

    proptest! {
        #[test]
        fn laws_of_sets(a in set(), b in set(), c in set()) {
            let none = FieldSet::default();
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert_eq!(a.intersection(&b).intersection(&c), a.intersection(&b.intersection(&c)));
            prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
            prop_assert_eq!(a.union(&a), a.clone());
            prop_assert_eq!(a.intersection(&a), a.clone());
            prop_assert_eq!(a.union(&none), a.clone());
            prop_assert_eq!(a.difference(&a), none.clone());
            prop_assert_eq!(a.difference(&none), a.clone());
            // A set is what it has in common with another and what it has not, and these are disjoint.
            let (common, own) = (a.intersection(&b), a.difference(&b));
            prop_assert_eq!(common.union(&own), a.clone());
            prop_assert_eq!(own.intersection(&b), none);
            prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        }

        #[test]
        fn written_sets_are_read_again(a in set()) {
            prop_assert_eq!(FieldSet::parse(&a.to_value()).unwrap(), a);
        }

        #[test]
        fn any_json_is_read_or_refused(text in "\\{(\"[fkvi.]:?[a-z0-9\"{}\\\\]{0,6}\":\\{\\},?){0,3}\\}") {
            if let Ok(value) = serde_json::from_str(&text) {
                drop(FieldSet::parse(&value));
            }
        }
    }

    #[test]
    fn the_form_of_upstream() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}},
            "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}, "f:finalizers": {"v:\"x\"": {}}}, "f:data": {}});
        let set = FieldSet::parse(&fields).unwrap();
        assert_eq!(set.to_value(), fields);
        let paths = [
            ".data",
            ".metadata.labels",
            ".metadata.finalizers[=\"x\"]",
            ".metadata.labels.a",
            ".metadata.ownerReferences[uid=\"u\"]",
        ];
        assert_eq!(set.paths(), paths);
    }

    #[test]
    fn steps_have_one_form() {
        let spaced = FieldSet::parse(&json!({"k:{ \"b\": 1, \"a\": 2 }": {}, "z:later": {}})).unwrap();
        assert_eq!(spaced.to_value(), json!({"k:{\"a\":2,\"b\":1}": {}}));
        for bad in
            [json!({"k:x": {}}), json!({"v:": {}}), json!({"i:-1": {}}), json!({"f": {}}), json!({"f:a": 1}), json!([])]
        {
            assert!(FieldSet::parse(&bad).is_err(), "{bad}");
        }
    }
}
