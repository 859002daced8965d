//! One observer of object counts per workspace, fed by one stream per shard.
//!
//! Kubernetes' object count tracker is keyed by resource alone; on a server with workspaces it sums over all
//! tenants and prices one tenant's requests by another tenant's objects. Here every workspace has an observer of
//! its own: a small map of counters that is made when the workspace appears and dropped with it. No task,
//! watch or timer belongs to a workspace: one [`CountSource`] per shard feeds the counters of all of them, so
//! 100,000 workspaces cost 100,000 small maps and nothing that runs.
//!
//! [`Observers`] is the handle: `counts` on the request path (one hash, one lookup, no allocation) and `run`,
//! the one task that follows the source and the feed of workspaces.
//!
//! # Invariants
//! * Once source and feed are quiet, the counts of every workspace equal a recount of its objects, in whatever
//!   order the two streams were interleaved. Where that cannot be vouched for the answer is `Unknown` and a new
//!   snapshot is taken.
//! * A failing source never changes a count: values are held, then marked stale by age, and replaced as a whole
//!   by the next snapshot.
//! * Nothing is left of a workspace that has disappeared and whose objects are gone.
//!
//! One `Observers` belongs to one shard: while a workspace moves, both shards count it, and the caller asks the
//! shard that the request is routed to.

mod driver;
mod handle;
mod source;
mod table;

pub use self::{
    handle::{Observers, Options, Status},
    source::{Change, CountEvent, CountSource, CountStream, SourceError, WorkspaceEvent},
};
