//! When a watch has been initialised, told from the bytes that pass.
//!
//! Kubernetes' filter stands in the API server and sees it; a gateway sees a stream (apf.md 9, row 21). A watch that
//! asks for a list in the stream is initialised with the bookmark that says so. One that begins with what there is
//! without being told its end: with as many events as there are objects, or when no event has come for a while.
//! Others: with the head of the answer. None keeps its seats longer than the limit for that.
//!
//! Only the first bytes of each event are looked at, and bookmarks, which are short. Events of streams that cannot be
//! read here (compressed, of another type) are taken as they come, and the quiet after them decides.

use std::{future::Future, pin::Pin, task::Context, time::Duration};

use apiserver_api::list_options::ListOptions;
use fairness::Counts;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use memchr::{memchr, memmem};
use tokio::time::{Instant, Sleep, sleep_until};

/// As long as no event may come before all there is has come.
const QUIET: Duration = Duration::from_millis(500);
/// The annotation of the bookmark that ends the initial events (KEP-3157).
const ANNOTATION: &[u8] = b"k8s.io/initial-events-end";
/// How a bookmark begins: what Go's encoders write of a `metav1.WatchEvent`.
const JSON: &[u8] = br#"{"type":"BOOKMARK""#;
const PROTOBUF: &[u8] = b"\n\x08BOOKMARK";
/// Bytes of a bookmark in which its annotation is looked for.
const BOOKMARK_MAX: usize = 16 << 10;

/// What initialises a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initial {
    /// The head of its answer.
    Head,
    /// So many events, or the quiet after them.
    Events(u64),
    /// The bookmark at the end of the list.
    Bookmark,
}

impl Initial {
    /// Reads the query of a watch. `counts` tells how many objects it may begin with.
    pub(crate) fn of(query: &str, counts: impl FnOnce() -> Counts) -> Self {
        // The shard refuses what cannot be read.
        let Ok(options) = ListOptions::parse(query) else { return Self::Head };
        match options.send_initial_events {
            Some(true) => Self::Bookmark,
            None if matches!(&*options.resource_version, "" | "0") => match counts() {
                Counts::Fresh { objects, .. } | Counts::Stale { objects, .. } => Self::Events(objects),
                Counts::Unknown => Self::Events(u64::MAX),
            },
            Some(false) | None => Self::Head,
        }
    }
}

/// A watch between the head of its answer and the end of its initialisation.
pub(crate) struct Start {
    until: Instant,
    /// Fires after a quiet that ends it, or at `until`.
    timer: Pin<Box<Sleep>>,
    wants: Wants,
    events: Events,
}

enum Wants {
    Events(u64),
    Bookmark,
    Quiet,
}

impl Start {
    /// The beginning of an answer with this head; `None` if that was all. `until` is the end in any case.
    pub(crate) fn new(initial: Initial, head: &HeaderMap, until: Instant) -> Option<Self> {
        let framing = Framing::of(head);
        let wants = match (initial, framing) {
            (Initial::Head | Initial::Events(0), _) => return None,
            (_, Framing::Unknown) => Wants::Quiet,
            (Initial::Events(n), _) => Wants::Events(n),
            (Initial::Bookmark, _) => Wants::Bookmark,
        };
        let mut start = Self { until, timer: Box::pin(sleep_until(until)), wants, events: Events::new(framing) };
        start.rest();
        Some(start)
    }

    /// Begins the quiet, if that counts.
    fn rest(&mut self) {
        if !matches!(self.wants, Wants::Bookmark) {
            self.timer.as_mut().reset((Instant::now() + QUIET).min(self.until));
        }
    }

    /// Takes the next bytes of the stream; whether the initialisation ends with them.
    pub(crate) fn saw(&mut self, bytes: &[u8]) -> bool {
        self.events.feed(bytes);
        self.rest();
        let is_all = match self.wants {
            Wants::Events(n) => self.events.count >= n,
            Wants::Bookmark => self.events.is_over,
            Wants::Quiet => false,
        };
        // A shard that never pauses leaves the timer no turn.
        is_all || Instant::now() >= self.until
    }

