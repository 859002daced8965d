//! The API server without sockets: typed access to the objects of every logical cluster ([`Registry`]) and the
//! HTTP handlers of api-server.md over it ([`ApiServer`]).

//X mod bootstrap;
mod clock;
mod errors;
//X mod http;
pub mod registry;
//X mod server;

pub use self::registry::Registry;
