//! Handlers: from a parsed request to an answer.

pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod body;
mod discovery;
pub(crate) mod dispatch;
mod health;
mod openapi;
mod options;
mod read;
pub(crate) mod respond;
pub(crate) mod target;
mod watch;
mod write;

pub use self::{authentication::Trust, body::Body};
