//! What the fairness configuration says, compiled: one immutable snapshot that is replaced as a whole.
//!
//! # Invariants
//! * A request is classified, priced, limited and told its UIDs by one and the same snapshot, which it holds.
//! * The snapshot is swapped before the gates follow: they read by name what another profile has classified.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use apiserver_api::ClusterName;
use arc_swap::ArcSwap;
use config::{Compat, FairnessConfig, Weight, WorkspaceClass};
use fairness::{Gate, GateOptions, GatePolicy, PricingOptions, Profile, scheduler};

use crate::{
    ShardOptions, clock::WallClock, flows::FlowMetrics, index::Index, rates::Rates, status::FileStatus,
    uids::UidHeaders,
};

/// One snapshot.
pub(crate) struct Rules {
    pub(crate) profile: Arc<Profile>,
    pub(crate) compat: Compat,
    /// By shard.
    seats: Box<[u32]>,
    pricing: Box<[PricingOptions]>,
    /// Ceiling of the width of one request, by shard and level (apf.md 6.2). A workspace may use all of its shard, so the
    /// seats that count are the shard's; what is wider than a workspace's own maximum is cut when it arrives (scheduler.md
    /// 3). Under upstream's rules a workspace has ceilings of its own from its first request on, and this is for that one.
    seats_max: Box<[Box<[u32]>]>,
    classes: Arc<[WorkspaceClass]>,
    /// `None` when no class limits the rate.
    pub(crate) rates: Option<Arc<Rates>>,
    pub(crate) uids: UidHeaders,
    /// By FlowSchema.
    flows: Box<[Arc<FlowMetrics>]>,
}

/// Says which class keeps so many seats for one workspace that a shard has none for the others, ever.
fn warn_of_reserves(classes: &[WorkspaceClass], seats: &[u32]) {
    let least = seats.iter().copied().min().unwrap_or(u32::MAX);
    for class in classes {
        let Weight::Seats(own) = class.weight else { continue };
        let lent = u64::from(own) * u64::from(class.lendable_percent) / 100;
        if u64::from(own) - lent.min(u64::from(own)) >= u64::from(least) {
            let name = &class.name;
            tracing::warn!(
                "fairness: WorkspaceClass {name:?} keeps {own} seats for each of its workspaces where a shard has {least}: others get \
                 none there, even while it is idle; want fewer seats or a lendablePercent"
            );
        }
    }
}

impl Rules {
    /// See [`crate::core::Core::refusing_class`].
    pub(crate) fn refusing_class(&self, index: &Index, workspace: &ClusterName, reason: &str) -> Option<String> {
        let is_rate = reason == "rate-limit";
        if self.classes.is_empty() || !(is_rate || reason == "concurrency-limit") {
            return None;
        }
        let (path, labels) = index.describe(workspace);
        let class = self.classes.iter().find(|class| class.matches(&path, &labels))?;
        (is_rate || class.weight == Weight::Seats(0)).then(|| class.name.clone())
    }
}

/// See [`Rules::seats_max`].
fn seats_max(seats: &[u32], profile: &Profile, compat: Compat) -> Box<[Box<[u32]>]> {
    let ceilings = |seats: &u32| {
        let limits = fairness::levels::limits(*seats, profile.levels(), compat);
        limits.iter().map(|l| l.max_seats).collect()
    };
    seats.iter().map(ceilings).collect()
}

/// Under upstream's rules with its ceiling too.
fn pricing(compat: Compat, seats: u32) -> PricingOptions {
    match compat {
        Compat::Fairgate => PricingOptions::for_shard(seats),
        Compat::Upstream => PricingOptions { compat, ..PricingOptions::default() },
    }
}

impl Rules {
    /// Compiles a configuration. What `old` has used up of a rate that stays, and counted of a FlowSchema that stays, goes on.
    fn new(
        config: &FairnessConfig,
        compat: Compat,
        seats: Box<[u32]>,
        index: &Arc<Index>,
        old: Option<&Rules>,
    ) -> Self {
        // Workspaces inherit the operator's objects; no two of them see the same UIDs.
        let profile = Profile::compile(&config.flow_schemas, &config.priority_levels).inherited();
        profile.problems().iter().for_each(|problem| tracing::warn!("fairness: {problem}"));
        let classes: Arc<[_]> = config.classes.as_slice().into();
        warn_of_reserves(&classes, &seats);
        let level = |at: u16| profile.levels().get(usize::from(at)).map_or("", |level| &level.name);
        let before = old.map_or(&[][..], Rules::flows).iter();
        let before: HashMap<_, _> = before.map(|flow| ((&*flow.level, &*flow.flow_schema), flow)).collect();
        let flow = |level: &str, flow_schema: &str| {
            let old = before.get(&(level, flow_schema)).copied();
            old.cloned().unwrap_or_else(|| Arc::new(FlowMetrics::new(level, flow_schema)))
        };
        let flows = profile.flow_schemas().iter().map(|s| flow(level(s.level), &s.name)).collect();
        Self {
            pricing: seats.iter().map(|seats| pricing(compat, *seats)).collect(),
            seats_max: seats_max(&seats, &profile, compat),
            compat,
            seats,
            profile: Arc::new(profile),
            rates: Rates::new(classes.clone(), index, old.and_then(|old| old.rates.as_deref())).map(Arc::new),
            classes,
            uids: UidHeaders::default(),
            flows,
        }
    }

