//! The access log: a line of JSON for each request, or for a share of them, and a span for each at debug level.
//!
//! # Invariants
//! * A request never waits for its line: a thread of its own formats and writes, behind a channel that is bounded.
//!   What finds it full is dropped and counted.
//! * Which requests are logged is decided by number, not by what clients say. What went wrong is logged beyond the
//!   sample, up to a limit a second.
//!
//! * What waits for the writer is bounded by lines and by bytes, and every text of a line by its length.
//!
//! # Costs
//! Off: a look at an option and at the level of the log, twice a request. On: a draft per request with a few hundred
//! bytes of text copied, which is used again unless its line is written: nothing is allocated for the others, and no
//! counter is touched that another core touches too.

mod line;
mod texts;
mod writer;

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{SyncSender, TrySendError},
    },
};

use config::{AccessLog as Settings, Sink};
use fairness::Cost;
use http::{Request, Version, header::USER_AGENT};

use self::texts::{Piece, Texts};
pub(crate) use self::{
    line::Line,
    writer::{Output, Writer},
};
use crate::{
    admission::Ticket,
    connection::Peer,
    core::Core,
    identity::Caller,
    route::Route,
    stamp::AUDIT_ID,
    trace::Trace,
    trail::{Outcome, Trail},
    worker::{Worker, mix},
};

/// Lines that may wait for the writer.
const LINES_MAX: usize = 8192;
/// Bytes that they may have together.
const BYTES_MAX: usize = 16 << 20;
/// Drafts that a worker keeps to use again.
const SPARE_MAX: usize = 256;

#[allow(clippy::vec_box, reason = "the boxes themselves are used again, on their way to the writer and to others")]
type Spare = Vec<Box<Draft>>;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Vec::new()) };
}

/// What the workers know of the log. Its settings may be others at any time.
pub(crate) struct AccessLog {
    lines: SyncSender<Box<Draft>>,
    /// A request whose number, mixed, is below this is logged.
    below: AtomicU64,
    quota: Quota,
    pub(crate) counts: Arc<Counts>,
    place: Arc<Mutex<Place>>,
}

/// Where the lines go. A std mutex around it: the writer looks once for each write.
struct Place {
    sink: Sink,
    /// Opened, and not yet taken by the writer.
    next: Option<Output>,
}

/// Lines by what became of them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) written: AtomicU64,
    /// The writer was too slow.
    pub(crate) dropped: AtomicU64,
    /// They could not be written.
    pub(crate) failed: AtomicU64,
    /// Bytes of those that wait for the writer.
    waiting: AtomicUsize,
}

/// What all workers together may log of what went wrong, this second: the second, and the lines so far. Touched by
/// requests that went wrong only.
struct Quota {
    max: AtomicU32,
    used: AtomicU64,
}

