//! The real binary on loopback ports that the kernel chooses, with real clients. One binary for all: each one more
//! costs every build a link.

mod clients;
mod commands;
mod common;
mod controllers;
mod durability;
mod flat;
mod informers;
mod kubectl;
mod lifecycle;
mod refusals;
mod reload;
mod scale;
mod simulate;
mod store;
