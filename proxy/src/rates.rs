//! The second line of defence of a workspace class: so many requests per second for each of its workspaces.
//!
//! Limits are made on a workspace's first request and dropped with it. Exempt requests are not counted.

use std::{num::NonZeroU32, sync::Arc};

use apiserver_api::ClusterName;
use config::{FairnessConfig, RateLimit, WorkspaceClass};
use dashmap::DashMap;
use fairness::Rejection;
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};

use crate::index::Index;

/// Workspaces with a limiter of their own. With a static directory clients choose the names; who comes when all
/// places are taken is limited by fairness alone.
const WORKSPACES_MAX: usize = 1 << 16;
/// The longest `Retry-After`, as for refusals of a full queue.
const RETRY_SECONDS_MAX: u32 = 32;

pub(crate) struct Rates {
    classes: Box<[WorkspaceClass]>,
    index: Arc<Index>,
    /// `None` for a workspace without a limit.
    limiters: DashMap<ClusterName, Option<DefaultDirectRateLimiter>>,
    clock: DefaultClock,
}

impl Rates {
    /// `None` if no class has a limit.
    pub(crate) fn new(config: Option<&FairnessConfig>, index: &Arc<Index>) -> Option<Self> {
        let classes: Box<[_]> = config?.classes.as_slice().into();
        classes.iter().any(|class| class.rate_limit.is_some()).then(|| Self {
            classes,
            index: index.clone(),
            limiters: DashMap::new(),
            clock: DefaultClock::default(),
        })
    }

    /// Counts one request.
    pub(crate) fn check(&self, workspace: &ClusterName) -> Result<(), Rejection> {
        if !self.limiters.contains_key(workspace) {
            if self.limiters.len() >= WORKSPACES_MAX {
                return Ok(());
            }
            let limiter = self.limiter(workspace);
            self.limiters.entry(workspace.clone()).or_insert(limiter);
        }
        let limiter = self.limiters.get(workspace);
        let Some(Err(not_until)) = limiter.as_deref().and_then(Option::as_ref).map(RateLimiter::check) else {
            return Ok(());
        };
        let seconds = not_until.wait_time_from(self.clock.now()).as_secs_f64().ceil();
        Err(Rejection { reason: "rate-limit", retry_after: (seconds as u32).clamp(1, RETRY_SECONDS_MAX) })
    }

    fn limiter(&self, workspace: &ClusterName) -> Option<DefaultDirectRateLimiter> {
        let (path, labels) = self.index.describe(workspace);
        let class = self.classes.iter().find(|class| class.matches(&path, &labels))?;
        let RateLimit { requests_per_second, burst } = class.rate_limit?;
        let quota = Quota::per_second(NonZeroU32::new(requests_per_second)?).allow_burst(NonZeroU32::new(burst)?);
        Some(RateLimiter::direct(quota))
    }

    /// The workspace is gone, or its class may be another.
    pub(crate) fn forget(&self, workspace: &ClusterName) {
        self.limiters.remove(workspace);
    }
}
