//! What drives the observers: a feed of workspaces and a source of counts.
//!
//! The two are independent streams, each in order in itself; nothing is assumed about the order between them.

use std::{future::Future, pin::Pin};

use apiserver_api::ClusterName;
use futures_util::Stream;

/// A logical cluster came into being or ended. Any control plane can drive the observers with these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceEvent {
    /// It exists. Said twice it changes nothing.
    Appeared(ClusterName),
    /// It is gone. Said of an unknown one it changes nothing.
    Disappeared(ClusterName),
}

/// A difference in the number and size of one workspace's objects of one resource in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The logical cluster.
    pub cluster: ClusterName,
    /// The API group; empty for the core group.
    pub group: Box<str>,
    /// The resource's plural name.
    pub resource: Box<str>,
    /// The namespace; empty for objects outside namespaces.
    pub namespace: Box<str>,
    /// Objects that came (positive) or went (negative); 0 when an object only changed its size.
    pub objects: i64,
    /// Growth of the sum of the objects' sizes, in bytes.
    pub bytes: i64,
}

/// One item of a [`CountStream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountEvent {
    /// Before [`CountEvent::Synced`]: part of the snapshot, in any order and any granularity (one change per page,
    /// per namespace or per object). After it: something happened.
    Change(Change),
    /// The snapshot is complete: the changes so far add up to all objects of the shard at one moment, and those
    /// that follow are everything that happened since. Comes exactly once.
    Synced,
    /// Nothing happened, and the source is alive (a bookmark, a progress notification).
    Heartbeat,
}

/// Why a source could not go on; shown in logs and in the status.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A snapshot followed by changes. Ends with an error or by itself; either way a new one is opened.
pub type CountStream = Pin<Box<dyn Stream<Item = Result<CountEvent, SourceError>> + Send>>;

/// Where the counts of one shard come from.
///
/// An exact source (a store, a metadata watch) tells each object's coming and going once, after the snapshot that
/// it does not contain it. It must speak at least every third part of [`Options::stale_after`](crate::Options):
/// a source that is silent for longer is taken for dead and opened anew.
pub trait CountSource: Send + 'static {
    /// Begins anew, with a snapshot. Called again after an error, and at intervals to correct what may have
    /// gone wrong unnoticed.
    ///
    /// # Errors
    /// Whatever keeps the source from being read; it is tried again with back-off.
    ///
    /// # Cancel safety
    /// The future is dropped when the observers shut down or the source takes too long.
    fn open(&mut self) -> impl Future<Output = Result<CountStream, SourceError>> + Send;
}
