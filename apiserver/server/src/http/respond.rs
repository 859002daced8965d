//! Answers: JSON, Status, text, and the headers that all of them have.

use apiserver_api::Status;
use apiserver_machinery::{encode, negotiate::BodyFormat, schema::Message};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::body::Body;
use crate::registry::write_value;

/// `application/json`.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer with a body of this type.
pub(crate) fn bytes(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// A JSON answer.
pub(crate) fn json(code: StatusCode, value: &Value) -> Response<Body> {
    bytes(code, JSON, json_bytes(value))
}

/// The bytes of one.
pub(crate) fn json_bytes(value: &Value) -> Bytes {
    let mut out = Vec::new();
    write_value(&mut out, value);
    out.push(b'\n');
    out.into()
}

/// An answer with a value in this format; `message` names its fields in protobuf.
pub(crate) fn value(code: StatusCode, format: BodyFormat, message: &Message, value: &Value) -> Response<Body> {
    match format {
        BodyFormat::Json => json(code, value),
        _ => bytes(code, media_type(format), encode::value(format, message, value)),
    }
}

/// The media type of an answer in this format.
pub(crate) fn media_type(format: BodyFormat) -> HeaderValue {
    HeaderValue::from_static(encode::media_type(format))
}

/// A text answer.
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    bytes(code, HeaderValue::from_static("text/plain; charset=utf-8"), text)
}

/// A refusal, with the headers that go with it.
pub(crate) fn status(status: &Status, format: BodyFormat) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = bytes(code, media_type(format), encode::status(format, status));
    let headers = response.headers_mut();
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if status.code == 403 {
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}
