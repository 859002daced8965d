//! I/O adapters between sockets and hyper.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    net::Shutdown,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// What fits is gathered and sent with one plain `send`: for small answers cheaper than `writev`. Larger writes stay
/// vectored, which halves the user time of large answers.
const FLAT_MAX: usize = 4096;

thread_local! {
    /// Scratch of [`Flat`]; borrowed between awaits only.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(FLAT_MAX));
}

/// When a quiet connection is probed, and how long a peer may leave a probe, or what it was sent, without a sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probes {
    pub(crate) after: Duration,
    pub(crate) patience: Duration,
}

impl Probes {
    /// A client that is gone without a word is noticed within a minute, also behind a watch that has no events (PX-04).
    pub(crate) const CLIENTS: Self = Self { after: Duration::from_secs(30), patience: Duration::from_secs(30) };
}

/// Probes that are sent within the patience.
const PROBES: u32 = 3;
/// The least that the kernel takes.
const PROBE_MIN: Duration = Duration::from_secs(1);

/// No delay for small writes, and probes for quiet peers.
pub(crate) fn tune(tcp: &TcpStream, probes: &Probes) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(probes.after.max(PROBE_MIN))
        .with_interval((probes.patience / PROBES).max(PROBE_MIN))
        .with_retries(PROBES);
    SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}

/// Makes what was sent and not acknowledged count as a probe: keep-alive alone does not begin while something is on its
/// way. A peer that is alive and takes nothing ends as well, so this is nothing for tunnels.
pub(crate) fn expect_progress(tcp: &TcpStream, probes: &Probes) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    SockRef::from(tcp).set_tcp_user_timeout(Some(probes.after + probes.patience))?;
    Ok(())
}

/// A client's socket in two halves, so that its end can be seen by who does not read from it.
///
/// The half that reads is tokio's own: it knows that a short read has emptied the socket, which saves a system call.
pub(crate) struct Socket {
    read: OwnedReadHalf,
    write: Arc<OwnedWriteHalf>,
}

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It sends nothing more.
    Closed,
    /// It takes nothing more either.
    Reset,
}

/// Sees a client leave.
pub(crate) struct Gone(Arc<OwnedWriteHalf>);

impl Socket {
    pub(crate) fn new(tcp: TcpStream) -> (Self, Gone) {
        let (read, write) = tcp.into_split();
        let write = Arc::new(write);
        (Self { read, write: write.clone() }, Gone(write))
    }

    fn tcp(&self) -> &TcpStream {
        (*self.write).as_ref()
    }

    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.tcp().poll_write_ready(cx))?;
            match write(self.tcp()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl Gone {
    /// Waits until the client has closed its side or reset the connection, whatever it has sent before that. Nothing
    /// tells one that closes from one that only ends its own side: both have left, as they have for hyper.
    pub(crate) async fn wait(&self) -> Leave {
        // What `PRIORITY` adds to urgent data is just the end of the other side, without what can be read before it.
        let interest = Interest::ERROR | Interest::PRIORITY;
        let tcp: &TcpStream = (*self.0).as_ref();
        match tcp.ready(interest).await {
            Ok(ready) if ready.is_error() || ready.is_write_closed() => Leave::Reset,
            Ok(ready) if ready.is_read_closed() => Leave::Closed,
            Ok(_) => std::future::pending().await,
            Err(_) => Leave::Reset,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |tcp| tcp.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |tcp| tcp.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.tcp()).shutdown(Shutdown::Write))
    }
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
