//! The async front of the scheduler: one gate per shard.
//!
//! [`Gate::admit`] decides in the call: a request runs, waits or is refused. A [`Permit`] gives its seats back
//! when it is dropped, on whatever way; a [`Waiting`] leaves its queue when it is dropped.
//!
//! # Without the lock
//! While nobody waits, seats stay parked between two requests of a flow, and the second one takes them without the lock
//! (`parking.rs`). A shard's requests meet there only if they are of one flow.
//!
//! # The lock
//! All else of a shard's state stands behind one `std` mutex. A decision reads and changes one path of the tree
//! and every counter on it together, so that finer locks would be taken all at once anyway; the section is
//! well under a microsecond long, is never held over an await, and wakers are called outside it. Hashing
//! the workspace's name and everything that formats or sorts for metrics happens outside, or in short parts.
//!
//! # Costs
//! Nothing is allocated per request once its workspace's nodes exist. Whoever finds no parked seats takes the lock when
//! it comes and when it goes.

mod dump;
mod engine;
mod parking;
mod recall;
mod state;
mod stats;
mod waiting;

/// Atomics of the lot: where `tests/parking.rs` takes `parking.rs` in, loom's stand under this name.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::{Future, pending},
    hash::{BuildHasher, RandomState},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use apiserver_api::ClusterName;
use hashbrown::DefaultHashBuilder;
use tokio::sync::Notify;

pub use self::{
    dump::{LevelDump, Place},
    stats::{
        DemandSums, FlowStats, LevelLimits, LevelStats, REASONS, ShardStats, WAIT_BUCKETS_SECONDS, WorkspaceStats,
        WorkspacesStats,
    },
    waiting::{Permit, Waiting},
};
use self::{
    parking::{Key, Parking},
    state::{Decision, Grant, State, Tenant, Undecided, Wakes},
};
use crate::{
    Classified, Clock, Compat, Cost, Profile,
    scheduler::{Tuning, WorkspaceClass},
};

/// Says what a workspace is given: asked when it gets a node, until two answers in a row are the same. Never asked under
/// the gate's lock.
pub type ClassLookup = Arc<dyn Fn(&ClusterName) -> WorkspaceClass + Send + Sync>;

/// What a gate needs to know when it is made.
#[derive(Clone)]
pub struct GateOptions {
    /// Seats of the shard.
    pub seats: u32,
    /// The profile of every workspace.
    pub profile: Arc<Profile>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

/// The operator's rules for workspaces, and the scheduler's dials.
#[derive(Clone)]
pub struct GatePolicy {
    /// What each workspace is given.
    pub classes: ClassLookup,
    /// Shares of requests without a workspace, of the same kind as those of workspaces.
    pub platform_shares: u32,
    /// Shares that those workspaces have together whose names find no room, see [`Gate::set_names_max`].
    pub other_shares: u32,
    /// The scheduler's dials; without effect under [`Compat::Upstream`].
    pub tuning: Tuning,
    /// Whether Kubernetes' own queues and division of seats decide, see [`upstream`](crate::upstream).
    pub compat: Compat,
}

impl Default for GatePolicy {
    /// Every workspace weighs the same; the platform weighs as much as four of them, all that find no room
    /// together as much as one.
    fn default() -> Self {
        Self {
            classes: Arc::new(|_| WorkspaceClass::default()),
            platform_shares: 120,
            other_shares: 30,
            tuning: Tuning::default(),
            compat: Compat::Fairgate,
        }
    }
}

impl fmt::Debug for GatePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatePolicy").field("tuning", &self.tuning).field("compat", &self.compat).finish_non_exhaustive()
    }
}

/// One request that asks for admission.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The workspace's logical cluster; `None` for `/clusters/*`, system clusters and requests without a
    /// cluster (the platform level).
    pub workspace: Option<&'a ClusterName>,
    /// Whose indices `class` has. If another profile has come into force since, the request goes to the level of
    /// the same name there, or to `catch-all`.
    pub profile: &'a Profile,
    /// What [`Profile::classify`] of `profile` said.
    pub class: Classified,
    /// What [`PricingOptions::price`](crate::PricingOptions::price) said.
    pub cost: Cost,
    /// When the request was received, by the gate's clock.
    pub received_ns: u64,
    /// How long it may take altogether, if it says so (`timeout=`); the wait limit is a quarter of it,
    /// at most one minute; 15 s without it.
    pub timeout: Option<Duration>,
}

/// The gate's answer.
#[derive(Debug)]
pub enum Admission {
    /// It runs now.
    Run(Permit),
    /// It waits.
    Wait(Waiting),
    /// It is refused.
    Reject(Rejection),
}

/// Why a request was refused, and when a retry makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `queue-full`, `concurrency-limit`, `time-out`, `deadline`, ...: the `reason` label of upstream's metric.
    pub reason: &'static str,
    /// Seconds, at least 1.
    pub retry_after: u32,
}

/// Admission to one shard. See the [module](self).
pub struct Gate {
    shared: Arc<Shared>,
}

