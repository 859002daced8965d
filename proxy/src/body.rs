//! The one body type of requests and answers, so that no layer needs a box.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::{
    stamp::clean_trailers,
    upstream::{Exchange, pool::Lease},
    worker::{Timer, Worker},
};

/// The error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's or answer's body: streamed, never collected.
///
/// Dropping one before its end tells its source to stop.
pub struct Body(Kind);

enum Kind {
    Empty,
    Full(Bytes),
    Incoming(Incoming),
    /// A client's request's body.
    Upload(Box<Upload>),
    /// An answer of a remote shard; the connection goes back to its pool when the last byte has been read.
    Leased(Lease),
    /// The same over HTTP/2; the stream ends when the last byte has been read.
    Exchange(Box<Exchange>),
    Boxed(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send>>),
}

impl Body {
    /// No bytes at all.
    pub fn empty() -> Self {
        Self(Kind::Empty)
    }

    /// Any other body; costs one allocation.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Boxed(Box::pin(body.map_err(Into::into))))
    }

    /// A request's body; with `limit` under the limits of that worker. Its bytes are added to what `counter` makes.
    pub(crate) fn upload(
        body: Unread,
        limit: Option<&Arc<Worker>>,
        counter: impl FnOnce() -> Option<Arc<AtomicU64>>,
    ) -> Self {
        if body.is_read() {
            return Self::empty();
        }
        let bytes = counter();
        let limits = limit.map(|worker| (worker.clone(), worker.core.limits.body_bytes.unwrap_or(u64::MAX)));
        Self(Kind::Upload(Box::new(Upload { body, limits, stall: None, bytes, failed: None })))
    }

    /// Where it will be said if the client's request ends before this body of it does.
    pub(crate) fn failure(&mut self) -> Option<Arc<OnceLock<UploadError>>> {
        let Kind::Upload(upload) = &mut self.0 else { return None };
        Some(upload.failed.get_or_insert_default().clone())
    }

    /// The answer on a connection.
    pub(crate) fn leased(mut lease: Lease) -> Self {
        if lease.is_done() {
            lease.give_back();
            return Self::empty();
        }
        if let Some(bytes) = lease.take_whole() {
            lease.give_back();
            return Self::from(bytes);
        }
        Self(Kind::Leased(lease))
    }

    /// Whether nothing of it has yet to come.
    pub(crate) fn is_at_hand(&self) -> bool {
        matches!(self.0, Kind::Empty | Kind::Full(_))
    }

    /// Whether it comes on a connection with the answers of others.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Kind::Exchange(_))
    }

    /// Bytes that have been taken off such a connection and not passed on.
    pub(crate) fn held(&self) -> usize {
        if let Kind::Exchange(exchange) = &self.0 { exchange.held() } else { 0 }
    }

    /// Takes what has come off such a connection, and keeps it.
    pub(crate) fn gather(&mut self, cx: &mut Context<'_>) {
        if let Kind::Exchange(exchange) = &mut self.0 {
            exchange.gather(cx);
        }
    }

    /// The answer on a stream of HTTP/2.
    pub(crate) fn exchange(exchange: Exchange) -> Self {
        Self(Kind::Exchange(Box::new(exchange)))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self(Kind::Full(bytes)) }
    }
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self(Kind::Incoming(body))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Upload(upload) => upload.poll_frame(cx),
            Kind::Leased(lease) => {
                let frame = ready!(lease.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) || lease.is_done() {
                    let ended = std::mem::replace(&mut self.0, Kind::Empty);
                    // After a broken answer its connection is of no further use.
                    if let (Kind::Leased(lease), None | Some(Ok(_))) = (ended, &frame) {
                        lease.give_back();
                    }
                }
                Poll::Ready(frame)
            }
            Kind::Exchange(exchange) => {
                let frame = ready!(exchange.poll_frame(cx));
                if exchange.is_done() {
                    self.0 = Kind::Empty;
                }
                Poll::Ready(frame)
            }
            Kind::Boxed(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(_) => false,
            Kind::Incoming(body) => body.is_end_stream(),
            Kind::Leased(_) | Kind::Exchange(_) => false,
            Kind::Upload(upload) => upload.body.is_read(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(body) => body.size_hint(),
            Kind::Leased(lease) => lease.size_hint(),
            Kind::Exchange(_) => SizeHint::default(),
            Kind::Upload(upload) => {
                upload.body.body.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
            }
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}

/// Why a client's request ends before its body does.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum UploadError {
    /// A client that has promised a body and sends nothing of it, while the shard waits for it.
    #[error("the client does not go on with its request's body")]
    Stalled,
    /// It is larger than this many bytes.
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(u64),
}

struct Upload {
    body: Unread,
    /// Who keeps the time, and how many bytes there may be still.
    limits: Option<(Arc<Worker>, u64)>,
    stall: Option<Timer>,
    /// For the access log.
    bytes: Option<Arc<AtomicU64>>,
    /// For who does not get its errors.
    failed: Option<Arc<OnceLock<UploadError>>>,
}

impl Upload {
    fn fail(&self, error: UploadError) -> BoxError {
        if let Some(failed) = &self.failed {
            let _ = failed.set(error);
        }
        error.into()
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body.body else { return Poll::Ready(None) };
        let mut frame = http_body::Body::poll_frame(Pin::new(body), cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            clean_trailers(trailers);
        }
        if let (Some(bytes), Poll::Ready(Some(Ok(frame)))) = (&self.bytes, &frame) {
            bytes.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), Relaxed);
        }
        let Some((worker, left)) = &mut self.limits else { return frame.map_err(Into::into) };
        let limits = &worker.core.limits;
        match frame {
            Poll::Ready(frame) => {
                self.stall = None;
                let read = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
                match left.checked_sub(read as u64) {
                    Some(rest) => *left = rest,
                    None => {
                        let error = UploadError::TooLarge(limits.body_bytes.unwrap_or(u64::MAX));
                        return Poll::Ready(Some(Err(self.fail(error))));
                    }
                }
                Poll::Ready(frame.map(|f| f.map_err(Into::into)))
            }
            Poll::Pending => {
                let begin = || worker.wake_after(limits.stall_timeout, cx.waker().clone());
                if !self.stall.get_or_insert_with(begin).is_over(cx.waker()) {
                    return Poll::Pending;
                }
                // There is nothing to be read before the answer is sent.
                self.body.drain = false;
                Poll::Ready(Some(Err(self.fail(UploadError::Stalled))))
            }
        }
    }
}

/// Most bytes of a body that nobody wants which are read all the same, and for how long.
const DRAIN_BYTES: usize = 32 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The body of a client's request. What is left of it when this is dropped is read for a moment: closing an HTTP/1.1
/// connection with unread bytes resets it, and the client would not see its answer (RFC 9112 section 9.6).
pub(crate) struct Unread {
    body: Option<Incoming>,
    drain: bool,
}

impl Unread {
    /// `drain` is false where there is nothing to lose: over HTTP/2, and for clients that wait to be asked for the body.
    pub(crate) fn new(body: Incoming, drain: bool) -> Self {
        Self { body: Some(body), drain }
    }

    /// Gives up on it at once: the connection is to be closed, whatever the client sends.
    pub(crate) fn abandon(mut self) {
        self.body = None;
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_read(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| self.drain && !http_body::Body::is_end_stream(body)) else {
            return;
        };
        let read = async move {
            let mut left = DRAIN_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let read = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = left.checked_sub(read) else { return };
                left = rest;
            }
        };
        tokio::spawn(tokio::time::timeout(DRAIN_TIME, read));
    }
}