impl Quota {
    /// Takes one of the second that `now_ns` is in. Workers end their requests in no order: one that is late counts
    /// for the newest second.
    fn take(&self, now_ns: u64) -> bool {
        let now = now_ns / 1_000_000_000;
        let next = |used: u64| {
            let (second, count) = (used >> 32, used & u64::from(u32::MAX));
            let (second, count) = if now > second { (now, 0) } else { (second, count) };
            (count < u64::from(self.max.load(Relaxed))).then_some(second << 32 | (count + 1))
        };
        self.used.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// Where in all numbers the share begins that is not logged.
fn threshold(per_million: u32) -> u64 {
    let below = u128::from(per_million) * (1 << 64) / u128::from(Settings::MILLION);
    u64::try_from(below).unwrap_or(u64::MAX)
}

impl AccessLog {
    /// Whether a request of this number is logged when all goes well.
    fn is_sampled(&self, number: u64) -> bool {
        // All means all, the largest number too.
        let below = self.below.load(Relaxed);
        below == u64::MAX || mix(number) < below
    }

    /// Whether what goes wrong is logged beyond the sample.
    fn is_told_of_errors(&self) -> bool {
        self.quota.max.load(Relaxed) > 0
    }

    /// Where the lines of other settings are to go, if it is not where they go now.
    ///
    /// # Errors
    /// It cannot be opened, or is no file.
    pub(crate) fn open(&self, settings: &Settings) -> io::Result<Option<Output>> {
        let is_same = self.place().sink == settings.sink;
        if is_same { Ok(None) } else { Output::open(&settings.sink).map(Some) }
    }

    /// Puts other settings in force, with what has been opened for them; `None` logs nothing more.
    pub(crate) fn set(&self, settings: Option<&Settings>, output: Option<Output>) {
        if let (Some(settings), Some(output)) = (settings, output) {
            *self.place() = Place { sink: settings.sink.clone(), next: Some(output) };
        }
        self.below.store(settings.map_or(0, |log| threshold(log.per_million)), Relaxed);
        self.quota.max.store(settings.map_or(0, |log| log.errors_per_second), Relaxed);
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a draft on to the writer, or back to be used again.
    fn end(&self, mut draft: Box<Draft>, trail: Trail) {
        let is_wanted = draft.is_sampled || (is_wrong(&trail) && self.quota.take(trail.ended_ns));
        if !is_wanted {
            return recycle(draft);
        }
        draft.trail = Some(trail);
        self.offer(draft);
    }

    /// Leaves a line to the writer, if it has room.
    fn offer(&self, draft: Box<Draft>) {
        let size = draft.size();
        // Counted first: the writer may have taken it before this thread goes on.
        let waiting = self.counts.waiting.fetch_add(size, Relaxed);
        let sent = if waiting + size > BYTES_MAX { Err(TrySendError::Full(draft)) } else { self.lines.try_send(draft) };
        if let Err(TrySendError::Full(draft) | TrySendError::Disconnected(draft)) = sent {
            self.counts.waiting.fetch_sub(size, Relaxed);
            self.counts.dropped.fetch_add(1, Relaxed);
            recycle(draft);
        }
    }
}

/// Whether an operator should see it. That a client ends a watch is no fault, nor are requests that make no sense.
fn is_wrong(trail: &Trail) -> bool {
    let code = trail.code.map_or(0, |code| code.as_u16());
    match trail.outcome {
        _ if code == 429 || code >= 500 => true,
        Outcome::Served | Outcome::Refused(_) | Outcome::Cut("drain") => false,
        Outcome::Rejected(_) | Outcome::UpstreamError(_) | Outcome::TimedOut(_) | Outcome::Cut(_) | Outcome::Panic => {
            true
        }
        Outcome::Cancelled => !trail.is_stream || trail.code.is_none(),
    }
}

fn recycle(mut draft: Box<Draft>) {
    draft.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_MAX {
            spare.push(draft);
        }
    });
}

/// What a line needs of a request. Its own: it shares nothing with the request or its connection.
#[derive(Default)]
pub(crate) struct Draft {
    is_sampled: bool,
    span: Option<tracing::Span>,
    version: Version,
    texts: Texts,
    /// Where the Kubernetes part of the path begins.
    rest_at: usize,
    /// As Kubernetes spells it; empty until the path has been read.
    pub(crate) verb: &'static str,
    groups: Option<u64>,
    pub(crate) trace: Option<Trace>,
    cost: Option<Cost>,
    /// Bytes of the request's body.
    bytes_in: Arc<AtomicU64>,
    /// Added at the end.
    trail: Option<Trail>,
}

impl Draft {
    /// Begins one for a request that has just arrived, if anybody will read it. The span is for what is done for it.
    pub(crate) fn begin<B>(worker: &Worker, peer: &Peer, request: &Request<B>) -> (Option<Box<Self>>, tracing::Span) {
        let log = worker.core.access_log.get();
        let is_sampled = log.is_some_and(|log| log.is_sampled(worker.next_number()));
        let uri = request.uri();
        let span = tracing::debug_span!(
            target: "fairgate::request",
            "request",
            method = %request.method(),
            path = line::shown(uri.path(), uri.query()),
        );
        let is_traced = !span.is_disabled();
        if !is_sampled && !is_traced && !log.is_some_and(AccessLog::is_told_of_errors) {
            return (None, span);
        }
        let mut draft = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        draft.is_sampled = is_sampled;
        draft.span = is_traced.then(|| span.clone());
        draft.version = request.version();
        let texts = &mut draft.texts;
        texts.put(Piece::Method, request.method().as_str());
        texts.put(Piece::Path, uri.path());
        if let Some(query) = uri.query() {
            texts.put_query(query);
        }
        texts.put_bytes(Piece::Client, peer.address.as_bytes());
        for (piece, name) in [(Piece::UserAgent, &USER_AGENT), (Piece::AuditId, &AUDIT_ID)] {
            if let Some(value) = request.headers().get(name) {
                texts.put_bytes(piece, value.as_bytes());
            }
        }
        (Some(draft), span)
    }

