//! `/openapi/v2` and `/openapi/v3` (api-server.md 1.5, 1.6).

use std::sync::LazyLock;

use apiserver_api::Status;
use apiserver_machinery::{
    age,
    negotiate::{OpenApiForm, openapi_v2_form, openapi_v3_form},
    openapi::OpenApiV2,
};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::{body::Body, document, respond};
use crate::{clock, server::Call};

/// How long a document under its hash may be kept, in seconds.
const YEAR: i64 = 365 * 24 * 3600;
/// When the documents were made, in Unix seconds: they are as old as the process.
static MADE: LazyLock<i64> = LazyLock::new(clock::unix_now);

/// The answer for an OpenAPI path; `None` for any other.
///
/// # Errors
/// 404 for a group or version that is not served.
pub(crate) fn answer(call: &Call<'_>) -> Result<Option<Response<Body>>, Status> {
    let Some(documents) = call.server.service().openapi else { return Ok(None) };
    if call.info.path == "/openapi/v2" {
        return Ok(Some(swagger(call, documents.v2())));
    }
    let Some(place) = call.info.path.strip_prefix("/openapi/v3") else { return Ok(None) };
    if matches!(place, "" | "/") {
        let index = documents.index(call.prefix);
        return Ok(Some(document::revalidated(call, &index.hash, respond::JSON, || Bytes::from(index.body))));
    }
    let place = place.trim_start_matches('/');
    let found = documents.document(place).ok_or_else(Status::no_such_resource)?;
    let asked = call.info.query_value("hash").unwrap_or_default();
    if !asked.is_empty() && asked != found.hash {
        return Ok(Some(moved(&format!("{}/openapi/v3/{place}?hash={}", call.prefix, found.hash))));
    }
    let mut response = match openapi_v3_form(call.accept()) {
        Some(OpenApiForm::Json) => document::answer(call, found, respond::JSON),
        Some(OpenApiForm::Protobuf(media_type)) => {
            let body = || Bytes::from_static(documents.protobuf(place).unwrap_or_default());
            document::revalidated(call, &found.hash, HeaderValue::from_static(media_type), body)
        }
        None => return Ok(Some(not_acceptable())),
    };
    if !asked.is_empty() {
        // The hash in the URL makes it another URL when the document changes.
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        headers.insert(header::EXPIRES, date(clock::unix_now() + YEAR));
    }
    Ok(Some(response))
}

/// The document in the form that the client accepts.
fn swagger(call: &Call<'_>, document: &'static OpenApiV2) -> Response<Body> {
    let (content_type, body) = match openapi_v2_form(call.accept()) {
        Some(OpenApiForm::Json) => (respond::JSON, &document.json.body),
        Some(OpenApiForm::Protobuf(media_type)) => (HeaderValue::from_static(media_type), &document.protobuf),
        None => return not_acceptable(),
    };
    let mut response = document::revalidated(call, &document.json.hash, content_type, || Bytes::from_static(body));
    response.headers_mut().insert(header::LAST_MODIFIED, date(*MADE));
    response
}

/// 406 without a body.
fn not_acceptable() -> Response<Body> {
    let mut refused = Response::new(Body::empty());
    *refused.status_mut() = StatusCode::NOT_ACCEPTABLE;
    refused.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    refused
}

fn date(unix_seconds: i64) -> HeaderValue {
    HeaderValue::from_str(&age::http_date(unix_seconds)).expect("a date is plain text")
}

fn moved(location: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
