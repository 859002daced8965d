//! Counters, and the snapshots that metrics are made of.
//!
//! Counters are plain numbers behind the gate's lock, reached by index: no label is looked up on a request's
//! way. Snapshots of many workspaces are taken in parts, the lock being free in between.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, MutexGuard},
};

use apiserver_api::ClusterName;

use super::{Gate, state::State};
use crate::{Profile, profile::FlowSchema, scheduler::LevelSeats};

/// Why requests went unserved, in the order of [`FlowStats::rejected`]: the `reason` labels of
/// `apiserver_flowcontrol_rejected_requests_total`, and two of ours.
pub const REASONS: [&str; 5] = ["queue-full", "concurrency-limit", "time-out", "deadline", "cancelled"];

/// Upper bounds of the buckets of [`FlowStats::wait_buckets`] in seconds, those of
/// `apiserver_flowcontrol_request_wait_duration_seconds`; one more bucket takes what is longer.
pub const WAIT_BUCKETS_SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const MS: u64 = 1_000_000;
const WAIT_BUCKETS_NS: [u64; 13] = [
    0,
    5 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    1000 * MS,
    2000 * MS,
    5000 * MS,
    10_000 * MS,
    15_000 * MS,
    30_000 * MS,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
    Deadline,
    Cancelled,
}

impl Reason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::TimeOut => "time-out",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What both flows and workspaces count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) dispatched: u64,
    pub(super) rejected: [u64; REASONS.len()],
}

impl Counters {
    pub(super) fn reject(&mut self, reason: Reason) {
        if let Some(count) = self.rejected.get_mut(reason as usize) {
            *count += 1;
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.dispatched += other.dispatched;
        self.rejected.iter_mut().zip(other.rejected).for_each(|(sum, more)| *sum += more);
    }
}

/// One FlowSchema of one level, summed over all workspaces.
#[derive(Clone, Debug, Default)]
pub struct FlowStats {
    /// Name of the level.
    pub level: Arc<str>,
    /// Name of the FlowSchema.
    pub flow_schema: Arc<str>,
    /// Whether the profile in force has this pair; if not, its last requests may still wait or run.
    pub in_force: bool,
    /// Waiting requests, and the seats they ask for.
    pub waiting_requests: u64,
    /// Seats that the waiting requests ask for.
    pub waiting_seats: u64,
    /// Running requests, tails excluded.
    pub executing_requests: u64,
    /// Seats in use, tails included.
    pub executing_seats: u64,
    /// Requests that were started.
    pub dispatched: u64,
    /// Requests that were not, in the order of [`REASONS`].
    pub rejected: [u64; REASONS.len()],
    /// Waits of requests that were started or timed out in their queue (`execute="true"`; those of
    /// requests refused at once are all 0), per bucket, not cumulative.
    pub wait_buckets: [u64; WAIT_BUCKETS_SECONDS.len() + 1],
    /// Sum of these waits in nanoseconds.
    pub wait_sum_ns: u64,
}

/// Names of a level and of a FlowSchema.
type Pair = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct Flow {
    level: Arc<str>,
    flow_schema: Arc<str>,
    in_force: bool,
    waiting_requests: u64,
    waiting_seats: u64,
    executing_requests: u64,
    executing_seats: u64,
    pub(super) counters: Counters,
    wait_buckets: [u64; WAIT_BUCKETS_SECONDS.len() + 1],
    wait_sum_ns: u64,
}

impl Flow {
    pub(super) fn queued(&mut self, seats: u32) {
        self.waiting_requests += 1;
        self.waiting_seats += u64::from(seats);
    }

    pub(super) fn unqueued(&mut self, seats: u32) {
        self.waiting_requests -= 1;
        self.waiting_seats -= u64::from(seats);
    }

    pub(super) fn started(&mut self, seats: u32) {
        self.counters.dispatched += 1;
        self.executing_requests += 1;
        self.executing_seats += u64::from(seats);
    }

