//! One request and its answer on a session, driven by the request's own task.

use std::{
    collections::VecDeque,
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream, client::ResponseFuture};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
    request::Parts,
};
use http_body::{Body as _, Frame};
use tokio::time::{Sleep, sleep};

use super::{HEAD_MAX, Place, Relaxed};
use crate::{
    Body, BoxError, hop,
    upstream::{CONTINUE_WAIT, INTERIM_MAX, connect::Endpoint},
};

/// What is kept of a request's body until the answer begins, so that a request which the shard has not looked at can
/// be sent once more. Longer ones cannot, and no more can those in very many parts.
const REPLAY_MAX: usize = 64 << 10;
/// What a part that is kept costs beside its bytes.
const PART_OVERHEAD: usize = 64;

/// Parts of an answer below this size are joined while the client does not take them. h2 counts those that nobody has
/// read, each for what it is below this, and ends the connection with all its streams when they are too many.
const SMALL: usize = 256;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The shard has not looked at the request (RFC 9113 section 8.7): it may be sent once more, whatever it is.
    Unprocessed(h2::Error),
    /// The stream or the connection broke.
    Broken(h2::Error),
    /// The answer breaks the protocol or a limit.
    Malformed(&'static str),
    /// The request's own body failed: the client's doing.
    Upload(BoxError),
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        // A stream is told of a GOAWAY only if it lies behind the last one that is served.
        let is_refused = error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        if is_refused || (error.is_go_away() && error.is_remote()) {
            Self::Unprocessed(error)
        } else if error.is_library() {
            Self::Malformed("it breaks the rules of HTTP/2")
        } else {
            Self::Broken(error)
        }
    }
}

/// A request as long as it may have to be sent more than once.
pub(crate) struct Outgoing {
    head: Request<()>,
    upload: Option<Upload>,
    /// Does no harm when it is done twice (RFC 9110 section 9.2.1), and has no body.
    is_repeatable: bool,
}

/// A request's body.
struct Upload {
    body: Body,
    /// The body is not asked for before the shard wants it, or this is over.
    hold: Option<Pin<Box<Sleep>>>,
    /// What comes before the rest of `body`.
    next: VecDeque<Bytes>,
    /// What has been sent, until it is too much or the answer begins.
    sent: Option<Vec<Bytes>>,
    sent_bytes: usize,
    /// Whether all of `body` has been read.
    is_read: bool,
    /// Whether nothing more is to be sent.
    is_over: bool,
}

impl Outgoing {
    /// Hop-by-hop headers are removed already, those of the gateway's own are among the others.
    pub(crate) fn new(parts: Parts, body: Body, endpoint: &Endpoint) -> Result<Self, http::Error> {
        let Parts { method, uri, mut headers, .. } = parts;
        for name in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
            headers.remove(name);
        }
        let is_over = body.is_end_stream();
        let is_repeatable = is_over && matches!(method, Method::GET | Method::HEAD | Method::OPTIONS);
        let upload = if is_over {
            headers.remove(EXPECT);
            if matches!(method, Method::POST | Method::PUT | Method::PATCH) {
                headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
            None
        } else {
            if let Some(length) = body.size_hint().exact() {
                headers.insert(CONTENT_LENGTH, length.into());
            }
            let waits = headers.get(EXPECT).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"));
            let hold = waits.then(|| Box::pin(sleep(CONTINUE_WAIT)));
            Some(Upload::new(body, hold))
        };
        let uri = http::Uri::builder()
            .scheme(endpoint.scheme.clone())
            .authority(endpoint.authority.clone())
            .path_and_query(uri.path_and_query().map_or("/", |path| path.as_str()))
            .build()?;
        let mut head = Request::new(());
        (*head.method_mut(), *head.uri_mut(), *head.headers_mut()) = (method, uri, headers);
        Ok(Self { head, upload, is_repeatable })
    }

    /// Whether it may be sent once more after this; `has_served` if an earlier request was answered on the connection.
    pub(crate) fn may_go_again(&self, failure: &Failure, has_served: bool) -> bool {
        match failure {
            Failure::Unprocessed(_) => self.upload.as_ref().is_none_or(|upload| upload.sent.is_some()),
            Failure::Broken(error) => self.is_repeatable && has_served && !error.is_reset(),
            Failure::Malformed(_) | Failure::Upload(_) => false,
        }
    }

    /// Sends it, or what was sent of it before once more.
    pub(crate) fn begin(&mut self, place: Place) -> Result<Beginning<'_>, Failure> {
        let mut head = Request::new(());
        *head.method_mut() = self.head.method().clone();
        *head.uri_mut() = self.head.uri().clone();
        *head.headers_mut() = self.head.headers().clone();
        // Whatever goes wrong here, nothing has been sent.
        let sent = place.session().sender.clone().send_request(head, self.upload.is_none());
        let (response, stream) = sent.map_err(|error| match error.is_io() || error.is_go_away() {
            true => Failure::Unprocessed(error),
            false => Failure::Malformed("the request has no form in HTTP/2"),
        })?;
        if let Some(upload) = &mut self.upload {
            upload.rewind();
        }
        Ok(Beginning { response, stream: Some(stream), place: Some(place), outgoing: self, interim: 0 })
    }
}

