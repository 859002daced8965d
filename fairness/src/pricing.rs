//! How many seats a request takes, and for how long after its answer (apf.md 6).
//!
//! Lists and watches that replay a collection pay for the objects that the shard holds in memory for them;
//! writes pay afterwards, for the watch events they cause; everything else takes the minimum. All counts
//! are those of the request's own workspace.
//!
//! Where we differ from Kubernetes v1.34 (apf.md 8.2); [`Compat::Upstream`] restores its rules:
//!
//! | request | upstream | here |
//! |---|---|---|
//! | watch without a version, or from `0` | minimum, although everything is replayed | as a list |
//! | count stale | as 10^9 objects of 1.5 MB | last count and a half |
//! | count unknown | minimum | as [`PricingOptions::objects_assumed`] |
//! | mean size unknown | 1.5 MB | [`PricingOptions::mean_bytes_assumed`] |
//! | deletecollection | minimum | list from storage, then the events of its deletes |
//!
//! Costs nothing but the parse of the query, and that only for lists and watches.

use std::time::Duration;

use apiserver_api::{ListOptions, RequestInfo, Verb};

use crate::Compat;

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

/// How lists are estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ListEstimate {
    /// By the bytes held in memory (the default of Kubernetes since v1.34).
    Size,
    /// By the number of objects processed (before).
    Count {
        /// Objects that one seat stands for.
        objects_per_seat: f64,
    },
}

/// Settings of the estimate. The default is that of Kubernetes v1.34 with our mends.
#[derive(Clone, Debug, PartialEq)]
pub struct PricingOptions {
    /// Whose rules are in force.
    pub compat: Compat,
    /// How lists are estimated.
    pub list_estimate: ListEstimate,
    /// Whether watches that replay a collection are priced like a list.
    pub watch_list: bool,
    /// Whether the shard's watch cache answers consistent lists (no resource version) too. It does where the
    /// store can report the progress of watches: etcd since 3.4.31 and 3.5.13, and the bundled store.
    pub consistent_list_from_cache: bool,
    /// Whether writes pay for their watch events.
    pub watch_events: bool,
    /// Seats of a request that is not estimated, and the least of one that is.
    pub seats_min: u32,
    /// Ceiling of lists and watches.
    pub list_seats_max: u32,
    /// Ceiling of the tail of writes.
    pub mutating_seats_max: u32,
    /// Watches that one seat of a tail serves.
    pub watches_per_seat: f64,
    /// How long a write's tail occupies its seats for one round of events.
    pub event_duration: Duration,
    /// Number of objects when nothing is known of it.
    pub objects_assumed: u64,
    /// Size of an object in bytes when nothing is known of it.
    pub mean_bytes_assumed: u64,
}

impl PricingOptions {
    const DEFAULT: Self = Self {
        compat: Compat::Fairgate,
        list_estimate: ListEstimate::Size,
        watch_list: true,
        consistent_list_from_cache: true,
        watch_events: true,
        seats_min: 1,
        list_seats_max: 100,
        mutating_seats_max: 10,
        watches_per_seat: 10.0,
        event_duration: Duration::from_millis(5),
        objects_assumed: 100,
        mean_bytes_assumed: 4_000,
    };

    /// The default for a shard of so many seats: one list takes at most a sixth of a large shard, which is
    /// upstream's ceiling of 100 for its 600 seats.
    pub fn for_shard(seats: u32) -> Self {
        Self { list_seats_max: Self::DEFAULT.list_seats_max.max(seats / 6), ..Self::DEFAULT }
    }
}

impl Default for PricingOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const ONE_SEAT: Cost = Cost { initial_seats: 1, final_seats: 0, additional_latency: Duration::ZERO, raw_seats: 1 };
/// Bytes in memory that one seat stands for.
const BYTES_PER_SEAT: u64 = 100_000;
/// A list from the watch cache is streamed: no more than this is in memory at a time.
const STREAMED_BYTES_MAX: u64 = 1_000_000;
/// Upstream's size of an object it knows nothing of.
const WORST_OBJECT_BYTES: u64 = 1_500_000;
/// Upstream's number of objects when the count is stale.
const INFINITE_OBJECTS: u64 = 1_000_000_000;
/// Deletes of a deletecollection that the tail is charged for.
const DELETES_CHARGED_MAX: u64 = 100;
/// The longest tail of a deletecollection: what exceeds it is forgiven.
const DELETES_TAIL_MAX: Duration = Duration::from_secs(5);

