//! Bodies of requests, and warnings in answers.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, decode,
    negotiate::{self, PatchType},
    options::{FieldValidation, WriteOptions, WriteVerb},
};
use http::{HeaderValue, Response};
use serde_json::Value;

use super::body::Body;
use crate::server::Call;

/// The object in the body of a POST or PUT, and the warnings that are due.
///
/// # Errors
/// 415, 400.
pub(crate) fn object(
    call: &Call<'_>,
    resource: &Resource,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Status> {
    let format = negotiate::body_format(resource, call.header("content-type"))?;
    decode::body(resource, format, &call.body)?.validated(resource, validation)
}

/// The body of a DELETE, if there is one.
///
/// # Errors
/// 415, 400.
pub(crate) fn delete_options(call: &Call<'_>, resource: &Resource) -> Result<Option<Value>, Status> {
    if call.body.is_empty() {
        return Ok(None);
    }
    decode::delete_options(negotiate::body_format(resource, call.header("content-type"))?, &call.body)
}

/// The kind of patch in the body of a PATCH.
///
/// # Errors
/// 415.
pub(crate) fn patch_type(call: &Call<'_>, resource: &Resource) -> Result<PatchType, Status> {
    negotiate::patch_type(resource, call.header("content-type"))
}

/// The options in the query of a write; the client's name is its field manager when it gives none.
///
/// # Errors
/// 422.
pub(crate) fn write_options(call: &Call<'_>, verb: WriteVerb) -> Result<WriteOptions, Status> {
    let options = WriteOptions::parse(verb, call.info.query)?;
    Ok(options.managed_by(call.header("user-agent").unwrap_or_default()))
}

/// Most characters of all warnings of one answer, and of one of them when that is not enough (upstream's limits).
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;

/// Adds `Warning` headers: each text once, and not more than clients can take.
pub(crate) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    let total: usize = warnings.iter().map(String::len).sum();
    let mut seen: Vec<&String> = Vec::new();
    let mut used = 0;
    for text in warnings {
        if seen.contains(&text) {
            continue;
        }
        seen.push(text);
        let limit = if total > WARNINGS_MAX { WARNING_MAX } else { usize::MAX };
        let short: String = text.chars().filter(|c| !c.is_control()).take(limit).collect();
        used += short.len();
        if used > WARNINGS_MAX {
            return;
        }
        let quoted = short.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
}
