//! The `limits` of `gateway.yaml`: what one client may take at the door.
//!
//! Every one of them only ever hurts the client that runs into it. Time limits are enforced once a second, so a whole
//! second is the finest that has an effect.

use std::{ops::RangeInclusive, time::Duration};

use serde::Deserialize;

use crate::{duration::RawDuration, fault::Faults};

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Limits at the door and towards shards. A plain value: who puts another one in force swaps it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open client connections, over all workers; more are closed unanswered.
    pub connections: usize,
    /// The same for one client address; of IPv6 the first 64 bits count.
    pub connections_per_address: usize,
    /// Connections that have not got through their TLS handshake or sent their first byte; one more ends the oldest.
    pub handshakes: usize,
    /// Bytes of names and values of one request's headers; more gets 431.
    pub header_bytes: usize,
    /// Header fields of one request; more gets 431.
    pub header_count: usize,
    /// Bytes of one request's body; more gets 413. `None`: any.
    pub body_bytes: Option<u64>,
    /// Streams of one HTTP/2 connection.
    pub streams: u32,
    /// Streams that the client of one HTTP/2 connection may reset within a minute; more ends the connection.
    pub resets_per_minute: u32,
    /// PING, SETTINGS, PRIORITY, empty DATA and unknown frames on one HTTP/2 connection within a minute; more ends it.
    pub control_frames_per_minute: u32,
    /// From the acceptance of a connection to the end of its TLS handshake or its first byte, and from the first byte
    /// of a request head to its last.
    pub head_timeout: Duration,
    /// A connection without an open request is closed after this.
    pub idle_timeout: Duration,
    /// A client that neither takes nor sends a byte of a body that waits for it is cut off after this.
    pub stall_timeout: Duration,
    /// A connection this old, give or take a tenth, takes no new requests: the client is told to open another. `None`: any age.
    pub connection_age: Option<Duration>,
    /// Of a million HTTP/2 requests, how many are followed by the request to open another connection.
    pub goaways_per_million: u32,
    /// Open connections that have switched protocols (exec, attach, port-forward); more get 503.
    pub tunnels: usize,
    /// Such a connection is closed when no byte has passed for this long.
    pub tunnel_idle_timeout: Duration,
    /// Connections to one shard, per worker. Who needs one more waits for it as long as for a new one, then gets 503.
    pub upstream_connections: usize,
    /// A connection to a shard is asked after this whether it still lives: by a ping over HTTP/2, whatever runs on it,
    /// and by TCP when it is silent.
    pub ping_interval: Duration,
    /// A connection to a shard on which nothing comes for this long after it was asked is dead, and with it what runs on it.
    pub ping_timeout: Duration,
    /// Until a connection to a shard stands, TLS included.
    pub connect_timeout: Duration,
    /// Until a shard begins to answer a request that is not long-running and names no `timeout`, and between two parts
    /// of its answer.
    pub request_timeout: Duration,
    /// A watch that has not been initialised after this gives its seats back and goes on without.
    pub watch_start_timeout: Duration,
    /// Bytes that are read of an answer ahead of a client that does not take it, so that the shard can finish and its
    /// seats come back.
    pub ahead_bytes: usize,
    /// The same for all answers of a worker together.
    pub ahead_bytes_per_worker: usize,
    /// How long a request for an unknown workspace waits for the index to learn of it.
    pub lookup_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            connections_per_address: 10_000,
            handshakes: 10_000,
            header_bytes: 64 << 10,
            header_count: 100,
            body_bytes: None,
            streams: 250,
            resets_per_minute: 1000,
            control_frames_per_minute: 6000,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(3 * MINUTE),
            stall_timeout: Duration::from_secs(30),
            connection_age: None,
            goaways_per_million: 0,
            tunnels: 1000,
            tunnel_idle_timeout: Duration::from_secs(4 * HOUR),
            upstream_connections: 10_000,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(MINUTE),
            watch_start_timeout: Duration::from_secs(30),
            ahead_bytes: 1 << 20,
            ahead_bytes_per_worker: 64 << 20,
            lookup_wait: Duration::from_millis(100),
        }
    }
}

/// As written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawLimits {
    connections: Option<i64>,
    connections_per_address: Option<i64>,
    handshakes: Option<i64>,
    header_bytes: Option<i64>,
    header_count: Option<i64>,
    body_bytes: Option<i64>,
    streams: Option<i64>,
    resets_per_minute: Option<i64>,
    control_frames_per_minute: Option<i64>,
    head_timeout: Option<RawDuration>,
    idle_timeout: Option<RawDuration>,
    stall_timeout: Option<RawDuration>,
    connection_age: Option<RawDuration>,
    goaways_per_million: Option<i64>,
    tunnels: Option<i64>,
    tunnel_idle_timeout: Option<RawDuration>,
    upstream_connections: Option<i64>,
    ping_interval: Option<RawDuration>,
    ping_timeout: Option<RawDuration>,
    connect_timeout: Option<RawDuration>,
    request_timeout: Option<RawDuration>,
    watch_start_timeout: Option<RawDuration>,
    ahead_bytes: Option<i64>,
    ahead_bytes_per_worker: Option<i64>,
    lookup_wait: Option<RawDuration>,
}

