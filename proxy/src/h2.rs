//! What makes HTTP/2 cheap: one write per turn of a connection, and its streams polled by the connection's own task.
//!
//! The h2 crate flushes after nearly every answer; each flush would be a TLS record and a system call of its own. Here
//! a flush is a promise: frames gather in a buffer that the task which owns the connection pushes after each poll, so
//! nothing waits longer than the poll that produced it. Large payloads pass without a copy, and a backlog holds the
//! connection back.

use std::{
    cell::Cell,
    future::Future,
    io::{self, IoSlice},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use futures_util::{FutureExt, Stream, future::CatchUnwind, stream::FuturesUnordered};
use hyper::rt::Executor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{ahead::Reader, worker::Timer};

/// Payloads from here on are not copied into the buffer.
const STRAIGHT_MIN: usize = 16 << 10;
/// More than this is never gathered.
const BACKLOG_MAX: usize = 64 << 10;
/// Most bytes that are read in one turn of a connection's task, a read more or less. Then the streams have theirs: what has
/// come for them in small frames must be taken out of h2 before it is too much (see `upstream::h2`).
const READ_MAX: usize = 64 << 10;
/// Streams polled in one turn, so that one connection does not hold up the others of its worker.
const TURN_MAX: usize = 64;

/// A stream whose writes wait for [`push`](Self::push). Clones share it: one for hyper, one for the owning task.
pub(crate) struct Deferred<S>(Arc<Mutex<Out<S>>>);

/// A std mutex: short sections, taken by one task only.
struct Out<S> {
    stream: S,
    buffer: Vec<u8>,
    sent: usize,
    is_dirty: bool,
    /// Bytes read since the last push.
    read: usize,
}

impl<S> Clone for Deferred<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> Deferred<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Out { stream, buffer: Vec::new(), sent: 0, is_dirty: false, read: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Out<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncWrite + Unpin> Deferred<S> {
    /// Writes what has been gathered, at the end of a turn. `Pending` leaves the task to be woken when there is room.
    pub(crate) fn push(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.lock();
        out.read = 0;
        out.push(cx)
    }
}

impl<S: AsyncWrite + Unpin> Out<S> {
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n;
            self.is_dirty = true;
        }
        self.buffer.clear();
        self.sent = 0;
        if self.is_dirty {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.is_dirty = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for `more` bytes that are to be gathered or, if `straight`, to be written past the buffer.
    fn prepare(&mut self, cx: &mut Context<'_>, straight: bool, more: usize) -> Poll<io::Result<()>> {
        if straight || self.buffer.len() - self.sent + more > BACKLOG_MAX { self.push(cx) } else { Poll::Ready(Ok(())) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Deferred<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let out = &mut *self.lock();
        if out.read >= READ_MAX {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut out.stream).poll_read(cx, buf))?;
        out.read += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deferred<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut out = self.lock();
        let straight = buf.len() >= STRAIGHT_MIN;
        ready!(out.prepare(cx, straight, buf.len()))?;
        if straight {
            out.is_dirty = true;
            return Pin::new(&mut out.stream).poll_write(cx, buf);
        }
        out.buffer.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut out = self.lock();
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let straight = total >= STRAIGHT_MIN;
        ready!(out.prepare(cx, straight, total))?;
        if straight {
            out.is_dirty = true;
            return Pin::new(&mut out.stream).poll_write_vectored(cx, bufs);
        }
        bufs.iter().for_each(|b| out.buffer.extend_from_slice(b));
        Poll::Ready(Ok(total))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.lock();
        ready!(out.push(cx))?;
        Pin::new(&mut out.stream).poll_shutdown(cx)
    }
}

/// A stream's future. Boxed: its type would contain its executor's, and so itself.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The stall limit of the stream that is being polled.
    static STALL: Cell<Option<Timer>> = const { Cell::new(None) };
    /// What the stream that is being polled is to read ahead.
    static READER: Cell<Option<Reader>> = const { Cell::new(None) };
    /// Whether what is being dropped is dropped because of that limit.
    static STALLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the stream that is being dropped ran into its stall limit.
pub(crate) fn is_stalled() -> bool {
    STALLED.get()
}

/// Called by an answer's body while its stream is polled: the stream is reset when `timer` is over. hyper does not
/// poll the body of a client that opens no window, so the limit cannot be the body's own.
pub(crate) fn set_stall(timer: Option<Timer>) {
    STALL.set(timer);
}

/// Called as [`set_stall`]: the stream reads the answer ahead, for the same reason.
pub(crate) fn set_reader(reader: Reader) {
    READER.set(Some(reader));
}

/// A stream with its stall limit. Its end drops hyper's future, which resets the stream if the answer is unfinished.
struct Limited {
    task: Task,
    stall: Option<Timer>,
    reader: Option<Reader>,
}

impl Future for Limited {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        STALL.set(self.stall.take());
        let polled = self.task.as_mut().poll(cx);
        self.stall = STALL.take();
        if let Some(reader) = READER.take() {
            self.reader = Some(reader);
        }
        if polled.is_pending() {
            self.reader.take_if(|reader| !reader.fill(cx));
        }
        match &self.stall {
            Some(stall) if polled.is_pending() && stall.is_over(cx.waker()) => {
                STALLED.set(true);
                self.task = Box::pin(std::future::ready(()));
                STALLED.set(false);
                Poll::Ready(())
            }
            _ => polled,
        }
    }
}

/// The streams of one connection: hyper's executor and the set that polls them.
pub(crate) struct Streams {
    begun: Begun,
    running: FuturesUnordered<CatchUnwind<AssertUnwindSafe<Limited>>>,
}

/// Takes the futures that hyper spawns while its connection is polled.
#[derive(Clone)]
pub(crate) struct Begun(Arc<Mutex<Vec<Task>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, future: F) {
        self.lock().push(Box::pin(future));
    }
}

