//! Setting a quota right by counting.

use std::time::{Duration, Instant};

use apiserver_api::Status;
use serde_json::{Map, Value};

use super::{LIFE, Ledger, quotas};
use crate::registry::{ObjectKey, Registry, UpdateOptions};

/// Between two looks at a quota that says more than there is.
pub const SETTLED: Duration = Duration::from_secs(15);
/// After this time without a change whatever was charged for is made, or never will be: whoever makes it begins within
/// [`LIFE`], and the store answers or gives up within 20 s (two waits of 5 s here, 7 s in etcd).
const QUIET: Duration = Duration::from_secs(30);

const _: () = assert!(SETTLED.as_secs() > LIFE.as_secs(), "what is gone is credited within that time, or never");

/// A quota that says more than there is, as it was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    revision: u64,
    counted: Vec<u64>,
    since: Instant,
    /// Nobody makes anything any more. What goes from then on changes the count.
    quiet: Option<Instant>,
}

impl Excess {
    /// Takes note of what was seen now; true when the excess belongs to nobody: in all looks the same, for long enough
    /// that all who might have charged for it, and then all who might still credit it, are done.
    fn seen(noted: &mut Option<Self>, revision: u64, counted: Vec<u64>, now: Instant) -> bool {
        let same = noted.as_mut().filter(|noted| noted.revision == revision && noted.counted == counted);
        let Some(same) = same else {
            *noted = Some(Self { revision, counted, since: now, quiet: None });
            return false;
        };
        if now.duration_since(same.since) < QUIET {
            return false;
        }
        now.duration_since(*same.quiet.get_or_insert(now)) >= SETTLED
    }
}

impl Registry {
    /// Sets the status of a ResourceQuota right: its limits as they are, what is used as the store counts it. That is
    /// raised at once; it falls when what was `noted` in earlier looks says that nobody has charged for the difference.
    /// True when to look again after [`SETTLED`].
    ///
    /// # Errors
    /// 404, 409 when it was changed meanwhile, and those of the store.
    pub async fn audit_quota(&self, key: &ObjectKey, noted: &mut Option<Excess>, now: Instant) -> Result<bool, Status> {
        let quota = self.get(quotas(), key).await?;
        let mut value = quota.value()?;
        let mut ledger = Ledger::of(self, quota)?;
        let has_excess = ledger.has_excess();
        let may_fall = has_excess && Excess::seen(noted, ledger.quota.revision(), ledger.counted(), now);
        if !has_excess {
            *noted = None;
        }
        ledger.recount(may_fall);
        let status = ledger.status();
        if value.get("status").unwrap_or(&Value::Object(Map::new())) == &status {
            return Ok(has_excess);
        }
        if let Some(value) = value.as_object_mut() {
            value.insert("status".into(), status);
        }
        // With the resourceVersion that was read.
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        self.update(quotas(), key, value, &options).await?;
        // What was admitted before there was a quota may be made now.
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excess_is_nobodys_after_two_times_without_a_change() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut noted = None;
        let mut seen = |revision, count, seconds| Excess::seen(&mut noted, revision, vec![count], at(seconds));
        // However long nobody looked: one look is none that it could be compared with.
        assert!(!seen(1, 5, 0) && !seen(1, 5, 100));
        assert!(!seen(1, 5, 114) && seen(1, 5, 115));
        // A charge, or an object that was made or is gone, and all begins anew.
        for (revision, count, from) in [(2, 5, 200), (2, 6, 300), (2, 5, 400)] {
            assert!(!seen(revision, count, from));
            assert!(!seen(revision, count, from + 29), "somebody may still make what he charged for");
            assert!(!seen(revision, count, from + 30) && !seen(revision, count, from + 44));
            assert!(seen(revision, count, from + 45));
        }
    }
}