    /// Requests were started that did not wait; they are not running any more, or have the seats of another.
    pub(super) fn started_at_once(&mut self, requests: u64) {
        self.counters.dispatched += requests;
        if let Some(first) = self.wait_buckets.first_mut() {
            *first += requests;
        }
    }

    pub(super) fn answered(&mut self) {
        self.executing_requests -= 1;
    }

    pub(super) fn gave_back(&mut self, seats: u32) {
        self.executing_seats -= u64::from(seats);
    }

    pub(super) fn waited(&mut self, ns: u64) {
        let at = WAIT_BUCKETS_NS.partition_point(|bound| *bound < ns);
        if let Some(bucket) = self.wait_buckets.get_mut(at) {
            *bucket += 1;
        }
        self.wait_sum_ns = self.wait_sum_ns.saturating_add(ns);
    }

    fn pair(&self) -> Pair {
        (self.level.clone(), self.flow_schema.clone())
    }

    /// Whether it is not in force, and no request is charged to it any more.
    fn is_done(&self) -> bool {
        let open = self.waiting_requests + self.executing_requests + self.executing_seats;
        !self.in_force && open == 0
    }

    fn snapshot(&self) -> FlowStats {
        FlowStats {
            level: self.level.clone(),
            flow_schema: self.flow_schema.clone(),
            in_force: self.in_force,
            waiting_requests: self.waiting_requests,
            waiting_seats: self.waiting_seats,
            executing_requests: self.executing_requests,
            executing_seats: self.executing_seats,
            dispatched: self.counters.dispatched,
            rejected: self.counters.rejected,
            wait_buckets: self.wait_buckets,
            wait_sum_ns: self.wait_sum_ns,
        }
    }
}

/// Counters of pairs of level and FlowSchema, by an index that outlives a change of the profile, so that counters
/// do not jump. The place of a pair that is no longer in force is given to another when its last request has ended;
/// its counts are added to the first place, which belongs to no pair.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    flows: Vec<Flow>,
    /// From the profile's index of a FlowSchema.
    of_schema: Vec<u32>,
}

impl FlowTable {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut table = Self { flows: vec![Flow::default()], of_schema: Vec::new() };
        table.set_profile(profile);
        table
    }

    /// Puts a profile's pairs in force. Gives the places that belong to another pair than before. O(pairs).
    pub(super) fn set_profile(&mut self, profile: &Profile) -> HashSet<u32> {
        let pair = |schema: &FlowSchema| -> Pair {
            let level = profile.levels().get(usize::from(schema.level)).map_or("", |level| &*level.name);
            (level.into(), schema.name.as_ref().into())
        };
        let wanted: Vec<Pair> = profile.flow_schemas().iter().map(pair).collect();
        let mut places: HashMap<Pair, u32> = (0..).zip(&self.flows).map(|(at, flow)| (flow.pair(), at)).collect();
        // Who stays is known before anybody new looks for a place.
        self.flows.iter_mut().for_each(|flow| flow.in_force = false);
        for at in wanted.iter().filter_map(|pair| places.get(pair)) {
            self.at(*at).in_force = true;
        }
        let done = |(at, flow): (u32, &Flow)| (at > 0 && flow.is_done()).then_some(at);
        let mut free: VecDeque<u32> = (0..).zip(&self.flows).filter_map(done).collect();
        let mut replaced = HashSet::new();
        self.of_schema.clear();
        for pair in wanted {
            let at = *places.entry(pair).or_insert_with_key(|pair| {
                let at = self.place(pair, free.pop_front());
                replaced.insert(at);
                at
            });
            self.of_schema.push(at);
        }
        replaced
    }

    /// Puts a new pair where one is done with, or at the end.
    fn place(&mut self, (level, flow_schema): &Pair, free: Option<u32>) -> u32 {
        let new = Flow { level: level.clone(), flow_schema: flow_schema.clone(), in_force: true, ..Flow::default() };
        let Some(at) = free else {
            self.flows.push(new);
            return self.flows.len() as u32 - 1;
        };
        let old = std::mem::replace(self.at(at), new);
        self.at(0).counters.add(&old.counters);
        at
    }

    /// Index of a pair's counters; of any pair of the level in force when there is none of that FlowSchema.
    pub(super) fn named(&self, level: &str, schema: &str) -> u32 {
        let of_level = |flow: &Flow| *flow.level == *level;
        let exact = self.flows.iter().position(|flow| of_level(flow) && *flow.flow_schema == *schema);
        exact.or_else(|| self.flows.iter().position(|flow| flow.in_force && of_level(flow))).unwrap_or(0) as u32
    }

    /// Index of a FlowSchema's counters; 0 for one that the profile does not have.
    pub(super) fn of(&self, schema: u16) -> u32 {
        self.of_schema.get(usize::from(schema)).copied().unwrap_or(0)
    }

    /// Name of the level of a pair.
    pub(super) fn level(&self, flow: u32) -> &str {
        self.flows.get(flow as usize).map_or("", |flow| &*flow.level)
    }

    pub(super) fn at(&mut self, flow: u32) -> &mut Flow {
        self.flows.get_mut(flow as usize).expect("indices come from this table, which never shrinks")
    }
}

