//! The access log: a line of JSON for each request, or for a share of them, and a span for each at debug level.
//!
//! # Invariants
//! * A request never waits for its line: a thread of its own formats and writes, behind a channel that is bounded.
//!   What finds it full is dropped and counted.
//! * Which requests are logged is decided by number, not by what clients say. What went wrong is logged beyond the
//!   sample, up to a limit a second.
//!
//! # Costs
//! Off: a look at an option and at the level of the log, twice a request. On: a draft per request, which is used again
//! unless its line is written, so nothing is allocated for the others.

mod line;
mod writer;

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{SyncSender, TrySendError},
    },
};

use apiserver_api::ClusterName;
use config::AccessLog as Settings;
use fairness::{Classified, Cost};
use http::{HeaderValue, Method, Request, Uri, Version, header::USER_AGENT};

pub(crate) use self::{line::Line, writer::Writer};
use crate::{
    admission::Ticket,
    connection::Peer,
    core::Core,
    identity::{Caller, Identity},
    route::Route,
    rules::Rules,
    stamp::AUDIT_ID,
    trace::Trace,
    trail::{Outcome, Trail},
    worker::{Worker, mix},
};

/// Lines that may wait for the writer.
const LINES_MAX: usize = 8192;
/// Drafts that a worker keeps to use again.
const SPARE_MAX: usize = 256;

#[allow(clippy::vec_box, reason = "the boxes themselves are used again, on their way to the writer and to others")]
type Spare = Vec<Box<Draft>>;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Vec::new()) };
}

/// What the workers know of the log.
pub(crate) struct AccessLog {
    lines: SyncSender<Box<Draft>>,
    /// A request whose number, mixed, is below this is logged.
    below: u64,
    quotas: Box<[Quota]>,
    pub(crate) counts: Arc<Counts>,
}

/// Lines by what became of them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) written: AtomicU64,
    /// The writer was too slow.
    pub(crate) dropped: AtomicU64,
    /// They could not be written.
    pub(crate) failed: AtomicU64,
}

/// What one worker may log of what went wrong, this second: the tick, and the lines so far. Only its thread counts.
struct Quota {
    max: u32,
    used: AtomicU64,
}

impl Quota {
    fn take(&self, tick: u32) -> bool {
        let used = self.used.load(Relaxed);
        let (second, count) = (used >> 32, used & u64::from(u32::MAX));
        let count = if second == u64::from(tick) { count } else { 0 };
        if count >= u64::from(self.max) {
            return false;
        }
        self.used.store(u64::from(tick) << 32 | (count + 1), Relaxed);
        true
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
        self.below == u64::MAX || mix(number) < self.below
    }

    /// Whether what goes wrong is logged beyond the sample.
    fn is_told_of_errors(&self) -> bool {
        self.quotas.first().is_some_and(|quota| quota.max > 0)
    }

    /// Passes a draft on to the writer, or back to be used again.
    fn end(&self, worker: &Worker, mut draft: Box<Draft>, trail: Trail) {
        let is_wanted = draft.is_sampled
            || (is_wrong(&trail) && self.quotas.get(worker.number).is_some_and(|quota| quota.take(worker.tick())));
        if !is_wanted {
            return recycle(draft);
        }
        draft.trail = Some(trail);
        self.offer(draft);
    }

    /// Leaves a line to the writer, if it has room.
    fn offer(&self, draft: Box<Draft>) {
        if let Err(TrySendError::Full(draft) | TrySendError::Disconnected(draft)) = self.lines.try_send(draft) {
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
        Outcome::Rejected(_) | Outcome::UpstreamError(_) | Outcome::TimedOut(_) | Outcome::Cut(_) => true,
        Outcome::Cancelled => !trail.is_stream || trail.code.is_none(),
    }
}

fn recycle(mut draft: Box<Draft>) {
    *draft = Draft::default();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_MAX {
            spare.push(draft);
        }
    });
}

/// What a line needs of a request. Shares what the request has anyway; no text is copied.
#[derive(Default)]
pub(crate) struct Draft {
    is_sampled: bool,
    span: Option<tracing::Span>,
    method: Method,
    version: Version,
    uri: Uri,
    rest_at: usize,
    client: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    pub(crate) audit_id: Option<HeaderValue>,
    pub(crate) trace: Option<Trace>,
    identity: Option<Arc<Identity>>,
    impersonator: Option<Arc<Identity>>,
    workspace: Option<ClusterName>,
    shard: Option<Arc<str>>,
    level: Option<(Arc<Rules>, Classified, Cost)>,
    /// Bytes of the request's body, where it has one.
    bytes_in: Option<Arc<AtomicU64>>,
    /// Added at the end.
    trail: Option<Trail>,
}

impl Draft {
    /// Begins one for a request that has just arrived, if anybody will read it. The span is for what is done for it.
    pub(crate) fn begin<B>(worker: &Worker, peer: &Peer, request: &Request<B>) -> (Option<Box<Self>>, tracing::Span) {
        let log = worker.core.access_log.as_ref();
        let is_sampled = log.is_some_and(|log| log.is_sampled(worker.next_number()));
        let span = tracing::debug_span!(
            target: "fairgate::request",
            "request",
            method = %request.method(),
            path = line::path(request.uri()),
        );
        let is_traced = !span.is_disabled();
        if !is_sampled && !is_traced && !log.is_some_and(AccessLog::is_told_of_errors) {
            return (None, span);
        }
        let mut draft = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        draft.is_sampled = is_sampled;
        draft.span = is_traced.then(|| span.clone());
        draft.method.clone_from(request.method());
        draft.version = request.version();
        draft.uri.clone_from(request.uri());
        draft.client = Some(peer.address.clone());
        draft.user_agent = request.headers().get(USER_AGENT).cloned();
        draft.audit_id = request.headers().get(AUDIT_ID).cloned();
        (Some(draft), span)
    }

    /// Notes who asks.
    pub(crate) fn identify(&mut self, caller: &Caller) {
        self.impersonator.clone_from(&caller.impersonator);
        self.identity = Some(caller.identity.clone());
    }

    /// Notes where it goes.
    pub(crate) fn route(&mut self, core: &Core, route: &Route) {
        self.rest_at = route.rest_at;
        self.workspace.clone_from(&route.workspace);
        self.shard = core.shards.get(route.shard).map(|entry| entry.shard.name.clone());
    }

    /// Notes its level and price.
    pub(crate) fn price(&mut self, ticket: &Ticket) {
        self.level = Some((ticket.rules.clone(), ticket.class, ticket.cost));
    }

    /// For the body of the request: counts its bytes.
    pub(crate) fn count_bytes(&mut self) -> Arc<AtomicU64> {
        self.bytes_in.get_or_insert_default().clone()
    }

    /// Whether the trace of a request that brings none will be read; see [`Trace::take`].
    pub(crate) fn wants_trace(&self) -> Option<bool> {
        (self.is_sampled || self.span.is_some()).then_some(self.is_sampled)
    }

    /// The request has ended.
    pub(crate) fn end(self: Box<Self>, worker: &Worker, trail: Trail) {
        if let Some(span) = &self.span
            && let Some(line) = Line::of(&self, &trail, worker.core.clock.wall())
        {
            line.trace(span);
        }
        match &worker.core.access_log {
            Some(log) => log.end(worker, self, trail),
            None => recycle(self),
        }
    }
}

#[cfg(test)]
mod tests;
