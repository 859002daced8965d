//! The bytes of answers that have been read and not yet passed on.
//!
//! Parts of answers are slices of the buffer's memory, which is used again when the last of them is gone. A read asks
//! for 8 KiB at first, and for up to 256 KiB from a shard that fills its reads: many small reads are what makes large
//! answers dear.

use std::{
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

pub(super) const READ_MIN: usize = 8 << 10;
pub(super) const READ_MAX: usize = 256 << 10;

pub(super) struct Buffer {
    pub(super) bytes: BytesMut,
    /// How much the next read should have room for.
    size: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), size: READ_MIN }
    }

    /// Reads once; 0 is the end of the stream.
    pub(super) fn poll_fill<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        if self.bytes.capacity() - self.bytes.len() < self.size / 4 {
            self.bytes.reserve(self.size);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(stream.read_buf(&mut self.bytes)).poll(cx))?;
        if read == room {
            self.size = (self.size * 2).min(READ_MAX);
        } else if read < self.size / 4 {
            self.size = (self.size / 2).max(READ_MIN);
        }
        Poll::Ready(Ok(read))
    }

    /// Gives the memory of a large answer back; called between two answers.
    pub(super) fn rest(&mut self) {
        if self.bytes.capacity() > READ_MIN {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn reads_grow_with_a_shard_that_fills_them_and_shrink_again() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut buffer = Buffer::new();
        let mut endless = tokio::io::repeat(b'x');
        let mut sizes = Vec::new();
        for _ in 0..8 {
            let Poll::Ready(Ok(read)) = buffer.poll_fill(&mut endless, cx) else { panic!("it is always ready") };
            assert_eq!(buffer.bytes.split().len(), read);
            sizes.push(read);
        }
        assert!(sizes.iter().all(|s| (READ_MIN..=2 * READ_MAX).contains(s)) && sizes.is_sorted(), "{sizes:?}");
        assert!(sizes.last().is_some_and(|s| *s >= READ_MAX));
        for _ in 0..8 {
            assert!(matches!(buffer.poll_fill(&mut &b"y"[..], cx), Poll::Ready(Ok(1))));
        }
        assert_eq!(buffer.size, READ_MIN);
        assert!(buffer.bytes.capacity() > READ_MIN);
        buffer.bytes.clear();
        buffer.rest();
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