/// Seats of one level of the profile, summed over the workspaces that have nodes.
#[derive(Clone, Debug)]
pub struct LevelLimits {
    /// Name of the level.
    pub level: Box<str>,
    /// Its seats.
    pub seats: LevelSeats,
}

/// Demand of one level in the last period of ten seconds (apf.md 3.5), in seats, summed over the workspaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct DemandSums {
    /// Most seats wanted.
    pub high_watermark: f64,
    /// Mean over time.
    pub average: f64,
    /// Standard deviation over time.
    pub deviation: f64,
    /// What counts: rises at once, falls slowly.
    pub smoothed: f64,
    /// What the levels' seats were divided by; 0 for exempt levels.
    pub target: f64,
}

/// All levels.
#[derive(Clone, Debug, Default)]
pub struct LevelStats {
    /// Requests, per pair of level and FlowSchema.
    pub flows: Vec<FlowStats>,
    /// Seats, per level.
    pub levels: Vec<LevelLimits>,
}

/// One workspace.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceStats {
    /// Its name; `None` for the platform, and in [`WorkspacesStats::other`], where those are that share a node.
    pub name: Option<ClusterName>,
    /// Seats in use, tails included.
    pub seats_in_use: u64,
    /// Seats it may use at most.
    pub limit: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Requests that were started since its node was made.
    pub dispatched: u64,
    /// Requests that were not, in the order of [`REASONS`].
    pub rejected: [u64; REASONS.len()],
}

/// The busiest workspaces, and all others together.
#[derive(Clone, Debug, Default)]
pub struct WorkspacesStats {
    /// Busiest first.
    pub busiest: Vec<WorkspaceStats>,
    /// The rest, summed.
    pub other: WorkspaceStats,
}

/// The whole shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Seats it has.
    pub seats: u32,
    /// Seats in use, tails included, exempt requests not.
    pub in_use: u32,
    /// Seats in use by exempt requests.
    pub exempt: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// Workspaces that have nodes, the platform's and the shared one included.
    pub workspaces: usize,
    /// Nodes of the tree.
    pub nodes: usize,
    /// Seats that classes promise to workspaces and the shard has not: the workspaces that came last go without.
    pub reserves_missing: u64,
    /// How long a running seat is expected to last, in nanoseconds.
    pub horizon_ns: u64,
}

/// Workspaces looked at under one hold of the lock.
const PART: usize = 256;

