//! The engines from outside: against a model, killed, with etcd's members coming and going. One binary for all: each
//! one more costs every build a link.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;
mod crash;
mod engines;
mod etcd;
mod maintenance;
mod model;
mod open;
mod watch;
