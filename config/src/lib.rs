//! fairgate's configuration: gateway and fairness YAML, typed, defaulted, validated.
//!
//! A file is read whole: YAML into a tree that knows its places, the tree into raw types, these into checked
//! ones. Only checked types leave this crate. Every fault of a file is reported at once, with its place, its
//! field and what would be right ([`ConfigError`]); unknown and repeated keys are faults, since a typo must
//! not drop a limit.

mod access_log;
mod advice;
mod changes;
mod class;
mod document;
mod duration;
mod fairness;
mod fault;
mod file;
mod gateway;
mod limits;
mod read;

pub use self::{
    access_log::{AccessLog, Sink},
    changes::{Change, Effect},
    class::{PathPattern, RateLimit, Weight, WorkspaceClass},
    fairness::{FairnessConfig, Source},
    fault::{ConfigError, Fault, Faults, Position},
    file::File,
    gateway::{
        Admin, Authentication, Compat, Fairness, GatewayConfig, Listen, ListenTls, Observers, Protocol, Shard,
        ShardTls, Shutdown,
    },
    limits::Limits,
};
