//! A persistent ordered map of the present objects that also counts: keys, bytes and directories below
//! any prefix, without scanning.
//!
//! A B+ tree of shared nodes. A clone is one reference count; a change copies only those nodes on its
//! path that a clone still shares, so a snapshot that is published stays as it is while the next one is
//! made. Every inner node keeps, for each child, the number of keys and value bytes below it.
//!
//! # Invariants
//! * Keys are strictly ascending; every separator is at most the smallest key of its child and greater
//!   than every key of the child before.
//! * A child's totals are exact. Its slash bounds enclose the true ones (they may be too wide after deletions).
//!
//! Costs: `get`, `insert`, `remove`, `count` are O(log n); memory beyond the entry itself (see [`packed`]) is about 40
//! bytes a key, allocator included. Deletions merge small neighbours when they fit and never borrow: simpler, and still
//! without empty nodes.

use std::{ops::ControlFlow, sync::Arc};

pub use self::packed::Packed;
pub(crate) use self::packed::unpack_stored;
use crate::{DirectoryCount, Key};

mod packed;

/// Most entries of a node; one more splits it.
const WIDTH: usize = 32;
/// A node with fewer entries is merged with a neighbour if both fit in three quarters of a node.
const SPARSE: usize = WIDTH / 4;
/// Entries of a node that is built whole: some room is left for insertions.
const PACKED: usize = WIDTH / 4 * 3;

/// The map; see the module.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    root: Arc<Node>,
}

#[derive(Clone)]
enum Node {
    Leaf(Vec<Packed>),
    Inner(Vec<Child>),
}

#[derive(Clone)]
struct Child {
    first: Key,
    totals: Totals,
    /// Fewest and most `/` in a key below.
    slashes: (u16, u16),
    node: Arc<Node>,
}

/// Keys and the sum of the sizes of their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
}

/// What an insertion did to a node.
struct Inserted {
    old: Option<Packed>,
    /// The upper half, when the node was split.
    split: Option<(Key, Arc<Node>)>,
}

impl Default for Node {
    fn default() -> Self {
        Self::Leaf(Vec::new())
    }
}

impl Tree {
    /// A map of entries that come in strictly ascending order: faster and denser than one insertion each.
    pub(crate) fn from_sorted(entries: impl Iterator<Item = Packed>) -> Self {
        let mut level = nodes(entries, Node::Leaf);
        while level.len() > 1 {
            level = nodes(level.into_iter(), Node::Inner);
        }
        Self { root: level.pop().map_or_else(Arc::default, |child| child.node) }
    }

    /// The entry of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&Packed> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Inner(children) => {
                    let at = children.partition_point(|c| &*c.first <= key).checked_sub(1)?;
                    node = &children.get(at)?.node;
                }
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|e| e.key_bytes().cmp(key.as_bytes())).ok()?;
                    return entries.get(at);
                }
            }
        }
    }

    /// Puts an entry and returns the one it replaces.
    pub(crate) fn insert(&mut self, entry: Packed) -> Option<Packed> {
        let slashes = count_slashes(entry.key());
        let inserted = insert(&mut self.root, entry, slashes);
        if let Some((_, upper)) = inserted.split {
            let lower = std::mem::take(&mut self.root);
            self.root = Arc::new(Node::Inner([lower, upper].into_iter().filter_map(Child::of).collect()));
        }
        inserted.old
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Packed> {
        self.get(key)?;
        let old = remove(&mut self.root, key);
        while let Node::Inner(children) = &*self.root {
            match children.as_slice() {
                [] => self.root = Arc::default(),
                [only] => self.root = only.node.clone(),
                _ => break,
            }
        }
        old
    }

    /// Keys that begin with `prefix`, and their bytes.
    pub(crate) fn totals(&self, prefix: &str) -> Totals {
        let (below, upto) = (self.rank(&|k| k < prefix), self.rank(&|k| !is_behind(k, prefix)));
        Totals { keys: upto.keys - below.keys, bytes: upto.bytes - below.bytes }
    }

    /// Keys that begin with `prefix` and are greater than `after`.
    pub(crate) fn count_after(&self, prefix: &str, after: &str) -> u64 {
        let start = self.rank(&|k| k < prefix || k <= after);
        self.rank(&|k| !is_behind(k, prefix)).keys.saturating_sub(start.keys)
    }

    /// Calls `visit` in key order for the keys that begin with `prefix` and are greater than `after`.
    pub(crate) fn visit<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
        visit: &mut dyn FnMut(&'a Packed) -> ControlFlow<()>,
    ) {
        let skip = |k: &str| k < prefix || after.is_some_and(|a| k <= a);
        let _ = self.root.visit(&skip, &mut |entry| match entry.key().starts_with(prefix) {
            true => visit(entry),
            false => ControlFlow::Break(()),
        });
    }

    /// For every directory that directly contains keys beginning with `prefix`: its keys and bytes, in
    /// order. Whole subtrees within one directory are taken at once.
    pub(crate) fn directories(&self, prefix: &str) -> Vec<DirectoryCount> {
        let mut found: Vec<(&str, Totals)> = Vec::new();
        self.root.directories(None, prefix, &mut |directory, totals| match found.last_mut() {
            Some((name, sum)) if *name == directory => sum.add(totals),
            _ => found.push((directory, totals)),
        });
        // In order already, but for a directory with others in between its keys, which comes twice.
        found.sort_by_key(|(directory, _)| *directory);
        found.dedup_by(|(name, more), (kept, sum)| {
            let same = name == kept;
            if same {
                sum.add(*more);
            }
            same
        });
        found
            .into_iter()
            .map(|(name, t)| DirectoryCount { directory: name.into(), keys: t.keys, bytes: t.bytes })
            .collect()
    }

    /// Totals of the keys for which `below` holds; `below` must hold for a lower part of the order.
    fn rank(&self, below: &dyn Fn(&str) -> bool) -> Totals {
        let mut sum = Totals::default();
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let end = entries.partition_point(|e| below(e.key()));
                    entries.iter().take(end).for_each(|e| sum.add(e.totals()));
                    return sum;
                }
                Node::Inner(children) => {
                    let Some(last) = children.partition_point(|c| below(&c.first)).checked_sub(1) else { return sum };
                    children.iter().take(last).for_each(|c| sum.add(c.totals));
                    let Some(child) = children.get(last) else { return sum };
                    node = &child.node;
                }
            }
        }
    }
}

