//! The order in which watches end while the gateway drains.
//!
//! All of them at once would bring all clients back at once (PX-09). They end one by one at a steady rate, and those of
//! one workspace as far from each other as the time allows, so that no tenant loses all of its watches together.

use std::{collections::HashMap, time::Duration};

/// How often ends that are due are looked for.
pub(crate) const PACE: Duration = Duration::from_millis(50);
/// Watches end within this part of the grace, so that what their clients do next finds somebody.
const SPREAD: f64 = 0.85;
/// Who still waits for seats is told to go elsewhere after this part of the grace, while there is time to say so.
const LAST_CALL: f64 = 0.8;
/// New connections are accepted in this part of the grace, so that each of them gets its answer.
const ADMISSION: f64 = 0.9;

/// When each watch ends, counted from the beginning of the drain: pairs of a time and a key, in order. `watches` are keys with the
/// hash of the workspace each belongs to. O(n log n).
pub(crate) fn endings(watches: &[(usize, u64)], grace: Duration) -> Vec<(Duration, usize)> {
    let mut sizes: HashMap<u64, (u32, u32)> = HashMap::new();
    for (_, workspace) in watches {
        sizes.entry(*workspace).or_default().0 += 1;
    }
    let mut order: Vec<(f64, usize)> = Vec::with_capacity(watches.len());
    for (key, workspace) in watches {
        let Some((size, before)) = sizes.get_mut(workspace) else { continue };
        // Workspaces begin at different places, so that those with one watch do not all stand in the middle.
        let offset = *workspace as f64 / u64::MAX as f64;
        order.push(((f64::from(*before) + offset) / f64::from(*size), *key));
        *before += 1;
    }
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let step = grace.mul_f64(SPREAD) / u32::try_from(order.len().max(1)).unwrap_or(u32::MAX);
    (1u32..).zip(order).map(|(rank, (_, key))| (step.saturating_mul(rank), key)).collect()
}

/// When those who still wait for seats are sent away.
pub(crate) fn last_call(grace: Duration) -> Duration {
    grace.mul_f64(LAST_CALL)
}

/// For how long new connections are accepted.
pub(crate) fn admission(grace: Duration) -> Duration {
    grace.mul_f64(ADMISSION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::mix;

    /// The figures of PX-09: 300 watches of 30 workspaces, opened one workspace after the other, within 5 seconds.
    #[test]
    fn watches_end_at_a_steady_rate_and_each_workspace_loses_its_own_one_by_one() {
        let watches: Vec<_> = (0..300).map(|n| (n, mix(n as u64 / 10))).collect();
        let ends = endings(&watches, Duration::from_secs(5));
        assert_eq!(ends.len(), 300);
        for (at, _) in &ends {
            let window = ends.iter().filter(|(t, _)| *t >= *at && *t < *at + Duration::from_millis(500));
            assert!(window.count() <= 40, "{at:?}");
        }
        for workspace in 0..30 {
            let mine = || ends.iter().filter(|(_, key)| key / 10 == workspace).map(|(at, _)| *at);
            let (first, last) = (mine().min().unwrap(), mine().max().unwrap());
            assert!(last - first >= Duration::from_secs(3), "{workspace}: {first:?} {last:?}");
        }
        assert!(ends.iter().all(|(at, _)| *at <= Duration::from_secs(5)));
    }

    #[test]
    fn none_and_one() {
        assert!(endings(&[], Duration::from_secs(5)).is_empty());
        assert_eq!(endings(&[(7, u64::MAX)], Duration::from_secs(10)), [(Duration::from_millis(8500), 7)]);
    }
}