    /// Notes who asks, if the gateway knows it: whom a bearer token stands for is for the shard to say.
    pub(crate) fn identify(&mut self, caller: &Caller) {
        if !caller.vouched {
            return;
        }
        let user = &caller.identity.user;
        self.texts.put(Piece::User, &user.name);
        self.groups = Some(user.groups.len() as u64);
        if let Some(own) = &caller.impersonator {
            self.texts.put(Piece::Impersonator, &own.user.name);
        }
    }

    /// Notes where it goes.
    pub(crate) fn route(&mut self, core: &Core, route: &Route) {
        self.rest_at = route.rest_at;
        if let Some(name) = &route.workspace {
            self.texts.put(Piece::Cluster, name.as_str());
        }
        if let Some(entry) = core.shards.get(route.shard) {
            self.texts.put(Piece::Shard, &entry.shard.name);
        }
    }

    /// Notes its level and price.
    pub(crate) fn price(&mut self, Ticket { rules, class, cost }: &Ticket) {
        if let Some(schema) = rules.profile.flow_schemas().get(usize::from(class.flow_schema)) {
            self.texts.put(Piece::FlowSchema, &schema.name);
        }
        if let Some(level) = rules.profile.levels().get(usize::from(class.level)) {
            self.texts.put(Piece::PriorityLevel, &level.name);
        }
        self.cost = Some(*cost);
    }

    /// Notes under which name the shard has it in its audit log.
    pub(crate) fn audit_id(&mut self, id: &[u8]) {
        self.texts.put_bytes(Piece::AuditId, id);
    }

    /// For the body of the request: counts its bytes.
    pub(crate) fn count_bytes(&self) -> Arc<AtomicU64> {
        self.bytes_in.clone()
    }

    /// Whether the trace of a request that brings none will be read; see [`Trace::take`].
    pub(crate) fn wants_trace(&self) -> bool {
        self.is_sampled || self.span.is_some()
    }

    /// Bytes that it takes while it waits for the writer.
    fn size(&self) -> usize {
        size_of::<Self>() + self.texts.capacity()
    }

    /// Makes it one for another request, which finds its buffer and, unless a body still counts with it, its counter.
    fn clear(&mut self) {
        let Self { is_sampled, span, version, texts, rest_at, verb, groups, trace, cost, bytes_in, trail } = self;
        texts.clear();
        match Arc::get_mut(bytes_in) {
            Some(count) => *count.get_mut() = 0,
            None => *bytes_in = Arc::default(),
        }
        (*is_sampled, *version, *rest_at, *verb) = (false, Version::default(), 0, "");
        (*span, *groups, *trace, *cost, *trail) = (None, None, None, None, None);
    }

    /// The request has ended.
    pub(crate) fn end(self: Box<Self>, worker: &Worker, trail: Trail) {
        if let Some(span) = &self.span
            && let Some(line) = Line::of(&self, &trail, worker.core.clock.wall())
        {
            line.trace(span);
        }
        match worker.core.access_log.get() {
            Some(log) => log.end(self, trail),
            None => recycle(self),
        }
    }
}

#[cfg(test)]
mod tests;