/// Packs entries into nodes, without room that nobody may ever need.
fn nodes<T>(mut entries: impl Iterator<Item = T>, make: fn(Vec<T>) -> Node) -> Vec<Child> {
    let node = || {
        let mut some = Vec::with_capacity(PACKED);
        some.extend(entries.by_ref().take(PACKED));
        some.shrink_to_fit();
        Child::of(Arc::new(make(some)))
    };
    std::iter::from_fn(node).collect()
}

impl Totals {
    fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }

    fn sub(&mut self, other: Self) {
        self.keys -= other.keys;
        self.bytes -= other.bytes;
    }
}

impl Packed {
    fn totals(&self) -> Totals {
        Totals { keys: 1, bytes: self.bytes() }
    }
}

impl Child {
    /// `None` if the node is empty.
    fn of(node: Arc<Node>) -> Option<Self> {
        Some(Self { first: node.first()?, totals: node.totals(), slashes: node.slashes()?, node })
    }
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }

    fn first(&self) -> Option<Key> {
        match self {
            Self::Leaf(entries) => entries.first().map(|e| e.key().into()),
            Self::Inner(children) => children.first().map(|c| c.first.clone()),
        }
    }

    fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        match self {
            Self::Leaf(entries) => entries.iter().for_each(|e| sum.add(e.totals())),
            Self::Inner(children) => children.iter().for_each(|c| sum.add(c.totals)),
        }
        sum
    }

    fn slashes(&self) -> Option<(u16, u16)> {
        let join = |a: (u16, u16), b: (u16, u16)| (a.0.min(b.0), a.1.max(b.1));
        match self {
            Self::Leaf(entries) => entries.iter().map(|e| count_slashes(e.key())).map(|n| (n, n)).reduce(join),
            Self::Inner(children) => children.iter().map(|c| c.slashes).reduce(join),
        }
    }

    fn visit<'a>(
        &'a self,
        skip: &dyn Fn(&str) -> bool,
        visit: &mut dyn FnMut(&'a Packed) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Leaf(entries) => {
                let start = entries.partition_point(|e| skip(e.key()));
                entries.iter().skip(start).try_for_each(visit)
            }
            Self::Inner(children) => {
                let start = children.partition_point(|c| skip(&c.first)).saturating_sub(1);
                children.iter().skip(start).try_for_each(|c| c.node.visit(skip, visit))
            }
        }
    }

    /// `end` is a separator above every key of this node.
    fn directories<'a>(&'a self, end: Option<&'a str>, prefix: &str, found: &mut dyn FnMut(&'a str, Totals)) {
        match self {
            Self::Leaf(entries) => {
                for entry in entries.iter().filter(|e| e.key().starts_with(prefix)) {
                    found(directory_of(entry.key()), entry.totals());
                }
            }
            Self::Inner(children) => {
                let ends = children.iter().skip(1).map(|c| Some(&*c.first)).chain([end]);
                for (child, end) in children.iter().zip(ends) {
                    let directory = directory_of(&child.first);
                    // Keys between two keys of one directory begin with it, and with equally many
                    // slashes they stand directly in it.
                    let one = child.slashes.0 == child.slashes.1 && end.is_some_and(|e| directory_of(e) == directory);
                    let inside = directory.starts_with(prefix);
                    if one && inside {
                        found(directory, child.totals);
                    } else if !is_behind(&child.first, prefix) && end.is_none_or(|e| e >= prefix) {
                        child.node.directories(end, prefix, found);
                    }
                }
            }
        }
    }
}