impl RawLimits {
    /// The limits, with defaults for what is not given or faulty.
    pub(crate) fn check(&self, faults: &mut Faults<'_>) -> Limits {
        let mut limits = Limits::default();
        let l = &mut limits;
        let mut check = Check { faults };
        check.number("connections", self.connections, 1..=1_000_000, &mut l.connections);
        // A lower limit on all is one on each.
        l.connections_per_address = l.connections_per_address.min(l.connections);
        let most = l.connections as u64;
        check.number("connectionsPerAddress", self.connections_per_address, 1..=most, &mut l.connections_per_address);
        check.number("handshakes", self.handshakes, 1..=1_000_000, &mut l.handshakes);
        // Both protocols read up to 256 KiB of a head, so that a Status can be the answer.
        check.number("headerBytes", self.header_bytes, 4096..=128 << 10, &mut l.header_bytes);
        check.number("headerCount", self.header_count, 16..=1000, &mut l.header_count);
        let mut body_bytes = 0;
        check.number("bodyBytes", self.body_bytes, 1024..=1 << 40, &mut body_bytes);
        l.body_bytes = self.body_bytes.map(|_| body_bytes);
        check.number("streams", self.streams, 1..=10_000, &mut l.streams);
        check.number("resetsPerMinute", self.resets_per_minute, 10..=1_000_000, &mut l.resets_per_minute);
        let frames = &mut l.control_frames_per_minute;
        check.number("controlFramesPerMinute", self.control_frames_per_minute, 100..=10_000_000, frames);
        check.time("headTimeout", self.head_timeout.as_ref(), SECOND..=10 * MINUTE, &mut l.head_timeout);
        check.time("idleTimeout", self.idle_timeout.as_ref(), SECOND..=DAY, &mut l.idle_timeout);
        check.time("stallTimeout", self.stall_timeout.as_ref(), SECOND..=HOUR, &mut l.stall_timeout);
        let mut age = Duration::ZERO;
        check.time("connectionAge", self.connection_age.as_ref(), 10 * SECOND..=30 * DAY, &mut age);
        l.connection_age = self.connection_age.as_ref().map(|_| age);
        // Kubernetes' own bound for the chance of a GOAWAY is two in a hundred too.
        check.number("goawaysPerMillion", self.goaways_per_million, 0..=20_000, &mut l.goaways_per_million);
        check.number("tunnels", self.tunnels, 0..=1_000_000, &mut l.tunnels);
        let idle = &mut l.tunnel_idle_timeout;
        check.time("tunnelIdleTimeout", self.tunnel_idle_timeout.as_ref(), 10 * SECOND..=30 * DAY, idle);
        check.number("upstreamConnections", self.upstream_connections, 1..=1_000_000, &mut l.upstream_connections);
        check.time("pingInterval", self.ping_interval.as_ref(), SECOND..=HOUR, &mut l.ping_interval);
        check.time("pingTimeout", self.ping_timeout.as_ref(), SECOND..=10 * MINUTE, &mut l.ping_timeout);
        check.time("connectTimeout", self.connect_timeout.as_ref(), SECOND..=MINUTE, &mut l.connect_timeout);
        check.time("requestTimeout", self.request_timeout.as_ref(), SECOND..=HOUR, &mut l.request_timeout);
        let start = &mut l.watch_start_timeout;
        check.time("watchStartTimeout", self.watch_start_timeout.as_ref(), SECOND..=HOUR, start);
        check.number("aheadBytes", self.ahead_bytes, 0..=1 << 30, &mut l.ahead_bytes);
        check.number("aheadBytesPerWorker", self.ahead_bytes_per_worker, 0..=1 << 40, &mut l.ahead_bytes_per_worker);
        check.time("lookupWait", self.lookup_wait.as_ref(), 0..=10 * SECOND, &mut l.lookup_wait);
        limits
    }
}

struct Check<'a, 'n> {
    faults: &'a mut Faults<'n>,
}

impl Check<'_, '_> {
    fn number<T: TryFrom<u64>>(&mut self, field: &str, value: Option<i64>, range: RangeInclusive<u64>, to: &mut T) {
        let Some(value) = value else { return };
        let fits = u64::try_from(value).ok().filter(|value| range.contains(value));
        match fits.and_then(|value| T::try_from(value).ok()) {
            Some(value) => *to = value,
            None => {
                let message = format!("is {value}; want {} to {}", range.start(), range.end());
                self.faults.add(format!("limits.{field}"), message);
            }
        }
    }

    /// The range is in seconds.
    fn time(&mut self, field: &str, value: Option<&RawDuration>, range: RangeInclusive<u64>, to: &mut Duration) {
        let Some(value) = value else { return };
        // What has no default is long.
        let example = if to.is_zero() { Duration::from_secs(HOUR) } else { *to };
        if let Some(time) = self.faults.check(&format!("limits.{field}"), value.within(range, example)) {
            *to = time;
        }
    }
}
