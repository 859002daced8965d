//! Which shard holds a workspace.

use apiserver_api::ClusterName;
use tokio::sync::watch;

use crate::Directory;

/// The directory of workspaces.
pub(crate) struct Index {
    moves: watch::Sender<u64>,
}

/// What the index says about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It is served by a shard.
    Found {
        /// The logical cluster.
        name: ClusterName,
        /// Number of the shard.
        shard: usize,
    },
    /// The workspace points to another server.
    Mount {
        /// Its URL, with the rest of the path appended.
        url: Box<str>,
    },
    /// A workspace on the way is not available just now.
    Unavailable,
    /// Nobody knows it. `certain` when all shards have been heard.
    Unknown {
        /// Whether every shard has told all it holds.
        certain: bool,
    },
}

impl Index {
    pub(crate) fn new(_d: Directory, _n: usize) -> Self {
        Self { moves: watch::channel(0).0 }
    }
    pub(crate) fn is_static(&self) -> bool {
        true
    }
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }
    pub(crate) fn is_ready(&self) -> bool {
        true
    }
    pub(crate) fn lookup(&self, path: &str) -> Lookup {
        Lookup::Found { name: ClusterName::standing_for(path), shard: 0 }
    }
}