    /// Nothing comes; whether that ends the initialisation. If not, the task is woken when it does.
    pub(crate) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.timer.deadline() == self.until {
            // The quiet begins, if the shard was held back until now.
            self.rest();
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// The shard is held back, so that quiet says nothing: whether the time for the initialisation is over. If not, the
    /// task is woken when it is.
    pub(crate) fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if self.timer.deadline() != self.until {
            self.timer.as_mut().reset(self.until);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }
}

/// How events stand in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// JSON, one a line.
    Lines,
    /// Protobuf, each behind its length in four bytes.
    Lengths,
    Unknown,
}

impl Framing {
    fn of(head: &HeaderMap) -> Self {
        let is_plain = head.get(CONTENT_ENCODING).is_none_or(|v| v.as_bytes().eq_ignore_ascii_case(b"identity"));
        let media = head.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        let media = media.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        match is_plain {
            true if media.eq_ignore_ascii_case(b"application/json") => Self::Lines,
            true if media.eq_ignore_ascii_case(b"application/vnd.kubernetes.protobuf") => Self::Lengths,
            _ => Self::Unknown,
        }
    }
}

/// Counts events, and looks at bookmarks.
struct Events {
    framing: Framing,
    count: u64,
    /// The beginning of the current event; all of it as long as it may be a bookmark.
    event: Vec<u8>,
    /// Bytes of a length that have come, and what is left of the event behind it.
    length: (u32, u32),
    left: usize,
    /// Whether the bookmark that ends the initial events has come.
    is_over: bool,
}

impl Events {
    fn new(framing: Framing) -> Self {
        Self { framing, count: 0, event: Vec::new(), length: (0, 0), left: 0, is_over: false }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((part, rest, is_end)) = self.split(bytes) {
            self.look(part);
            if is_end {
                self.count += 1;
                self.is_over |= self.is_bookmark() && memmem::find(&self.event, ANNOTATION).is_some();
                self.event.clear();
            }
            bytes = rest;
        }
    }

    /// The next part of an event, what follows it, and whether the event ends there.
    fn split<'a>(&mut self, mut bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8], bool)> {
        match self.framing {
            Framing::Unknown => None,
            _ if bytes.is_empty() => None,
            Framing::Lines => Some(match memchr(b'\n', bytes).and_then(|at| bytes.split_at_checked(at + 1)) {
                Some((line, rest)) => (line, rest, true),
                None => (bytes, &[], false),
            }),
            Framing::Lengths => {
                while self.left == 0 {
                    let (byte, rest) = bytes.split_first()?;
                    let (have, length) = self.length;
                    self.length = (have + 1, length << 8 | u32::from(*byte));
                    bytes = rest;
                    if self.length.0 == 4 {
                        self.left = self.length.1 as usize;
                        self.length = (0, 0);
                    }
                }
                let (part, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= part.len();
                Some((part, rest, self.left == 0))
            }
        }
    }

