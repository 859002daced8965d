//! What operators give to workspaces and levels, as dials of nodes.

use super::node::NodeSpec;
use crate::levels::{Level, LevelKind, Limits};

/// What the operator gives a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceClass {
    /// Its part, relative to other workspaces with shares, of what those with absolute seats leave.
    Shares {
        /// The part, at least 1.
        shares: u32,
        /// How much more than its part it may use, in per cent of it; `None` is no limit.
        borrowing_limit_percent: Option<u32>,
    },
    /// Its seats.
    Seats {
        /// How many.
        seats: u32,
        /// How many of them others may use, in per cent; the rest is kept for it also while it is idle.
        lendable_percent: u32,
        /// How much more it may use, in per cent; `None` is no limit.
        borrowing_limit_percent: Option<u32>,
    },
}

impl Default for WorkspaceClass {
    /// 30 shares, as a priority level has by default.
    fn default() -> Self {
        Self::Shares { shares: 30, borrowing_limit_percent: None }
    }
}

/// The dials of a workspace's node; its reserve is given by `Shard::keep_promises`.
pub(super) fn workspace_spec(class: WorkspaceClass, nominal: u32, reserve: u32) -> NodeSpec {
    let borrow = |n: u32, limit: Option<u32>| limit.map_or(u32::MAX, |p| n.saturating_add(percent(n, p)));
    match class {
        WorkspaceClass::Shares { shares, borrowing_limit_percent } => {
            NodeSpec { weight: shares, reserve: 0, maximum: borrow(nominal, borrowing_limit_percent).max(1) }
        }
        // Nothing is nothing, not what nobody else wants.
        WorkspaceClass::Seats { seats: 0, .. } => NodeSpec { weight: 1, reserve: 0, maximum: 0 },
        WorkspaceClass::Seats { seats, borrowing_limit_percent, .. } => {
            NodeSpec { weight: seats, reserve, maximum: borrow(seats, borrowing_limit_percent) }
        }
    }
}

/// Seats that are kept for a workspace of this class while it is idle, if the shard has them.
pub(super) fn promise(class: WorkspaceClass) -> u32 {
    match class {
        WorkspaceClass::Shares { .. } => 0,
        WorkspaceClass::Seats { seats, lendable_percent, .. } => seats.saturating_sub(percent(seats, lendable_percent)),
    }
}

/// Where the levels together would keep every seat of the workspace, and the part of one with shares is none, one seat
/// fewer is kept by the level that keeps the most: whoever has shares can have a seat.
pub(super) fn leave_one(division: &mut [Limits], levels: &[Level], nominal: u32) {
    let limited = || levels.iter().enumerate().filter(|(_, level)| level.kind != LevelKind::Exempt);
    let of = |at: usize| division.get(at).copied().unwrap_or_default();
    let kept: u64 = limited().map(|(at, _)| u64::from(of(at).min)).sum();
    let has_none = limited().any(|(at, level)| level.shares > 0 && of(at).nominal == 0);
    if has_none
        && kept >= u64::from(nominal)
        && let Some((most, _)) = limited().max_by_key(|(at, _)| of(*at).min)
        && let Some(limits) = division.get_mut(most)
    {
        limits.min = limits.min.saturating_sub(1);
        limits.lendable = limits.nominal - limits.min;
    }
}

/// A level's node. Its weight is its shares, which is what its nominal seats are before rounding; with a
/// share it may always have one seat, however small the workspace.
pub(super) fn level_spec(level: &Level, limits: &Limits) -> NodeSpec {
    let maximum = match level.borrowing_limit_percent {
        None => u32::MAX,
        Some(_) => limits.max.max(u32::from(level.shares > 0)),
    };
    NodeSpec { weight: level.shares.max(1), reserve: limits.min, maximum }
}

fn percent(n: u32, percent: u32) -> u32 {
    ((u64::from(n) * u64::from(percent) + 50) / 100).min(u64::from(u32::MAX)) as u32
}
