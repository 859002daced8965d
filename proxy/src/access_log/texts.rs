//! The text of one request, cut and copied: a draft may wait for hours, and must not keep a connection's buffer alive.

use std::ops::Range;

/// Bytes of a header's value.
const HEADER_MAX: usize = 256;
/// Bytes of a name: a service account's user name has up to 340.
const NAME_MAX: usize = 512;
/// Bytes of a path, and of a query. What Kubernetes reads of a path fits in half of that.
const PART_MAX: usize = 2048;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Method,
    Path,
    Query,
    Client,
    UserAgent,
    AuditId,
    User,
    Impersonator,
    Cluster,
    Shard,
    FlowSchema,
    PriorityLevel,
}

const PIECES: usize = Piece::PriorityLevel as usize + 1;

impl Piece {
    fn max(self) -> usize {
        match self {
            Self::Path | Self::Query => PART_MAX,
            Self::Client | Self::UserAgent | Self::AuditId => HEADER_MAX,
            _ => NAME_MAX,
        }
    }
}

/// The pieces, one behind the other in a buffer that is used again.
#[derive(Default)]
pub(super) struct Texts {
    all: String,
    places: [Option<Range<usize>>; PIECES],
}

impl Texts {
    /// Keeps as much of `text` as may be; once more, it takes the place of the first.
    pub(super) fn put(&mut self, piece: Piece, text: &str) {
        let begin = self.all.len();
        self.all.push_str(cut(text, piece.max()));
        if let Some(place) = self.places.get_mut(piece as usize) {
            *place = Some(begin..self.all.len());
        }
    }

    /// The same of what may be no text, such as a header's value.
    pub(super) fn put_bytes(&mut self, piece: Piece, bytes: &[u8]) {
        self.put(piece, &String::from_utf8_lossy(bytes.get(..piece.max()).unwrap_or(bytes)));
    }

    /// Keeps whole pairs only: half of one would be another.
    pub(super) fn put_query(&mut self, query: &str) {
        let kept = cut(query, PART_MAX);
        let end = if kept.len() == query.len() { kept.len() } else { kept.rfind('&').unwrap_or(0) };
        self.put(Piece::Query, kept.get(..end).unwrap_or_default());
    }

    pub(super) fn get(&self, piece: Piece) -> Option<&str> {
        self.all.get(self.places.get(piece as usize)?.clone()?)
    }

    /// Bytes that it keeps.
    pub(super) fn capacity(&self) -> usize {
        self.all.capacity()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.places = Default::default();
    }
}

/// As much of `text` as fits.
pub(super) fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("äöü", 3), cut("äöü", 4), cut("abc", 9)), ("ä", "äö", "abc"));
    }

    #[test]
    fn no_piece_is_longer_than_it_may_be_and_the_buffer_is_used_again() {
        let mut texts = Texts::default();
        let long = "ä".repeat(40_000);
        for (piece, max) in [(Piece::User, NAME_MAX), (Piece::Path, PART_MAX), (Piece::UserAgent, HEADER_MAX)] {
            texts.put(piece, &long);
            assert_eq!(texts.get(piece).unwrap().len(), max, "{piece:?}");
            texts.put_bytes(piece, &[0xff; 40_000]);
            assert!(texts.get(piece).unwrap().len() <= max, "{piece:?}");
        }
        texts.put_query(&format!("a=1&b={long}"));
        assert_eq!(texts.get(Piece::Query), Some("a=1"));
        texts.put_query(&long);
        assert_eq!((texts.get(Piece::Query), texts.get(Piece::Shard)), (Some(""), None));
        let capacity = texts.capacity();
        texts.clear();
        assert_eq!((texts.get(Piece::User), texts.capacity()), (None, capacity));
    }
}
