//! Handlers: from a parsed request to an answer.

mod access;
pub(crate) mod accounts;
mod admission;
mod apply;
pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod body;
mod compress;
mod content;
mod definitions;
mod discovery;
pub(crate) mod dispatch;
mod document;
mod form;
mod health;
mod issuer;
mod negotiation;
mod openapi;
pub(crate) mod pretty;
mod read;
pub(crate) mod respond;
mod reviews;
pub(crate) mod target;
mod token;
mod version;
mod watch;
mod write;

pub use self::{authentication::Trust, body::Body};
