//! What all workers share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use apiserver_api::{ClusterName, UserInfo, user::GROUP_MASTERS};
use fairness::{Gate, PricingOptions, Profile, WatchTracker};
use observers::{Observers, WorkspaceEvent};
use tokio::sync::mpsc;

use crate::{
    Limits, clock::WallClock, identity::Identity, index::Index, metrics::Metrics, rates::Rates, uids::UidHeaders,
    upstream::Shard,
};

/// The gateway's shared state. On the path of a request the scheduler of the shard is locked, and for one look-up each
/// a part of the sharded maps of workspaces: index, watches, UIDs, rates.
pub(crate) struct Core {
    pub(crate) clock: Arc<WallClock>,
    pub(crate) limits: Limits,
    /// The identity of those without a credential; `None` refuses them.
    pub(crate) anonymous: Option<Arc<Identity>>,
    /// The identity of the gateway's own requests.
    pub(crate) own_identity: Identity,
    pub(crate) drop_groups: Box<[String]>,
    pub(crate) shards: Box<[Entry]>,
    /// The shard of requests that name no workspace.
    pub(crate) platform: usize,
    pub(crate) index: Arc<Index>,
    /// Requests that wait for the index to learn of their workspace.
    pub(crate) lookups: AtomicUsize,
    /// `None` = fairness is off.
    pub(crate) profile: Option<Arc<Profile>>,
    pub(crate) watches: Arc<WatchTracker>,
    pub(crate) uids: UidHeaders,
    /// `None` when no class limits the rate.
    pub(crate) rates: Option<Rates>,
    pub(crate) metrics: Metrics,
    pub(crate) draining: AtomicBool,
    /// See [`crate::GatewayOptions::healthy`].
    pub(crate) healthy: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// One shard with its gate.
pub(crate) struct Entry {
    pub(crate) shard: Shard,
    /// `None` = fairness is off.
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) pricing: PricingOptions,
    /// Ceiling of the width of one request, by level (apf.md 6.2).
    pub(crate) seats_max: Box<[u32]>,
    /// The object counts of its workspaces.
    pub(crate) observers: Option<Observers>,
    /// Tells the observers which workspaces there are.
    pub(crate) feed: Option<mpsc::Sender<WorkspaceEvent>>,
}

impl Core {
    /// Whether a load balancer should send requests here.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_healthy() && !self.draining.load(Relaxed) && self.index.is_ready()
    }

    /// Whether there is nothing that only a restart can mend.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.as_ref().is_none_or(|healthy| healthy())
    }

    /// A workspace is gone from all shards.
    pub(crate) fn forget_workspace(&self, workspace: &ClusterName) {
        self.watches.forget_workspace(workspace);
        if let Some(rates) = &self.rates {
            rates.forget(workspace);
        }
        self.uids.forget(workspace);
    }

    /// Drops what is kept for workspaces that nobody asks for any more. Called every [`SWEEP`](crate::recent::SWEEP).
    pub(crate) fn sweep(&self) {
        if let Some(rates) = &self.rates {
            rates.sweep();
        }
        self.uids.sweep();
    }

    pub(crate) fn anonymous(allowed: bool, drop: &[String]) -> Option<Arc<Identity>> {
        allowed.then(|| Arc::new(Identity::new(UserInfo::anonymous(), drop).expect("system:anonymous is plain text")))
    }

    pub(crate) fn own_identity() -> Identity {
        Identity::new(UserInfo::new("system:fairgate", &[GROUP_MASTERS]), &[]).expect("the name is plain text")
    }
}
