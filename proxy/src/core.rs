//! What all workers share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use apiserver_api::{ClusterName, UserInfo, user::GROUP_MASTERS};
use arc_swap::{ArcSwap, ArcSwapOption};
use config::{Compat, FairnessConfig};
use fairness::{Clock, Gate, WatchTracker};

use crate::{
    Health, access_log::AccessLog, census::Census, clock::WallClock, identity::Identity, index::Index, limits::InForce,
    metrics::Metrics, places::Places, refused::Why, rules::Fairness, shards::Shards, status::GatewayStatus,
};

/// The gateway's shared state. A request locks parts of the sharded maps of workspaces (index, watches, UIDs, rates) for
/// one look-up each. The lock of the shard's gate, behind which its scheduler stands, it takes only where no seats are
/// parked for its flow: otherwise it neither takes it when it is let in nor when it ends.
pub(crate) struct Core {
    pub(crate) clock: Arc<WallClock>,
    pub(crate) limits: InForce,
    /// TLS for clients; `None`: plain text. Read once for each connection.
    pub(crate) tls: ArcSwapOption<rustls::ServerConfig>,
    pub(crate) access: ArcSwap<Access>,
    /// The identity of the gateway's own requests.
    pub(crate) own_identity: Identity,
    pub(crate) shards: Shards,
    /// Threads that serve requests.
    pub(crate) workers: usize,
    pub(crate) index: Arc<Index>,
    /// Requests that wait for the index to learn of their workspace.
    pub(crate) lookups: AtomicUsize,
    /// Open client connections.
    pub(crate) census: Arc<Census>,
    /// Client connections that have not said a word yet.
    pub(crate) silent: AtomicUsize,
    /// Client connections that have switched protocols.
    pub(crate) tunnels: Arc<Places>,
    /// Other long-running requests.
    pub(crate) lasting: Arc<Places>,
    /// `None` = fairness is off.
    pub(crate) fairness: Option<Fairness>,
    pub(crate) watches: Arc<WatchTracker>,
    pub(crate) metrics: Metrics,
    /// Empty until requests are to be logged for the first time.
    pub(crate) access_log: OnceLock<AccessLog>,
    /// `None` without a file.
    pub(crate) config: Mutex<Option<GatewayStatus>>,
    /// Readiness has been up.
    pub(crate) was_ready: AtomicBool,
    /// Readiness is down: the end has been announced.
    pub(crate) leaving: AtomicBool,
    /// New requests are refused.
    pub(crate) draining: AtomicBool,
    /// Requests that were running when the workers were stopped.
    pub(crate) cut: AtomicUsize,
    /// See [`crate::GatewayOptions::healthy`].
    pub(crate) healthy: Option<Arc<dyn Fn() -> Health + Send + Sync>>,
}

/// Workspaces with seats of their own on a shard that does not tell which it has: any name that a client sends may be one.
/// Under the default shares they weigh 64 times as much as the platform, and under Kubernetes' rules take 13 MB.
const UNVOUCHED_MAX: usize = 256;

/// Who is let in, and as whom: replaced as a whole.
#[derive(Debug)]
pub(crate) struct Access {
    /// The identity of those without a credential; `None` refuses them.
    pub(crate) anonymous: Option<Arc<Identity>>,
    pub(crate) drop_groups: Box<[String]>,
}

impl Access {
    pub(crate) fn new(anonymous: bool, drop_groups: &[String]) -> Self {
        let identity = || Identity::new(UserInfo::anonymous(), drop_groups).expect("system:anonymous is plain text");
        Self { anonymous: anonymous.then(|| Arc::new(identity())), drop_groups: drop_groups.into() }
    }
}

impl Core {
    /// Counts, and tells now and then, what got no further than the door.
    pub(crate) fn refused(&self, why: Why, client: &dyn fmt::Debug, what: &dyn fmt::Display) {
        self.metrics.refused.note(why, self.clock.now_ns(), client, what);
    }

    /// The workspace class that refuses requests of a workspace for this reason, if it is not a level that does.
    pub(crate) fn refusing_class(&self, workspace: &ClusterName, reason: &str) -> Option<String> {
        let rules = self.fairness.as_ref()?.rules();
        rules.refusing_class(&self.index, workspace, reason)
    }

