//! Watches the raw bytes of an HTTP/1.1 connection for what hyper does not tell: a request with `Content-Length`
//! beside `Transfer-Encoding` (hyper drops the length and goes on, RFC 9112 section 6.3 lets a server refuse), and
//! whether a request head is unfinished.
//!
//! Follows message framing just far enough to know where heads begin. hyper decides what is served; where the two
//! would disagree hyper refuses the bytes and closes. Cost: one search for line ends over each head, nothing over
//! bodies of known length.

/// More of a line is never needed: the longest is a length, or a transfer coding that is refused anyway. A number that
/// is padded beyond this is refused.
const LINE_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// The kept part of a line whose end has not been read.
    line: Vec<u8>,
    /// More of it has been read than is kept.
    is_cut: bool,
    has_length: bool,
    has_coding: bool,
    length: u64,
    ambiguous: bool,
    /// Heads whose first line has ended.
    heads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a request line; empty lines are skipped.
    Idle,
    Header,
    Body(u64),
    ChunkSize,
    /// With the line end behind it.
    Chunk(u64),
    Trailer,
    /// hyper, or the refusal of what is ambiguous, is about to close: nothing more is of interest.
    Opaque,
}

impl Framing {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Idle,
            line: Vec::new(),
            is_cut: false,
            has_length: false,
            has_coding: false,
            length: 0,
            ambiguous: false,
            heads: 0,
        }
    }

    /// Whether a request with two framings, or with one that is padded beyond reason, has been seen. It stays so.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Whether the bytes so far end inside a request head. What is about to be closed counts, so that it is closed in
    /// time.
    pub(crate) fn is_in_head(&self) -> bool {
        matches!(self.state, State::Header | State::Opaque) || (self.state == State::Idle && !self.line.is_empty())
    }

    /// How many request heads have begun.
    pub(crate) fn heads(&self) -> u32 {
        self.heads.wrapping_add((self.state == State::Idle && !self.line.is_empty()).into())
    }

    /// Takes the next bytes of the connection.
    pub(crate) fn scan(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Opaque => return,
                State::Body(left) => self.skip(bytes, left, State::Body, State::Idle),
                State::Chunk(left) => self.skip(bytes, left, State::Chunk, State::ChunkSize),
                State::Idle | State::Header | State::ChunkSize | State::Trailer => match memchr::memchr(b'\n', bytes) {
                    Some(at) => {
                        let (line, rest) = bytes.split_at(at);
                        self.end_line(line);
                        rest.get(1..).unwrap_or_default()
                    }
                    None => {
                        self.keep(bytes);
                        return;
                    }
                },
            };
        }
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, more: fn(u64) -> State, done: State) -> &'a [u8] {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - here as u64;
        self.state = if left == 0 { done } else { more(left) };
        bytes.get(here..).unwrap_or_default()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_MAX.saturating_sub(self.line.len());
        self.is_cut |= bytes.len() > room;
        self.line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn end_line(&mut self, end: &[u8]) {
        if self.line.is_empty() {
            self.take_line(end);
        } else {
            self.keep(end);
            let line = std::mem::take(&mut self.line);
            self.take_line(&line);
            // Keeps the allocation.
            self.line = line;
            self.line.clear();
            self.is_cut = false;
        }
    }

    fn take_line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.state {
            State::Idle if line.is_empty() => {}
            State::Idle => {
                (self.has_length, self.has_coding, self.length) = (false, false, 0);
                self.heads = self.heads.wrapping_add(1);
                self.state = State::Header;
            }
            State::Header if line.is_empty() => self.end_head(),
            State::Header => self.take_header(line),
            State::ChunkSize if self.is_cut && line.iter().all(u8::is_ascii_hexdigit) => self.refuse(),
            State::ChunkSize => self.state = chunk_size(line).map_or(State::Opaque, State::of_chunk),
            State::Trailer if line.is_empty() => self.state = State::Idle,
            State::Trailer | State::Body(_) | State::Chunk(_) | State::Opaque => {}
        }
    }

    fn take_header(&mut self, line: &[u8]) {
        if !matches!(line.first(), Some(b'c' | b'C' | b't' | b'T')) {
            return;
        }
        let Some((name, value)) = memchr::memchr(b':', line).and_then(|at| line.split_at_checked(at)) else { return };
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_coding = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            // Even an equal one: what is behind need not take the same of the two (RFC 9112 section 6.3).
            if self.is_cut || self.has_length {
                return self.refuse();
            }
            self.has_length = true;
            let digits = value.get(1..).unwrap_or_default().trim_ascii();
            match std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()) {
                Some(length) => self.length = length,
                None => self.state = State::Opaque,
            }
        }
    }

    /// A number whose end is not known.
    fn refuse(&mut self) {
        self.ambiguous = true;
        self.state = State::Opaque;
    }

    fn end_head(&mut self) {
        self.ambiguous |= self.has_length && self.has_coding;
        self.state = match (self.has_coding, self.length) {
            (true, _) => State::ChunkSize,
            (false, 0) => State::Idle,
            (false, length) => State::Body(length),
        };
    }
}

