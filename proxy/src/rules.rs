//! What the fairness configuration says, compiled: one immutable snapshot that is replaced as a whole.
//!
//! # Invariants
//! * A request is classified, priced, limited and told its UIDs by one and the same snapshot, which it holds.
//! * The snapshot is swapped before the gates follow: they read by name what another profile has classified.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use config::{Compat, FairnessConfig, Source, Weight, WorkspaceClass};
use fairness::{GatePolicy, Profile, scheduler};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{ShardOptions, flows::FlowMetrics, index::Index, rates::Rates, uids::UidHeaders};

/// One snapshot.
pub(crate) struct Rules {
    pub(crate) profile: Arc<Profile>,
    /// Ceiling of the width of one request, by shard and level (apf.md 6.2).
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
    /// Compiles a configuration. What `old` has used up of a rate that stays, and counted of a FlowSchema that stays, goes on.
    fn new(
        config: &FairnessConfig,
        compat: Compat,
        seats: impl Iterator<Item = u32>,
        index: &Arc<Index>,
        old: Option<&Rules>,
    ) -> Self {
        // Workspaces inherit the operator's objects; no two of them see the same UIDs.
        let profile = Profile::compile(&config.flow_schemas, &config.priority_levels).inherited();
        profile.problems().iter().for_each(|problem| tracing::warn!("fairness: {problem}"));
        let ceilings = |seats| {
            let limits = fairness::levels::limits(seats, profile.levels(), compat);
            limits.iter().map(|l| l.max_seats).collect()
        };
        let classes: Arc<[_]> = config.classes.as_slice().into();
        let seats: Vec<u32> = seats.collect();
        warn_of_reserves(&classes, &seats);
        let level = |at: u16| profile.levels().get(usize::from(at)).map_or("", |level| &level.name);
        let flow = |level: &str, flow_schema: &str| {
            let same = |o: &&Arc<FlowMetrics>| *o.level == *level && *o.flow_schema == *flow_schema;
            let old = old.and_then(|old| old.flows.iter().find(same));
            old.cloned().unwrap_or_else(|| Arc::new(FlowMetrics::new(level, flow_schema)))
        };
        let flows = profile.flow_schemas().iter().map(|s| flow(level(s.level), &s.name)).collect();
        Self {
            seats_max: seats.iter().copied().map(ceilings).collect(),
            profile: Arc::new(profile),
            rates: Rates::new(classes.clone(), index, old.and_then(|old| old.rates.as_deref())).map(Arc::new),
            classes,
            uids: UidHeaders::default(),
            flows,
        }
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
    seats: Box<[u32]>,
    /// Held while a configuration is put in force: one at a time.
    status: Mutex<Status>,
}

/// The document of `/configz`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// `null`: the defaults.
    file: Option<String>,
    sha256: Option<String>,
    /// Configurations put in force so far.
    pub(crate) generation: u64,
    in_force_since: String,
    /// Why the latest content of the file is not in force; `null` when it is.
    last_error: Option<Refused>,
}

#[derive(Clone, Debug, Serialize)]
struct Refused {
    at: String,
    /// One for each fault.
    faults: Vec<String>,
}

impl Fairness {
    pub(crate) fn new(config: &FairnessConfig, compat: Compat, shards: &[ShardOptions], index: &Arc<Index>) -> Self {
        let seats: Box<[u32]> = shards.iter().map(|s| s.seats).collect();
        let rules = Rules::new(config, compat, seats.iter().copied(), index, None);
        let (file, sha256) = names(config.source.as_ref());
        let status = Status { file, sha256, generation: 1, in_force_since: now(), last_error: None };
        Self { rules: Arc::new(ArcSwap::from_pointee(rules)), compat, seats, status: Mutex::new(status) }
    }

    /// The snapshot in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    pub(crate) fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another configuration in force, then lets `follow` bring the gates after it. The flag says whether the
    /// classes are others.
    pub(crate) fn replace(&self, config: &FairnessConfig, index: &Arc<Index>, follow: impl FnOnce(&Rules, bool)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.rules();
        let rules = Arc::new(Rules::new(config, self.compat, self.seats.iter().copied(), index, Some(&old)));
        self.rules.store(rules.clone());
        follow(&rules, rules.classes != old.classes);
        (status.file, status.sha256) = names(config.source.as_ref());
        (status.generation, status.in_force_since, status.last_error) = (status.generation + 1, now(), None);
    }

    /// Notes why a configuration was refused.
    pub(crate) fn refused(&self, faults: Vec<String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.last_error = Some(Refused { at: now(), faults });
    }

    /// The gates' policy: the first class that matches a workspace's path and labels counts.
    pub(crate) fn policy(&self, index: &Arc<Index>) -> GatePolicy {
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

fn names(source: Option<&Source>) -> (Option<String>, Option<String>) {
    source.map(|s| (Path::display(&s.file).to_string(), s.sha256.clone())).unzip()
}

/// RFC 3339, in UTC.
fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}

fn given(class: &WorkspaceClass) -> scheduler::WorkspaceClass {
    let borrowing_limit_percent = class.borrowing_limit_percent;
    match class.weight {
        // The scheduler knows no weight of nothing; one share beside the usual thirty comes near it.
        Weight::Shares(shares) => scheduler::WorkspaceClass::Shares { shares: shares.max(1), borrowing_limit_percent },
        Weight::Seats(seats) => scheduler::WorkspaceClass::Seats {
            seats,
            lendable_percent: class.lendable_percent,
            borrowing_limit_percent,
        },
    }
}
