//! Counts the HTTP/2 frames of a client that cost it nothing and us something: resets, and frames that carry nothing.
//!
//! The h2 crate bounds header blocks (size, and CONTINUATION frames derived from it), streams, resets of requests that
//! nobody has taken up yet, small DATA frames and empty ones. It does not bound resets of requests that were taken up
//! (rapid reset, CVE-2023-44487, at a slower pace), PING and SETTINGS, which are answered, and PRIORITY and unknown
//! frames, which are ignored. This follows the frame heads only: nine bytes for each frame, nothing over payloads.

use crate::Limits;

const PREFACE: usize = 24;
const HEAD: usize = 9;
const END_STREAM: u8 = 0x1;
/// Limits hold for this many ticks.
const WINDOW: u64 = 60;

/// What a client has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Resets,
    Control,
}

/// A leaky bucket: full at the limit, empty after [`WINDOW`] ticks. In parts of a frame, so that no refill is lost to
/// rounding.
#[derive(Debug, Default)]
struct Bucket {
    level: u64,
    tick: u32,
}

impl Bucket {
    fn add(&mut self, limit: u32, tick: u32) -> bool {
        let limit = u64::from(limit);
        let elapsed = u64::from(tick.saturating_sub(self.tick));
        self.tick = tick;
        self.level = self.level.saturating_sub(limit.saturating_mul(elapsed)) + WINDOW;
        self.level <= limit * WINDOW
    }
}

#[derive(Debug)]
pub(crate) struct Frames {
    head: [u8; HEAD],
    have: usize,
    /// Bytes of preface or payload before the next head.
    skip: usize,
    resets: Bucket,
    control: Bucket,
    /// The highest stream that the client has begun.
    last_stream: u32,
}

impl Frames {
    /// For a connection that begins with the client's preface.
    pub(crate) fn new() -> Self {
        Self {
            head: [0; HEAD],
            have: 0,
            skip: PREFACE,
            resets: Bucket::default(),
            control: Bucket::default(),
            last_stream: 0,
        }
    }

    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// The client has exceeded a limit: it is to be told and left.
    pub(crate) fn scan(&mut self, mut bytes: &[u8], tick: u32, limits: &Limits) -> Result<(), Excess> {
        while !bytes.is_empty() {
            let over = self.skip.min(bytes.len());
            self.skip -= over;
            bytes = bytes.get(over..).unwrap_or_default();
            let missing = (HEAD - self.have).min(bytes.len());
            let (here, rest) = bytes.split_at(missing);
            if let Some(room) = self.head.get_mut(self.have..self.have + missing) {
                room.copy_from_slice(here);
            }
            self.have += missing;
            bytes = rest;
            if self.have == HEAD {
                self.have = 0;
                self.take(tick, limits)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, tick: u32, limits: &Limits) -> Result<(), Excess> {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.head;
        self.skip = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let within = match kind {
            // DATA
            0 if self.skip > 0 || flags & END_STREAM != 0 => true,
            // HEADERS
            1 => {
                self.last_stream = self.last_stream.max(u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]));
                true
            }
            // RST_STREAM
            3 => return self.resets.add(limits.resets_per_minute, tick).then_some(()).ok_or(Excess::Resets),
            // WINDOW_UPDATE comes with every part of an answer that is read; CONTINUATION is bounded by h2.
            8 | 9 => true,
            _ => self.control.add(limits.control_frames_per_minute, tick),
        };
        within.then_some(()).ok_or(Excess::Control)
    }

    /// GOAWAY with ENHANCE_YOUR_CALM (RFC 9113 section 7).
    pub(crate) fn goodbye(&self) -> [u8; HEAD + 8] {
        let [s0, s1, s2, s3] = self.last_stream.to_be_bytes();
        [0, 0, 8, 7, 0, 0, 0, 0, 0, s0, s1, s2, s3, 0, 0, 0, 0xb]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    fn limits() -> Limits {
        Limits { resets_per_minute: 10, control_frames_per_minute: 100, ..Limits::default() }
    }

    /// How many of `frame` are let through, for every place to cut what is read.
    fn passed(frame: &[u8], most: usize) -> usize {
        let bytes = [PRI, &frame.repeat(most)[..]].concat();
        let ends = (1..=25).map(|size| {
            let mut frames = Frames::new();
            let mut read = 0;
            for part in bytes.chunks(size) {
                if frames.scan(part, 1, &limits()).is_err() {
                    break;
                }
                read += part.len();
            }
            read.saturating_sub(PRI.len()).div_ceil(frame.len())
        });
        let ends: Vec<_> = ends.collect();
        // The part that exceeds is never let through; whole frames before it in the same part go with it.
        let (least, largest) = (*ends.iter().min().unwrap(), *ends.iter().max().unwrap());
        assert!(largest - least <= 4, "{ends:?}");
        largest
    }

    #[test]
    fn resets_and_empty_frames_are_bounded_and_what_works_is_not() {
        assert_eq!(passed(&frame(3, 0, 1, &[0; 4]), 50), 11, "the head of the eleventh may come alone");
        for (kind, flags, payload) in [(6, 0, &[0; 8][..]), (4, 0, &[]), (2, 0, &[0; 5]), (0, 0, &[]), (0xbb, 0, b"x")]
        {
            let passed = passed(&frame(kind, flags, 1, payload), 300);
            assert!((100..=101).contains(&passed), "{kind}: {passed}");
        }
        for (kind, flags, payload) in [(0, 0, &b"x"[..]), (0, END_STREAM, &[]), (8, 0, &[0; 4]), (1, 5, b"abc")] {
            assert_eq!(passed(&frame(kind, flags, 1, payload), 300), 300, "{kind}");
        }
    }

    #[test]
    fn the_budget_comes_back_with_time() {
        let mut frames = Frames::new();
        frames.scan(PRI, 1, &limits()).unwrap();
        let reset = frame(3, 0, 7, &[0; 4]);
        for tick in 1..200 {
            assert_eq!(frames.scan(&reset, tick * 6, &limits()), Ok(()), "one in six seconds");
        }
        let burst = (0..20).take_while(|_| frames.scan(&reset, 1200, &limits()).is_ok()).count();
        assert_eq!(burst, 10);
    }

    #[test]
    fn the_goodbye_names_the_last_stream() {
        let mut frames = Frames::new();
        frames.scan(&[PRI, &frame(1, 5, 9, b"abc")].concat(), 1, &limits()).unwrap();
        assert_eq!(frames.goodbye()[..], [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 11]);
    }
}
