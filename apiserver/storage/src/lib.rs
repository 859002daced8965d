//! The store of the API server: one revision counter, compare-and-set transactions, range reads,
//! exact counts, watches from any revision that is not compacted (the semantics of etcd v3).

pub mod embedded;
pub mod keys;
mod store;
mod tree;

pub use self::embedded::{Embedded, OpenError};
pub use self::store::{
    Condition, DirectoryCount, Event, Key, KeyValue, Range, RangeResult, Store, StoreError, StoreFuture, Txn,
    TxnOutcome, Value, WatchStream,
};
