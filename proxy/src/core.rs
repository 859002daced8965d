//! What all workers share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use apiserver_api::{ClusterName, UserInfo, user::GROUP_MASTERS};
use config::{Compat, FairnessConfig};
use fairness::{Clock, Gate, PricingOptions, WatchTracker};
use observers::{Observers, WorkspaceEvent};
use tokio::sync::mpsc;

use crate::{
    Limits, access_log::AccessLog, census::Census, clock::WallClock, identity::Identity, index::Index,
    metrics::Metrics, refused::Why, rules::Fairness, upstream::Shard,
};

/// The gateway's shared state. A request locks parts of the sharded maps of workspaces (index, watches, UIDs, rates) for
/// one look-up each. The lock of the shard's gate, behind which its scheduler stands, it takes only where no seats are
/// parked for its flow: otherwise it neither takes it when it is let in nor when it ends.
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
    /// Open client connections.
    pub(crate) census: Arc<Census>,
    /// Client connections that have not said a word yet.
    pub(crate) silent: AtomicUsize,
    /// Client connections that have switched protocols.
    pub(crate) tunnels: AtomicUsize,
    /// `None` = fairness is off.
    pub(crate) fairness: Option<Fairness>,
    pub(crate) watches: Arc<WatchTracker>,
    pub(crate) metrics: Metrics,
    /// `None` = no request is logged.
    pub(crate) access_log: Option<AccessLog>,
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
    /// The object counts of its workspaces.
    pub(crate) observers: Option<Observers>,
    /// Tells the observers which workspaces there are.
    pub(crate) feed: Option<mpsc::Sender<WorkspaceEvent>>,
}

impl Core {
    /// Counts, and tells now and then, what got no further than the door.
    pub(crate) fn refused(&self, why: Why, client: &dyn fmt::Debug, what: &dyn fmt::Display) {
        self.metrics.refused.note(why, self.clock.now_ns(), client, what);
    }

    /// Whether a load balancer should send requests here.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_healthy() && !self.draining.load(Relaxed) && self.index.is_ready()
    }

    /// Whether there is nothing that only a restart can mend.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.as_ref().is_none_or(|healthy| healthy())
    }

    /// Whose rules are in force.
    pub(crate) fn compat(&self) -> Compat {
        self.fairness.as_ref().map_or(Compat::Fairgate, |fairness| fairness.compat)
    }

    /// A workspace is gone from all shards.
    pub(crate) fn forget_workspace(&self, workspace: &ClusterName) {
        self.watches.forget_workspace(workspace);
        let Some(rules) = self.fairness.as_ref().map(Fairness::rules) else { return };
        if let Some(rates) = &rules.rates {
            rates.forget(workspace);
        }
        rules.uids.forget(workspace);
    }

    /// A workspace's class may be another: so may be its limits of rates.
    pub(crate) fn reclassify_rates(&self, workspace: &ClusterName) {
        if let Some(rates) = self.fairness.as_ref().and_then(|f| f.rules().rates.clone()) {
            rates.reclassify(workspace);
        }
    }

    /// Puts another fairness configuration in force. Without effect when fairness is off.
    pub(crate) fn reload_fairness(&self, config: &FairnessConfig) {
        let Some(fairness) = &self.fairness else { return };
        let gates = || self.shards.iter().zip(0..).filter_map(|(entry, shard)| Some((entry.gate.as_ref()?, shard)));
        fairness.replace(config, &self.index, |rules, classes_changed| {
            gates().for_each(|(gate, _)| gate.set_profile(rules.profile.clone()));
            if !classes_changed {
                return;
            }
            for (gate, shard) in gates() {
                gate.reclassify_workspaces();
                // Those with seats of their own have them before their first request.
                self.index.names_on(shard).iter().for_each(|name| gate.declare_workspace(name));
            }
        });
        self.metrics.config_reloaded("applied");
    }

    /// Drops what is kept for workspaces that nobody asks for any more. Called every [`SWEEP`](crate::recent::SWEEP).
    pub(crate) fn sweep(&self) {
        let Some(rules) = self.fairness.as_ref().map(Fairness::rules) else { return };
        rules.uids.sweep();
        if let Some(rates) = &rules.rates {
            rates.sweep();
        }
    }

    pub(crate) fn anonymous(allowed: bool, drop: &[String]) -> Option<Arc<Identity>> {
        allowed.then(|| Arc::new(Identity::new(UserInfo::anonymous(), drop).expect("system:anonymous is plain text")))
    }

    pub(crate) fn own_identity() -> Identity {
        Identity::new(UserInfo::new("system:fairgate", &[GROUP_MASTERS]), &[]).expect("the name is plain text")
    }
}
