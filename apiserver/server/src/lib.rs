//! The API server without sockets: typed access to the objects of every logical cluster ([`Registry`]) and the
//! HTTP handlers of api-server.md over it ([`ApiServer`]).

mod bootstrap;
mod clock;
mod errors;
mod http;
mod metrics;
mod recent;
pub mod registry;
mod server;
mod service;
mod tokens;

pub use self::{
    http::{Body, Trust},
    registry::Registry,
    server::{ApiServer, BODY_LIMIT, Options},
    service::{Address, Service},
    tokens::{TokenKey, TokenKeyError},
};
