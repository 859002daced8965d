//! Classification, pricing and fair admission for one shard.
//!
//! One request's way through this crate: [`Profile::classify`] finds its FlowSchema, priority level and
//! flow; [`PricingOptions::price`] says how many seats it takes; [`Gate::admit`] lets it run now, queues
//! it or refuses it. The [`Permit`] gives the seats back when it is dropped.
//!
//! The scheduler below the gate does no I/O, has no clock of its own and is not async.

pub mod fair_alloc;
pub mod gate;
pub mod levels;
pub mod pricing;
pub mod profile;
pub mod scheduler;
pub mod shuffle;
pub mod sim;
pub mod upstream;
#[cfg(test)]
mod vectors;
mod wait;
pub mod watches;

pub use self::{
    gate::{Admission, Gate, GateOptions, GatePolicy, Permit, Rejection, Request, Waiting},
    levels::{Compat, Level, LevelKind, Limits, Queuing, limits},
    pricing::{Cost, Counts, PricingOptions},
    profile::{Classified, Profile, Uids},
    wait::{DEFAULT_WAIT_LIMIT, MAX_WAIT, wait_limit},
    watches::{TooManyWatches, WatchGuard, WatchOptions, WatchTracker},
};

/// Where the time comes from: nanoseconds of a monotonic clock since some fixed moment.
pub trait Clock: Send + Sync + 'static {
    /// The present time.
    fn now_ns(&self) -> u64;
}
