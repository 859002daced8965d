//! What is refused before anything is looked up: requests that two servers could read differently, and requests that
//! are too big. hyper refuses unequal and non-numeric lengths itself; the rest is here and in [`crate::framing`].

use apiserver_api::{Reason, Status};
use http::{
    HeaderMap, Method, StatusCode, Version,
    header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
    request::Parts,
};

use crate::Limits;

/// Checks the head of one request.
///
/// # Errors
/// 400, 405, 413, 417 or 431: the caller also closes an HTTP/1.1 connection after any of them.
pub(crate) fn check(parts: &Parts, limits: &Limits) -> Result<(), Status> {
    let bad = |message: &str| Err(Status::new(Reason::BadRequest, message));
    if parts.method == Method::CONNECT {
        return Err(Status::new(Reason::MethodNotAllowed, "CONNECT is not served here"));
    }
    // Of `http://host?query` the path is said to be `/`, which is not what would be sent on.
    if !parts.uri.path_and_query().is_some_and(|target| target.as_str().starts_with('/')) {
        return bad("the request target must be a path that begins with /");
    }
    check_size(parts, limits)?;
    check_host(parts)?;
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        if parts.headers.contains_key(CONTENT_LENGTH) {
            return bad("Content-Length beside Transfer-Encoding");
        }
        let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
        let only = codings.next().is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !only || codings.next().is_some() {
            return Err(custom(StatusCode::NOT_IMPLEMENTED, "the only transfer coding served is chunked"));
        }
    }
    if parts.headers.get_all(EXPECT).iter().any(|v| !v.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(custom(StatusCode::EXPECTATION_FAILED, "the only expectation met is 100-continue"));
    }
    Ok(())
}

/// A Status for a code without a Kubernetes reason.
pub(crate) fn custom(code: StatusCode, message: impl Into<String>) -> Status {
    Status { code: code.as_u16(), reason: None, message: message.into(), details: None, continue_token: None }
}

/// The head, and the body as far as the head tells.
fn check_size(parts: &Parts, limits: &Limits) -> Result<(), Status> {
    let Limits { header_bytes, header_count, body_bytes, .. } = *limits;
    let head = |message| Err(custom(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    if bytes(&parts.headers) > header_bytes {
        return head(format!("the request headers are larger than {header_bytes} bytes"));
    }
    if parts.headers.len() > header_count {
        return head(format!("the request has more than {header_count} header fields"));
    }
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    match body_bytes.filter(|max| length.is_some_and(|length| length > *max)) {
        Some(max) => Err(too_large(max)),
        None => Ok(()),
    }
}

/// The answer to a body of more than `max` bytes.
pub(crate) fn too_large(max: u64) -> Status {
    Status::new(Reason::RequestEntityTooLarge, format!("the request's body is larger than {max} bytes"))
}

fn bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// One host, well formed; an HTTP/2 request may name it twice if it is the same (RFC 9112 3.2, RFC 9113 8.3.1).
fn check_host(parts: &Parts) -> Result<(), Status> {
    let bad = |message: &str| Err(Status::new(Reason::BadRequest, message));
    if parts.uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return bad("the request's authority names a user; want a host and port");
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return bad("more than one Host header");
    }
    let Some(host) = host else {
        return match (parts.version, parts.uri.authority()) {
            (Version::HTTP_11, None) => bad("no Host header"),
            _ => Ok(()),
        };
    };
    let valid = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(b);
    if !host.as_bytes().iter().all(valid) {
        return bad("the Host header is not a host and port");
    }
    match parts.uri.authority() {
        Some(authority) if !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()) => {
            bad("the Host header differs from the request's authority")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(version: Version, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = http::Request::builder().uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let limits = Limits { header_bytes: 1000, header_count: 3, body_bytes: Some(5), ..Limits::default() };
        check(&request.body(()).unwrap().into_parts().0, &limits).map_or_else(|s| s.code, |()| 200)
    }

    #[test]
    fn heads() {
        let big = "x".repeat(1000);
        for (uri, headers, want) in [
            ("/api", &[("host", "a:1")][..], 200),
            ("/api", &[], 400),
            ("/api", &[("host", "a"), ("host", "a")], 400),
            ("/api", &[("host", "a b")], 400),
            ("/api", &[("host", "u@a")], 400),
            ("http://a/api", &[("host", "A")], 200),
            ("http://a/api", &[("host", "b")], 400),
            ("http://a/api", &[], 200),
            ("*", &[("host", "a")], 400),
            ("/api", &[("host", "a"), ("content-length", "1"), ("transfer-encoding", "chunked")], 400),
            ("/api", &[("host", "a"), ("transfer-encoding", "Chunked")], 200),
            ("/api", &[("host", "a"), ("transfer-encoding", "gzip, chunked")], 501),
            ("/api", &[("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], 501),
            ("/api", &[("host", "a"), ("expect", "100-Continue")], 200),
            ("/api", &[("host", "a"), ("expect", "magic")], 417),
            ("/api", &[("host", "a"), ("x", &big)], 431),
            ("/api", &[("host", "a"), ("x", "1"), ("x", "2")], 200),
            ("/api", &[("host", "a"), ("x", "1"), ("x", "2"), ("y", "3")], 431),
            ("/api", &[("host", "a"), ("content-length", "5")], 200),
            ("/api", &[("host", "a"), ("content-length", "6")], 413),
        ] {
            assert_eq!(code(Version::HTTP_11, uri, headers), want, "{uri} {headers:?}");
        }
        assert_eq!(code(Version::HTTP_10, "/api", &[]), 200);
        assert_eq!(code(Version::HTTP_2, "https://a/api", &[("host", "b")]), 400);
    }
}
