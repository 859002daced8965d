//! Range reads, now and at old revisions.
//!
//! An old state is made from the nearest later one by taking changes back: from the ring in memory if it
//! reaches so far, else from the log on a reader thread. It is kept for a while, since the next page of
//! the same list asks for it again; for the same reason the first page keeps the state it was read from.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    log,
    shared::{Shared, State, lock},
};
use crate::{Event, KeyValue, Range, RangeResult, StoreError, tree::Tree};

/// Most states that are kept, and for how long after their last use. Each holds on to the nodes that have
/// been changed since.
const KEPT_MAX: usize = 32;
const KEPT_FOR: Duration = Duration::from_secs(60);

/// States that were read recently.
#[derive(Default)]
pub(super) struct Kept(Vec<KeptState>);

struct KeptState {
    revision: u64,
    tree: Tree,
    used: Instant,
}

impl Kept {
    fn exact(&mut self, revision: u64) -> Option<Tree> {
        let kept = self.0.iter_mut().find(|k| k.revision == revision)?;
        kept.used = Instant::now();
        Some(kept.tree.clone())
    }

    /// The earliest kept state that is later than `revision`.
    fn after(&self, revision: u64) -> Option<(u64, Tree)> {
        let later = self.0.iter().filter(|k| k.revision > revision);
        later.min_by_key(|k| k.revision).map(|k| (k.revision, k.tree.clone()))
    }

    fn keep(&mut self, revision: u64, tree: Tree) {
        if self.exact(revision).is_some() {
            return;
        }
        if self.0.len() >= KEPT_MAX {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, k)| k.used).map(|(at, _)| at);
            oldest.map(|at| self.0.swap_remove(at));
        }
        self.0.push(KeptState { revision, tree, used: Instant::now() });
    }

    /// Lets go of what nobody has used for a while.
    pub(super) fn prune(&mut self) {
        self.0.retain(|k| k.used.elapsed() < KEPT_FOR);
    }
}

/// Reads the present state.
pub(super) fn range_now(shared: &Shared, range: &Range) -> RangeResult {
    let state = shared.state.load();
    let result = read(&state.tree, state.revision, range);
    if result.remaining > 0 {
        lock(&shared.kept).keep(state.revision, state.tree.clone());
    }
    result
}

/// Reads the state at a revision.
pub(super) async fn range_at(shared: &Shared, range: Range, revision: u64) -> Result<RangeResult, StoreError> {
    let tree = tree_at(shared, revision).await?;
    Ok(read(&tree, revision, &range))
}

async fn tree_at(shared: &Shared, revision: u64) -> Result<Tree, StoreError> {
    let state = shared.state.load_full();
    if revision == state.revision {
        return Ok(state.tree.clone());
    }
    if revision > state.revision {
        return Err(StoreError::Future { requested: revision, current: state.revision });
    }
    let oldest = shared.oldest(&shared.hub());
    if revision < oldest {
        return Err(StoreError::Compacted { requested: revision, oldest });
    }
    let (mut tree, mut later) = match nearest(shared, revision, &state) {
        Nearest::Exact(tree) => return Ok(tree),
        Nearest::Later(later, tree) => (tree, later),
    };
    while later > revision {
        // Bound to a name: the guard must not live across the await below.
        let step = shared.hub().undo(revision, later);
        (tree, later) = match (step, &shared.readers) {
            (Some(events), _) => (take_back(tree, &events), later - events.len() as u64),
            (None, Some(readers)) => (readers.run(move |c| log::rewind(c, tree, later, revision)).await?, revision),
            (None, None) => return Err(StoreError::Compacted { requested: revision, oldest: shared.hub().floor() }),
        };
    }
    lock(&shared.kept).keep(revision, tree.clone());
    Ok(tree)
}

enum Nearest {
    Exact(Tree),
    Later(u64, Tree),
}

fn nearest(shared: &Shared, revision: u64, state: &Arc<State>) -> Nearest {
    let mut kept = lock(&shared.kept);
    if let Some(tree) = kept.exact(revision) {
        return Nearest::Exact(tree);
    }
    let (later, tree) = kept.after(revision).unwrap_or_else(|| (state.revision, state.tree.clone()));
    Nearest::Later(later, tree)
}

/// `events` are the newest changes first.
fn take_back(mut tree: Tree, events: &[Event]) -> Tree {
    for event in events {
        match event {
            Event::Put { kv, prev: None } => drop(tree.remove(&kv.key)),
            Event::Put { prev: Some(prev), .. } | Event::Delete { prev, .. } => drop(tree.insert(prev.clone())),
            Event::Progress(_) => {}
        }
    }
    tree
}

fn read(tree: &Tree, revision: u64, range: &Range) -> RangeResult {
    let mut items: Vec<KeyValue> = Vec::new();
    tree.visit(&range.prefix, range.after.as_deref(), &mut |kv| {
        items.push(kv.clone());
        if items.len() == range.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // Only a read that stopped at its limit leaves something behind.
    let last = items.last().filter(|_| items.len() == range.limit);
    let remaining = last.map_or(0, |last| tree.count_after(&range.prefix, &last.key));
    RangeResult { items, remaining, revision }
}
