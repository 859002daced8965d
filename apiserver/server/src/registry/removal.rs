//! Tells the watches of a logical cluster that the cluster is gone.

use std::{collections::HashMap, sync::Mutex};

use apiserver_api::ClusterName;
use tokio::sync::watch;

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
}
