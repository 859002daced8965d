//! What the scheduler measures of the past: durations, returning seats, and how long seats have been free.
//!
//! All of it in integers, so that equal inputs give equal decisions on every machine.

pub(super) const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Releases by the same seats, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Releases {
    /// How many.
    pub(crate) count: u64,
    /// Sum of their durations in nanoseconds.
    pub(crate) total: u64,
    /// Sum of the squares of these.
    pub(crate) squares: u128,
    /// When the last of them was.
    pub(crate) last: u64,
}

impl Releases {
    /// One release, now.
    pub(crate) fn one(now: u64, duration: u64) -> Self {
        Self { count: 1, total: duration, squares: u128::from(duration) * u128::from(duration), last: now }
    }

    fn mean(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }
}

/// More releases at once count as so many of their mean.
const MOST_RELEASES: u64 = 256;

/// Decayed sums over released requests: width, width × duration, width × duration².
#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    /// In 1/65536 seats, so that the decay does not round small sums away.
    width: u64,
    first: u128,
    second: u128,
}

impl Durations {
    /// Takes in releases of one width, of very many only as many as leave nothing of what was before. `decay` gives
    /// the part of a sum that is forgotten with each.
    fn observe(&mut self, width: u32, releases: &Releases, decay: impl Fn(u128) -> u128) {
        let count = u128::from(releases.count.max(1));
        let service = u128::from(width) * u128::from(releases.total) / count;
        let squared = u128::from(width) * releases.squares / count;
        for _ in 0..releases.count.min(MOST_RELEASES) {
            self.width = self.width - decay(u128::from(self.width)) as u64 + (u64::from(width) << 16);
            self.first = self.first - decay(self.first) + service;
            self.second = self.second - decay(self.second) + squared;
        }
    }

    /// For the horizon: 255/256 stays.
    fn observe_shard(&mut self, width: u32, releases: &Releases) {
        self.observe(width, releases, |x| x >> 8);
    }

    /// For one workspace: 0.99 stays.
    pub(super) fn observe_workspace(&mut self, width: u32, releases: &Releases) {
        self.observe(width, releases, |x| (x >> 7) + (x >> 9));
    }

    /// Mean duration, each seat of each request counted once.
    pub(super) fn mean(&self) -> Option<u64> {
        (self.width > 0).then(|| ratio(self.first << 16, u128::from(self.width)))
    }

    /// Mean duration as a seat sees it: long requests count for as long as they are.
    pub(super) fn weighted_mean(&self) -> Option<u64> {
        (self.first > 0).then(|| ratio(self.second, self.first))
    }
}

/// `a / b` to about 36 bits, without a 128-bit division.
fn ratio(a: u128, b: u128) -> u64 {
    let shift = 64_u32.saturating_sub(a.leading_zeros());
    ((a >> shift) as u64).checked_div((b >> shift) as u64).unwrap_or(u64::MAX)
}

/// How long a running seat is expected to last, by renewal theory.
#[derive(Clone, Debug)]
pub(super) struct Horizon {
    pub(super) durations: Durations,
    /// The same over a longer past: what a workspace must exceed by far to count as slow. A burst of short
    /// requests must not make everybody else slow.
    pub(super) usual: Durations,
    pub(super) t: u64,
}

impl Horizon {
    pub(super) fn new() -> Self {
        Self { durations: Durations::default(), usual: Durations::default(), t: 100 * MILLISECOND }
    }

    /// `mean_age` is that of the seats that still run.
    pub(super) fn released(&mut self, width: u32, releases: &Releases, mean_age: u64) {
        self.durations.observe_shard(width, releases);
        self.usual.observe(width, releases, |x| x >> 12);
        let residual = self.durations.weighted_mean().unwrap_or(0) / 2;
        self.t = residual.max(mean_age).clamp(MILLISECOND, 60 * SECOND);
    }
}

/// Evidence that seats come back: over the releases of the last 50 ms, Σ width × min(1, 1 s / duration).
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    buckets: [u64; 8],
    /// Number of the newest bucket, and the sum of all.
    newest: u64,
    sum: u64,
}

impl Evidence {
    /// Unit of [`Evidence::seats`].
    pub(super) const ONE: u64 = 1 << 16;
    const BUCKET_NS: u64 = 50 * MILLISECOND / 8;

    fn roll(&mut self, now: u64) {
        let bucket = now / Self::BUCKET_NS;
        let steps = bucket.saturating_sub(self.newest).min(8);
        for step in 0..steps {
            if let Some(old) = self.buckets.get_mut(((bucket - step) % 8) as usize) {
                self.sum -= std::mem::take(old);
            }
        }
        self.newest = self.newest.max(bucket);
    }