    /// How a bookmark begins.
    fn mark(&self) -> &'static [u8] {
        if self.framing == Framing::Lines { JSON } else { PROTOBUF }
    }

    fn is_bookmark(&self) -> bool {
        self.event.starts_with(self.mark())
    }

    /// Keeps the beginning of an event, and of a bookmark all.
    fn look(&mut self, part: &[u8]) {
        let missing = self.mark().len().saturating_sub(self.event.len());
        let (first, rest) = part.split_at(missing.min(part.len()));
        self.event.extend_from_slice(first);
        if self.is_bookmark() {
            let room = BOOKMARK_MAX.saturating_sub(self.event.len());
            self.event.extend_from_slice(rest.get(..room.min(rest.len())).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn length(event: &[u8]) -> Vec<u8> {
        [&u32::try_from(event.len()).unwrap().to_be_bytes(), event].concat()
    }

    /// Two objects, one of which lies about itself; a plain bookmark; the last one; an event more.
    fn stream(framing: Framing) -> Vec<Vec<u8>> {
        let annotation = String::from_utf8(ANNOTATION.to_vec()).unwrap();
        let lie = format!(r#"{{"metadata":{{"annotations":{{"{annotation}":"true"}},"a":"{}"}}}}"#, "x".repeat(40_000));
        let events = [("ADDED", "{}"), ("ADDED", &lie), ("BOOKMARK", "{}"), ("BOOKMARK", &annotation), ("ADDED", "{}")];
        let write = |(kind, object): (&str, &str)| match framing {
            Framing::Lengths => length(format!("\n{}{kind}\u{12}\u{1}{object}", kind.len() as u8 as char).as_bytes()),
            _ => format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into_bytes(),
        };
        events.into_iter().map(write).collect()
    }

    proptest! {
        #[test]
        fn however_the_stream_is_cut_the_same_bookmark_ends_it(cuts in prop::collection::vec(1usize..9000, 1..30)) {
            for framing in [Framing::Lines, Framing::Lengths] {
                let events = stream(framing);
                let end = events.iter().take(4).map(Vec::len).sum::<usize>();
                let all = events.concat();
                let (mut reader, mut at, mut sizes) = (Events::new(framing), 0, cuts.iter().cycle());
                while at < all.len() {
                    let next = (at + sizes.next().unwrap()).min(all.len());
                    reader.feed(&all[at..next]);
                    at = next;
                    prop_assert_eq!(reader.is_over, at >= end, "{:?} at {} of {}", framing, at, end);
                    prop_assert!(reader.event.len() <= BOOKMARK_MAX);
                }
                prop_assert_eq!(reader.count, 5);
            }
        }
    }

    #[test]
    fn what_initialises_a_watch() {
        let known = || Counts::Fresh { objects: 7, mean_bytes: 0 };
        for (query, want) in [
            ("watch=1", Initial::Events(7)),
            ("watch=1&resourceVersion=0", Initial::Events(7)),
            ("watch=1&resourceVersion=12", Initial::Head),
            ("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", Initial::Bookmark),
            ("watch=1&sendInitialEvents=false", Initial::Head),
        ] {
            assert_eq!(Initial::of(query, known), want, "{query}");
        }
        assert_eq!(Initial::of("watch=1", || Counts::Unknown), Initial::Events(u64::MAX));
    }

    #[test]
    fn only_plain_streams_of_known_types_are_read() {
        let framing = |media: &'static str, encoding: Option<&'static str>| {
            let mut head = HeaderMap::new();
            head.insert(CONTENT_TYPE, HeaderValue::from_static(media));
            encoding.map(|encoding| head.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding)));
            Framing::of(&head)
        };
        assert_eq!(framing("application/json; charset=utf-8", None), Framing::Lines);
        assert_eq!(framing("application/vnd.kubernetes.protobuf;stream=watch", Some("identity")), Framing::Lengths);
        assert_eq!(framing("application/json", Some("gzip")), Framing::Unknown);
        assert_eq!(framing("application/cbor-seq", None), Framing::Unknown);
    }

    #[tokio::test]
    async fn events_quiet_or_the_limit_end_it() {
        let mut json = HeaderMap::new();
        json.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let hour = Instant::now() + Duration::from_secs(3600);
        let begin = |initial, head: &HeaderMap, until| Start::new(initial, head, until);
        assert!(begin(Initial::Head, &json, hour).is_none() && begin(Initial::Events(0), &json, hour).is_none());
        let mut two = begin(Initial::Events(2), &json, hour).unwrap();
        assert!(!two.saw(b"{}\n{") && two.saw(b"}\n"));
        let is_over = |start: &mut Start| start.is_over(&mut Context::from_waker(std::task::Waker::noop()));
        for mut quiet in [
            begin(Initial::Events(u64::MAX), &json, hour).unwrap(),
            begin(Initial::Bookmark, &HeaderMap::new(), hour).unwrap(),
        ] {
            assert!(!quiet.saw(b"{}\n") && !is_over(&mut quiet));
            std::future::poll_fn(|cx| if quiet.is_over(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
        let mut listed = begin(Initial::Bookmark, &json, hour).unwrap();
        let mut late = begin(Initial::Bookmark, &json, Instant::now()).unwrap();
        assert!(!listed.saw(b"{}\n") && !is_over(&mut listed), "quiet does not end a list");
        std::future::poll_fn(|cx| if late.is_over(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}
