//! The body of an answer.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Frame, SizeHint};

/// Bytes, or a stream of them. A stream has no errors: one that cannot go on ends.
pub struct Body(Inner);

enum Inner {
    Full(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self(Inner::Full(None))
    }

    /// These bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self(Inner::Full((!bytes.is_empty()).then_some(bytes)))
    }

    /// These chunks, each sent as soon as it is there.
    pub fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(Inner::Stream(Box::pin(chunks)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Inner::Stream(chunks) => chunks.as_mut().poll_next(cx).map(|chunk| chunk.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}