    pub(super) fn released(&mut self, now: u64, width: u32, releases: &Releases) {
        self.roll(now);
        let window = (8 * Self::BUCKET_NS).saturating_sub(now.saturating_sub(releases.last));
        if window == 0 {
            return;
        }
        let duration = releases.mean();
        let recent = (window / duration.max(1)).clamp(1, releases.count);
        let part = if duration <= SECOND { Self::ONE } else { Self::ONE * SECOND / duration };
        let seats = u64::from(width) * recent.min(1 << 20) * part;
        if let Some(bucket) = self.buckets.get_mut((self.newest % 8) as usize) {
            *bucket += seats;
            self.sum += seats;
        }
    }

    /// Seats in units of 1/65536.
    pub(super) fn seats(&mut self, now: u64) -> u64 {
        self.roll(now);
        self.sum
    }
}

/// Low-water marks of the free seats over windows of four lengths, each as a current and a previous window.
#[derive(Clone, Debug)]
pub(super) struct LowWater {
    windows: [Window; 4],
    /// What is free since the last change.
    free: i64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    number: u64,
    current: i64,
    previous: i64,
}

impl LowWater {
    const LENGTHS: [u64; 4] = [8 * MILLISECOND, 64 * MILLISECOND, 512 * MILLISECOND, 4096 * MILLISECOND];

    /// All seats have been free forever.
    pub(super) fn new(free: i64) -> Self {
        Self { windows: [Window { number: 0, current: free, previous: free }; 4], free }
    }

    fn roll(&mut self, now: u64) {
        for (window, length) in self.windows.iter_mut().zip(Self::LENGTHS) {
            let number = now / length;
            if number > window.number {
                window.previous = if number == window.number + 1 { window.current } else { self.free };
                window.current = self.free;
                window.number = number;
            }
        }
    }

    /// `free` seats are free from now on.
    pub(super) fn set(&mut self, now: u64, free: i64) {
        self.roll(now);
        self.free = free;
        for window in &mut self.windows {
            window.current = window.current.min(free);
        }
    }

    /// Seats that were free long enough went to one who was waiting for such seats.
    pub(super) fn lend(&mut self, width: u32) {
        for window in &mut self.windows {
            window.current -= i64::from(width);
            window.previous -= i64::from(width);
        }
    }

    /// Seats that have been free for about `needed` ns at least, and the end of the window that tells.
    pub(super) fn over(&mut self, now: u64, needed: u64) -> (i64, u64) {
        self.roll(now);
        let at = Self::LENGTHS.iter().position(|&l| l >= needed).unwrap_or(Self::LENGTHS.len() - 1);
        let (window, length) = match (self.windows.get(at), Self::LENGTHS.get(at)) {
            (Some(window), Some(length)) => (window, length),
            _ => return (self.free, now),
        };
        (window.current.min(window.previous), (window.number + 1).saturating_mul(*length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_equal_durations_are_that_duration() {
        let mut durations = Durations::default();
        for _ in 0..1000 {
            durations.observe_workspace(3, &Releases::one(0, 5 * MILLISECOND));
        }
        let near = |x: Option<u64>| x.is_some_and(|x| x.abs_diff(5 * MILLISECOND) < MILLISECOND / 100);
        assert!(near(durations.mean()), "{:?}", durations.mean());
        assert!(near(durations.weighted_mean()), "{:?}", durations.weighted_mean());
    }

    #[test]
    fn evidence_is_forgotten_after_its_window() {
        let mut evidence = Evidence::default();
        evidence.released(0, 2, &Releases::one(0, 10));
        evidence.released(30 * MILLISECOND, 1, &Releases::one(30 * MILLISECOND, 2 * SECOND));
        assert_eq!(evidence.seats(30 * MILLISECOND), 2 * Evidence::ONE + Evidence::ONE / 2);
        assert_eq!(evidence.seats(60 * MILLISECOND), Evidence::ONE / 2);
        assert_eq!(evidence.seats(SECOND), 0);
    }

    #[test]
    fn seats_ripen_after_a_whole_window() {
        let mut marks = LowWater::new(4);
        marks.set(MILLISECOND, 0);
        marks.set(2 * MILLISECOND, 3);
        assert_eq!(marks.over(9 * MILLISECOND, MILLISECOND).0, 0);
        assert_eq!(marks.over(17 * MILLISECOND, MILLISECOND), (3, 24 * MILLISECOND));
        marks.lend(2);
        assert_eq!(marks.over(17 * MILLISECOND, MILLISECOND).0, 1);
    }
}