impl State {
    fn of_chunk(size: u64) -> Self {
        if size == 0 { Self::Trailer } else { Self::Chunk(size.saturating_add(2)) }
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    u64::from_str_radix(std::str::from_utf8(line.get(..digits)?).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\nContent-Type: x\r\n\r\n";
    const SIZED: &str = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nTransfer-E\n";
    const CHUNKED: &str = "\r\nPOST / HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\n\r\n\
         3;x=y\r\nab\n\r\nA\r\n0123456789\r\n0\r\nContent-Length: 3\r\n\r\n";

    /// The result of `text` fed in two parts, for every place to cut it.
    fn scan_all(text: &str) -> (bool, bool) {
        let mut results = (0..=text.len()).map(|at| {
            let mut framing = Framing::new();
            framing.scan(&text.as_bytes()[..at]);
            framing.scan(&text.as_bytes()[at..]);
            (framing.is_ambiguous(), framing.is_in_head())
        });
        let first = results.next().unwrap();
        assert!(results.all(|r| r == first), "{text}");
        first
    }

    #[test]
    fn clean_requests_in_any_order() {
        assert_eq!(scan_all(&[PLAIN, SIZED, CHUNKED, PLAIN, CHUNKED, SIZED].concat()), (false, false));
        assert_eq!(scan_all(&[PLAIN, SIZED, CHUNKED, "GET / HTTP/1.1\r\nHost:"].concat()), (false, true));
        assert_eq!(scan_all(&[CHUNKED, "GE"].concat()), (false, true));
    }

    #[test]
    fn two_framings_in_either_order_and_behind_other_requests() {
        let both = "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n";
        let reverse = "POST / HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 4\n\n";
        for bad in [both, reverse] {
            assert!(scan_all(bad).0);
            assert!(scan_all(&[PLAIN, SIZED, CHUNKED, bad].concat()).0);
        }
    }

    #[test]
    fn a_second_length_is_refused_even_if_it_is_equal() {
        assert!(scan_all("P / H\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\nab").0);
        assert!(!scan_all(&[SIZED, SIZED].concat()).0);
    }

    /// The result must not depend on where reads end, so only cuts behind the limit are tried.
    #[test]
    fn numbers_padded_over_several_reads_are_refused_and_long_lines_are_not() {
        let pad = " ".repeat(LINE_MAX);
        for (head, tail, refused) in [
            (format!("POST / HTTP/1.1\r\nContent-Length:{pad}"), "4\r\n\r\nabcd", true),
            (format!("P / H\r\nTransfer-Encoding: chunked\r\n\r\n{}", "0".repeat(LINE_MAX)), "4\r\nabcd\r\n", true),
            (format!("P / H\r\nTransfer-Encoding: chunked\r\n\r\n4;{pad}"), "x\r\nabcd\r\n0\r\n\r\n", false),
            (format!("GET /{pad}"), "x HTTP/1.1\r\nConnection: a\r\n\r\n", false),
            (format!("GET / HTTP/1.1\r\nCookie: {pad}"), "x\r\nContent-Length: 0\r\n\r\n", false),
        ] {
            let mut framing = Framing::new();
            framing.scan(head.as_bytes());
            framing.scan(tail.as_bytes());
            assert_eq!((framing.is_ambiguous(), framing.is_in_head()), (refused, refused), "{head}{tail}");
        }
    }

    #[test]
    fn a_head_with_a_bad_length_is_still_a_head() {
        assert!(scan_all("POST / HTTP/1.1\r\nContent-Length: +4\r\n").1);
    }

    #[test]
    fn what_hyper_refuses_ends_the_watch() {
        for bad in ["POST / HTTP/1.1\r\nContent-Length: +4\r\n", "P / H\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"] {
            assert!(!scan_all(bad).0);
        }
    }
}
