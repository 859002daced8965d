//! How many seats a request takes (apf.md 6).

use std::time::Duration;

use apiserver_api::RequestInfo;

/// What is known of the number and size of the objects a request touches, in its own workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Known and fresh.
    Fresh {
        /// Number of objects.
        objects: u64,
        /// Their mean size in bytes; 0 when unknown.
        mean_bytes: u64,
    },
    /// Known once; nobody vouches for it any more.
    Stale {
        /// Number of objects when last heard of.
        objects: u64,
        /// Their mean size then.
        mean_bytes: u64,
    },
    /// Nothing is known.
    Unknown,
}

/// The price of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Seats while the shard works on it.
    pub initial_seats: u32,
    /// Seats of the tail after the answer.
    pub final_seats: u32,
    /// Length of that tail.
    pub additional_latency: Duration,
    /// The estimate before any ceiling, for logs and metrics.
    pub raw_seats: u32,
}

/// Prices one request.
///
/// `counts` are those of the request's resource (and namespace when it names one); `watches` is the
/// number of open watches of the same workspace that a write of this object wakes up;
/// `max_seats` is the ceiling of the priority level (0 = none).
pub fn price(info: &RequestInfo<'_>, counts: Counts, watches: u32, max_seats: u32) -> Cost {
    let _ = (info, counts, watches, max_seats);
    Cost { initial_seats: 1, final_seats: 0, additional_latency: Duration::ZERO, raw_seats: 1 }
}
