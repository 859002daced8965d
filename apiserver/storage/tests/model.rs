//! The engine against a model that keeps every state it ever had.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use apiserver_storage::{Condition, Embedded, KeyValue, Range, Store, StoreError, Txn, TxnOutcome};
use common::{Change, changes_until, delete, put, range};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Key, value; conditions that hold are made from the model, others are off by this much.
    Put(usize, u8, u64),
    Delete(usize, u64),
    /// As a share of the present revision.
    Compact(f64),
    Reopen,
    /// Read at a share of the present revision, from a key on, with a limit.
    Read(f64, usize, usize),
}

const KEYS: [&str; 8] =
    ["/r/cm/a/ns/x", "/r/cm/a/ns/y", "/r/cm/a/ns2/x", "/r/cm/b/ns/x", "/r/ns/a/ns", "/r/ns/ab", "/r/cm/a/ns", "/q"];
const PREFIXES: [&str; 7] = ["", "/r/", "/r/cm/", "/r/cm/a/", "/r/cm/a/ns/", "/r/cm/a/ns", "/s"];

fn op() -> impl Strategy<Value = Op> {
    let wrong = prop_oneof![6 => Just(0), 1 => 1..3u64];
    prop_oneof![
        10 => (0..KEYS.len(), any::<u8>(), wrong.clone()).prop_map(|(k, v, w)| Op::Put(k, v, w)),
        4 => (0..KEYS.len(), wrong).prop_map(|(k, w)| Op::Delete(k, w)),
        1 => (0.0..1.0).prop_map(Op::Compact),
        1 => Just(Op::Reopen),
        4 => (0.0..1.0, 0..KEYS.len(), 0..5usize).prop_map(|(r, k, l)| Op::Read(r, k, l)),
    ]
}

type State = BTreeMap<String, KeyValue>;

/// `states[r - 1]` is the state at revision `r`.
struct Model {
    states: Vec<State>,
    changes: Vec<Change>,
    compacted: u64,
}

impl Model {
    fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    fn revision(&self) -> u64 {
        self.states.len() as u64
    }

    fn apply(&mut self, txn: &Txn) -> TxnOutcome {
        let prev = self.now().get(&*txn.key).cloned();
        let holds = match txn.condition {
            Condition::Absent => prev.is_none(),
            Condition::ModRevision(r) => prev.as_ref().is_some_and(|p| p.mod_revision == r),
        };
        if !holds {
            return TxnOutcome::Conflict(prev);
        }
        let (mut next, revision) = (self.now().clone(), self.revision() + 1);
        let text = |v: &[u8]| String::from_utf8(v.to_vec()).unwrap();
        let before = prev.as_ref().map(|p| text(&p.value));
        match &txn.value {
            Some(value) => {
                let create_revision = prev.map_or(revision, |p| p.create_revision);
                let kv =
                    KeyValue { key: txn.key.clone(), value: value.clone(), create_revision, mod_revision: revision };
                next.insert(txn.key.to_string(), kv);
            }
            None => drop(next.remove(&*txn.key)),
        }
        self.changes.push((revision, txn.key.to_string(), txn.value.as_ref().map(|v| text(v)), before));
        self.states.push(next);
        TxnOutcome::Done { revision }
    }
}

async fn read(store: &Embedded, model: &Model, wanted: Range) {
    let revision = wanted.revision.unwrap_or(model.revision());
    let answer = store.range(wanted.clone()).await;
    if revision < model.compacted {
        let refused = StoreError::Compacted { requested: revision, oldest: model.compacted };
        return assert_eq!(answer.unwrap_err(), refused);
    }
    let answer = answer.unwrap();
    let state = &model.states[revision as usize - 1];
    let inside =
        |k: &&KeyValue| k.key.starts_with(&wanted.prefix) && wanted.after.as_ref().is_none_or(|after| *k.key > **after);
    let all: Vec<_> = state.values().filter(inside).cloned().collect();
    let limit = if wanted.limit == 0 { all.len() } else { wanted.limit.min(all.len()) };
    assert_eq!(answer.items, all[..limit], "{wanted:?}");
    assert_eq!((answer.remaining, answer.revision), ((all.len() - limit) as u64, revision), "{wanted:?}");
}

async fn check_everything(store: &Embedded, model: &Model) {
    assert_eq!(store.revision(), model.revision());
    for prefix in PREFIXES {
        for revision in model.compacted.max(1)..=model.revision() {
            read(store, model, Range { revision: Some(revision), ..range(prefix) }).await;
        }
        read(store, model, range(prefix)).await;
        let inside: Vec<_> = model.now().values().filter(|kv| kv.key.starts_with(prefix)).collect();
        assert_eq!(store.count(prefix), inside.len() as u64, "{prefix}");
        let counts = store.counts(prefix).1;
        let sums = counts.iter().fold((0, 0), |sum, d| (sum.0 + d.keys, sum.1 + d.bytes));
        assert_eq!(sums, (inside.len() as u64, inside.iter().map(|kv| kv.value.len() as u64).sum()), "{prefix}");
        for after in [model.compacted, (model.compacted + model.revision()) / 2, model.revision()] {
            let mut watch = store.watch(prefix, after).await.unwrap();
            let seen = changes_until(&mut watch, model.revision()).await;
            let expected: Vec<_> = model.changes.iter().filter(|c| c.0 > after && c.1.starts_with(prefix)).collect();
            assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{prefix} after {after}");
        }
    }
}

async fn run(ops: Vec<Op>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let mut store = Embedded::open(&path).unwrap();
    let mut model = Model { states: vec![State::new()], changes: Vec::new(), compacted: 0 };
    for op in ops {
        let at = |share: f64| (share * model.revision() as f64) as u64;
        match op {
            Op::Put(..) | Op::Delete(..) => {
                let (Op::Put(key, .., wrong) | Op::Delete(key, wrong)) = op else { unreachable!() };
                let mod_revision = model.now().get(KEYS[key]).map(|kv| kv.mod_revision);
                let txn = match (op, mod_revision) {
                    (Op::Put(_, v, _), None) if wrong == 0 => put(KEYS[key], Condition::Absent, &"v".repeat(v.into())),
                    (Op::Put(_, v, _), r) => {
                        put(KEYS[key], Condition::ModRevision(r.unwrap_or(1) + wrong), &"w".repeat(v.into()))
                    }
                    (_, r) => delete(KEYS[key], r.unwrap_or(1) + wrong),
                };
                assert_eq!(store.txn(txn.clone()).await.unwrap(), model.apply(&txn), "{txn:?}");
            }
            Op::Compact(share) => {
                let revision = at(share);
                store.compact(revision).await.unwrap();
                model.compacted = model.compacted.max(revision);
            }
            Op::Reopen => {
                drop(store);
                store = Embedded::open(&path).unwrap();
            }
            Op::Read(share, key, limit) => {
                let revision = Some(at(share).max(1));
                let after = Some(KEYS[key].to_owned());
                read(&store, &model, Range { limit, revision, after, ..range("/r/") }).await;
            }
        }
    }
    check_everything(&store, &model).await;
    store.close();
    drop(store);
    check_everything(&Embedded::open(&path).unwrap(), &model).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_engine_is_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(ops));
    }
}