    /// How what else runs in this process is.
    pub(crate) fn health(&self) -> Health {
        self.healthy.as_ref().map_or(Health::Well, |health| health())
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

    /// A workspace's class may be another: so may be its limits of rates, and what the shard that holds it, whichever
    /// that is, keeps for it.
    pub(crate) fn reclassify(&self, workspace: &ClusterName) {
        if let Some(rates) = self.fairness.as_ref().and_then(|f| f.rules().rates.clone()) {
            rates.reclassify(workspace);
        }
        for (gate, shard) in self.gates() {
            match self.index.holds(shard, workspace) {
                true => gate.declare_workspace(workspace),
                false => gate.reclassify_workspace(workspace),
            }
        }
    }

    /// Gates, with the numbers of their shards.
    fn gates(&self) -> impl Iterator<Item = (&Arc<Gate>, usize)> {
        self.shards.all().filter_map(|(shard, entry)| Some((entry.gate.as_ref()?, shard)))
    }

    /// From now on every path belongs to this shard, and nobody but its clients says which workspaces there are.
    pub(crate) fn become_static(&self, shard: usize) {
        self.gates().for_each(|(gate, _)| gate.set_names_max(UNVOUCHED_MAX));
        self.index.become_static(shard);
    }

    /// Puts another fairness configuration in force. Without effect when fairness is off.
    pub(crate) fn reload_fairness(&self, config: &FairnessConfig) {
        let Some(fairness) = &self.fairness else { return };
        // A shard that comes now would have the old levels.
        let _one_at_a_time = self.shards.changing();
        fairness.replace(config, &self.index, |rules, classes_changed| {
            self.gates().for_each(|(gate, _)| gate.set_profile(rules.profile.clone()));
            if !classes_changed {
                return;
            }
            for (gate, shard) in self.gates() {
                gate.reclassify_workspaces();
                // Those with seats of their own have them before their first request.
                self.index.names_on(shard).iter().for_each(|name| gate.declare_workspace(name));
            }
        });
        self.metrics.config_reloaded("fairness", "applied");
    }

    /// What is shown of `gateway.yaml`.
    pub(crate) fn config(&self) -> MutexGuard<'_, Option<GatewayStatus>> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files whose latest content is not in force.
    pub(crate) fn refused_files(&self) -> Vec<&'static str> {
        let gateway = self.config().as_ref().is_some_and(|status| status.file.is_refused());
        let fairness = self.fairness.as_ref().is_some_and(|fairness| fairness.status().is_refused());
        [("gateway.yaml", gateway), ("fairness.yaml", fairness)]
            .into_iter()
            .filter_map(|(name, is_refused)| is_refused.then_some(name))
            .collect()
    }

    /// Says when more seats are promised to workspaces than a shard has, and when that is over.
    fn tell_of_reserves(&self) {
        for (_, entry) in self.shards.iter() {
            let missing = entry.gate.as_ref().map_or(0, |gate| gate.reserves_missing());
            let (shard, before) = (&*entry.shard.name, entry.reserves_missing.swap(missing, Relaxed));
            match (before, missing) {
                (0, 1..) => tracing::warn!(
                    shard,
                    missing,
                    "fairness: WorkspaceClasses keep more seats for workspaces than the shard has; those that came last have \
                     less than they are promised: want fewer seats, more lendablePercent, or fewer such workspaces here"
                ),
                (1.., 0) => tracing::info!(shard, "fairness: all seats promised to workspaces are kept again"),
                _ => {}
            }
        }
    }

    /// Drops what is kept for workspaces that nobody asks for any more. Called every [`SWEEP`](crate::recent::SWEEP).
    pub(crate) fn sweep(&self) {
        let Some(rules) = self.fairness.as_ref().map(Fairness::rules) else { return };
        self.tell_of_reserves();
        rules.uids.sweep();
        if let Some(rates) = &rules.rates {
            rates.sweep();
        }
    }

    pub(crate) fn own_identity() -> Identity {
        Identity::new(UserInfo::new("system:fairgate", &[GROUP_MASTERS]), &[]).expect("the name is plain text")
    }
}

/// The same configuration, offering the protocols that are served.
pub(crate) fn with_protocols(config: &rustls::ServerConfig) -> Arc<rustls::ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}
