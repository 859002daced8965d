//! Generic object handling of the API server: what a resource is, and what can be done with an object
//! of any resource. No storage, no HTTP.

pub mod resource;

pub use self::resource::{Column, Resource, Scope};
