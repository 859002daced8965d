//! Answers that are the same for every workspace: rendered and hashed once, sent as bytes, revalidated by ETag
//! (api-server.md 1.3, 1.6).

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;
use sha2::{Digest, Sha512};

use super::{body::Body, respond};
use crate::{registry::write_value, server::Call};

/// A rendered answer.
pub(crate) struct Document {
    bytes: Bytes,
    hash: String,
}

impl Document {
    /// Renders the value.
    pub(crate) fn new(value: &Value) -> Self {
        let mut bytes = Vec::new();
        write_value(&mut bytes, value);
        let hash = Sha512::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
        Self { bytes: bytes.into(), hash }
    }

    /// SHA-512 in upper-case hex.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The answer, or 304 when the client has it already.
    pub(crate) fn answer(&self, call: &Call<'_>, content_type: HeaderValue) -> Response<Body> {
        let etag = format!("\"{}\"", self.hash);
        let known = call.header("if-none-match").is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag));
        let mut response = if known {
            let mut empty = Response::new(Body::empty());
            *empty.status_mut() = StatusCode::NOT_MODIFIED;
            empty
        } else {
            respond::bytes(StatusCode::OK, content_type, self.bytes.clone())
        };
        let headers = response.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, etag);
        }
        response
    }
}
