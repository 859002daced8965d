//! Takes the chunked coding off an answer's body (RFC 9112 section 7.1).
//!
//! Stricter than it could be: a size is one to sixteen hexadecimal digits, lines end with CRLF, and what is in doubt
//! ends the answer with an error rather than with a guess.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memchr;

use crate::hop;

/// A chunk's size with its extensions.
const LINE_MAX: usize = 4 << 10;
const TRAILERS_MAX: usize = 16 << 10;
const TRAILER_FIELDS_MAX: usize = 64;
/// The end of a body without trailers.
const LAST: &[u8] = b"0\r\n\r\n";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// Before a chunk's size.
    Size,
    /// That many bytes of a chunk are missing.
    Data(u64),
    /// Before the line end behind a chunk.
    DataEnd,
    Trailers,
}

/// What a piece of the coding turned out to be.
#[derive(Debug)]
pub(super) enum Step {
    Data(Bytes),
    /// The end, with the trailers if there are any.
    End(Option<HeaderMap>),
    /// It takes more bytes to tell.
    More,
}

impl Chunks {
    /// Takes the next part of the body off `bytes`.
    ///
    /// # Errors
    /// What is wrong with the coding. Nothing that follows can be believed.
    pub(super) fn step(&mut self, bytes: &mut BytesMut) -> Result<Step, &'static str> {
        loop {
            match self {
                Self::Size => {
                    let Some(size) = size(bytes)? else { return Ok(Step::More) };
                    *self = if size == 0 { Self::Trailers } else { Self::Data(size) };
                }
                Self::Data(_) if bytes.is_empty() => return Ok(Step::More),
                Self::Data(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= here as u64;
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(Step::Data(bytes.split_to(here).freeze()));
                }
                Self::DataEnd => {
                    match bytes.get(..2) {
                        None => return Ok(Step::More),
                        Some(b"\r\n") => bytes.advance(2),
                        Some(_) => return Err("a chunk is longer than it says"),
                    }
                    *self = Self::Size;
                }
                Self::Trailers => return trailers(bytes),
            }
        }
    }

    /// Whether the rest of the body is there and empty; takes it off.
    pub(super) fn take_last(&mut self, bytes: &mut BytesMut) -> bool {
        let skip = match self {
            Self::DataEnd if bytes.starts_with(b"\r\n") => 2,
            _ => return false,
        };
        if bytes.get(skip..).is_some_and(|rest| rest.starts_with(LAST)) {
            bytes.advance(skip + LAST.len());
            return true;
        }
        false
    }
}

/// A chunk's size; `None` if its line has not ended.
fn size(bytes: &mut BytesMut) -> Result<Option<u64>, &'static str> {
    let Some(end) = memchr(b'\n', bytes.get(..LINE_MAX).unwrap_or(bytes)) else {
        return if bytes.len() < LINE_MAX { Ok(None) } else { Err("the line of a chunk's size is too long") };
    };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
    let line =
        line.filter(|line| memchr(b'\r', line).is_none()).ok_or("the line of a chunk's size does not end in CRLF")?;
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    if digits.is_empty() || digits.len() > 16 || !matches!(rest.trim_ascii_start().first(), None | Some(b';')) {
        return Err("the size of a chunk is no hexadecimal number of at most 16 digits");
    }
    let size = digits.iter().fold(0, |size, digit| size << 4 | u64::from((*digit as char).to_digit(16).unwrap_or(0)));
    bytes.advance(end + 1);
    Ok(Some(size))
}

