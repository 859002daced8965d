//! Watches: the frames of api-server.md 3.5 and 3.6.

use std::time::Duration;

use apiserver_api::{Reason, Status};
use apiserver_machinery::{Resource, options::ListOptions, selector::FieldSelector};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::Response;
use prometheus::IntCounter;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{body::Body, form::Form, negotiation};
use crate::{
    clock,
    registry::{Object, Registry, WatchEvent, WatchOptions, WatchStart, WatchStream},
    server::Call,
};

/// How often a watch without changes is told how far it has come.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before its end a watch gets its last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Shortest time of a watch whose client names none; up to as much again is added, so that many watches that
/// began together do not end together.
const LIFE: Duration = Duration::from_secs(1800);
/// Bytes after which a frame is sent even when more events are ready.
const CHUNK: usize = 64 * 1024;

/// A stream of events. What goes wrong behind the checks of the options is an ERROR event, as upstream does it.
pub(crate) async fn watch(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::watch(call, resource)?;
    let mut options = ListOptions::parse(resource, &call.info.list_options()?)?;
    if !call.info.name.is_empty() && options.selector.fields.exact_name().is_none() {
        // The old form `/api/v1/watch/.../<name>`.
        options.selector.fields = FieldSelector::parse(resource, &format!("metadata.name={}", call.info.name))?;
    }
    let now = Instant::now();
    let end = now + options.timeout.unwrap_or_else(|| LIFE + LIFE.mul_f64(jitter()));
    // A plain watch that begins in the future just waits (recorded); the present state cannot be told before it is there.
    let ready = match options.send_initial_events {
        Some(true) => call.registry.reached(options.resource_version.unwrap_or(0)).await,
        _ => Ok(()),
    };
    let current = call.registry.store().revision();
    let start = ready.map(|()| start(&options));
    let seen = match start {
        Ok(WatchStart::Now) => current,
        Ok(WatchStart::After(revision)) => revision,
        // Known once the initial state is out.
        Ok(WatchStart::State) | Err(_) => 0,
    };
    let frames = Frames {
        form,
        resource,
        bookmarks: options.allow_bookmarks,
        columns: true,
        seen,
        next_bookmark: first_bookmark(now, end),
        end,
        shutdown: call.server.options().shutdown.clone(),
        registry: call.registry.clone(),
        marks: options.send_initial_events == Some(true),
        sent: call.server.metrics().events(resource),
        epoch: 0,
        events: None,
    };
    let opened = match start {
        Ok(start) => {
            let options = WatchOptions { selector: options.selector, start };
            call.registry.watch_of_epoch(resource, &call.collection(), options).await
        }
        Err(status) => Err(status),
    };
    let body = match opened {
        Ok((events, epoch)) => {
            let frames = Frames { events: Some(events), epoch, ..frames };
            Body::stream(stream::unfold(frames, |mut f| async move { f.next().await.map(|bytes| (bytes, f)) }))
        }
        Err(status) => {
            let mut out = Vec::new();
            form.write_error(&mut out, &status);
            Body::stream(stream::iter([Bytes::from(out)]))
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(http::header::CONTENT_TYPE, form.stream_type());
    Ok(response)
}

/// Where the options let the watch begin.
fn start(options: &ListOptions) -> WatchStart {
    let wanted = options.resource_version.unwrap_or(0);
    match options.send_initial_events {
        Some(true) => WatchStart::State,
        Some(false) if wanted == 0 => WatchStart::Now,
        None if wanted == 0 => WatchStart::State,
        _ => WatchStart::After(wanted),
    }
}

/// Between 0 and 1, different from request to request.
fn jitter() -> f64 {
    let byte = uuid::Uuid::new_v4().as_bytes().first().copied().unwrap_or_default();
    f64::from(byte) / 256.0
}

/// A minute from now, but [`BOOKMARK_BEFORE_END`] if that is earlier and not over.
fn first_bookmark(now: Instant, end: Instant) -> Instant {
    let last = end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(end);
    let next = now + BOOKMARK_EVERY;
    if last > now { next.min(last) } else { next }
}

/// One watch being sent.
struct Frames {
    form: Form,
    resource: &'static Resource,
    /// Whether the client understands bookmarks.
    bookmarks: bool,
    /// Whether the next Table must define its columns.
    columns: bool,
    /// Everything up to here was sent; 0 while the initial state is not out.
    seen: u64,
    next_bookmark: Instant,
    end: Instant,
    shutdown: CancellationToken,
    registry: Registry,
    /// Whether the end of the initial state is marked (WatchList).
    marks: bool,
    /// Counts the events of this resource.
    sent: IntCounter,
    /// The store's, that the objects are of.
    epoch: u64,
    /// `None` once the watch is over.
    events: Option<WatchStream>,
}

impl Frames {
    /// The next bytes to send: all events that are ready, up to a chunk.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Chunk::default();
        while out.is_empty() {
            let events = self.events.as_mut()?;
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                () = sleep_until(self.end) => return None,
                () = sleep_until(self.next_bookmark) => {
                    self.next_bookmark = first_bookmark(self.next_bookmark, self.end);
                    // Nobody is woken for progress alone: ask how far the watch is.
                    self.take_ready(&mut out);
                    if self.bookmarks && self.seen > 0 && self.events.is_some() {
                        self.bookmark(self.seen, false, &mut out);
                    }
                }
                event = events.next() => self.take(event, &mut out),
            }
            self.take_ready(&mut out);
        }
        Some(out.into_bytes())
    }

    /// Takes the events that are there already, up to a chunk.
    fn take_ready(&mut self, out: &mut Chunk) {
        while out.len() < CHUNK {
            let Some(event) = self.events.as_mut().and_then(|e| e.next().now_or_never()) else { break };
            self.take(event, out);
        }
    }

    fn take(&mut self, event: Option<Result<WatchEvent, Status>>, out: &mut Chunk) {
        match event {
            None => self.events = None,
            Some(Err(status)) => {
                // Whoever was too slow to read would not read this either: his stream just ends, as upstream's does.
                if status.reason != Some(Reason::ServiceUnavailable) {
                    self.form.write_error(out.buffer(), &status);
                }
                self.events = None;
            }
            Some(Ok(WatchEvent::Progress(revision))) => self.seen = self.seen.max(revision),
            Some(Ok(WatchEvent::InitialEnd(revision))) => {
                self.seen = self.seen.max(revision);
                if self.marks && self.bookmarks {
                    self.bookmark(revision, true, out);
                }
            }
            Some(Ok(WatchEvent::Added(object))) => self.object("ADDED", &object, out),
            Some(Ok(WatchEvent::Modified(object))) => self.object("MODIFIED", &object, out),
            Some(Ok(WatchEvent::Deleted(object))) => self.object("DELETED", &object, out),
        }
    }

    fn object(&mut self, kind: &'static str, object: &Object, out: &mut Chunk) {
        let live = self.seen > 0;
        if live {
            self.seen = self.seen.max(object.revision());
        }
        let columns = std::mem::take(&mut self.columns);
        // Of the initial state nobody else may be told just now.
        let written = match self.form.shared(kind).filter(|_| live) {
            Some(frame) => {
                self.registry.recent().frame(self.epoch, object, frame, || self.write(kind, object, columns))
            }
            None => self.write(kind, object, columns),
        };
        match written {
            Ok(bytes) => {
                self.sent.inc();
                out.push(bytes);
            }
            Err(status) => {
                self.form.write_error(out.buffer(), &status);
                self.events = None;
            }
        }
    }

    fn write(&self, kind: &str, object: &Object, columns: bool) -> Result<Bytes, Status> {
        let mut out = Vec::new();
        // A watch may last for an hour: ages are those of the event.
        let form = self.form.at(clock::unix_now());
        form.write_event(&mut out, kind, object, columns).map(|()| out.into())
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool, out: &mut Chunk) {
        self.form.write_bookmark(out.buffer(), self.resource, revision, initial_end, std::mem::take(&mut self.columns));
    }
}

/// Frames on their way out together. One alone is passed on as it is, in memory that other watches share.
#[derive(Default)]
struct Chunk {
    /// Comes before the others.
    first: Bytes,
    others: Vec<u8>,
}

impl Chunk {
    fn len(&self) -> usize {
        self.first.len() + self.others.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, frame: Bytes) {
        if self.is_empty() { self.first = frame } else { self.buffer().extend_from_slice(&frame) }
    }

    /// Where further frames are written.
    fn buffer(&mut self) -> &mut Vec<u8> {
        if self.others.is_empty() {
            self.others.extend_from_slice(&std::mem::take(&mut self.first));
        }
        &mut self.others
    }

    fn into_bytes(self) -> Bytes {
        if self.others.is_empty() { self.first } else { self.others.into() }
    }
}
