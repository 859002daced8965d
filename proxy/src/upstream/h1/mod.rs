//! HTTP/1.1 towards a shard: one connection, driven by the task of the request that has it.
//!
//! No task and no channel of its own: [`poll_head`](Connection::poll_head) and [`poll_frame`](Connection::poll_frame)
//! write what is left of the request and read the answer in the same poll. So a shard may answer before it has the
//! whole request, and the rest of it flows on while the answer is passed on.
//!
//! # Invariants
//! * One request at a time; the next one only after [`is_reusable`](Connection::is_reusable) said so, which it does
//!   when request and answer are complete and not a byte more has come.
//! * Nothing that can be read in two ways is passed on: see `head` and `chunks`.
//! * Heads, trailers, interim answers and what is read ahead are bounded.
//!
//! # Cancellation
//! Dropping the connection closes it; that is how the shard learns that nobody waits for its answer.

mod buffer;
mod chunks;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod head;
mod outbox;
#[cfg(test)]
mod tests;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header::EXPECT, request::Parts};
use http_body::{Body as _, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use self::{
    buffer::Buffer,
    chunks::{Chunks, Step},
    head::Coding,
    outbox::Outbox,
};
use super::{CONTINUE_WAIT, INTERIM_MAX};
use crate::{Body, BoxError, stamp::Stamp};

/// Bytes of an answer's head.
const HEAD_MAX: usize = 64 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The stream ended or failed.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The answer breaks the protocol or a limit.
    #[error("{0}")]
    Malformed(&'static str),
    /// The request's own body failed: the client's doing.
    #[error("the request's body broke off")]
    Upload(#[source] BoxError),
}

/// An answer's head, without its fields.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// If it is not the usual one.
    pub(crate) reason: Option<ReasonPhrase>,
    framing: Framing,
    keep_alive: bool,
}

/// How the rest of an answer's body is framed.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    /// There is none.
    Done,
    Length(u64),
    Chunked(Chunks),
    /// Ends with the connection.
    Close,
}

/// A request on its way: all that is needed to write it to another connection, if nothing of it has been used up.
#[derive(Default)]
pub(crate) struct Sending {
    out: Outbox,
    upload: Option<Upload>,
    is_head: bool,
    /// Does no harm when it is done twice (RFC 9110 section 9.2.1), and has no body.
    is_repeatable: bool,
}

struct Upload {
    body: Body,
    coding: Coding,
    /// The body is not asked for before the shard wants it, or this is over.
    hold: Option<Pin<Box<Sleep>>>,
}

