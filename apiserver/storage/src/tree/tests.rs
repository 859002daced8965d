use std::{collections::BTreeMap, ops::ControlFlow};

use proptest::prelude::*;

use super::*;
use crate::KeyValue;

/// Few letters, so that keys collide, nest and share prefixes.
fn key() -> impl Strategy<Value = String> {
    "[ab]{1,2}(/[a-c]{1,2}){0,3}"
}

fn entry(key: &str, size: usize) -> Packed {
    let value = vec![0; size].into();
    Packed::of(&KeyValue { key: key.into(), value, create_revision: 1, mod_revision: size as u64 })
}

fn collect(tree: &Tree, prefix: &str, after: Option<&str>) -> Vec<String> {
    let mut keys = Vec::new();
    tree.visit(prefix, after, &mut |entry| {
        keys.push(entry.key().to_owned());
        ControlFlow::Continue(())
    });
    keys
}

fn check(tree: &Tree, model: &BTreeMap<String, usize>, prefix: &str, after: &str) {
    let inside: Vec<_> = model.iter().filter(|(k, _)| k.starts_with(prefix)).collect();
    let sum = inside.iter().map(|(_, n)| **n as u64).sum();
    assert_eq!(tree.totals(prefix), Totals { keys: inside.len() as u64, bytes: sum }, "totals of {prefix:?}");
    assert_eq!(collect(tree, prefix, None), inside.iter().map(|(k, _)| k.to_string()).collect::<Vec<_>>());
    let rest: Vec<_> = inside.iter().map(|(k, _)| k.to_string()).filter(|k| k.as_str() > after).collect();
    assert_eq!(collect(tree, prefix, Some(after)), rest, "{prefix:?} after {after:?}");
    assert_eq!(tree.count_after(prefix, after), rest.len() as u64);

    let mut directories = BTreeMap::<&str, (u64, u64)>::new();
    for (key, size) in &inside {
        let sum = directories.entry(directory_of(key)).or_default();
        *sum = (sum.0 + 1, sum.1 + **size as u64);
    }
    let found = tree.directories(prefix);
    let found: Vec<_> = found.iter().map(|d| (&*d.directory, (d.keys, d.bytes))).collect();
    assert_eq!(found, directories.into_iter().collect::<Vec<_>>(), "directories of {prefix:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn it_is_an_ordered_map_that_counts(
        ops in prop::collection::vec((key(), prop::option::weighted(0.6, 0usize..9)), 0..600),
        probes in prop::collection::vec((key(), key()), 8),
    ) {
        let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
        let rebuild_at = ops.len() / 2;
        let mut snapshots = Vec::new();
        for (at, (key, size)) in ops.iter().enumerate() {
            let old = match size {
                Some(size) => (tree.insert(entry(key, *size)), model.insert(key.clone(), *size)),
                None => (tree.remove(key), model.remove(key)),
            };
            prop_assert_eq!(old.0.map(|e| e.unpack().value.len()), old.1);
            prop_assert_eq!(tree.get(key).map(|e| e.unpack().value.len()), *size);
            if at == rebuild_at {
                tree = Tree::from_sorted(model.iter().map(|(key, size)| entry(key, *size)));
            }
            if at % 97 == 0 {
                snapshots.push((tree.clone(), model.clone()));
            }
        }
        snapshots.push((tree, model));
        for (tree, model) in &snapshots {
            check(tree, model, "", "");
            for (prefix, after) in &probes {
                check(tree, model, prefix, after);
                check(tree, model, &format!("{prefix}/"), after);
            }
        }
    }
}

#[test]
fn large_directories_are_counted_by_subtree() {
    let mut tree = Tree::default();
    for n in 0..20_000u32 {
        tree.insert(entry(&format!("/r/configmaps/c{:02}/ns/{n:05}", n % 3), 2));
        tree.insert(entry(&format!("/r/namespaces/c{n:05}/default"), 1));
    }
    let big = tree.directories("/r/configmaps/");
    assert_eq!(big.iter().map(|d| d.keys).collect::<Vec<_>>(), [6667, 6667, 6666]);
    assert_eq!(tree.directories("/r/").len(), 20_003);
    assert_eq!(tree.totals("/r/").bytes, 60_000);
    for n in 0..20_000u32 {
        assert!(tree.remove(&format!("/r/namespaces/c{n:05}/default")).is_some());
    }
    assert_eq!(tree.directories("/r/").len(), 3);
    assert_eq!(tree.totals("/").keys, 20_000);
}
