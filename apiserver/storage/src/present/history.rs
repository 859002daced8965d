//! Range reads, now and at old revisions.
//!
//! An old state is made from the nearest later one by taking changes back, as far as the ring in memory reaches;
//! from there on the engine goes on. It is kept for a while, since the next page of the same list asks for it again;
//! for the same reason the first page keeps the state it was read from, but not for long: many who ask for one page
//! never ask for the next, and each state keeps all that was changed since.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use super::{Present, lock};
use crate::{
    Event, Range, RangeResult, StoreError,
    tree::{Packed, Tree},
};

/// Most states that are kept, and for how long after their last use. Each holds on to the nodes that have
/// been changed since.
const KEPT_MAX: usize = 32;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// For how long, if nobody has asked for it again.
const KEPT_UNASKED_FOR: Duration = Duration::from_secs(5);

/// States that were read recently.
#[derive(Default)]
pub(super) struct Kept(Vec<KeptState>);

struct KeptState {
    revision: u64,
    tree: Tree,
    until: Instant,
}

impl Kept {
    fn exact(&mut self, revision: u64) -> Option<Tree> {
        let kept = self.0.iter_mut().find(|k| k.revision == revision)?;
        kept.until = Instant::now() + KEPT_FOR;
        Some(kept.tree.clone())
    }

    /// The earliest kept state that is later than `revision`.
    fn after(&self, revision: u64) -> Option<(u64, Tree)> {
        let later = self.0.iter().filter(|k| k.revision > revision);
        later.min_by_key(|k| k.revision).map(|k| (k.revision, k.tree.clone()))
    }

    fn keep(&mut self, revision: u64, tree: Tree, time: Duration) {
        let until = Instant::now() + time;
        if let Some(kept) = self.0.iter_mut().find(|k| k.revision == revision) {
            kept.until = kept.until.max(until);
            return;
        }
        if self.0.len() >= KEPT_MAX {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, k)| k.until).map(|(at, _)| at);
            oldest.map(|at| self.0.swap_remove(at));
        }
        self.0.push(KeptState { revision, tree, until });
    }

    /// Lets go of what nobody has used for a while.
    pub(super) fn prune(&mut self) {
        let now = Instant::now();
        self.0.retain(|k| k.until > now);
    }
}

/// An old state, as far as memory knows it.
pub(crate) enum Old {
    /// It.
    Here(Tree),
    /// A later one, of this revision: what lies between is not in memory.
    Later(u64, Tree),
}

impl Present {
    /// Reads the present state.
    pub(crate) fn range_now(&self, range: &Range) -> RangeResult {
        let state = self.state();
        let result = read(&state.tree, state.revision, range);
        if result.remaining > 0 {
            lock(&self.kept).keep(state.revision, state.tree.clone(), KEPT_UNASKED_FOR);
        }
        result
    }

    /// The state at a revision.
    pub(crate) fn old(&self, revision: u64) -> Result<Old, StoreError> {
        let state = self.state();
        if revision == state.revision {
            lock(&self.kept).exact(revision); // for the page after this one
            return Ok(Old::Here(state.tree.clone()));
        }
        if revision > state.revision {
            return Err(StoreError::Future { requested: revision, current: state.revision });
        }
        if revision < state.compacted {
            return Err(StoreError::Compacted { requested: revision, oldest: state.compacted });
        }
        let (mut later, mut tree) = {
            let mut kept = lock(&self.kept);
            if let Some(tree) = kept.exact(revision) {
                return Ok(Old::Here(tree));
            }
            kept.after(revision).unwrap_or_else(|| (state.revision, state.tree.clone()))
        };
        while later > revision {
            let Some((events, reached)) = lock(&self.hub).undo(revision, later) else {
                return Ok(Old::Later(later, tree));
            };
            (tree, later) = (take_back(tree, &events), reached);
        }
        self.keep(revision, tree.clone());
        Ok(Old::Here(tree))
    }

    /// Keeps a state that was asked for.
    pub(crate) fn keep(&self, revision: u64, tree: Tree) {
        lock(&self.kept).keep(revision, tree, KEPT_FOR);
    }
}

/// `events` are the newest changes first.
fn take_back(mut tree: Tree, events: &[Event]) -> Tree {
    for event in events {
        match event {
            Event::Put { kv, prev: None } => drop(tree.remove(&kv.key)),
            Event::Put { prev: Some(prev), .. } | Event::Delete { prev, .. } => drop(tree.insert(Packed::of(prev))),
            Event::Progress(_) => {}
        }
    }
    tree
}

/// Reads from one state.
pub(crate) fn read(tree: &Tree, revision: u64, range: &Range) -> RangeResult {
    let mut items: Vec<Packed> = Vec::new();
    tree.visit(&range.prefix, range.after.as_deref(), &mut |entry| {
        if !range.wanted.is_empty() && !range.wanted.admits(entry.tags()) {
            return ControlFlow::Continue(());
        }
        items.push(entry.clone());
        if items.len() == range.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // Only a read that stopped at its limit leaves something behind.
    let last = items.last().filter(|_| items.len() == range.limit);
    let remaining = last.map_or(0, |last| tree.count_after(&range.prefix, last.key()));
    RangeResult { items, remaining, revision }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_page_alone_keeps_its_state_for_a_short_time_only() {
        let mut kept = Kept::default();
        kept.keep(1, Tree::default(), KEPT_UNASKED_FOR);
        kept.keep(2, Tree::default(), KEPT_UNASKED_FOR);
        kept.keep(3, Tree::default(), KEPT_FOR);
        assert!(kept.exact(2).is_some());
        kept.0.iter_mut().for_each(|k| k.until -= KEPT_UNASKED_FOR);
        kept.prune();
        assert_eq!(kept.0.iter().map(|k| k.revision).collect::<Vec<_>>(), [2, 3]);
    }
}
