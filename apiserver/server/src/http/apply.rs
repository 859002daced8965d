//! Server-side apply: a PATCH that says what its manager wants of an object, and makes the object when it is missing
//! (api-server.md 2.9).

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, decode,
    managed::{self, Applied, Writer},
    object::{metadata_mut, text},
    options::WriteVerb,
};
use http::{Response, StatusCode};
use serde_json::Value;

use super::{admission, body::Body, content, form::Form, write};
use crate::{
    clock,
    registry::{UpdateOptions, strip},
    server::Call,
};

/// A configuration, and what in it is about the object it is for.
struct Request {
    applied: Applied,
    /// The version that the object must have; null when the client does not say.
    version: Value,
}

/// Answers the PATCH.
///
/// # Errors
/// 400 and 422 for a wrong configuration, 409 for conflicts, and those of every write.
pub(super) async fn apply(call: &Call<'_>, resource: &'static Resource, form: Form) -> Result<Response<Body>, Status> {
    let write = content::write_options(call, WriteVerb::Apply)?;
    let (mut config, warnings) = decode::applied(resource, &call.body, write.field_validation)?;
    let version = config.pointer_mut("/metadata/resourceVersion").map(Value::take).unwrap_or_default();
    strip(resource, &mut config);
    let request = Request { applied: Applied { config, force: write.force }, version };
    let options = UpdateOptions {
        write,
        subresource: write::subresource(call, resource),
        may_create: true,
        uid_is_precondition: false,
        applied: true,
    };
    let by = Writer { manager: &options.write.field_manager, subresource: options.subresource, now: clock::unix_now() };
    let change = |old: Option<&Value>| change(call, resource, &request, by, old);
    let written = call.registry.modify(resource, &call.key()?, &options, change).await?;
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    write::answer(form, code, &written.object, &warnings)
}

/// What the object becomes; `old` is as clients see it.
fn change(
    call: &Call<'_>,
    resource: &Resource,
    request: &Request,
    by: Writer<'_>,
    old: Option<&Value>,
) -> Result<Value, Status> {
    let live = old.map(|old| {
        let mut live = old.clone();
        strip(resource, &mut live);
        live
    });
    let uid = text(&request.applied.config, &["metadata", "uid"]);
    if live.is_none() && !uid.is_empty() {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(Status::conflict(resource.group, resource.plural, &call.info.name, &why));
    }
    let new = managed::apply(resource, live.as_ref(), &request.applied, by)?;
    let mut new = decode::patched(resource, new)?.object;
    match old {
        Some(_) => {
            admission::update(&call.user, resource, old, &new)?;
            metadata_mut(&mut new).insert("resourceVersion".into(), request.version.clone());
        }
        // A version is no reason not to create it, as upstream has it.
        None => admission::create(&call.user, resource, &mut new)?,
    }
    Ok(new)
}
