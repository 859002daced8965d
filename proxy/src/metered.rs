//! The client's end of a connection that has switched protocols, together with the request that it was: its flight ends
//! with the tunnel, and the bytes that pass are counted on it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{reply::Flight, trail::Outcome};

pub(crate) struct Metered<S> {
    stream: S,
    flight: Flight,
    bytes_in: Option<Arc<AtomicU64>>,
    /// The client's end has failed: what comes after is not the shard's fault.
    is_broken: bool,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, mut flight: Flight) -> Self {
        let bytes_in = flight.trail.draft.as_mut().map(|draft| draft.count_bytes());
        Self { stream, flight, bytes_in, is_broken: false }
    }

    /// Notes how it ended. Without a word of it, it was given up.
    pub(crate) fn end(&mut self, is_whole: bool) {
        if is_whole {
            self.flight.trail.outcome = Outcome::Served;
        } else if !self.is_broken {
            self.flight.trail.outcome = Outcome::UpstreamError("broken-off");
        }
    }

    fn note<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        self.is_broken |= outcome.is_err();
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if let Some(bytes) = &self.bytes_in {
            bytes.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        }
        Poll::Ready(self.note(outcome))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        self.flight.trail.bytes_out += outcome.as_ref().map_or(0, |n| *n as u64);
        Poll::Ready(self.note(outcome))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        Poll::Ready(self.note(outcome))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
        Poll::Ready(self.note(outcome))
    }
}
