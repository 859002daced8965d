//! See [`crate::fuzzing`].

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use http::{HeaderMap, HeaderValue, Method, Request};
use tokio::io::{AsyncRead, ReadBuf, join, sink};

use super::Connection;
use crate::{Body, stamp::Stamp};

/// Gives its bytes a few at a time, then its end.
struct Slow<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl AsyncRead for Slow<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let count = self.step.min(self.bytes.len()).min(buf.remaining());
        let (now, later) = self.bytes.split_at(count);
        buf.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

/// What an answer is, if it has a head: status, fields, body, trailers, and whether it came to its end.
pub type Read = Option<(u16, HeaderMap, Vec<u8>, Option<HeaderMap>, bool)>;

/// Reads bytes of a shard as the answer to a request, so many at a time.
///
/// # Panics
/// Never: a reader that is always ready leaves nothing to wait for.
pub fn answer(bytes: &[u8], step: usize, is_head: bool) -> Read {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut connection = Connection::new(join(Slow { bytes, step }, sink()));
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = if is_head { Method::HEAD } else { Method::GET };
    let host = HeaderValue::from_static("shard");
    let mut headers = connection.begin(parts, Body::empty(), &host, &Stamp::default());
    let Poll::Ready(head) = connection.poll_head(&mut headers, cx) else { panic!("it waits for nothing") };
    let status = head.ok()?.status.as_u16();
    let (mut body, mut trailers, mut is_whole) = (Vec::new(), None, true);
    while !connection.is_done() {
        let Poll::Ready(frame) = connection.poll_frame(cx) else { panic!("it waits for nothing") };
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(last) => trailers = last.into_trailers().ok(),
            },
            Some(Err(_)) => is_whole = false,
            None => {}
        }
    }
    Some((status, headers, body, trailers, is_whole))
}