/// What all of one gate's threads work on.
struct Shared {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    classes: ClassLookup,
    parking: Arc<Parking>,
    /// Serial number of the profile in force; changed behind the lock.
    in_force: AtomicU64,
    keys: (RandomState, DefaultHashBuilder),
    /// Something earlier than what [`Gate::run`] sleeps for has come up.
    driver: Notify,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

fn of<'a>(request: &Request<'a>) -> Tenant<'a> {
    request.workspace.map_or(Tenant::Platform, Tenant::Known)
}

impl Gate {
    /// A gate with all seats free, under the default policy.
    pub fn new(options: GateOptions) -> Arc<Self> {
        Self::with_policy(options, GatePolicy::default())
    }

    /// A gate with all seats free.
    pub fn with_policy(options: GateOptions, policy: GatePolicy) -> Arc<Self> {
        let now = options.clock.now_ns();
        let state = State::new(now, &options, &policy);
        let shared = Shared {
            parking: state.parking.clone(),
            in_force: AtomicU64::new(state.profile.serial()),
            state: Mutex::new(state),
            clock: options.clock,
            classes: policy.classes,
            keys: Default::default(),
            driver: Notify::new(),
        };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// The same gate, for a thread of its own: each permit counts a reference to what it came from, and a counter that
    /// all threads share would have to travel between them with every request.
    pub fn for_thread(&self) -> Arc<Self> {
        Arc::new(Self { shared: self.shared.clone() })
    }

    /// Decides about one request, at once.
    pub fn admit(self: &Arc<Self>, request: &Request<'_>) -> Admission {
        self.decide(of(request), request, false).expect("only told when asked for")
    }

    /// As [`Gate::admit`], but `None` if the profile in force has not the level that the request was classified into:
    /// nothing remembers it then, and it is to be classified again.
    pub fn try_admit(self: &Arc<Self>, request: &Request<'_>) -> Option<Admission> {
        self.decide(of(request), request, true)
    }

    fn decide(self: &Arc<Self>, tenant: Tenant<'_>, request: &Request<'_>, tell: bool) -> Option<Admission> {
        let now = self.shared.clock.now_ns();
        let key = if self.shared.parking.is_open() { self.key(tenant, request) } else { None };
        if let Some(place) = key.and_then(|key| self.shared.parking.take(key)) {
            let grant = Grant::unpack(self.shared.parking.cell(place.cell).enter(now));
            return Some(Admission::Run(Permit::new(self.clone(), grant, Some(place))));
        }
        let mut class = None;
        let decision = loop {
            let decided = self.with(|state, wakes| match tell && !state.has_level_of(request) {
                true => Err(Undecided::Level),
                false => state.admit(now, tenant, class, request, key, wakes),
            });
            match (decided, tenant) {
                (Ok(decision), _) => break decision,
                (Err(Undecided::Class), Tenant::Known(name)) => class = Some((self.shared.classes)(name)),
                (Err(_), _) => return None,
            }
        };
        if let (Some(class), Tenant::Known(name)) = (class, tenant) {
            self.ask_again(name, class, false);
        }
        Some(match decision {
            Decision::Run(grant, place) => Admission::Run(Permit::new(self.clone(), grant, place)),
            Decision::Wait(ticket) => Admission::Wait(Waiting::new(self.clone(), ticket)),
            Decision::Reject(rejection) => Admission::Reject(rejection),
        })
    }

    /// Which requests may have one another's seats. Not those with a tail: their seats stay theirs for a while.
    fn key(&self, tenant: Tenant<'_>, request: &Request<'_>) -> Option<Key> {
        let cost = &request.cost;
        if !cost.additional_latency.is_zero() {
            return None;
        }
        let (kind, name) = match tenant {
            Tenant::Known(name) => (0_u8, name.as_str()),
            Tenant::Platform => (1, ""),
        };
        // Indices mean something in one profile only.
        let profile = request.profile.serial();
        let Classified { flow_schema, level, flow } = request.class;
        let width = cost.initial_seats.max(cost.final_seats);
        let parts =
            (kind, name, profile, u64::from(flow_schema) << 48 | u64::from(level) << 32 | u64::from(width), flow);
        let (a, b) = (self.shared.keys.0.hash_one(parts), self.shared.keys.1.hash_one(parts));
        Some(Key(a, b.max(1)))
    }

    /// Asks what a workspace is given that this shard holds. If that is absolute seats it gets a node, so that its
    /// reserve is kept before its first request.
    pub fn declare_workspace(&self, workspace: &ClusterName) {
        self.give(workspace, true);
    }

    /// Asks again what every workspace is given that has a node; for when the operator changed the classes. The
    /// lock is free between any two of them.
    pub fn reclassify_workspaces(&self) {
        let names = self.lock().names();
        names.iter().for_each(|name| self.reclassify_workspace(name));
    }

    /// Asks again what a workspace is given, if it has a node; for when its class may be another.
    pub fn reclassify_workspace(&self, workspace: &ClusterName) {
        self.give(workspace, false);
    }

    fn give(&self, workspace: &ClusterName, declared: bool) {
        let class = (self.shared.classes)(workspace);
        self.set_class(workspace, class, declared);
        self.ask_again(workspace, class, declared);
    }

    /// Whoever gives a workspace a class asks again afterwards: what was looked up before somebody else gave it a newer
    /// one does not stay. Goes round again only if the class has changed meanwhile.
    fn ask_again(&self, workspace: &ClusterName, mut given: WorkspaceClass, declared: bool) {
        loop {
            let class = (self.shared.classes)(workspace);
            if class == given {
                return;
            }
            self.set_class(workspace, class, declared);
            given = class;
        }
    }

    fn set_class(&self, workspace: &ClusterName, class: WorkspaceClass, declared: bool) {
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| state.set_class(now, workspace, class, declared, wakes));
    }