/// A request whose answer has not begun.
pub(crate) struct Beginning<'a> {
    response: ResponseFuture,
    stream: Option<SendStream<Bytes>>,
    place: Option<Place>,
    outgoing: &'a mut Outgoing,
    interim: u32,
}

impl Beginning<'_> {
    /// Writes the request and reads the answer's head.
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Body>, Failure>> {
        self.poll_send(cx)?;
        loop {
            match ready!(self.response.poll_informational(cx)) {
                Some(Ok(interim)) => {
                    if interim.status() == StatusCode::SWITCHING_PROTOCOLS {
                        return Poll::Ready(Err(Failure::Malformed(
                            "it switches protocols, which HTTP/2 does not know",
                        )));
                    }
                    self.interim += 1;
                    if self.interim > INTERIM_MAX {
                        return Poll::Ready(Err(Failure::Malformed("it has more than 16 interim answers before it")));
                    }
                    if let (StatusCode::CONTINUE, Some(upload)) = (interim.status(), &mut self.outgoing.upload) {
                        upload.hold = None;
                        self.poll_send(cx)?;
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => break,
            }
        }
        let (head, recv) = ready!(Pin::new(&mut self.response).poll(cx))?.into_parts();
        let place = self.place.take().expect("an answer has one head");
        place.heard();
        place.0.has_served.store(true, Relaxed);
        if is_too_long(&head.headers) {
            return Poll::Ready(Err(Failure::Malformed("its head is too long")));
        }
        // Whoever answers instead of asking for the body does not want it.
        let upload = self.outgoing.upload.take().filter(|upload| upload.hold.is_none());
        let upload = self.stream.take().zip(upload).filter(|(_, upload)| !upload.is_over);
        let body = if recv.is_end_stream() && upload.is_none() {
            Body::empty()
        } else {
            Body::exchange(Exchange { recv: Some(recv), held: Held::default(), upload, place })
        };
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
        Poll::Ready(Ok(response))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        match (&mut self.outgoing.upload, &mut self.stream) {
            (Some(upload), Some(stream)) => upload.poll_send(stream, cx).map_err(Failure::Upload),
            _ => Ok(()),
        }
    }
}

impl Upload {
    fn new(body: Body, hold: Option<Pin<Box<Sleep>>>) -> Self {
        let (next, sent) = (VecDeque::new(), Some(Vec::new()));
        Self { body, hold, next, sent, sent_bytes: 0, is_read: false, is_over: false }
    }

    /// Puts what has been sent before what has not.
    fn rewind(&mut self) {
        for part in self.sent.iter_mut().flat_map(|sent| sent.drain(..).rev()) {
            self.next.push_front(part);
        }
        (self.sent_bytes, self.is_over) = (0, false);
    }

    /// Keeps a part that is about to be sent, if it is not too much.
    fn keep(&mut self, part: &Bytes) {
        self.sent_bytes += PART_OVERHEAD + part.len();
        if self.sent_bytes > REPLAY_MAX {
            self.sent = None;
        }
        if let Some(sent) = &mut self.sent {
            sent.push(part.clone());
        }
    }

    /// Writes what there is of the body, as far as the shard lets us. A stream that takes no more ends that: the
    /// answer says why.
    ///
    /// # Errors
    /// The client's body broke off; the shard has been told.
    fn poll_send(&mut self, stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Result<(), BoxError> {
        if let Some(hold) = &mut self.hold {
            if hold.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.hold = None;
        }
        while !self.is_over {
            if self.next.is_empty() && !self.is_read {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(None) => self.is_read = true,
                    Poll::Ready(Some(Err(error))) => {
                        stream.send_reset(Reason::CANCEL);
                        return Err(error);
                    }
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            self.is_read = self.body.is_end_stream();
                            self.next.push_back(data);
                        }
                        Err(last) => {
                            // Not kept: a request with trailers is sent once.
                            (self.sent, self.is_over) = (None, true);
                            let trailers = last.into_trailers().unwrap_or_default();
                            let _ = stream.send_trailers(passable(trailers));
                        }
                    },
                }
                continue;
            }
            match self.send_next(stream, cx) {
                Poll::Ready(is_over) => self.is_over = is_over,
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends a piece of the next part, or the end; whether that was all.
    fn send_next(&mut self, stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(part) = self.next.front_mut().filter(|part| !part.is_empty()) else {
            self.next.pop_front();
            let is_last = self.is_read && self.next.is_empty();
            if is_last {
                let _ = stream.send_data(Bytes::new(), true);
            }
            return Poll::Ready(is_last);
        };
        if stream.capacity() == 0 {
            stream.reserve_capacity(part.len());
            while stream.capacity() == 0 {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(true),
                }
            }
        }
        let piece = part.split_to(stream.capacity().min(part.len()));
        if part.is_empty() {
            self.next.pop_front();
        }
        self.keep(&piece);
        let is_last = self.is_read && self.next.is_empty();
        Poll::Ready(stream.send_data(piece, is_last).is_err() || is_last)
    }
}

/// The error of an answer that has no end. In words only: hyper would reset the client's stream for the same reason as
/// the shard, and after NO_ERROR and CANCEL there are clients that take what they have for all (hyper is one).
fn broken_off(error: &h2::Error) -> BoxError {
    format!("the shard broke its answer off: {error}").into()
}

fn is_too_long(fields: &HeaderMap) -> bool {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() > HEAD_MAX
}

/// Fields of a trailer section that may be passed on.
fn passable(trailers: HeaderMap) -> HeaderMap {
    trailers.iter().filter(|(name, _)| !hop::is_framing(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// The rest of a request, and of its answer. Dropping it resets the stream.
pub(crate) struct Exchange {
    /// `None` when the answer has been read.
    recv: Option<RecvStream>,
    held: Held,
    upload: Option<(SendStream<Bytes>, Upload)>,
    place: Place,
}

/// What has been taken out of the stream and not passed on. The shard may not send more for it: its window bounds this.
#[derive(Default)]
struct Held {
    bytes: usize,
    parts: VecDeque<Bytes>,
    /// Small parts, behind the others.
    joined: BytesMut,
    /// What comes after them, instead of more.
    failed: Option<h2::Error>,
}

impl Held {
    fn push(&mut self, part: Bytes) {
        self.bytes += part.len();
        if part.len() < SMALL {
            return self.joined.extend_from_slice(&part);
        }
        if !self.joined.is_empty() {
            self.parts.push_back(self.joined.split().freeze());
        }
        self.parts.push_back(part);
    }

    fn pop(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let joined = || (!self.joined.is_empty()).then(|| std::mem::take(&mut self.joined).freeze());
        let part = self.parts.pop_front().or_else(joined);
        self.bytes -= part.as_ref().map_or(0, Bytes::len);
        part.map(Ok).or_else(|| self.failed.take().map(Err))
    }

    fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.joined.is_empty() && self.failed.is_none()
    }
}

impl Exchange {
    /// The next part of the answer's body, while the rest of the request is written.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some((stream, upload)) = &mut self.upload
            && let Err(error) = upload.poll_send(stream, cx)
        {
            self.recv = None;
            return Poll::Ready(Some(Err(error)));
        }
        self.upload.take_if(|(_, upload)| upload.is_over);
        let Some(recv) = &mut self.recv else { return Poll::Ready(None) };
        let data = match self.held.pop() {
            Some(data) => Some(data),
            None => ready!(recv.poll_data(cx)),
        };
        let frame = match data {
            Some(Ok(data)) => {
                self.place.heard();
                // More of the answer may come while this part is on its way to the client.
                let _ = recv.flow_control().release_capacity(data.len());
                Some(Ok(Frame::data(data)))
            }
            Some(Err(error)) => Some(Err(broken_off(&error))),
            None => match ready!(recv.poll_trailers(cx)) {
                Ok(Some(trailers)) if is_too_long(&trailers) => Some(Err("the shard's trailers are too long".into())),
                Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(passable(trailers)))),
                Err(error) => Some(Err(broken_off(&error))),
            },
        };
        let is_last = frame.as_ref().is_none_or(|f| f.as_ref().is_ok_and(Frame::is_trailers) || f.is_err());
        if is_last || (self.held.is_empty() && recv.is_end_stream()) {
            self.recv = None;
        }
        Poll::Ready(frame)
    }

    /// Bytes that have been taken out of the stream and not passed on.
    pub(crate) fn held(&self) -> usize {
        self.held.bytes
    }

    /// Takes what has come out of the stream, for a client that does not: see [`SMALL`]. The task is woken for more.
    pub(crate) fn gather(&mut self, cx: &mut Context<'_>) {
        let Some(recv) = &mut self.recv else { return };
        while self.held.failed.is_none() {
            match recv.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    self.place.heard();
                    self.held.push(data);
                }
                Poll::Ready(Some(Err(error))) => self.held.failed = Some(error),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    /// Whether the last byte of the answer has been read and passed on.
    pub(crate) fn is_done(&self) -> bool {
        self.recv.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_another_try_is_bounded_in_bytes_and_in_parts() {
        for part in [Bytes::from_static(b"x"), Bytes::from(vec![b'x'; 1000])] {
            let mut upload = Upload::new(Body::empty(), None);
            let mut kept = 0;
            while upload.sent.is_some() {
                upload.keep(&part);
                kept += 1;
                assert!(kept <= 1024, "parts of {} bytes", part.len());
            }
            assert!(kept * (part.len() + PART_OVERHEAD) > REPLAY_MAX, "{kept} parts of {} bytes", part.len());
        }
    }
}