impl Gate {
    /// The state, with all that is parked given back, for the first part of a snapshot.
    pub(super) fn exact(&self) -> MutexGuard<'_, State> {
        let now = self.shared.clock.now_ns();
        let mut state = self.lock();
        state.recall(now);
        state
    }

    /// Requests and seats per level, summed over workspaces.
    pub fn level_stats(&self) -> LevelStats {
        let (flows, profile) = {
            let state = self.exact();
            (state.flows.flows.iter().map(Flow::snapshot).collect(), state.profile.clone())
        };
        let mut sums = vec![LevelSeats::default(); profile.levels().len()];
        let mut from = 0;
        loop {
            let mut state = self.lock();
            let end = state.shard.workspace_slots();
            if from >= end || !Arc::ptr_eq(&state.profile, &profile) {
                break;
            }
            for index in from..(from + PART).min(end) {
                if let Some(id) = state.shard.workspace_at(index) {
                    state.shard.add_level_seats(id, &mut sums);
                }
            }
            from += PART;
        }
        let levels = profile.levels().iter().zip(sums);
        LevelStats { flows, levels: levels.map(|(l, seats)| LevelLimits { level: l.name.clone(), seats }).collect() }
    }

    /// Demand by name of level; empty unless Kubernetes' rules are in force.
    pub fn demand_stats(&self) -> BTreeMap<Box<str>, DemandSums> {
        let mut sums = BTreeMap::new();
        let mut from = 0;
        loop {
            let state = self.lock();
            let end = state.shard.workspace_slots();
            if from >= end || !state.shard.is_upstream() {
                return sums;
            }
            let ids = (from..(from + PART).min(end)).filter_map(|index| state.shard.workspace_at(index));
            ids.for_each(|id| state.shard.add_demand(id, &mut sums));
            from += PART;
        }
    }

    /// The `top` workspaces with the most seats in use and asked for, and the rest summed.
    pub fn workspace_stats(&self, top: usize) -> WorkspacesStats {
        let now = self.shared.clock.now_ns();
        let mut all: Vec<(u64, WorkspaceStats)> = Vec::new();
        let mut shared = None;
        let mut from = 0;
        drop(self.exact());
        loop {
            let mut state = self.lock();
            let end = state.shard.workspace_slots();
            if from >= end {
                break;
            }
            for index in from..(from + PART).min(end) {
                let Some(id) = state.shard.workspace_at(index) else { continue };
                let Some(node) = state.shard.workspace_load(now, id) else { continue };
                let Some(known) = state.known.get(index) else { continue };
                let stats = WorkspaceStats {
                    name: known.name.clone(),
                    seats_in_use: node.in_use,
                    limit: node.limit.min(state.seats.into()),
                    waiting: node.waiting,
                    dispatched: known.counters.dispatched,
                    rejected: known.counters.rejected,
                };
                match id == state.others {
                    true => shared = Some(stats),
                    false => all.push((node.in_use + node.waiting_seats, stats)),
                }
            }
            from += PART;
        }
        all.sort_by(|(a, x), (b, y)| (b, y.dispatched).cmp(&(a, x.dispatched)).then_with(|| x.name.cmp(&y.name)));
        let mut other = WorkspaceStats::default();
        for rest in all.drain(top.min(all.len())..).map(|(_, rest)| rest).chain(shared) {
            let mut counters = Counters { dispatched: other.dispatched, rejected: other.rejected };
            counters.add(&Counters { dispatched: rest.dispatched, rejected: rest.rejected });
            (other.dispatched, other.rejected) = (counters.dispatched, counters.rejected);
            other.seats_in_use += rest.seats_in_use;
            other.limit += rest.limit;
            other.waiting += rest.waiting;
        }
        WorkspacesStats { busiest: all.into_iter().map(|(_, stats)| stats).collect(), other }
    }

    /// The shard as a whole.
    pub fn shard_stats(&self) -> ShardStats {
        let state = self.exact();
        let load = state.shard.load();
        ShardStats {
            seats: state.seats,
            in_use: load.in_use as u32,
            exempt: load.exempt as u32,
            waiting: load.waiting as u32,
            workspaces: state.known.iter().filter(|known| known.is_present()).count(),
            nodes: load.nodes,
            reserves_missing: state.shard.reserves_missing(),
            horizon_ns: load.horizon,
        }
    }
}
