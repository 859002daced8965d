//! The gateway: listeners, TLS, authentication, shard index, forwarding, admin endpoints.
//!
//! One request's way: [`connection`] reads it, [`serve`] takes it through every step: [`door`] refuses what is
//! ambiguous, [`identity`] says who asks, [`route`] finds workspace and shard in the [`index`], [`admission`]
//! classifies, prices and admits, [`forward`] sends it through [`upstream`], [`reply`] brings the answer back, and
//! [`source`] gives the seats back when the shard has done its work.
//!
//! # Invariants
//! * What goes up with a request (seats, counters, its place in a queue) comes down when its future or its answer's
//!   body is dropped, whatever the reason.
//! * A shard never sees an identity, a cluster prefix or a framing that the gateway has not made or checked itself.
//! * On the path of a request workers share two kinds of locks: each shard's scheduler, and parts of the sharded maps
//!   of workspaces, held for one look-up. No lock is held over an await.

#![allow(rustdoc::private_intra_doc_links, reason = "the map of the crate names its private modules")]

mod access_log;
mod admin;
mod admission;
mod ahead;
mod apply;
mod body;
mod census;
mod clock;
mod connection;
mod core;
mod door;
mod drain;
mod dump;
mod exposition;
mod flows;
mod forward;
mod frames;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod h2;
mod histogram;
mod hop;
mod identity;
mod index;
mod inflight;
mod initial;
mod io;
mod keeper;
mod limits;
mod metered;
mod metrics;
mod options;
#[cfg(test)]
mod parity;
mod phases;
mod places;
mod probes;
mod rates;
mod reachability;
mod recent;
mod refusal;
mod refused;
mod reply;
mod route;
mod rules;
mod series;
mod serve;
mod shards;
mod source;
mod stamp;
mod status;
mod trace;
mod trail;
mod tunnel;
mod uids;
mod upstream;
mod worker;

pub use self::{
    body::{Body, BoxError},
    gateway::Gateway,
    options::{
        ApplyError, Directory, GatewayOptions, Health, Limits, LocalService, RemoteOptions, Settings, ShardOptions,
        StartError, Upstream,
    },
};
