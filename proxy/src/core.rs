//! What all workers share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use apiserver_api::UserInfo;
use fairness::{Gate, Profile};

use crate::{Limits, clock::WallClock, identity::Identity, index::Index, metrics::Metrics, upstream::Shard};

/// The gateway's shared state. Nothing in it is locked on the path of a request but by the scheduler.
pub(crate) struct Core {
    pub(crate) clock: Arc<WallClock>,
    pub(crate) limits: Limits,
    /// The identity of those without a credential; `None` refuses them.
    pub(crate) anonymous: Option<Arc<Identity>>,
    pub(crate) drop_groups: Box<[String]>,
    pub(crate) shards: Box<[Entry]>,
    /// The shard of requests that name no workspace.
    pub(crate) platform: usize,
    pub(crate) index: Index,
    /// `None` = fairness is off.
    pub(crate) profile: Option<Arc<Profile>>,
    pub(crate) metrics: Metrics,
    pub(crate) draining: AtomicBool,
}

/// One shard with its gate.
pub(crate) struct Entry {
    pub(crate) shard: Shard,
    /// `None` = fairness is off.
    pub(crate) gate: Option<Arc<Gate>>,
}

impl Core {
    /// Whether a load balancer should send requests here.
    pub(crate) fn is_ready(&self) -> bool {
        !self.draining.load(Relaxed) && self.index.is_ready()
    }

    pub(crate) fn anonymous(allowed: bool, drop: &[String]) -> Option<Arc<Identity>> {
        allowed
            .then(|| Identity::new(UserInfo::anonymous(), drop).expect("system:anonymous is plain text"))
            .map(Arc::new)
    }
}