/// One connection, with the request and the answer that are on it.
pub(crate) struct Connection<S> {
    stream: S,
    sending: Sending,
    input: Buffer,
    framing: Framing,
    keep_alive: bool,
    /// Whether a byte has come since the request began.
    answered: bool,
    /// Whether any request has been answered.
    has_served: bool,
    interim: u32,
    /// Why the rest of the request cannot be written. The answer may be there all the same.
    write_error: Option<io::Error>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            sending: Sending::default(),
            input: Buffer::new(),
            framing: Framing::Done,
            keep_alive: true,
            answered: false,
            has_served: false,
            interim: 0,
            write_error: None,
        }
    }

    /// Whether an earlier request was answered on it.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served
    }

    /// Whether an idle connection can be used: nothing has come on it, not even its end. Looks at what the runtime
    /// knows of the socket; a system call only if that is something.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let cx = &mut Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut [0])).is_pending()
    }

    /// Takes a request. Its header map comes back empty, to be used for the answer.
    pub(crate) fn begin(&mut self, mut parts: Parts, body: Body, host: &HeaderValue, stamp: &Stamp<'_>) -> HeaderMap {
        let coding = match (body.is_end_stream(), body.size_hint().exact()) {
            (true, _) => None,
            (false, Some(length)) => Some(Coding::Length(length)),
            (false, None) => Some(Coding::Chunked),
        };
        if coding.is_none() && parts.headers.contains_key(EXPECT) {
            parts.headers.remove(EXPECT);
        }
        let waits = || parts.headers.get(EXPECT).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let upload = coding.map(|coding| {
            let hold = waits().then(|| Box::pin(sleep(CONTINUE_WAIT)));
            Upload { body, coding, hold }
        });
        let out = self.sending.out.begin();
        head::write(out, &parts, host, stamp, coding);
        let is_safe = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        self.sending.is_repeatable = is_safe && upload.is_none();
        self.sending.is_head = parts.method == Method::HEAD;
        self.sending.upload = upload;
        self.expect();
        let mut headers = parts.headers;
        headers.clear();
        headers
    }

    /// Takes a request that failed on another connection.
    pub(crate) fn begin_again(&mut self, sending: Sending) {
        self.sending = sending;
        self.sending.out.rewind();
        self.expect();
    }

    fn expect(&mut self) {
        self.framing = Framing::Done;
        self.answered = false;
        self.interim = 0;
    }

    /// What is to be sent on another connection, if that may be: nothing of an answer has been seen, and either
    /// nothing of the request was written or it does no harm to do it twice.
    pub(crate) fn unanswered(&mut self) -> Option<Sending> {
        let may = !self.answered && (self.sending.is_repeatable || self.sending.out.is_untouched());
        may.then(|| std::mem::take(&mut self.sending))
    }

    /// Writes what there is of the request. `Pending` when more is to come or the stream takes no more. A failure to
    /// write is kept, and nothing more is written: the shard may have answered before it closed.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Sending { out, upload, .. } = &mut self.sending;
        loop {
            let mut waits = false;
            while let Some(sending) = upload.as_mut().filter(|_| !waits && out.has_room()) {
                match sending.poll_part(out, cx) {
                    Poll::Ready(Ok(true)) => {}
                    Poll::Ready(Ok(false)) => *upload = None,
                    Poll::Ready(Err(error)) => {
                        self.keep_alive = false;
                        return Poll::Ready(Err(error));
                    }
                    Poll::Pending => waits = true,
                }
            }
            if !out.is_empty()
                && let Err(error) = ready!(out.poll_write(&mut self.stream, cx))
            {
                self.keep_alive = false;
                self.write_error = Some(error);
                return Poll::Ready(Ok(()));
            }
            if upload.is_none() {
                return Poll::Ready(Ok(()));
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Whether there is something to write, or to be written later.
    fn sends(&self) -> bool {
        self.write_error.is_none() && (self.sending.upload.is_some() || !self.sending.out.is_empty())
    }

    /// Writes the request and reads the answer's head; its fields go to `headers`.
    ///
    /// # Errors
    /// See [`Error`]. The connection is of no further use; the request may be, see [`unanswered`](Self::unanswered).
    pub(crate) fn poll_head(&mut self, headers: &mut HeaderMap, cx: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        if self.sends()
            && let Poll::Ready(Err(error)) = self.poll_send(cx)
        {
            return Poll::Ready(Err(Error::Upload(error)));
        }
        loop {
            let before = self.input.bytes.len();
            match ready!(self.input.poll_fill(&mut self.stream, cx)) {
                Ok(0) => return Poll::Ready(Err(Error::Io(self.broken("it was closed before the answer")))),
                Ok(_) => self.answered = true,
                Err(error) => return Poll::Ready(Err(Error::Io(self.write_error.take().unwrap_or(error)))),
            }
            // A head that comes in many parts is not read again for each of them.
            let fresh = self.input.bytes.get(before.saturating_sub(3)..).unwrap_or_default();
            if before > 0 && !has_empty_line(fresh) {
                if self.input.bytes.len() > HEAD_MAX {
                    return Poll::Ready(Err(Error::Malformed("its head is too long")));
                }
                continue;
            }
            if let Some(answer) = self.take_head(headers).map_err(Error::Malformed)? {
                return Poll::Ready(Ok(answer));
            }
            // An invitation to send the body may have come.
            if self.sends()
                && let Poll::Ready(Err(error)) = self.poll_send(cx)
            {
                return Poll::Ready(Err(Error::Upload(error)));
            }
        }
    }

    /// Reads the heads that are there; those of interim answers are not passed on.
    fn take_head(&mut self, headers: &mut HeaderMap) -> Result<Option<Answer>, &'static str> {
        loop {
            let Some(mut answer) = head::read(&mut self.input.bytes, self.sending.is_head, headers)? else {
                return if self.input.bytes.len() > HEAD_MAX { Err("its head is too long") } else { Ok(None) };
            };
            if answer.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err("it switches protocols without being asked");
            }
            if !answer.status.is_informational() {
                self.has_served = true;
                self.framing = std::mem::replace(&mut answer.framing, Framing::Done);
                self.keep_alive &= answer.keep_alive;
                // Whoever answers instead of asking for the body does not want it.
                self.sending.upload.take_if(|upload| upload.hold.is_some()).inspect(|_| self.keep_alive = false);
                return Ok(Some(answer));
            }
            self.interim += 1;
            if self.interim > INTERIM_MAX {
                return Err("it has more than 16 interim answers before it");
            }
            if let (StatusCode::CONTINUE, Some(upload)) = (answer.status, &mut self.sending.upload) {
                upload.hold = None;
            }
        }
    }

    fn broken(&mut self, why: &'static str) -> io::Error {
        self.write_error.take().unwrap_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, why))
    }

    /// The next part of the answer's body, while the rest of the request is written.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.sends()
            && let Poll::Ready(Err(error)) = self.poll_send(cx)
        {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            match self.take_part() {
                Ok(Step::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Step::End(trailers)) => return Poll::Ready(trailers.map(|t| Ok(Frame::trailers(t)))),
                Ok(Step::More) => {}
                Err(why) => return Poll::Ready(Some(Err(self.spoil(why.into())))),
            }
            match ready!(self.input.poll_fill(&mut self.stream, cx)) {
                Ok(0) if self.framing == Framing::Close => self.framing = Framing::Done,
                Ok(0) => {
                    let error = self.broken("the connection was closed in the middle of the answer");
                    return Poll::Ready(Some(Err(self.spoil(error.into()))));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(self.spoil(error.into())))),
            }
        }
    }

    /// The whole body, if it has a length and came with the head.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        let Framing::Length(length) = self.framing else { return None };
        let length = usize::try_from(length).ok().filter(|length| *length <= self.input.bytes.len())?;
        self.framing = Framing::Done;
        Some(self.input.bytes.split_to(length).freeze())
    }

    /// Takes what there is of the body off the input.
    fn take_part(&mut self) -> Result<Step, &'static str> {
        let bytes = &mut self.input.bytes;
        let step = match &mut self.framing {
            Framing::Done => return Ok(Step::End(None)),
            _ if bytes.is_empty() => return Ok(Step::More),
            Framing::Close => return Ok(Step::Data(bytes.split().freeze())),
            Framing::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= here as u64;
                if *left == 0 {
                    self.framing = Framing::Done;
                }
                return Ok(Step::Data(bytes.split_to(here).freeze()));
            }
            Framing::Chunked(chunks) => chunks.step(bytes)?,
        };
        let ended = match (&step, &mut self.framing) {
            (Step::End(_), _) => true,
            (Step::Data(_), Framing::Chunked(chunks)) => chunks.take_last(bytes),
            _ => false,
        };
        if ended {
            self.framing = Framing::Done;
        }
        Ok(step)
    }

    /// The answer ends here, whatever follows.
    fn spoil(&mut self, error: BoxError) -> BoxError {
        self.framing = Framing::Done;
        self.keep_alive = false;
        error
    }

    /// Whether the last byte of the answer has been read and passed on.
    pub(crate) fn is_done(&self) -> bool {
        self.framing == Framing::Done
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Done => SizeHint::with_exact(0),
            Framing::Length(left) => SizeHint::with_exact(left),
            Framing::Chunked(_) | Framing::Close => SizeHint::default(),
        }
    }

    /// Whether another request may be sent, now that the answer is [done](Self::is_done). What is left of a request
    /// whose answer is complete is not sent any more.
    pub(crate) fn is_reusable(&mut self) -> bool {
        if self.keep_alive && self.sending.upload.is_some() {
            // Most likely only its end is missing, which nobody has asked for yet.
            let _ = self.poll_send(&mut Context::from_waker(Waker::noop()));
        }
        let reusable = self.keep_alive && self.is_done() && !self.sends() && self.input.bytes.is_empty();
        if reusable {
            self.input.rest();
        }
        reusable
    }
}

