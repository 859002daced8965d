//! The second line of defence of a workspace class: so many requests per second for each of its workspaces, and for
//! each user of each of them.
//!
//! Limits are made on a workspace's first request, and dropped with it or when they have filled up unused. Exempt
//! requests are not counted, and what either limit refuses counts for neither. Who comes when all places are taken is
//! limited by fairness alone.
//!
//! # Reload
//! The limits outlive the configuration that made them. An entry remembers the configuration it was last compared with; on
//! the first request under another one, or after a change of the workspace, each limit that is still the same is kept
//! with what was used of it, and one that is not begins full.
//!
//! # Memory
//! At most 65,536 workspaces; in each of them twice [`USERS_MAX`] users of any name, 100 bytes each.

use std::{
    collections::HashMap,
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use apiserver_api::ClusterName;
use config::{RateLimit, WorkspaceClass};
use fairness::Rejection;
use governor::{
    DefaultDirectRateLimiter, NotUntil, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    nanos::Nanos,
    state::{InMemoryState, NotKeyed, StateStore},
};

use crate::{index::Index, recent::Recent};

/// Users of one workspace that are remembered for certain; of twice as many, those that came last.
const USERS_MAX: usize = 512;
/// The longest `Retry-After`, as for refusals of a full queue.
const RETRY_SECONDS_MAX: u32 = 32;

pub(crate) struct Rates {
    classes: Arc<[WorkspaceClass]>,
    index: Arc<Index>,
    /// Counts configurations, from 1.
    generation: u64,
    /// Shared with the configurations before and after.
    limiters: Arc<Recent<Entry>>,
    clock: DefaultClock,
    hasher: RandomState,
}

/// What limits one workspace; nothing at all where no class of it says so.
#[derive(Default)]
struct Entry {
    /// The configuration whose limits these are; 0 when it has to be looked up again.
    generation: AtomicU64,
    whole: Option<Whole>,
    users: Option<Users>,
}

/// The state of a limiter, within reach.
#[derive(Clone, Debug, Default)]
struct Reachable(Arc<InMemoryState>);

impl StateStore for Reachable {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, f)
    }
}

/// The limit of a workspace, from which a request can be taken back.
struct Whole {
    limit: RateLimit,
    state: Reachable,
    /// What a request adds to the state.
    interval: Nanos,
    limiter: RateLimiter<NotKeyed, Reachable, DefaultClock>,
}

impl Whole {
    fn new(limit: RateLimit) -> Option<Self> {
        let (state, quota) = (Reachable::default(), quota(limit)?);
        let limiter = RateLimiter::new(quota, state.clone(), DefaultClock::default());
        Some(Self { limit, state, interval: quota.replenish_interval().into(), limiter })
    }

    /// The last request does not count after all.
    fn take_back(&self) {
        let less = |at: Option<Nanos>| {
            Ok::<_, Infallible>(((), at.map_or(Nanos::from(0_u64), |at| at.saturating_sub(self.interval))))
        };
        let Ok(()) = self.state.measure_and_replace(&NotKeyed::NonKey, less);
    }
}

/// Two generations: a full one becomes the old one, and what nobody asked for since is forgotten. A forgotten user has
/// its burst again; that takes more other users than a workspace has, who are limited as a whole by `whole`.
struct Users {
    limit: RateLimit,
    quota: Quota,
    /// By hash of the name, so that long names cost nothing; the hash has a secret key.
    generations: Mutex<[HashMap<u64, DefaultDirectRateLimiter>; 2]>,
}

type TooEarly = NotUntil<<DefaultClock as Clock>::Instant>;

