//! What runs in the background for each shard: its gate's driver, and the two that follow its workspaces.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairness::Gate;
use tokio::{
    runtime,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    core::Core,
    index::feed::{Feed, Kind},
    shards::Moves,
};

/// How long one that goes waits for the one in its place to tell what it holds.
const HANDOVER_MAX: Duration = Duration::from_secs(30);
/// How often one that is gone is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Looks after which no idle connection of the gateway's own to it is left.
const LOOKS: u32 = 60;

struct Tasks {
    feeds: Vec<JoinHandle<()>>,
    driver: Option<JoinHandle<()>>,
}

/// Begins and ends those tasks. They end with the runtime too.
pub(crate) struct Keeper {
    core: Arc<Core>,
    control: runtime::Handle,
    /// Whether workspaces are followed.
    follows: bool,
    /// By the shard's number. A std mutex: never held over an await.
    tasks: Mutex<HashMap<usize, Tasks>>,
}

impl Keeper {
    /// Begins with the shards there are.
    pub(crate) fn start(core: Arc<Core>, control: runtime::Handle, follows: bool) -> Self {
        let keeper = Self { core, control, follows, tasks: Mutex::default() };
        keeper.core.shards.iter().for_each(|(number, _)| keeper.begin(number));
        keeper
    }

    /// Shards have come and gone.
    pub(crate) fn follow(&self, moves: Moves) {
        moves.came.into_iter().for_each(|number| self.begin(number));
        for (number, successor) in moves.went {
            if let Some(tasks) = self.lock().remove(&number) {
                self.control.spawn(end(self.feed(number, Kind::LogicalClusters), tasks, successor));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Tasks>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feed(&self, shard: usize, kind: Kind) -> Feed {
        Feed { core: self.core.clone(), shard, kind, pool: self.core.workers }
    }

    fn begin(&self, number: usize) {
        let entry = self.core.shards.get(number);
        // Where nobody asks the shard anything, the caller answers for it.
        if let Some(entry) = entry.filter(|_| !self.follows) {
            entry.shard.trust(true);
        }
        let gate = entry.and_then(|entry| entry.gate.clone());
        let kinds = [Kind::LogicalClusters, Kind::Workspaces].into_iter().filter(|_| self.follows);
        let tasks = Tasks {
            feeds: kinds.map(|kind| self.control.spawn(self.feed(number, kind).run())).collect(),
            driver: gate.map(|gate| self.control.spawn(gate.run(std::future::pending()))),
        };
        self.lock().insert(number, tasks);
    }
}

/// A shard is gone: when the one in its place, if any, knows what it holds, nobody finds anything here any more. What runs
/// here finishes, and who waits for seats gets them.
async fn end(feed: Feed, tasks: Tasks, successor: Option<usize>) {
    let core = &feed.core;
    if let Some(next) = successor {
        let mut moves = core.index.moves();
        let heard = async { while !core.index.is_synced(next) && moves.changed().await.is_ok() {} };
        let _ = timeout(HANDOVER_MAX, heard).await;
    }
    for follower in tasks.feeds {
        follower.abort();
        // Nothing is told of it after this.
        let _ = follower.await;
    }
    feed.forget().await;
    let Some(entry) = core.shards.get(feed.shard) else { return };
    let mut looks = 0;
    while looks < LOOKS || entry.gate.as_deref().is_some_and(is_busy) {
        looks += 1;
        entry.shard.sweep(feed.pool);
        sleep(LOOK).await;
    }
    if let Some(driver) = tasks.driver {
        driver.abort();
    }
}

fn is_busy(gate: &Gate) -> bool {
    let stats = gate.shard_stats();
    stats.in_use > 0 || stats.exempt > 0 || stats.waiting > 0
}
