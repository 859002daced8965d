//! Handlers: from a parsed request to an answer.

mod admission;
mod apply;
pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod body;
mod compress;
mod content;
mod discovery;
pub(crate) mod dispatch;
mod document;
mod form;
mod health;
mod negotiation;
mod openapi;
mod read;
pub(crate) mod respond;
pub(crate) mod target;
mod version;
mod watch;
mod write;

pub use self::{authentication::Trust, body::Body};
