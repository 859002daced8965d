//! Snapshots of one workspace's levels and queues, for upstream's debug endpoints (apf.md 7.3).
//!
//! The lock is held for one level at a time, and for its queues in which there is something: a level may be configured
//! to have ten million.

use apiserver_api::ClusterName;

use super::{Gate, engine::Engine, state::State};
use crate::{
    Level, LevelKind,
    scheduler::{RequestId, WorkspaceId},
    upstream::{QueueLoad, seat_seconds},
};

/// One level of a workspace as it stands.
#[derive(Clone, Debug, Default)]
pub struct LevelDump {
    /// Its name.
    pub name: Box<str>,
    /// Whether it is no longer configured and only drains.
    pub quiescing: bool,
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that run, without those that linger; `None` if nobody counts them here.
    pub executing: Option<u64>,
    /// Requests started since the workspace got its node.
    pub dispatched: u64,
    /// Requests refused, timed out or cancelled since then.
    pub rejected: u64,
    /// Requests that timed out in their queue since then. Kubernetes never counts these: 0 under its rules.
    pub timed_out: u64,
    /// Requests that went while they waited since then; under Kubernetes' rules those that timed out too.
    pub cancelled: u64,
    /// How many queues it has.
    pub queue_count: u32,
    /// Those in which something is or was, by index, in order.
    pub queues: Vec<(u32, QueueLoad)>,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Index of its queue, if its level has queues.
    pub queue: Option<u32>,
    /// Its position there, if it waits.
    pub position: Option<u32>,
}

impl Gate {
    /// The levels of a workspace, by name; those of the platform for `None`. A workspace that has sent no request
    /// yet has empty ones.
    pub fn dump(&self, workspace: Option<&ClusterName>) -> Vec<LevelDump> {
        let profile = self.profile();
        let mut all = Vec::new();
        drop(self.exact());
        for (at, level) in (0..).zip(profile.levels()) {
            let state = self.lock();
            all.push(state.dump(workspace, at, level));
        }
        all.extend(self.lock().draining(workspace));
        all
    }

    /// The workspaces that have nodes, in order.
    pub fn workspaces(&self) -> Vec<ClusterName> {
        let mut names = self.lock().names();
        names.sort_unstable();
        names
    }

    /// Where a request stands, if it is still here.
    pub fn place(&self, id: RequestId) -> Option<Place> {
        match &self.lock().shard {
            Engine::Tree(shard) => {
                let (owner, position) = shard.core().locate(id)?;
                Some(Place { queue: owner.queue, position })
            }
            Engine::Upstream(shard) => {
                let (queue, position) = shard.place(id)?;
                Some(Place { queue, position })
            }
        }
    }
}

impl State {
    /// The level at this place of the profile; empty if the profile is another one by now.
    fn dump(&self, workspace: Option<&ClusterName>, at: u16, level: &Level) -> LevelDump {
        let mut dump = LevelDump { name: level.name.clone(), executing: Some(0), ..LevelDump::default() };
        if let LevelKind::Queue(queuing) = level.kind {
            dump.queue_count = queuing.queues;
        }
        let current = self.profile.levels().get(usize::from(at)).is_some_and(|now| now.name == level.name);
        let Some(id) = self.find(workspace).filter(|_| current) else { return dump };
        match &self.shard {
            Engine::Tree(_) => self.dump_tree(&mut dump, id, at),
            Engine::Upstream(shard) => {
                let view = shard.levels(id).find(|view| view.level.name == level.name);
                view.into_iter().for_each(|view| fill(&mut dump, view.set));
            }
        }
        dump
    }

    fn dump_tree(&self, dump: &mut LevelDump, id: WorkspaceId, at: u16) {
        let Engine::Tree(shard) = &self.shard else { return };
        let core = shard.core();
        for (number, node) in shard.queues(id, at) {
            let seats = core.waiting_seats(*node);
            let queue = QueueLoad {
                waiting: core.waiting(*node).into(),
                executing: None,
                seats_in_use: core.in_use(*node).into(),
                next_dispatch_r: seat_seconds(1.0, core.tag(*node).max(0)),
                initial_seats: seats,
                max_seats: seats,
                total_work: seat_seconds(seats as f64, core.horizon() as i64),
            };
            dump.waiting += queue.waiting;
            dump.queues.push((*number, queue));
        }
        dump.queues.sort_unstable_by_key(|(number, _)| *number);
        dump.executing = None;
        let Some(known) = self.known.get(id.index()) else { return };
        let counters = known.at_level(&self.flows, &dump.name);
        let [queue_full, limit, time_out, deadline, cancelled] = counters.rejected;
        dump.dispatched = counters.dispatched;
        dump.rejected = queue_full + limit + time_out + deadline + cancelled;
        (dump.timed_out, dump.cancelled) = (time_out, cancelled);
    }

    /// Levels under Kubernetes' rules that are gone from the profile and still drain.
    fn draining(&self, workspace: Option<&ClusterName>) -> Vec<LevelDump> {
        let (Engine::Upstream(shard), Some(id)) = (&self.shard, self.find(workspace)) else { return Vec::new() };
        let quiescing = shard.levels(id).filter(|view| view.quiescing);
        let dumped = quiescing.map(|view| {
            let mut dump = LevelDump { name: view.level.name.clone(), quiescing: true, ..LevelDump::default() };
            fill(&mut dump, view.set);
            dump
        });
        dumped.collect()
    }
}

fn fill(dump: &mut LevelDump, set: &crate::upstream::QueueSet) {
    let (load, counts) = (set.load(), set.counts());
    dump.waiting = load.waiting;
    dump.executing = Some(load.executing);
    (dump.dispatched, dump.rejected, dump.cancelled) = (counts.dispatched, counts.rejected, counts.cancelled);
    let nothing = QueueLoad { executing: Some(0), ..QueueLoad::default() };
    dump.queue_count = set.queue_count();
    dump.queues = (0..).zip(set.queue_loads()).filter(|(_, queue)| *queue != nothing).collect();
}
