//! The gateway on loopback sockets, between clients and shards of the tests' own. One binary for all: each one more
//! costs every build a link with everything below it.

mod apply;
mod door;
mod exec;
mod fairness;
mod faults;
mod forwarding;
mod h2_streams;
mod h2_upstreams;
mod index;
mod lifecycle;
mod limits;
mod metrics;
mod reload;
mod settlement;
mod support;
mod trust;
mod tunnels;
mod untouched;
mod upstreams;