/// Which limit a request exceeded, and the answer.
pub(crate) type Exceeded = (&'static str, Rejection);

impl Rates {
    /// `None` if no class has a limit. The limits of `before`, the configuration in force until now, go on.
    pub(crate) fn new(classes: Arc<[WorkspaceClass]>, index: &Arc<Index>, before: Option<&Self>) -> Option<Self> {
        let limits = |class: &WorkspaceClass| [class.rate_limit, class.user_rate_limit].into_iter().flatten();
        let keep = classes.iter().flat_map(limits).map(refill).max()?;
        let limiters = match before {
            Some(before) => {
                before.limiters.keep_for(keep);
                before.limiters.clone()
            }
            None => Arc::new(Recent::new(keep)),
        };
        Some(Self {
            limiters,
            classes,
            index: index.clone(),
            generation: before.map_or(1, |before| before.generation + 1),
            clock: DefaultClock::default(),
            hasher: before.map_or_else(RandomState::new, |before| before.hasher.clone()),
        })
    }

    /// Counts one request.
    pub(crate) fn check(&self, workspace: &ClusterName, user: &str) -> Result<(), Exceeded> {
        // A request may hold a configuration that is no longer in force: what a later one has made is right for it too.
        let is_current = |entry: &Entry| entry.generation.load(Relaxed) >= self.generation;
        let known = self.limiters.read(workspace, |entry| is_current(entry).then(|| self.count(entry, user)));
        if let Some(Some(checked)) = known {
            return checked;
        }
        let checked = self.limiters.write(workspace, Entry::default, |entry| {
            if !is_current(entry) {
                self.renew(entry, workspace);
            }
            self.count(entry, user)
        });
        checked.unwrap_or(Ok(()))
    }

    fn count(&self, entry: &Entry, user: &str) -> Result<(), Exceeded> {
        let whole = entry.whole.as_ref();
        let checked = whole.map_or(Ok(()), |whole| whole.limiter.check());
        checked.map_err(|not_until| ("workspace", self.rejection(&not_until)))?;
        let Some(users) = &entry.users else { return Ok(()) };
        users.check(self.hasher.hash_one(user)).map_err(|not_until| {
            whole.into_iter().for_each(Whole::take_back);
            ("user", self.rejection(&not_until))
        })
    }

    /// Gives the entry the limits of this configuration.
    fn renew(&self, entry: &mut Entry, workspace: &ClusterName) {
        let (path, labels) = self.index.describe(workspace);
        let class = self.classes.iter().find(|class| class.matches(&path, &labels));
        let whole = class.and_then(|class| class.rate_limit);
        if entry.whole.as_ref().map(|whole| whole.limit) != whole {
            entry.whole = whole.and_then(Whole::new);
        }
        let users = class.and_then(|class| class.user_rate_limit);
        if entry.users.as_ref().map(|users| users.limit) != users {
            entry.users = users.and_then(Users::new);
        }
        *entry.generation.get_mut() = self.generation;
    }

    fn rejection(&self, not_until: &TooEarly) -> Rejection {
        let seconds = not_until.wait_time_from(self.clock.now()).as_secs_f64().ceil();
        Rejection { reason: "rate-limit", retry_after: (seconds as u32).clamp(1, RETRY_SECONDS_MAX) }
    }

    /// The workspace is gone.
    pub(crate) fn forget(&self, workspace: &ClusterName) {
        self.limiters.forget(workspace);
    }

    /// The workspace's class may be another: to be called when the index knows it.
    pub(crate) fn reclassify(&self, workspace: &ClusterName) {
        self.limiters.read(workspace, |entry| entry.generation.store(0, Relaxed));
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

fn quota(limit: RateLimit) -> Option<Quota> {
    let RateLimit { requests_per_second, burst } = limit;
    Some(Quota::per_second(NonZeroU32::new(requests_per_second)?).allow_burst(NonZeroU32::new(burst)?))
}

impl Users {
    fn new(limit: RateLimit) -> Option<Self> {
        Some(Self { limit, quota: quota(limit)?, generations: Mutex::default() })
    }

    fn check(&self, user: u64) -> Result<(), TooEarly> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [young, old] = &mut *generations;
        if let Some(limiter) = young.get(&user) {
            return limiter.check();
        }
        let limiter = old.remove(&user).unwrap_or_else(|| RateLimiter::direct(self.quota));
        if young.len() >= USERS_MAX {
            *old = std::mem::take(young);
        }
        young.entry(user).or_insert(limiter).check()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use super::*;

    fn limited(whole: u32, user: u32) -> (Rates, Entry) {
        let text = format!(
            "apiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: {{ name: c }}\nspec: {{ match: {{ paths: \
             [\"*\"] }}, nominalConcurrencyShares: 1, rateLimit: {{ requestsPerSecond: 1, burst: {whole}, perUser: {{ \
             requestsPerSecond: 1, burst: {user} }} }} }}\n"
        );
        let config = config::FairnessConfig::parse(&text, std::path::Path::new("fairness.yaml")).unwrap();
        let index = Arc::new(Index::new(crate::Directory::Static, 1));
        let rates = Rates::new(config.classes.as_slice().into(), &index, None).unwrap();
        let mut entry = Entry::default();
        rates.renew(&mut entry, &"root".parse().unwrap());
        (rates, entry)
    }

    #[test]
    fn what_one_limit_refuses_does_not_count_for_the_other() {
        let which = |checked: Result<(), Exceeded>| checked.map_err(|(limit, _)| limit);
        let (rates, entry) = limited(1000, 3);
        (0..3).for_each(|_| assert_eq!(which(rates.count(&entry, "a")), Ok(())));
        let refused = (0..2000).filter(|_| which(rates.count(&entry, "a")) == Err("user")).count();
        assert!(refused > 1500, "{refused}");
        (0..300).for_each(|n| assert_eq!(which(rates.count(&entry, &n.to_string())), Ok(())));

        let (rates, entry) = limited(3, 1000);
        (0..3).for_each(|_| assert_eq!(which(rates.count(&entry, "a")), Ok(())));
        let refused = (0..2000).filter(|_| which(rates.count(&entry, "a")) == Err("workspace")).count();
        assert!(refused > 1500, "{refused}");
        // The user's own burst is still there, whatever the workspace refused.
        let users = entry.users.as_ref().unwrap();
        let left = (0..2000).take_while(|_| users.check(rates.hasher.hash_one("a")).is_ok()).count();
        assert!(left > 400, "{left}");
    }

    #[test]
    fn strangers_take_bounded_memory_and_no_place_of_who_comes_often() {
        let users = Users::new(RateLimit { requests_per_second: 1, burst: 1 }).unwrap();
        assert!(users.check(0).is_ok());
        let mut refused = 0;
        for stranger in 1..10 * USERS_MAX as u64 {
            assert!(users.check(stranger).is_ok(), "each has a burst of its own");
            refused += u32::from(users.check(0).is_err());
        }
        let kept: usize = users.generations.lock().unwrap().iter().map(HashMap::len).sum();
        assert!(kept <= 2 * USERS_MAX, "{kept}");
        assert!(refused > 0);
    }
}