    /// The same for other seats.
    fn with_seats(&self, seats: Box<[u32]>, compat: Compat) -> Self {
        warn_of_reserves(&self.classes, &seats);
        Self {
            pricing: seats.iter().map(|seats| pricing(compat, *seats)).collect(),
            seats_max: seats_max(&seats, &self.profile, compat),
            compat,
            seats,
            profile: self.profile.clone(),
            classes: self.classes.clone(),
            rates: self.rates.clone(),
            uids: UidHeaders::default(),
            flows: self.flows.clone(),
        }
    }

    /// How requests to this shard are priced.
    pub(crate) fn pricing(&self, shard: usize) -> Option<&PricingOptions> {
        self.pricing.get(shard)
    }

    /// What is observed of a FlowSchema's requests.
    pub(crate) fn flow(&self, flow_schema: u16) -> Option<&FlowMetrics> {
        self.flows.get(usize::from(flow_schema)).map(|flow| &**flow)
    }

    /// All of them.
    pub(crate) fn flows(&self) -> &[Arc<FlowMetrics>] {
        &self.flows
    }

    pub(crate) fn seats_max(&self, shard: usize, level: u16) -> u32 {
        self.seats_max.get(shard).and_then(|levels| levels.get(usize::from(level))).copied().unwrap_or(0)
    }
}

/// The snapshot in force, and what operators are told of it.
pub(crate) struct Fairness {
    rules: Arc<ArcSwap<Rules>>,
    pub(crate) compat: Compat,
    /// Held while a configuration is put in force: one at a time.
    status: Mutex<FileStatus>,
}

impl Fairness {
    pub(crate) fn new(config: &FairnessConfig, compat: Compat, shards: &[ShardOptions], index: &Arc<Index>) -> Self {
        let rules = Rules::new(config, compat, shards.iter().map(|s| s.seats).collect(), index, None);
        let status = Mutex::new(FileStatus::new(config.source.as_ref()));
        Self { rules: Arc::new(ArcSwap::from_pointee(rules)), compat, status }
    }

    /// The snapshot in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    pub(crate) fn status(&self) -> FileStatus {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, FileStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts another configuration in force, then lets `follow` bring the gates after it. The flag says whether the
    /// classes are others.
    pub(crate) fn replace(&self, config: &FairnessConfig, index: &Arc<Index>, follow: impl FnOnce(&Rules, bool)) {
        let mut status = self.lock();
        let old = self.rules();
        let rules = Arc::new(Rules::new(config, self.compat, old.seats.clone(), index, Some(&old)));
        self.rules.store(rules.clone());
        follow(&rules, rules.classes != old.classes);
        status.applied(config.source.as_ref());
    }

    /// Prices by other numbers of seats, one for each shard.
    pub(crate) fn set_seats(&self, seats: Box<[u32]>) {
        let _one_at_a_time = self.lock();
        self.rules.store(Arc::new(self.rules().with_seats(seats, self.compat)));
    }

    /// Notes why a configuration was refused.
    pub(crate) fn refused(&self, error: &str) {
        self.lock().refused(error);
    }

    /// The gate of a shard with so many seats, under the snapshot in force.
    pub(crate) fn gate(&self, seats: u32, clock: &Arc<WallClock>, index: &Arc<Index>) -> Arc<Gate> {
        let options = GateOptions { seats, profile: self.rules().profile.clone(), clock: clock.clone() };
        Gate::with_policy(options, self.policy(index))
    }

    /// The gates' policy: the first class that matches a workspace's path and labels counts.
    fn policy(&self, index: &Arc<Index>) -> GatePolicy {
        let (rules, index) = (self.rules.clone(), index.clone());
        let lookup = move |name: &apiserver_api::ClusterName| {
            let rules = rules.load();
            if rules.classes.is_empty() {
                return scheduler::WorkspaceClass::default();
            }
            let (path, labels) = index.describe(name);
            let class = rules.classes.iter().find(|class| class.matches(&path, &labels));
            class.map_or_else(scheduler::WorkspaceClass::default, given)
        };
        GatePolicy { classes: Arc::new(lookup), compat: self.compat, ..GatePolicy::default() }
    }
}

fn given(class: &WorkspaceClass) -> scheduler::WorkspaceClass {
    let borrowing_limit_percent = class.borrowing_limit_percent;
    match class.weight {
        Weight::Shares(shares) => scheduler::WorkspaceClass::Shares { shares, borrowing_limit_percent },
        Weight::Seats(seats) => scheduler::WorkspaceClass::Seats {
            seats,
            lendable_percent: class.lendable_percent,
            borrowing_limit_percent,
        },
    }
}
