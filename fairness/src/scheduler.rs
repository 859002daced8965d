//! The hierarchical scheduler: how a shard's seats are given to waiting requests.
//!
//! The tree is shard → workspace → priority level → queue. The rule, called live seat-second queueing:
//! every child carries a *service tag*, seat-time used over weight, that grows while its requests run; the
//! next free seat goes down the tree to the child with the smallest tag plus what its running requests are
//! expected to use still. Who begins to wait starts at the mean tag of those who wait. No estimate of one
//! request's duration exists that could be wrong.
//!
//! [`Scheduler`] is the tree of nodes alone, [`Shard`] gives it workspaces, levels and shuffle-sharded
//! queues. Neither does I/O, has a clock (every call is told `now`, in nanoseconds), is async, draws random
//! numbers or iterates a hash table: equal inputs give equal decisions.
//!
//! # Invariants
//! Seats in use never exceed what the shard or any node may have; nobody waits while a seat is free that
//! the rules let him take ([`Scheduler::why_waiting`] names the rule); every request leaves exactly once.
//!
//! # Costs
//! An event touches the nodes of one path, each one move in a 4-ary heap of *backlogged* siblings. Nothing
//! is allocated per request once its nodes exist.

mod check;
mod class;
mod dispatch;
mod heap;
mod locate;
mod measure;
mod node;
mod reap;
mod requests;
mod shard;
mod tags;
mod tree;
mod why;

#[cfg(test)]
mod tests;

pub use self::{
    class::WorkspaceClass,
    node::{NodeId, NodeSpec, Owner},
    requests::RequestId,
    shard::{Arrival, LevelSeats, RefusedArrival, Shard, WorkspaceId},
    tree::{NodeState, Scheduler, Tuning},
    why::Why,
};
pub(crate) use self::{measure::Releases, tree::Spare};
