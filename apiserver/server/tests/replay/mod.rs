//! Replays recorded requests of clients.
#![allow(unreachable_pub, missing_docs, reason = "a part of a test")]

pub mod bodies;
pub mod different;
pub mod injected;
pub mod session;
