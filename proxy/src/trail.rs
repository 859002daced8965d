//! What is noted of one request on its way, for histograms, the access log and spans.
//!
//! Numbers only, and of the times only those that a step of the request reads anyway.

use std::fmt;

use apiserver_api::Verb;
use http::StatusCode;

use crate::{access_log::Draft, connection::Peer, core::Core, refused::Why};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole answer, the shard's or a probe's, was handed to the client's connection.
    Served,
    /// The gateway itself answered: the request asks for what it may not have, is no request, or its body is not what
    /// was promised. With the door's reason.
    Refused(&'static str),
    /// Fairness, a limit of rates or one of watches said no. With the reason.
    Rejected(&'static str),
    /// The shard gave no answer or broke it off.
    UpstreamError(&'static str),
    /// The shard was too slow.
    TimedOut(&'static str),
    /// The gateway ended it: a client that takes or sends nothing, a drain, a stop.
    Cut(&'static str),
    /// The client went away first.
    Cancelled,
    /// The gateway's own fault.
    Panic,
}

/// Every name of an outcome, in the order of [`Outcome::number`].
pub(crate) const OUTCOMES: [&str; 8] =
    ["served", "refused", "rejected", "upstream-error", "timed-out", "cut", "cancelled", "panic"];

impl Outcome {
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Served => 0,
            Self::Refused(_) => 1,
            Self::Rejected(_) => 2,
            Self::UpstreamError(_) => 3,
            Self::TimedOut(_) => 4,
            Self::Cut(_) => 5,
            Self::Cancelled => 6,
            Self::Panic => 7,
        }
    }
}

/// Every value of a `verb` label, in the order of [`verb_number`]: upstream's words, and `other` for methods that
/// Kubernetes does not know and for what was refused before it was read.
pub(crate) const VERBS: [&str; 10] =
    ["GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION", "CONNECT", "other"];
const CONNECT: u8 = 8;
const OTHER: u8 = 9;

fn verb_number(verb: Verb) -> u8 {
    match verb {
        Verb::Get | Verb::Head => 0,
        Verb::List => 1,
        Verb::Watch => 2,
        Verb::Create | Verb::Post => 3,
        Verb::Update | Verb::Put => 4,
        Verb::Patch => 5,
        Verb::Delete => 6,
        Verb::DeleteCollection => 7,
        Verb::Proxy => CONNECT,
        Verb::Options | Verb::Other => OTHER,
    }
}

/// The notes on one request. Times are the gateway's clock's, in nanoseconds.
pub(crate) struct Trail {
    pub(crate) arrived_ns: u64,
    /// When it came to its gate, and when the gate let it go on or refused it.
    pub(crate) queued_ns: Option<u64>,
    pub(crate) decided_ns: Option<u64>,
    /// When it was sent to the shard, and when the head of the answer was there.
    pub(crate) sent_ns: Option<u64>,
    pub(crate) head_ns: Option<u64>,
    /// Place in [`VERBS`].
    pub(crate) verb: u8,
    /// A watch, a log, a terminal: its length says nothing about anybody's speed.
    pub(crate) is_stream: bool,
    /// Of the gateway's own health.
    pub(crate) is_probe: bool,
    /// Of the answer, as soon as there is one.
    pub(crate) code: Option<StatusCode>,
    pub(crate) outcome: Outcome,
    /// Bytes of the answer's body.
    pub(crate) bytes_out: u64,
    /// When it ended; its arrival until then.
    pub(crate) ended_ns: u64,
    /// Its line of the access log, where there may be one.
    pub(crate) draft: Option<Box<Draft>>,
}

impl Trail {
    /// A request that has just arrived; unless somebody says more about it, its client went away.
    pub(crate) fn new(arrived_ns: u64) -> Self {
        Self {
            arrived_ns,
            queued_ns: None,
            decided_ns: None,
            sent_ns: None,
            head_ns: None,
            verb: OTHER,
            is_stream: false,
            is_probe: false,
            code: None,
            outcome: Outcome::Cancelled,
            bytes_out: 0,
            ended_ns: arrived_ns,
            draft: None,
        }
    }

    /// Notes what kind of request it is.
    pub(crate) fn classify(&mut self, verb: Verb, is_long_running: bool) {
        self.is_stream = verb == Verb::Watch || is_long_running;
        if let Some(draft) = &mut self.draft {
            draft.verb = verb.as_str();
        }
        self.verb = if is_long_running && verb != Verb::Watch { CONNECT } else { verb_number(verb) };
    }

    /// Notes that it asks for the gateway's own health.
    pub(crate) fn probe(&mut self) {
        self.is_probe = true;
        self.classify(Verb::Get, false);
    }

    /// Whether it is a stream that was opened, and not refused.
    pub(crate) fn is_open_stream(&self) -> bool {
        self.is_stream && self.code.is_some_and(|code| code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS)
    }

    /// Notes and counts that it got no further than the door.
    pub(crate) fn refuse(&mut self, core: &Core, why: Why, peer: &Peer, what: &dyn fmt::Display) {
        core.refused(why, &peer.address, what);
        self.outcome = Outcome::Refused(why.word());
    }

    /// Time at the gate, up to `now` for who is still there; `None` for who never came to one.
    pub(crate) fn wait_ns(&self, now: u64) -> Option<u64> {
        Some(self.decided_ns.unwrap_or(now).saturating_sub(self.queued_ns?))
    }

    /// From sending to the head of the answer.
    pub(crate) fn first_byte_ns(&self) -> Option<u64> {
        Some(self.head_ns?.saturating_sub(self.sent_ns?))
    }
}
