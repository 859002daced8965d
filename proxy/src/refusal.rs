//! Answers the gateway gives itself.

use apiserver_api::{
    Reason, Status,
    status::{Cause, Details},
};
use bytes::Bytes;
use config::Compat;
use fairness::Rejection;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT, CONNECTION, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};

use crate::{Body, Limits};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Upstream's words for every 429 (apf.md 7.1).
const TOO_MANY: &str = "Too many requests, please try again later.";

/// A [`Status`] as an answer; `Retry-After` where a retry can help.
pub(crate) fn answer(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(status.to_json())));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if let Some(seconds) = status.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The same, and the connection is of no further use.
pub(crate) fn answer_and_close(status: &Status) -> Response<Body> {
    let mut response = answer(status);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What hyper means by `answer`, if that is one of those it gives itself: a bare head that closes the connection.
pub(crate) fn of_hyper(answer: &[u8], limits: &Limits) -> Option<Status> {
    let mut lines = std::str::from_utf8(answer).ok()?.strip_suffix("\r\n\r\n")?.split("\r\n");
    let code = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    if !lines.all(|line| matches!(line, "connection: close" | "content-length: 0")) {
        return None;
    }
    let message = match code {
        400 => "the request cannot be read; want a request line and header fields as RFC 9112 has them, and one length"
            .to_owned(),
        414 => "the request target is longer than 65534 bytes".to_owned(),
        431 => {
            format!("the request has more than {} header fields, or far too many bytes of them", limits.header_count)
        }
        _ => return None,
    };
    let reason = (code == 400).then_some(Reason::BadRequest);
    Some(Status { code, reason, message, details: None, continue_token: None })
}

/// The last answer on an HTTP/1.1 connection, as bytes.
pub(crate) fn last_words(status: &Status) -> Vec<u8> {
    let phrase = StatusCode::from_u16(status.code).ok().and_then(|code| code.canonical_reason()).unwrap_or_default();
    let (code, body) = (status.code, status.to_json());
    let head = format!(
        "HTTP/1.1 {code} {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// A failure that passes: 429, 502, 503 or 504 with `Retry-After`.
pub(crate) fn temporary(code: StatusCode, message: impl Into<String>, retry_after: u32) -> Status {
    let reason = match code {
        StatusCode::TOO_MANY_REQUESTS => Some(Reason::TooManyRequests),
        StatusCode::SERVICE_UNAVAILABLE => Some(Reason::ServiceUnavailable),
        StatusCode::GATEWAY_TIMEOUT => Some(Reason::Timeout),
        _ => None,
    };
    let details = Details { retry_after_seconds: Some(retry_after.max(1)), ..Details::default() };
    Status {
        code: code.as_u16(),
        reason,
        message: message.into(),
        details: Some(Box::new(details)),
        continue_token: None,
    }
}

/// What new requests are told while the gateway drains.
pub(crate) fn draining() -> Status {
    let message = "this gateway is shutting down and serves no new requests; please try again";
    temporary(StatusCode::SERVICE_UNAVAILABLE, message, 1)
}

/// What new requests are told on an HTTP/2 connection that should have been left for another.
pub(crate) fn left() -> Status {
    let message = "this connection was ended (GOAWAY) and serves no new requests; please open another";
    temporary(StatusCode::SERVICE_UNAVAILABLE, message, 1)
}

/// Fairness says no, by the workspace class of this name if one did: a Status if the client reads JSON, else, and always under its rules, upstream's plain text.
pub(crate) fn rejected(
    rejection: &Rejection,
    class: Option<&str>,
    headers: &HeaderMap,
    compat: Compat,
) -> Response<Body> {
    let mut status = temporary(StatusCode::TOO_MANY_REQUESTS, TOO_MANY, rejection.retry_after);
    if compat == Compat::Fairgate && accepts_json(headers) {
        if let Some(details) = &mut status.details {
            let message = match class {
                Some(class) => format!("the workspace class {class:?} of the request refused it: {}", rejection.reason),
                None => format!("the priority level of the request refused it: {}", rejection.reason),
            };
            details.causes.push(Cause { reason: rejection.reason.into(), message, field: String::new() });
        }
        return answer(&status);
    }
    let mut response = Response::new(Body::from(Bytes::from(format!("{TOO_MANY}\n"))));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, TEXT);
    out.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    out.insert(RETRY_AFTER, HeaderValue::from(rejection.retry_after.max(1)));
    response
}

/// Whether a client that gets JSON can read it.
fn accepts_json(headers: &HeaderMap) -> bool {
    let mut ranges =
        headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).peekable();
    ranges.peek().is_none()
        || ranges.any(|range| {
            let media = range.split(';').next().unwrap_or_default().trim();
            ["application/json", "application/*", "*/*"].iter().any(|json| media.eq_ignore_ascii_case(json))
        })
}

/// A JSON document, for operators.
pub(crate) fn json(code: StatusCode, document: &serde_json::Value) -> Response<Body> {
    let mut response = text(code, format!("{document:#}\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Plain text, for probes.
pub(crate) fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_accepts_json() {
        let accepts = |value: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            value.map(|v| headers.insert(ACCEPT, HeaderValue::from_static(v)));
            accepts_json(&headers)
        };
        assert!(accepts(None) && accepts(Some("*/*")) && accepts(Some("text/html, application/json;q=0.9")));
        assert!(accepts(Some("application/vnd.kubernetes.protobuf, */*")));
        assert!(!accepts(Some("text/html")) && !accepts(Some("application/vnd.kubernetes.protobuf")));
    }
}
