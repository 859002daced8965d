//! gzip of answers to GET: lists and objects from 128 KiB, documents always (api-server.md 3.9). At the fastest level, as
//! upstream has it: the time is that of a worker.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, Response, StatusCode, header};

use super::{body::Body, respond};
use crate::server::Call;

/// Answers with fewer bytes are not worth it.
pub(crate) const LEAST: usize = 128 * 1024;
/// Bytes that are gathered before they are sent.
const CHUNK: usize = 32 * 1024;

/// Whether the client takes gzip.
pub(crate) fn is_accepted(call: &Call<'_>) -> bool {
    call.header("accept-encoding").is_some_and(accepts)
}

fn accepts(header: &str) -> bool {
    header.split(',').any(|clause| {
        let (name, parameters) = clause.split_once(';').unwrap_or((clause, ""));
        let quality = parameters.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality.is_none_or(|q| q > 0.0)
    })
}

/// These bytes, compressed.
pub(crate) fn whole(bytes: Bytes) -> Bytes {
    Gzip::new(std::iter::once(bytes)).flatten().collect()
}

/// A document in JSON, compressed for whoever takes that, whatever its size.
pub(crate) fn small(call: &Call<'_>, body: Bytes) -> Response<Body> {
    if !is_accepted(call) {
        return respond::bytes(StatusCode::OK, respond::JSON, body);
    }
    let mut response = respond::bytes(StatusCode::OK, respond::JSON, whole(body));
    mark(&mut response);
    response
}

/// Says that the body is compressed.
pub(crate) fn mark(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// Chunks, compressed one by one: neither form of them is ever there as a whole.
pub(crate) struct Gzip<I> {
    chunks: I,
    /// `None` behind the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I> Gzip<I> {
    pub(crate) fn new(chunks: I) -> Self {
        Self { chunks, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for Gzip<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let encoder = self.encoder.as_mut()?;
        for chunk in self.chunks.by_ref() {
            encoder.write_all(&chunk).expect("a Vec takes every write");
            if encoder.get_ref().len() >= CHUNK {
                return Some(std::mem::take(encoder.get_mut()).into());
            }
        }
        let rest = self.encoder.take()?.finish().expect("a Vec takes every write");
        Some(rest.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn who_takes_it() {
        for (header, want) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("", false),
        ] {
            assert_eq!(accepts(header), want, "{header}");
        }
    }

    #[test]
    fn chunks_make_one_stream() {
        // Numbers without a pattern: what does not shrink fills more than one chunk.
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Bytes::copy_from_slice(&state.to_be_bytes())
        };
        let chunks: Vec<Bytes> = (0..20_000).map(|_| random()).collect();
        let packed: Vec<Bytes> = Gzip::new(chunks.clone().into_iter()).collect();
        assert!(packed.len() > 1);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed.concat()[..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, chunks.concat());
    }
}
