//! What the engines' tests share.

pub(crate) mod etcd;

use std::{path::PathBuf, sync::Arc, time::Duration};

use apiserver_storage::{
    Condition, Embedded, Event, KeyValue, Packed, Range, RangeResult, Store, Txn, TxnOutcome, WatchStream,
};
use futures_util::StreamExt;

pub(crate) fn put(key: &str, condition: Condition, value: &str) -> Txn {
    Txn { key: key.into(), condition, guard: None, value: Some(value.as_bytes().to_vec().into()), ttl: None }
}

pub(crate) fn delete(key: &str, revision: u64) -> Txn {
    Txn { key: key.into(), condition: Condition::ModRevision(revision), guard: None, value: None, ttl: None }
}

pub(crate) async fn done(store: &(impl Store + ?Sized), txn: Txn) -> u64 {
    match store.txn(txn).await.unwrap() {
        TxnOutcome::Done { revision } => revision,
        conflict => panic!("{conflict:?}"),
    }
}

pub(crate) fn unpacked(result: &RangeResult) -> Vec<KeyValue> {
    result.items.iter().map(Packed::unpack).collect()
}

pub(crate) fn range(prefix: &str) -> Range {
    Range { prefix: prefix.into(), ..Range::default() }
}

/// Where a store is: one that is closed can be opened again.
pub(crate) enum Place {
    Memory,
    File(PathBuf),
    Etcd { cluster: Arc<etcd::Cluster>, prefix: String },
}

impl Place {
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory => Arc::new(Embedded::in_memory()),
            Self::File(path) => Arc::new(Embedded::open(path).unwrap()),
            Self::Etcd { cluster, prefix } => Arc::new(cluster.open(prefix).await),
        }
    }
}

/// One change in short: revision, key, new value (`None` = deleted), value before.
pub(crate) type Change = (u64, String, Option<String>, Option<String>);

pub(crate) fn change(event: Event) -> Option<Change> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    match event {
        Event::Put { kv, prev } => {
            Some((kv.mod_revision, kv.key.to_string(), Some(text(&kv.value)), prev.map(|p| text(&p.value))))
        }
        Event::Delete { prev, revision } => Some((revision, prev.key.to_string(), None, Some(text(&prev.value)))),
        Event::Progress(_) => None,
    }
}

/// All changes up to a revision, which the watch must reach by itself.
pub(crate) async fn changes_until(watch: &mut WatchStream, revision: u64) -> Vec<Change> {
    let mut changes = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
        let event = next.expect("a watch is never silent").expect("it does not end").expect("it does not fail");
        if let Event::Progress(done) = event {
            if done >= revision {
                return changes;
            }
        } else {
            changes.extend(change(event));
        }
    }
}