fn insert(node: &mut Arc<Node>, entry: Packed, slashes: u16) -> Inserted {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            let old = match entries.binary_search_by(|e| e.key_bytes().cmp(entry.key_bytes())) {
                Ok(at) => entries.get_mut(at).map(|e| std::mem::replace(e, entry)),
                Err(at) => {
                    // Vec would double: half of each leaf would be air.
                    if entries.len() == entries.capacity() {
                        entries.reserve_exact(4);
                    }
                    entries.insert(at, entry);
                    None
                }
            };
            let split = split(entries).map(|upper| (upper.0.key().into(), Arc::new(Node::Leaf(upper.1))));
            Inserted { old, split }
        }
        Node::Inner(children) => {
            let key = entry.key();
            let at = children.partition_point(|c| &*c.first <= key).saturating_sub(1);
            let child = children.get_mut(at).expect("an inner node has children");
            if key < &*child.first {
                child.first = key.into();
            }
            child.slashes = (child.slashes.0.min(slashes), child.slashes.1.max(slashes));
            let new = entry.totals();
            let inserted = insert(&mut child.node, entry, slashes);
            // Summed up anew only after a split: the sizes stand in the entries, each in memory of its own.
            child.totals.add(new);
            if let Some(old) = &inserted.old {
                child.totals.sub(old.totals());
            }
            if inserted.split.is_some() {
                child.totals = child.node.totals();
            }
            if let Some((first, node)) = inserted.split {
                let upper = Child { first, totals: node.totals(), slashes: child.slashes, node };
                children.insert(at + 1, upper);
            }
            let split = split(children).map(|upper| (upper.0.first.clone(), Arc::new(Node::Inner(upper.1))));
            Inserted { old: inserted.old, split }
        }
    }
}

/// Takes the upper half of a node that is too wide, with a copy of its first entry.
fn split<T: Clone>(entries: &mut Vec<T>) -> Option<(T, Vec<T>)> {
    if entries.len() <= WIDTH {
        return None;
    }
    let upper = entries.split_off(entries.len() / 2);
    entries.shrink_to_fit();
    upper.first().cloned().map(|first| (first, upper))
}

fn remove(node: &mut Arc<Node>, key: &str) -> Option<Packed> {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            let at = entries.binary_search_by(|e| e.key_bytes().cmp(key.as_bytes())).ok()?;
            Some(entries.remove(at))
        }
        Node::Inner(children) => {
            let at = children.partition_point(|c| &*c.first <= key).checked_sub(1)?;
            let child = children.get_mut(at)?;
            let old = remove(&mut child.node, key);
            if let Some(old) = &old {
                child.totals.sub(old.totals());
            }
            match child.node.len() {
                0 => drop(children.remove(at)),
                n if n < SPARSE => {
                    let _ = merge(children, at).or_else(|| merge(children, at.checked_sub(1)?));
                }
                _ => {}
            }
            old
        }
    }
}

/// Merges the child at `at` with the next one if they fit.
fn merge(children: &mut Vec<Child>, at: usize) -> Option<()> {
    let (left, right) = (children.get(at)?, children.get(at + 1)?);
    if left.node.len() + right.node.len() > PACKED {
        return None;
    }
    let right = children.remove(at + 1);
    let left = children.get_mut(at)?;
    match (Arc::make_mut(&mut left.node), Arc::unwrap_or_clone(right.node)) {
        (Node::Leaf(to), Node::Leaf(from)) => to.extend(from),
        (Node::Inner(to), Node::Inner(from)) => to.extend(from),
        _ => unreachable!("all leaves are equally deep"),
    }
    left.totals.add(right.totals);
    left.slashes = (left.slashes.0.min(right.slashes.0), left.slashes.1.max(right.slashes.1));
    Some(())
}

/// Whether `key` comes after every key that begins with `prefix`.
fn is_behind(key: &str, prefix: &str) -> bool {
    key > prefix && !key.starts_with(prefix)
}

/// The part of a key up to and including its last slash.
pub(crate) fn directory_of(key: &str) -> &str {
    key.rfind('/').and_then(|at| key.get(..=at)).unwrap_or("")
}

fn count_slashes(key: &str) -> u16 {
    key.bytes().filter(|b| *b == b'/').count().try_into().unwrap_or(u16::MAX)
}

#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
