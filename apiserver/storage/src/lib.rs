//! The store of the API server: one revision counter, compare-and-set transactions, range reads,
//! exact counts, watches from any revision that is not compacted (the semantics of etcd v3).

pub mod embedded;
pub mod etcd;
pub mod keys;
pub mod labels;
mod present;
mod store;
mod tree;

pub use self::embedded::{Embedded, OpenError};
pub use self::etcd::Etcd;
pub use self::store::{
    Condition, DirectoryCount, Event, KEY_BYTES_MAX, Key, KeyValue, Range, RangeResult, Store, StoreError, StoreFuture,
    Txn, TxnOutcome, VALUE_BYTES_MAX, Value, WatchStream,
};
pub use self::tree::Packed;