impl Upload {
    /// Puts the next part of the body into `out`; whether there may be another.
    fn poll_part(&mut self, out: &mut Outbox, cx: &mut Context<'_>) -> Poll<Result<bool, BoxError>> {
        if let Some(hold) = &mut self.hold {
            ready!(hold.as_mut().poll(cx));
            self.hold = None;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?.map(Frame::into_data);
        match (&mut self.coding, frame) {
            (Coding::Chunked, Some(Ok(data))) => out.chunk(data),
            (Coding::Length(left), Some(Ok(data))) => {
                *left = left.checked_sub(data.len() as u64).ok_or("the request's body is longer than it says")?;
                out.data(data, b"");
                // A body of a known length needs no further look.
                return Poll::Ready(Ok(*left > 0));
            }
            (Coding::Chunked, Some(Err(last))) => {
                out.last_chunk(last.into_trailers().ok().as_ref());
                return Poll::Ready(Ok(false));
            }
            (Coding::Chunked, None) => {
                out.last_chunk(None);
                return Poll::Ready(Ok(false));
            }
            // Trailers have no place behind a body of known length.
            (Coding::Length(0), _) => return Poll::Ready(Ok(false)),
            (Coding::Length(_), _) => return Poll::Ready(Err("the request's body is shorter than it says".into())),
        }
        Poll::Ready(Ok(true))
    }
}

/// Whether a head could end in `bytes`.
fn has_empty_line(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|at| {
        let rest = bytes.get(at + 1..).unwrap_or_default();
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
    })
}
