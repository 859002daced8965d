//! Heads: the request's is written, the answer's is read.
//!
//! What could be read in two ways is refused: another server behind the gateway, or a client before it, might read it
//! the other way (RFC 9112 section 6.3).

use std::mem::MaybeUninit;

use bytes::BytesMut;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    request::Parts,
};
use hyper::ext::ReasonPhrase;

use crate::stamp::Stamp;

use super::{Answer, Framing, chunks::Chunks, outbox::field};

/// Fields of an answer's head.
const FIELDS_MAX: usize = 100;

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// As many bytes are to come.
    Length(u64),
    Chunked,
}

/// Writes a request's head; `body` is `None` without a body.
pub(super) fn write(out: &mut Vec<u8>, parts: &Parts, host: &HeaderValue, stamp: &Stamp<'_>, body: Option<Coding>) {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    field(out, "host", host.as_bytes());
    for (name, value) in &parts.headers {
        if *name != HOST && *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
            field(out, name.as_str(), value.as_bytes());
        }
    }
    stamp.fields(|name, value| field(out, name.as_str(), value));
    match body {
        Some(Coding::Chunked) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Some(Coding::Length(length)) => field(out, "content-length", length.to_string().as_bytes()),
        // A server may wait for the body of these if nothing says that there is none (RFC 9110 section 8.6).
        None if matches!(parts.method, Method::POST | Method::PUT | Method::PATCH) => {
            out.extend_from_slice(b"content-length: 0\r\n");
        }
        None if parts.headers.contains_key(CONTENT_LENGTH) => out.extend_from_slice(b"content-length: 0\r\n"),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// A field of a head, by its places in the head's bytes.
#[derive(Clone, Copy, Default)]
struct Field {
    name: (u32, u32),
    value: (u32, u32),
}

/// Takes an answer's head off `bytes`, its fields to `headers`; `None` if it has not ended. `Connection` without a
/// name that matters and what frames the body stay out of `headers`, the length excepted.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(
    bytes: &mut BytesMut,
    is_head: bool,
    headers: &mut HeaderMap,
) -> Result<Option<Answer>, &'static str> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut places = [Field::default(); FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let end = match parser.parse_response_with_uninit_headers(&mut response, bytes, &mut fields) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("it has more than 100 header fields"),
        Err(_) => return Err("its head is malformed"),
    };
    let is_1_1 = response.version == Some(1);
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or("its status is out of range")?;
    let reason = response.reason.filter(|r| Some(*r) != status.canonical_reason());
    let reason = reason.and_then(|r| ReasonPhrase::try_from(r.as_bytes()).ok());
    let base = bytes.as_ptr().addr();
    let place = |part: &[u8]| {
        let start = part.as_ptr().addr() - base;
        // Heads are far shorter than 4 GiB.
        (start as u32, (start + part.len()) as u32)
    };
    let count = response.headers.len();
    for (at, header) in places.iter_mut().zip(response.headers.iter()) {
        *at = Field { name: place(header.name.as_bytes()), value: place(header.value) };
    }
    let head = bytes.split_to(end).freeze();
    let mut lines = Lines { keep_alive: is_1_1, close: false, length: None, chunked: false };
    for Field { name, value } in places.into_iter().take(count) {
        let range = |(start, end): (u32, u32)| start as usize..end as usize;
        let name = HeaderName::from_bytes(head.get(range(name)).unwrap_or_default())
            .map_err(|_| "the name of a header field is not valid")?;
        let value = HeaderValue::from_maybe_shared(head.slice(range(value)))
            .map_err(|_| "the value of a header field is not valid")?;
        if lines.note(&name, &value)? && !status.is_informational() {
            headers.append(name, value);
        }
    }
    if lines.chunked && (lines.length.is_some() || !is_1_1) {
        return Err("it frames its body in two ways");
    }
    let framing = match lines.length {
        _ if is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Framing::Done,
        _ if status.is_informational() => Framing::Done,
        _ if lines.chunked => Framing::Chunked(Chunks::Size),
        Some(0) => Framing::Done,
        Some(length) => Framing::Length(length),
        None => Framing::Close,
    };
    let keep_alive = lines.keep_alive && !lines.close && framing != Framing::Close;
    Ok(Some(Answer { status, reason, framing, keep_alive }))
}

/// What the fields say about the connection and the body.
struct Lines {
    keep_alive: bool,
    /// Stronger than `keep_alive`.
    close: bool,
    length: Option<u64>,
    chunked: bool,
}

impl Lines {
    /// Takes notice of one field; whether it is to be kept.
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<bool, &'static str> {
        if *name == CONTENT_LENGTH {
            let length = length_of(value.as_bytes()).ok_or("its Content-Length is no number")?;
            // The same once more says nothing new.
            return match self.length.replace(length) {
                None => Ok(true),
                Some(other) if other == length => Ok(false),
                Some(_) => Err("it has two lengths"),
            };
        }
        if *name == TRANSFER_ENCODING {
            if self.chunked || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err("it has a transfer coding other than chunked");
            }
            self.chunked = true;
            return Ok(false);
        }
        if *name == CONNECTION {
            let mut kept = false;
            for token in value.as_bytes().split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                if token.eq_ignore_ascii_case(b"close") {
                    self.close = true;
                } else if token.eq_ignore_ascii_case(b"keep-alive") {
                    self.keep_alive = true;
                } else {
                    kept |= !token.is_empty();
                }
            }
            return Ok(kept);
        }
        Ok(true)
    }
}

fn length_of(digits: &[u8]) -> Option<u64> {
    let digits = Some(digits).filter(|d| !d.is_empty() && d.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
