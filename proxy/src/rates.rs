//! The second line of defence of a workspace class: so many requests per second for each of its workspaces.
//!
//! Limits are made on a workspace's first request, and dropped with it or when they have filled up unused. Exempt
//! requests are not counted. Who comes when all places are taken is limited by fairness alone.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use apiserver_api::ClusterName;
use config::{FairnessConfig, RateLimit, WorkspaceClass};
use fairness::Rejection;
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};

use crate::{index::Index, recent::Recent};

/// The longest `Retry-After`, as for refusals of a full queue.
const RETRY_SECONDS_MAX: u32 = 32;

pub(crate) struct Rates {
    classes: Box<[WorkspaceClass]>,
    index: Arc<Index>,
    /// `None` for a workspace without a limit.
    limiters: Recent<Option<DefaultDirectRateLimiter>>,
    clock: DefaultClock,
}

impl Rates {
    /// `None` if no class has a limit.
    pub(crate) fn new(config: Option<&FairnessConfig>, index: &Arc<Index>) -> Option<Self> {
        let classes: Box<[_]> = config?.classes.as_slice().into();
        classes.iter().any(|class| class.rate_limit.is_some()).then(|| Self {
            limiters: Recent::new(classes.iter().filter_map(|c| c.rate_limit).map(refill).max().unwrap_or_default()),
            classes,
            index: index.clone(),
            clock: DefaultClock::default(),
        })
    }

    /// Counts one request.
    pub(crate) fn check(&self, workspace: &ClusterName) -> Result<(), Rejection> {
        let check = |limiter: &Option<_>| limiter.as_ref().map_or(Ok(()), RateLimiter::check);
        let known = self.limiters.read(workspace, check);
        let checked = known.or_else(|| self.limiters.write(workspace, || self.limiter(workspace), |l| check(l)));
        let Some(Err(not_until)) = checked else { return Ok(()) };
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
        self.limiters.forget(workspace);
    }

    /// Drops limits that have filled up unused.
    pub(crate) fn sweep(&self) {
        self.limiters.sweep();
    }
}

/// Until an empty limit is full again: to forget it sooner would give the burst away twice.
fn refill(limit: RateLimit) -> Duration {
    Duration::from_secs(u64::from(limit.burst.div_ceil(limit.requests_per_second.max(1))))
}
