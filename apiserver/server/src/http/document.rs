//! Answers that are the same for every workspace: rendered and hashed once, sent as bytes, revalidated by ETag
//! (api-server.md 1.3, 1.6).

use apiserver_machinery::discovery::Rendered;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::{body::Body, compress, respond};
use crate::server::Call;

/// The document, or 304 when the client has it already.
pub(crate) fn answer(call: &Call<'_>, document: &'static Rendered, content_type: HeaderValue) -> Response<Body> {
    revalidated(call, &document.hash, content_type, || Bytes::from_static(&document.body))
}

/// The same for bytes that are made on demand.
pub(crate) fn revalidated(
    call: &Call<'_>,
    hash: &str,
    content_type: HeaderValue,
    body: impl FnOnce() -> Bytes,
) -> Response<Body> {
    let etag = format!("\"{hash}\"");
    let known = call.header("if-none-match").is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag));
    let mut response = if known {
        let mut unchanged = Response::new(Body::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else {
        let is_packed = compress::is_accepted(call);
        let body = if is_packed { compress::whole(body()) } else { body() };
        let mut response = respond::bytes(StatusCode::OK, content_type, body);
        if is_packed {
            compress::mark(&mut response);
        }
        response
    };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    response
}
