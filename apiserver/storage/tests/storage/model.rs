//! The engines against a model that keeps every state it ever had.

use std::{collections::BTreeMap, sync::Arc};

use apiserver_storage::{Condition, KeyValue, Range, Store, StoreError, Txn, TxnOutcome};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::common::{Change, Place, changes_until, delete, etcd::Cluster, put, range, unpacked};

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

/// What a store must be: every state it ever had, by the revision from which on it held.
struct Model {
    states: BTreeMap<u64, State>,
    changes: Vec<Change>,
    compacted: u64,
}

impl Model {
    async fn of_empty(store: &dyn Store) -> Self {
        let states = BTreeMap::from([(store.revision(), State::new())]);
        Self { states, changes: Vec::new(), compacted: oldest(store).await }
    }

    fn now(&self) -> &State {
        self.states.last_key_value().unwrap().1
    }

    fn at(&self, revision: u64) -> &State {
        self.states.range(..=revision).next_back().unwrap().1
    }

    fn revision(&self) -> u64 {
        *self.states.last_key_value().unwrap().0
    }

    /// The first revision that can be read.
    fn first(&self) -> u64 {
        self.compacted.max(*self.states.first_key_value().unwrap().0)
    }

    /// Takes a write and checks how it ended.
    fn apply(&mut self, txn: &Txn, outcome: TxnOutcome) {
        let prev = self.now().get(&*txn.key).cloned();
        let holds = match txn.condition {
            Condition::Absent => prev.is_none(),
            Condition::ModRevision(r) => prev.as_ref().is_some_and(|p| p.mod_revision == r),
        };
        if !holds {
            return assert_eq!(outcome, TxnOutcome::Conflict(prev), "{txn:?}");
        }
        let TxnOutcome::Done { revision } = outcome else { panic!("{txn:?}: {outcome:?}") };
        assert!(revision > self.revision(), "{revision} comes after {}", self.revision());
        let mut next = self.now().clone();
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
        self.states.insert(revision, next);
    }
}

async fn oldest(store: &dyn Store) -> u64 {
    match store.watch("", 0).await {
        Ok(_) => 0,
        Err(StoreError::Compacted { oldest, .. }) => oldest,
        Err(other) => panic!("{other}"),
    }
}

async fn read(store: &dyn Store, model: &Model, wanted: Range) {
    let revision = wanted.revision.unwrap_or(model.revision());
    let answer = store.range(wanted.clone()).await;
    if revision < model.compacted {
        let refused = StoreError::Compacted { requested: revision, oldest: model.compacted };
        return assert_eq!(answer.unwrap_err(), refused);
    }
    let answer = answer.unwrap();
    let inside =
        |k: &&KeyValue| k.key.starts_with(&wanted.prefix) && wanted.after.as_ref().is_none_or(|after| *k.key > **after);
    let all: Vec<_> = model.at(revision).values().filter(inside).cloned().collect();
    let limit = if wanted.limit == 0 { all.len() } else { wanted.limit.min(all.len()) };
    assert_eq!(unpacked(&answer), all[..limit], "{wanted:?}");
    assert_eq!(answer.remaining, (all.len() - limit) as u64, "{wanted:?}");
    match wanted.revision {
        Some(_) => assert_eq!(answer.revision, revision, "{wanted:?}"),
        // Others may use the same etcd.
        None => assert!(answer.revision >= revision, "{wanted:?}"),
    }
}

async fn check_everything(store: &dyn Store, model: &Model) {
    assert!(store.revision() >= model.revision());
    for prefix in PREFIXES {
        for revision in model.first()..=model.revision() {
            read(store, model, Range { revision: Some(revision), ..range(prefix) }).await;
        }
        read(store, model, range(prefix)).await;
        let inside: Vec<_> = model.now().values().filter(|kv| kv.key.starts_with(prefix)).collect();
        assert_eq!(store.count(prefix), inside.len() as u64, "{prefix}");
        let counts = store.counts(prefix).1;
        let sums = counts.iter().fold((0, 0), |sum, d| (sum.0 + d.keys, sum.1 + d.bytes));
        assert_eq!(sums, (inside.len() as u64, inside.iter().map(|kv| kv.value.len() as u64).sum()), "{prefix}");
        let first = model.first();
        for after in [first, (first + model.revision()) / 2, model.revision()] {
            let mut watch = store.watch(prefix, after).await.unwrap();
            let seen = changes_until(&mut watch, model.revision()).await;
            let expected: Vec<_> = model.changes.iter().filter(|c| c.0 > after && c.1.starts_with(prefix)).collect();
            assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{prefix} after {after}");
        }
    }
}

async fn run(place: &Place, ops: Vec<Op>) {
    let mut store = place.open().await;
    let mut model = Model::of_empty(&*store).await;
    for op in ops {
        let first = *model.states.first_key_value().unwrap().0;
        let at = |share: f64| first + (share * (model.revision() - first) as f64) as u64;
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
                model.apply(&txn, store.txn(txn.clone()).await.unwrap());
            }
            Op::Compact(share) => {
                let revision = at(share);
                store.compact(revision).await.unwrap();
                model.compacted = model.compacted.max(revision);
            }
            Op::Reopen => {
                drop(store);
                store = place.open().await;
            }
            Op::Read(share, key, limit) => {
                let revision = Some(at(share));
                let after = Some(KEYS[key].to_owned());
                read(&*store, &model, Range { limit, revision, after, ..range("/r/") }).await;
            }
        }
    }
    check_everything(&*store, &model).await;
    store.close();
    drop(store);
    check_everything(&*place.open().await, &model).await;
}

fn check(cases: u32, mut place: impl FnMut() -> Place) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let place = std::cell::RefCell::new(&mut place);
    let checked = runner.run(&prop::collection::vec(op(), 1..120), |ops| {
        let place = (place.borrow_mut())();
        runtime.block_on(run(&place, ops));
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn the_embedded_engine_is_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = 0;
    check(32, || {
        case += 1;
        Place::File(dir.path().join(format!("{case}.db")))
    });
}

/// One etcd for all cases, each below a prefix of its own: their revisions and compactions are not the first.
#[test]
fn the_store_on_etcd_is_the_model() {
    let cluster = Arc::new(Cluster::single());
    let mut case = 0;
    check(24, || {
        case += 1;
        Place::Etcd { cluster: cluster.clone(), prefix: format!("/case-{case}") }
    });
}
