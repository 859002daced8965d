//! Answers that are the same for every workspace: rendered and hashed once, sent as bytes, revalidated by ETag
//! (api-server.md 1.3, 1.6).

use std::sync::LazyLock;

use apiserver_machinery::discovery::Rendered;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use quick_cache::{Weighter, sync::Cache};

use super::{body::Body, compress, respond};
use crate::server::Call;

/// Most bytes of documents that are kept in their compressed form. All that do not speak of a workspace have 400 kB.
const PACKED_BYTES_MAX: u64 = 4 << 20;

/// What a document is known by: its hash, and the form it is in.
type Id = (String, HeaderValue);

#[derive(Clone)]
struct Size;

impl Weighter<Id, Bytes> for Size {
    fn weight(&self, (hash, form): &Id, packed: &Bytes) -> u64 {
        (hash.len() + form.len() + packed.len()) as u64
    }
}

/// Of the whole process: the documents are.
static PACKED: LazyLock<Cache<Id, Bytes, Size>> = LazyLock::new(|| Cache::with_weighter(100, PACKED_BYTES_MAX, Size));

/// A document, compressed, unless somebody has.
fn packed(hash: &str, form: &HeaderValue, body: impl FnOnce() -> Bytes) -> Bytes {
    let pack = || Ok::<_, std::convert::Infallible>(compress::whole(body()));
    match PACKED.get_or_insert_with(&(hash.to_owned(), form.clone()), pack) {
        Ok(packed) => packed,
        Err(never) => match never {},
    }
}

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
        let body = if is_packed { packed(hash, &content_type, body) } else { body() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_packed_once_for_each_form() {
        let of = |hash: &str, form: &HeaderValue, text: &'static str| {
            let mut made = false;
            let bytes = packed(hash, form, || {
                made = true;
                text.into()
            });
            (made, bytes)
        };
        let (json, yaml) = (respond::JSON, HeaderValue::from_static("application/yaml"));
        let (made, first) = of("test-1", &json, "{}");
        assert!(made);
        assert_eq!(of("test-1", &json, "another"), (false, first));
        assert!(of("test-1", &yaml, "a: b").0 && of("test-2", &json, "{}").0);
    }
}