    /// No more than so many workspaces get nodes of their own by their requests from now on; the others share one. For
    /// when nobody but those who send requests says which workspaces there are. Without a limit otherwise.
    pub fn set_names_max(&self, names: usize) {
        self.with(|state, _| state.set_names_max(names));
    }

    /// The workspace is gone: its queues are dropped as soon as they are empty, its series at once.
    pub fn forget_workspace(&self, workspace: &ClusterName) {
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| state.forget(now, workspace, wakes));
    }

    /// How many workspaces there are on the shard, whether or not they send requests. With fewer than two
    /// nothing is kept free for newcomers. Two are assumed.
    pub fn set_known_workspaces(&self, workspaces: u32) {
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| state.set_known(now, workspaces, wakes));
    }

    /// Puts another profile in force. Who waits in a level that is gone is served there under its old dials; who
    /// waits in one that stays keeps its place. Requests that were classified by the old profile and come later
    /// are served by the new one, see [`Request::profile`].
    pub fn set_profile(&self, profile: Arc<Profile>) {
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| {
            self.shared.in_force.store(profile.serial(), Ordering::Relaxed);
            state.set_profile(now, profile, wakes);
        });
        // Requests that come meanwhile let their own workspaces follow.
        let mut next = Some(0);
        while let Some(from) = next {
            let now = self.shared.clock.now_ns();
            next = self.with(|state, wakes| state.follow_profile(now, from, wakes));
        }
    }

    /// See [`ShardStats::reserves_missing`].
    pub fn reserves_missing(&self) -> u64 {
        self.lock().shard.reserves_missing()
    }

    /// Puts a profile in force if it was made after the one that is: whoever classifies by it must not be ahead of the
    /// gate. Costs one load when there is nothing to do.
    pub fn follow(&self, profile: &Arc<Profile>) {
        if profile.serial() <= self.shared.in_force.load(Ordering::Relaxed) {
            return;
        }
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| {
            if profile.serial() > state.profile.serial() {
                state.set_profile(now, profile.clone(), wakes);
            }
            self.shared.in_force.store(state.profile.serial(), Ordering::Relaxed);
        });
    }

    /// Ceiling of the width of a request, if the workspace has one of its own (apf.md 6.2): it has under
    /// [`Compat::Upstream`], where it is a server of its own, from its first request on. 0: none. `level` is an index of
    /// `profile`. Takes the lock.
    pub fn max_seats(&self, workspace: Option<&ClusterName>, profile: &Profile, level: u16) -> Option<u32> {
        let state = self.lock();
        let id = state.find(workspace).filter(|_| profile.serial() == state.profile.serial())?;
        state.shard.max_seats(id, level)
    }

    /// The profile in force.
    pub fn profile(&self) -> Arc<Profile> {
        self.lock().profile.clone()
    }

    /// Changes the shard's seats. Running requests keep theirs.
    pub fn set_seats(&self, seats: u32) {
        let now = self.shared.clock.now_ns();
        self.with(|state, wakes| state.set_seats(now, seats, wakes));
    }

    /// Does what is due: tails that end, seats that ripen, nodes that idled. Says when to come again.
    pub fn tick(&self, now: u64) -> Option<u64> {
        self.with(|state, wakes| state.tick(now, wakes))
    }

    /// Ticks when something is due, until `shutdown` is ready. One such task per gate is needed; without it
    /// tails end only at the next request.
    ///
    /// # Cancel safety
    /// Nothing is lost when this is dropped; call it again.
    pub async fn run(self: Arc<Self>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            let now = self.shared.clock.now_ns();
            let next = self.tick(now);
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep(Duration::from_nanos(at.saturating_sub(now))).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = self.shared.driver.notified() => {}
                () = due => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside leaves counters that may be off by one, not memory that is unsound; going on
        // serves everybody else.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` under the lock, and what it wakes after it.
    fn with<T>(&self, f: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        let result = f(&mut state, &mut wakes);
        let earlier = state.rearm();
        drop(state);
        if earlier {
            self.shared.driver.notify_one();
        }
        wakes.wake();
        result
    }
}
