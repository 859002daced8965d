//! What the query of a request asks for: list, watch and write options, with the refusals of
//! api-server.md 3.2 and 2.8. Unknown parameters are ignored, as everywhere in Kubernetes.

mod delete;
mod list;
mod write;

use apiserver_api::Status;

pub use self::{
    delete::{DeleteOptions, Propagation},
    list::{ListOptions, VersionMatch},
    write::{FieldValidation, WriteOptions, WriteVerb},
};
use crate::resource::ErrorList;

/// The group of all option kinds.
const META_GROUP: &str = "meta.k8s.io";

/// 422 about an option kind, if there is anything to complain about.
fn check(kind: &str, errors: ErrorList) -> Result<(), Status> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(META_GROUP, kind, "", &errors)) }
}

/// Go clients write booleans as `true`, `1`; anything but a false value is true.
fn parse_bool(text: &str) -> bool {
    !matches!(text, "" | "0" | "false" | "False" | "FALSE" | "f" | "F")
}
