//! I/O adapters between sockets and hyper.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// What fits is gathered and sent with one plain `send`: for small answers cheaper than `writev`. Larger writes stay
/// vectored, which halves the user time of large answers.
const FLAT_MAX: usize = 4096;

thread_local! {
    /// Scratch of [`Flat`]; borrowed between awaits only.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(FLAT_MAX));
}

/// Before a quiet connection is probed, and between probes: a peer that is gone without a word is noticed within a
/// minute, also behind a watch that has no events (PX-04).
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// No delay for small writes, and probes for quiet peers.
pub(crate) fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
    SockRef::from(tcp).set_tcp_keepalive(&probes)
}

/// A socket on which small vectored writes are flattened.
pub(crate) struct Flat<S>(S);

impl<S> Flat<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(stream)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Flat<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Flat<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        write_flat(Pin::new(&mut self.0), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// One vectored write, flattened when it is small.
pub(crate) fn write_flat<S: AsyncWrite>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [one] = bufs {
        return stream.poll_write(cx, one);
    }
    if bufs.iter().map(|b| b.len()).sum::<usize>() > FLAT_MAX {
        return stream.poll_write_vectored(cx, bufs);
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        bufs.iter().for_each(|b| scratch.extend_from_slice(b));
        stream.poll_write(cx, scratch)
    })
}