fn trailers(bytes: &mut BytesMut) -> Result<Step, &'static str> {
    if bytes.starts_with(b"\r\n") {
        bytes.advance(2);
        return Ok(Step::End(None));
    }
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    let (end, trailers) = match httparse::parse_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete((end, fields))) => {
            let mut trailers = HeaderMap::with_capacity(fields.len());
            for field in fields {
                let name =
                    HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "a trailer's name is not valid")?;
                let value = HeaderValue::from_bytes(field.value).map_err(|_| "a trailer's value is not valid")?;
                // What frames the message has no place here (RFC 9110 section 6.5.1).
                if !hop::is_framing(&name) {
                    trailers.append(name, value);
                }
            }
            (end, trailers)
        }
        Ok(httparse::Status::Partial) if bytes.len() < TRAILERS_MAX => return Ok(Step::More),
        Ok(httparse::Status::Partial) => return Err("the trailers are too long"),
        Err(_) => return Err("the trailers are malformed"),
    };
    let is_bare = |at: usize| at == 0 || bytes.get(at - 1) != Some(&b'\r');
    if end > TRAILERS_MAX || memchr::memchr_iter(b'\n', bytes.get(..end).unwrap_or_default()).any(is_bare) {
        return Err("the trailers are too long, or their lines do not end in CRLF");
    }
    bytes.advance(end);
    Ok(Step::End((!trailers.is_empty()).then_some(trailers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body and its trailers, fed byte by byte or at once.
    fn decode(coded: &[u8], step: usize) -> Result<(Vec<u8>, Option<HeaderMap>), &'static str> {
        let (mut chunks, mut bytes, mut body) = (Chunks::Size, BytesMut::new(), Vec::new());
        for part in coded.chunks(step) {
            bytes.extend_from_slice(part);
            loop {
                match chunks.step(&mut bytes)? {
                    Step::Data(data) => body.extend_from_slice(&data),
                    Step::End(trailers) => return Ok((body, trailers)),
                    Step::More => break,
                }
            }
        }
        Err("not ended")
    }

    #[test]
    fn good_codings() {
        for (coded, body) in [
            (&b"0\r\n\r\n"[..], &b""[..]),
            (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
            (b"0003;a=b;c=\"d\"\r\nabc\r\n1 ;x\r\n\n\r\n00\r\n\r\n", b"abc\n"),
            (
                b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n",
                b"01234567890123456789",
            ),
        ] {
            for step in [1, 2, coded.len()] {
                let (got, trailers) = decode(coded, step).unwrap();
                assert_eq!(got, body, "{step}");
                let sums = trailers.map(|t| (t.len(), t["x-sum"].clone()));
                assert_eq!(sums.is_some(), coded.windows(5).any(|w| w == b"X-Sum"));
                assert!(sums.is_none_or(|s| s == (1, HeaderValue::from_static("1"))));
            }
        }
    }

    #[test]
    fn bad_codings() {
        let long = [&b"1;"[..], &[b'x'; LINE_MAX], b"\r\na\r\n0\r\n\r\n"].concat();
        let trailing = [&b"0\r\na: "[..], &[b'x'; TRAILERS_MAX], b"\r\n\r\n"].concat();
        for bad in [
            &b"\r\n\r\n"[..],
            b"x\r\n",
            b"-1\r\na\r\n",
            b"+1\r\na\r\n",
            b"0x1\r\na\r\n",
            b"1\na\n0\n\n",
            b"1\r\nab\r\n0\r\n\r\n",
            b"1;\r;\r\na\r\n0\r\n\r\n",
            b"1 1\r\na\r\n",
            b"00000000000000001\r\na\r\n0\r\n\r\n",
            b"0\r\n: x\r\n\r\n",
            b"0\r\na: x\n\r\n",
            &long,
            &trailing,
        ] {
            for step in [1, bad.len()] {
                let error = decode(bad, step).expect_err(&String::from_utf8_lossy(bad));
                assert_ne!(error, "not ended", "{}", String::from_utf8_lossy(bad));
            }
        }
    }

    #[test]
    fn the_last_chunk_is_seen_with_the_data_before_it() {
        let (mut chunks, mut bytes) = (Chunks::Size, BytesMut::from(&b"1\r\na\r\n0\r\n\r\nrest"[..]));
        assert!(!chunks.take_last(&mut bytes));
        assert!(matches!(chunks.step(&mut bytes), Ok(Step::Data(a)) if a == "a"));
        assert!(chunks.take_last(&mut bytes));
        assert_eq!(bytes, "rest");
    }
}
