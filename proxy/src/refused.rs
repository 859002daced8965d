//! What is refused at the door: counted by reason, and told in the log at most once a second for each.
//!
//! A flood must not become a flood of log lines: a line says how many of its kind were left out since the last.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use metrics::{Counter, counter, with_local_recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

const SECOND_NS: u64 = 1_000_000_000;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Why a connection or request got no further than the door.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Why {
            $($(#[$doc])* $name,)*
        }

        /// In the order of [`Why`]: the label in the metric and the log.
        const WORDS: &[&str] = &[$($word,)*];
    };
}

reasons! {
    /// Too many connections.
    Connections = "connections",
    /// Too many connections of one client address.
    Address = "connections-per-address",
    /// Ended so that others can finish their handshake.
    Handshakes = "handshakes",
    /// A handshake, a head or a silence that took too long.
    Timeout = "timeout",
    /// Length, coding, chunks or head that two servers could read differently, or that nobody can read.
    Framing = "framing",
    /// A head that is too large, or asks for what is not served.
    Head = "head",
    /// A body that is too large, or broken.
    Body = "body",
    /// A body that does not go on.
    Stalled = "stalled",
    /// No credential, or an impersonation that is not allowed.
    Identity = "identity",
    /// A path that is ambiguous, or leads to no workspace.
    Workspace = "workspace",
    /// A path or query that is no request.
    Request = "request",
    /// The gateway is shutting down.
    Draining = "draining",
    /// An HTTP/2 connection that was told to go, and goes on.
    Left = "goaway-ignored",
    /// Too many connections that have switched protocols.
    Tunnels = "tunnels",
    /// Too many other requests that last.
    Lasting = "lasting",
    /// Too many streams reset by the client.
    Resets = "resets",
    /// Too many frames that carry nothing.
    Frames = "control-frames",
    /// HTTP/2 as nobody may speak it, header blocks without end among it.
    Protocol = "protocol",
}

impl Why {
    /// As labels and logs have it.
    pub(crate) fn word(self) -> &'static str {
        WORDS.get(self as usize).copied().unwrap_or_default()
    }

    /// Whether it is an ordinary mistake of a single request, which the access log tells too.
    fn is_ordinary(self) -> bool {
        matches!(self, Self::Identity | Self::Workspace | Self::Request | Self::Draining | Self::Left)
    }
}

#[derive(Debug)]
struct Slot {
    word: &'static str,
    counter: Counter,
    /// The second of the last line, counted from 1.
    told: AtomicU64,
    /// Not told since.
    silent: AtomicU64,
}

impl Slot {
    /// Whether this one is to be told, and how many before it were not.
    fn sample(&self, now_ns: u64) -> Option<u64> {
        let second = now_ns / SECOND_NS + 1;
        let told = self.told.load(Relaxed);
        if told >= second || self.told.compare_exchange(told, second, Relaxed, Relaxed).is_err() {
            self.silent.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.silent.swap(0, Relaxed))
    }
}

/// The books.
#[derive(Debug)]
pub(crate) struct Refused(Box<[Slot]>);

impl Refused {
    pub(crate) fn new(recorder: &PrometheusRecorder) -> Self {
        let slot = |word: &&'static str| Slot {
            word,
            counter: with_local_recorder(recorder, || counter!("fairgate_door_rejections_total", "reason" => *word)),
            told: AtomicU64::new(0),
            silent: AtomicU64::new(0),
        };
        Self(WORDS.iter().map(slot).collect())
    }

    /// Counts one, and tells it if none of its kind was told in this second.
    pub(crate) fn note(&self, why: Why, now_ns: u64, client: &dyn fmt::Debug, what: &dyn fmt::Display) {
        let Some(slot) = self.0.get(why as usize) else { return };
        slot.counter.increment(1);
        let Some(silent) = slot.sample(now_ns) else { return };
        let reason = slot.word;
        if why.is_ordinary() {
            tracing::info!(reason, ?client, not_told = silent, "refused: {what}");
        } else {
            tracing::warn!(reason, ?client, not_told = silent, "refused: {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn one_line_a_second_and_reason_says_how_many_were_left_out() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let refused = Refused::new(&recorder);
        let slot = &refused.0[Why::Head as usize];
        let told: Vec<_> =
            [0, 1, SECOND_NS - 1, SECOND_NS, SECOND_NS + 5, 3 * SECOND_NS].map(|now| slot.sample(now)).into();
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1)]);
        refused.note(Why::Protocol, 0, &"a", &"b");
        let text = recorder.handle().render();
        assert!(text.contains("fairgate_door_rejections_total{reason=\"protocol\"} 1"), "{text}");
        assert_eq!(text.matches("fairgate_door_rejections_total{").count(), WORDS.len(), "all from the start");
    }
}
