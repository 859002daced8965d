//! What is to be written of a request.
//!
//! The head and what is small of the body are gathered, so that they leave in one write; a large part of the body is
//! written from where it is.

use std::{
    io::{self, IoSlice, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use tokio::io::AsyncWrite;

use crate::{hop, io::write_flat};

/// Parts of a body up to here are copied behind what waits to be written.
const GATHER_MAX: usize = 4 << 10;
/// More than this is never gathered.
const BACKLOG_MAX: usize = 16 << 10;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    gathered: Vec<u8>,
    sent: usize,
    /// Comes after what is gathered,
    data: Bytes,
    /// and this after it.
    tail: &'static [u8],
    /// Whether a byte has been written since the last [`begin`](Self::begin).
    touched: bool,
    unflushed: bool,
}

impl Outbox {
    /// Empties it for another request, whose head is to be written to what is returned.
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.clear();
        *self = Self { gathered, ..Self::default() };
        &mut self.gathered
    }

    /// Whether another part of the body can be taken.
    pub(super) fn has_room(&self) -> bool {
        self.data.is_empty() && self.tail.is_empty() && self.gathered.len() - self.sent < BACKLOG_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.gathered.len() && self.data.is_empty() && self.tail.is_empty() && !self.unflushed
    }

    /// Whether nothing has been written.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Makes what has been written due once more. For requests without a body.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
        self.touched = false;
    }

    fn gather(&mut self) -> &mut Vec<u8> {
        if self.sent == self.gathered.len() {
            self.gathered.clear();
            self.sent = 0;
        }
        &mut self.gathered
    }

    /// Takes a part of the body. Needs [room](Self::has_room).
    pub(super) fn data(&mut self, data: Bytes, tail: &'static [u8]) {
        if data.len() > GATHER_MAX {
            (self.data, self.tail) = (data, tail);
        } else {
            let gathered = self.gather();
            gathered.extend_from_slice(&data);
            gathered.extend_from_slice(tail);
        }
    }

    /// Takes a chunk.
    pub(super) fn chunk(&mut self, data: Bytes) {
        if !data.is_empty() {
            write!(self.gather(), "{:x}\r\n", data.len()).expect("a vector takes every byte");
            self.data(data, b"\r\n");
        }
    }

    /// Takes the last chunk.
    pub(super) fn last_chunk(&mut self, trailers: Option<&HeaderMap>) {
        let gathered = self.gather();
        gathered.extend_from_slice(b"0\r\n");
        for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| !hop::is_framing(name)) {
            field(gathered, name.as_str(), value.as_bytes());
        }
        gathered.extend_from_slice(b"\r\n");
    }

    /// Writes all of it.
    pub(super) fn poll_write<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        loop {
            let rest = self.gathered.get(self.sent..).unwrap_or_default();
            let behind = self.data.len() + self.tail.len();
            if rest.len() + behind == 0 {
                break;
            }
            let stream = Pin::new(&mut *stream);
            let written = if behind == 0 {
                stream.poll_write(cx, rest)
            } else {
                write_flat(stream, cx, &[IoSlice::new(rest), IoSlice::new(&self.data), IoSlice::new(self.tail)])
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.advance(n),
            }
        }
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        self.touched = true;
        self.unflushed = true;
        let here = written.min(self.gathered.len() - self.sent);
        self.sent += here;
        written -= here;
        let here = written.min(self.data.len());
        self.data.advance(here);
        self.tail = self.tail.get(written - here..).unwrap_or_default();
    }
}

/// Writes one line of a head or of trailers.
pub(super) fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn small_and_large_parts_leave_in_order_through_a_narrow_pipe() {
        let (mut near, mut far) = tokio::io::duplex(100);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.map(|_| all)
        });
        let mut out = Outbox::default();
        out.begin().extend_from_slice(b"head\r\n\r\n");
        assert!(out.is_untouched() && !out.is_empty());
        let large = vec![b'x'; 10_000];
        let mut want = b"head\r\n\r\n".to_vec();
        for part in [&b"ab"[..], &large, b"", b"cd", &large] {
            std::future::poll_fn(|cx| if out.has_room() { Poll::Ready(Ok(())) } else { out.poll_write(&mut near, cx) })
                .await
                .unwrap();
            out.chunk(Bytes::copy_from_slice(part));
            if !part.is_empty() {
                want.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                want.extend_from_slice(part);
                want.extend_from_slice(b"\r\n");
            }
        }
        std::future::poll_fn(|cx| out.poll_write(&mut near, cx)).await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        trailers.insert("content-length", "1".parse().unwrap());
        out.last_chunk(Some(&trailers));
        want.extend_from_slice(b"0\r\nx-sum: 1\r\n\r\n");
        std::future::poll_fn(|cx| out.poll_write(&mut near, cx)).await.unwrap();
        assert!(out.is_empty() && !out.is_untouched());
        drop(near);
        assert_eq!(reading.await.unwrap().unwrap(), want);
    }

    #[test]
    fn a_head_can_be_sent_twice() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut out = Outbox::default();
        out.begin().extend_from_slice(b"head");
        let mut sink = Vec::new();
        assert!(out.poll_write(&mut sink, cx).is_ready());
        out.rewind();
        assert!(out.is_untouched() && out.poll_write(&mut sink, cx).is_ready());
        assert_eq!(sink, b"headhead");
    }
}