impl PricingOptions {
    /// Prices one request.
    ///
    /// `counts` are those of the request's resource (and namespace when it names one); `watches` is the
    /// number of open watches of the same workspace that a write of this object wakes up;
    /// `max_seats` is the ceiling of the priority level (0 = none).
    pub fn price(&self, info: &RequestInfo<'_>, counts: Counts, watches: u32, max_seats: u32) -> Cost {
        if !info.is_resource {
            return self.minimum();
        }
        match info.verb {
            Verb::List => self.list(info, counts, max_seats),
            Verb::Watch if self.watch_list => self.list(info, counts, max_seats),
            // Minting a token writes nothing.
            Verb::Create if info.resource == "serviceaccounts" && info.subresource == "token" => self.minimum(),
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
                self.with_tail(ONE_SEAT, self.events(watches), max_seats)
            }
            Verb::DeleteCollection if self.compat == Compat::Fairgate => {
                self.delete_collection(info, counts, watches, max_seats)
            }
            _ => self.minimum(),
        }
    }

    fn minimum(&self) -> Cost {
        Cost { initial_seats: self.seats_min, raw_seats: self.seats_min, ..ONE_SEAT }
    }

    fn list(&self, info: &RequestInfo<'_>, counts: Counts, max_seats: u32) -> Cost {
        let Ok(options) = ListOptions::parse(info.query) else { return self.unreadable(max_seats) };
        let watch = info.verb == Verb::Watch;
        if watch && !self.replays(&options) {
            return self.minimum();
        }
        let Some(known) = self.objects(counts) else { return self.minimum() };
        let from_cache = watch || !self.goes_to_storage(&options);
        self.estimated(self.list_seats(info, &options, known, from_cache), max_seats)
    }

    fn estimated(&self, seats: u32, max_seats: u32) -> Cost {
        let initial_seats = seats.max(self.seats_min).min(ceiling(self.list_seats_max, max_seats));
        Cost { initial_seats, raw_seats: seats, ..ONE_SEAT }
    }

    /// The price of list options that do not parse. The server will refuse them, but how soon nobody knows.
    fn unreadable(&self, max_seats: u32) -> Cost {
        self.estimated(self.list_seats_max, max_seats)
    }

    /// Whether a watch begins with everything there is. Without `sendInitialEvents` it does unless it
    /// starts at a version (kubernetes #134580).
    fn replays(&self, options: &ListOptions<'_>) -> bool {
        match (options.send_initial_events, self.compat) {
            (Some(wanted), _) => wanted,
            (None, Compat::Upstream) => false,
            (None, Compat::Fairgate) => matches!(&*options.resource_version, "" | "0"),
        }
    }

    /// Whether the watch cache cannot answer a list (apf.md 6.3).
    fn goes_to_storage(&self, options: &ListOptions<'_>) -> bool {
        match (&*options.resource_version_match, &*options.continue_token, &*options.resource_version) {
            ("NotOlderThan", ..) => false,
            ("", "", "") => !self.consistent_list_from_cache,
            ("", "", "0") => false,
            ("", "", _) => options.limit.is_some(),
            _ => true,
        }
    }

    /// Number and mean size to reckon with; `None` where upstream does not estimate.
    fn objects(&self, counts: Counts) -> Option<(u64, u64)> {
        let size = |known: u64, otherwise: u64| if known == 0 { otherwise } else { known };
        Some(match (counts, self.compat) {
            (Counts::Fresh { objects, mean_bytes }, Compat::Upstream) => {
                (objects, if objects == 0 { mean_bytes } else { size(mean_bytes, WORST_OBJECT_BYTES) })
            }
            (Counts::Stale { .. }, Compat::Upstream) => (INFINITE_OBJECTS, WORST_OBJECT_BYTES),
            (Counts::Unknown, Compat::Upstream) => return None,
            (Counts::Fresh { objects, mean_bytes }, Compat::Fairgate) => {
                (objects, size(mean_bytes, self.mean_bytes_assumed))
            }
            (Counts::Stale { objects, mean_bytes }, Compat::Fairgate) => {
                (objects.saturating_add(objects.div_ceil(2)), size(mean_bytes, self.mean_bytes_assumed))
            }
            (Counts::Unknown, Compat::Fairgate) => (self.objects_assumed, self.mean_bytes_assumed),
        })
    }

    fn list_seats(
        &self,
        info: &RequestInfo<'_>,
        options: &ListOptions<'_>,
        (count, mean_bytes): (u64, u64),
        from_cache: bool,
    ) -> u32 {
        let single = !info.name.is_empty();
        let page = options.limit.unwrap_or(count).min(count);
        let selects = !options.field_selector.is_empty() || !options.label_selector.is_empty();
        match self.list_estimate {
            ListEstimate::Size => {
                let objects = match (single, from_cache, selects) {
                    (true, ..) => 1,
                    // Storage has to read on until the page is full of what is selected.
                    (false, false, true) => page.max(count / 2),
                    _ => page,
                };
                let bytes = objects.saturating_mul(mean_bytes);
                let held = if from_cache { bytes.min(STREAMED_BYTES_MAX) } else { bytes };
                u32::try_from(held.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX)
            }
            ListEstimate::Count { objects_per_seat } => {
                let objects = match (single, from_cache, selects) {
                    (true, ..) => 1,
                    (false, true, _) => count,
                    (false, false, true) => count.saturating_add(page),
                    (false, false, false) => page.saturating_mul(2),
                };
                (objects as f64 / objects_per_seat).ceil() as u32
            }
        }
    }

    /// Seats that would serve the watch events of one write at once; 0 when they are too few to matter.
    fn events(&self, watches: u32) -> u32 {
        let few = f64::from(watches) < self.watches_per_seat;
        if few || !self.watch_events { 0 } else { (f64::from(watches) / self.watches_per_seat).ceil() as u32 }
    }

    /// Adds a tail of the given width, made narrower and longer where a ceiling asks for it.
    fn with_tail(&self, cost: Cost, wide: u32, max_seats: u32) -> Cost {
        if wide == 0 {
            return cost;
        }
        let narrow = wide.min(ceiling(self.mutating_seats_max, max_seats)).max(1);
        // Fixed point of 10 ns times seat, as upstream rounds.
        let work = (f64::from(wide) * self.event_duration.as_nanos() as f64 / 10.0).round();
        let latency = Duration::from_nanos((work / f64::from(narrow) * 10.0) as u64);
        Cost { final_seats: narrow, additional_latency: latency, raw_seats: cost.raw_seats.max(wide), ..cost }
    }

    /// A list from storage, and the events of as many deletes (kubernetes #121198).
    fn delete_collection(&self, info: &RequestInfo<'_>, counts: Counts, watches: u32, max_seats: u32) -> Cost {
        let Ok(options) = ListOptions::parse(info.query) else { return self.unreadable(max_seats) };
        let known = self.objects(counts).unwrap_or_default();
        let list = self.estimated(self.list_seats(info, &options, known, false), max_seats);
        let deletes = known.0.min(DELETES_CHARGED_MAX) as u32;
        let cost = self.with_tail(list, self.events(watches).saturating_mul(deletes), max_seats);
        Cost { additional_latency: cost.additional_latency.min(DELETES_TAIL_MAX), ..cost }
    }
}

/// The narrower of the ceilings of the request's sort and of its level (0 = none).
fn ceiling(sort: u32, level: u32) -> u32 {
    if level == 0 { sort } else { sort.min(level) }
}

#[cfg(test)]
mod tests;
