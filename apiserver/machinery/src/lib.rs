//! Generic object handling of the API server: what a resource is, and what can be done with an object
//! of any resource. No storage, no HTTP.

pub mod age;
pub mod builtin;
pub mod continue_token;
pub mod decode;
pub mod discovery;
pub mod encode;
pub mod managed;
pub mod meta;
pub mod negotiate;
pub mod object;
pub mod openapi;
pub mod options;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod table;

pub use self::{
    continue_token::ContinueToken,
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    selector::Selector,
};
