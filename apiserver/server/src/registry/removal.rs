//! Tells the watches of a logical cluster that the cluster is gone: of those that this server removes at once, of those
//! that others on the same store remove by one watch of all ([`Registry::follow_removals`]).

use std::{collections::HashMap, sync::Mutex};

use apiserver_api::{ClusterName, Status};
use apiserver_machinery::selector::Selector;
use futures_util::StreamExt;
use tokio::sync::watch;

use super::{Collection, Registry, WatchEvent, WatchOptions, WatchStart, lifecycle};
use crate::errors;

/// One channel for each cluster that is being watched; its value is the revision of the cluster's removal.
///
/// The mutex is held for a few map operations, never over an await. Entries live as long as somebody listens.
#[derive(Default)]
pub(super) struct Removals(Mutex<HashMap<ClusterName, watch::Sender<Option<u64>>>>);

impl Removals {
    /// Is told when the cluster is removed.
    pub(super) fn subscribe(&self, cluster: &ClusterName) -> watch::Receiver<Option<u64>> {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Swept whenever it has doubled since it was last full of listeners: amortised constant cost.
        if map.len() == map.capacity() {
            map.retain(|_, sender| sender.receiver_count() > 0);
        }
        map.entry(cluster.clone()).or_insert_with(|| watch::channel(None).0).subscribe()
    }

    /// The cluster's `LogicalCluster` was deleted at this revision.
    pub(super) fn removed(&self, cluster: &ClusterName, revision: u64) {
        let sender = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(cluster);
        if let Some(sender) = sender {
            sender.send_replace(Some(revision));
        }
    }

    /// The clusters that are being watched.
    fn watched(&self) -> Vec<ClusterName> {
        let map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.iter().filter(|(_, sender)| sender.receiver_count() > 0).map(|(cluster, _)| cluster.clone()).collect()
    }
}

impl Registry {
    /// Ends the watches of clusters that are removed, whichever server on the same store does it. Runs until it fails; to
    /// be begun anew then.
    pub async fn follow_removals(&self) -> Status {
        let options = WatchOptions { selector: Selector::default(), start: WatchStart::Now };
        let mut changes = match self.watch(lifecycle::logical_clusters(), &Collection::everywhere(), options).await {
            Ok(changes) => changes,
            Err(status) => return status,
        };
        // What was removed before that nobody would tell.
        for cluster in self.removals.watched() {
            match self.logical_cluster(&cluster).await {
                Ok(Some(_)) => {}
                Ok(None) => self.removals.removed(&cluster, self.store.revision()),
                Err(status) => return status,
            }
        }
        while let Some(change) = changes.next().await {
            match change {
                Ok(WatchEvent::Deleted(cluster)) => self.removals.removed(&cluster.key().cluster, cluster.revision()),
                Ok(_) => {}
                Err(status) => return status,
            }
        }
        errors::internal("the watch of logical clusters ended")
    }
}
