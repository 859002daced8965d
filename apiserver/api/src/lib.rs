//! The words that every part of fairgate shares: names and paths of logical clusters, what a request
//! asks for, who asks, and how a refusal looks on the wire. No I/O, no async, no policy.

pub mod cluster;
pub mod field;
pub mod flowcontrol;
pub mod list_options;
pub mod marks;
pub mod names;
mod percent;
pub mod request_info;
pub mod status;
pub mod url;
pub mod user;

pub use self::{
    cluster::{ClusterName, ClusterNameError},
    list_options::ListOptions,
    percent::query_pairs,
    request_info::{RequestInfo, Verb},
    status::{Reason, Status},
    user::UserInfo,
};

#[cfg(test)]
mod testing;