impl Begun {
    fn lock(&self) -> MutexGuard<'_, Vec<Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { begun: Begun(Arc::default()), running: FuturesUnordered::new() }
    }

    /// For hyper's builder.
    pub(crate) fn executor(&self) -> Begun {
        self.begun.clone()
    }

    /// Takes up what hyper has begun; whether there was any.
    pub(crate) fn take_up(&mut self) -> bool {
        let mut begun = self.begun.lock();
        let any = !begun.is_empty();
        let limited = begun.drain(..).map(|task| Limited { task, stall: None, reader: None });
        self.running.extend(limited.map(|stream| AssertUnwindSafe(stream).catch_unwind()));
        any
    }

    /// Polls those that were woken.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>) {
        for _ in 0..TURN_MAX {
            match Pin::new(&mut self.running).poll_next(cx) {
                // A panic in an answer's body: the stream is reset, the connection lives on.
                Poll::Ready(Some(Err(_))) => tracing::error!("an answer's body panicked"),
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
        cx.waker().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn writes_wait_for_the_push_and_large_ones_keep_their_order() {
        let (far, near) = tokio::io::duplex(1 << 20);
        let (mut out, mut far) = (Deferred::new(near), far);
        let cx = &mut Context::from_waker(Waker::noop());
        let large = vec![b'x'; STRAIGHT_MIN];
        assert!(matches!(Pin::new(&mut out).poll_write(cx, b"ab"), Poll::Ready(Ok(2))));
        assert!(Pin::new(&mut out).poll_flush(cx).is_ready());
        assert!(far.read_u8().now_or_never().is_none(), "nothing is sent before the push");
        assert!(matches!(Pin::new(&mut out).poll_write(cx, &large), Poll::Ready(Ok(STRAIGHT_MIN))));
        assert!(matches!(Pin::new(&mut out).poll_write(cx, b"cd"), Poll::Ready(Ok(2))));
        assert!(matches!(out.push(cx), Poll::Ready(Ok(()))));
        let mut got = vec![0; STRAIGHT_MIN + 4];
        far.read_exact(&mut got).await.unwrap();
        assert!(got.starts_with(b"abx") && got.ends_with(b"xcd"));
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_the_writer_back() {
        let (mut far, near) = tokio::io::duplex(100);
        let mut out = Deferred::new(near);
        let cx = &mut Context::from_waker(Waker::noop());
        let part = [b'x'; 1000];
        let mut taken = 0;
        while Pin::new(&mut out).poll_write(cx, &part).is_ready() {
            taken += part.len();
        }
        assert!(taken <= BACKLOG_MAX + 100, "{taken}");
        assert!(out.push(cx).is_pending());
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            all.len()
        });
        std::future::poll_fn(|cx| Pin::new(&mut out).poll_shutdown(cx)).await.unwrap();
        assert_eq!(reader.await.unwrap(), taken);
    }
}
