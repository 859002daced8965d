//! The refusals of the generic API server: those of `apiserver_api::Status`, said of a [`Resource`], and the few
//! that only it gives (api-server.md 2.6, 3.2, 3.3).

use apiserver_api::{Status, status::Cause};
use apiserver_machinery::Resource;

/// 404 for one object.
pub(crate) fn not_found(resource: &Resource, name: &str) -> Status {
    Status::not_found(resource.group, resource.plural, name)
}

/// 409 on create.
pub(crate) fn already_exists(resource: &Resource, name: &str) -> Status {
    Status::already_exists(resource.group, resource.plural, name)
}

/// 409 on create with generateName after the last silent retry.
pub(crate) fn generate_name_exhausted(resource: &Resource, name: &str) -> Status {
    let mut status = already_exists(resource, name);
    status.message.push_str(", the server was not able to generate a unique name for the object");
    status.details.get_or_insert_default().retry_after_seconds = Some(1);
    status
}

/// 409 on update with a stale resourceVersion.
pub(crate) fn stale(resource: &Resource, name: &str) -> Status {
    Status::modified(resource.group, resource.plural, name)
}

/// 409 of a violated precondition, which names the *kind* (api-server.md 2.6).
pub(crate) fn precondition(resource: &Resource, name: &str, why: &str) -> Status {
    Status::conflict(resource.group, resource.kind, name, why)
}

/// 403 from admission: `why` is the part behind the colon.
pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Status {
    Status::forbidden_object(resource.group, resource.plural, name, why)
}

/// 500.
pub(crate) fn internal(message: impl std::fmt::Display) -> Status {
    Status::internal_error(message.to_string())
}

/// 504 for a read at a revision that does not exist yet.
pub(crate) fn future_revision(requested: u64, current: u64) -> Status {
    let text = format!("Too large resource version: {requested}, current: {current}");
    let mut status = Status::timeout(&text, 1);
    let cause = Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        ..Cause::default()
    };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

/// 410 for a watch that cannot be resumed.
pub(crate) fn expired_watch(requested: u64, oldest: u64) -> Status {
    Status::expired(format!("too old resource version: {requested} ({oldest})"))
}

/// 410 for an exact list at a forgotten revision.
pub(crate) fn expired_list() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// 410 for a continued list at a forgotten revision; carries a token to go on inconsistently.
pub(crate) fn expired_continue(token: String) -> Status {
    let text = "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
                the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
                Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
                deleted between the time the first chunk was returned and now may show up in the list.";
    let mut status = Status::expired(text);
    status.continue_token = Some(token);
    status
}
