//! A simulator in virtual time: the scheduler under made-up traffic, hours of it in seconds.
//!
//! A [`Scenario`] says who sends what; [`run`] plays it on the same [`Shard`](crate::scheduler::Shard) that
//! the gate uses and measures what everybody got; [`run_apf`] plays it on the priority and fairness of
//! Kubernetes instead, see [`upstream`](crate::upstream). Equal scenarios give equal reports, seed included.
//! Durations are known to the simulator only; the scheduler learns of an end when it happens.
//!
//! What it leaves out: the price of a request (a scenario gives the width), service accounts of other
//! workspaces, and shards whose speed depends on their load.

mod apf;
mod classify;
mod events;
mod measure;
mod random;
mod scenario;
mod server;
mod setup;
mod traffic;
mod workload;

pub use self::{
    measure::{Figures, Rejected, Report},
    scenario::{Change, Distribution, LevelSpec, Reach, RequestSpec, Scenario, ScenarioError, Source, Workspace},
    traffic::{run, run_apf},
};
