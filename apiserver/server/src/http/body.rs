//! The body of an answer.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Frame, SizeHint};

use crate::metrics::Observed;

/// Bytes, or a stream of them. A stream has no errors: one that cannot go on ends.
pub struct Body {
    inner: Inner,
    /// The request that it answers, which is over when the body is.
    observed: Option<Observed>,
}

enum Inner {
    Full(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Inner::Full(None).into()
    }

    /// These bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Inner::Full((!bytes.is_empty()).then_some(bytes)).into()
    }

    /// These chunks, each sent as soon as it is there.
    pub fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Inner::Stream(Box::pin(chunks)).into()
    }

    /// With other bytes; a stream as it is.
    pub(crate) fn map_whole(self, change: impl FnOnce(Bytes) -> Bytes) -> Self {
        match self.inner {
            Inner::Full(bytes) => Self { inner: Inner::Full(bytes.map(change)), ..self },
            Inner::Stream(_) => self,
        }
    }

    /// The same, of the answer to this request.
    pub(crate) fn observed(self, request: Observed) -> Self {
        Self { observed: Some(request), ..self }
    }
}

impl From<Inner> for Body {
    fn from(inner: Inner) -> Self {
        Self { inner, observed: None }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.inner {
            Inner::Full(bytes) => Poll::Ready(bytes.take()),
            Inner::Stream(chunks) => chunks.as_mut().poll_next(cx),
        };
        if let (Poll::Ready(Some(bytes)), Some(observed)) = (&next, &mut self.observed) {
            observed.sent(bytes.len());
        }
        next.map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.inner, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}
