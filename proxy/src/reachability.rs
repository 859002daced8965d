//! Whether the followers of a shard's workspaces get what they ask for, and when the log hears of it.
//!
//! A shard that goes is told once, with the cause; then once a minute while it is gone; then that it is back. One that comes and goes
//! is told no more than once in ten seconds.
//!
//! A std mutex: short sections, never held over an await, and never on the path of a request.

use std::sync::{Mutex, PoisonError};

use crate::{index::feed::Kind, status};

const SECOND_NS: u64 = 1_000_000_000;
/// Between two lines about one failure.
const AGAIN_NS: u64 = 60 * SECOND_NS;
/// Between two failures that are told.
const APART_NS: u64 = 10 * SECOND_NS;
/// How long the cause of a failure is waited for.
const CAUSE_NS: u64 = 5 * SECOND_NS;

/// What is known of one shard.
#[derive(Debug, Default)]
pub(crate) struct Reachability(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By [`Kind`].
    failures: [Option<Failure>; 2],
    /// When the last line about a failure was written.
    told_ns: Option<u64>,
    /// Whether the log says that something is wrong.
    is_told: bool,
}

#[derive(Debug)]
struct Failure {
    since: String,
    since_ns: u64,
    error: String,
    /// It says only that the shard was not even asked.
    is_echo: bool,
    is_told: bool,
}

impl Reachability {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// It answers the follower of `kind`. True if the log should say that all is well again.
    pub(crate) fn works(&self, kind: Kind) -> bool {
        self.with(|state| {
            if let Some(slot) = state.failures.get_mut(kind as usize) {
                *slot = None;
            }
            state.failures.iter().all(Option::is_none) && std::mem::take(&mut state.is_told)
        })
    }

    /// It does not. `is_echo`: it was not even asked, for what went wrong before, which is the better reason to tell.
    /// Returns what the log should say now, if anything.
    pub(crate) fn failed(&self, kind: Kind, error: String, is_echo: bool, now_ns: u64) -> Option<String> {
        self.with(|state| {
            let known = state.failures.iter().flatten().find(|failure| !failure.is_echo);
            let (error, is_echo) = match known.filter(|_| is_echo) {
                Some(known) => (known.error.clone(), false),
                None => (error, is_echo),
            };
            let is_known = state.failures.iter().flatten().any(|other| other.is_told && other.error == error);
            let slot = state.failures.get_mut(kind as usize)?;
            let failure = match slot.take() {
                // A cause after none is news.
                Some(before) => {
                    let is_told = is_known || (before.is_told && (is_echo || !before.is_echo));
                    Failure { is_told, error, is_echo, ..before }
                }
                None => Failure { since: status::now(), since_ns: now_ns, error, is_echo, is_told: is_known },
            };
            let waits = failure.is_echo && now_ns.saturating_sub(failure.since_ns) < CAUSE_NS;
            let is_news = !failure.is_told && !waits;
            *slot = Some(failure);
            let age = state.told_ns.map(|told| now_ns.saturating_sub(told));
            // While one failure is told, the other kind's or its cause may follow at once.
            let is_first = !state.is_told && age.is_none_or(|age| age >= APART_NS);
            if !(is_news && (is_first || state.is_told)) && !(state.is_told && age.is_none_or(|age| age >= AGAIN_NS)) {
                return None;
            }
            (state.told_ns, state.is_told) = (Some(now_ns), true);
            state.failures.iter_mut().flatten().for_each(|failure| failure.is_told = true);
            Some(state.errors())
        })
    }

    /// Since when the shard fails, and why.
    pub(crate) fn failure(&self) -> Option<String> {
        self.with(|state| {
            let first = state.failures.iter().flatten().min_by_key(|failure| failure.since_ns)?;
            Some(format!("unreachable since {}: {}", first.since, state.errors()))
        })
    }

    /// Whether nothing is known to be wrong.
    pub(crate) fn is_well(&self) -> bool {
        self.with(|state| state.failures.iter().all(Option::is_none))
    }
}

impl State {
    /// What is wrong, each thing once.
    fn errors(&self) -> String {
        let all = || self.failures.iter().flatten();
        let has_cause = all().any(|failure| !failure.is_echo);
        let mut errors: Vec<&str> =
            all().filter(|failure| !(has_cause && failure.is_echo)).map(|failure| &*failure.error).collect();
        errors.dedup();
        errors.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "connection refused";
    const ECHO: &str = "a moment ago";

    /// What the log says of a failure in this second.
    fn fails(shard: &Reachability, kind: Kind, error: &str, second: u64) -> Option<String> {
        shard.failed(kind, error.to_owned(), error == ECHO, second * SECOND_NS)
    }

    #[test]
    fn a_failure_is_told_once_with_its_cause_then_once_a_minute_then_its_end() {
        let shard = Reachability::default();
        assert_eq!(fails(&shard, Kind::Workspaces, REFUSED, 1).as_deref(), Some(REFUSED));
        for second in 1..=60 {
            assert_eq!(fails(&shard, Kind::LogicalClusters, ECHO, second), None, "{second}");
            assert_eq!(fails(&shard, Kind::Workspaces, REFUSED, second), None, "{second}");
        }
        assert_eq!(fails(&shard, Kind::LogicalClusters, ECHO, 61).as_deref(), Some(REFUSED));
        assert!(shard.failure().unwrap().ends_with(REFUSED));
        assert!(!shard.works(Kind::Workspaces), "not all of it");
        assert!(shard.works(Kind::LogicalClusters) && shard.is_well());
        assert!(!shard.works(Kind::LogicalClusters), "told already");
    }

    #[test]
    fn an_echo_waits_for_its_cause_but_not_for_ever() {
        let shard = Reachability::default();
        assert_eq!(fails(&shard, Kind::Workspaces, ECHO, 1), None);
        assert_eq!(fails(&shard, Kind::LogicalClusters, REFUSED, 2).as_deref(), Some(REFUSED));
        assert_eq!(fails(&shard, Kind::Workspaces, ECHO, 3), None);
        assert!(shard.failure().unwrap().ends_with(REFUSED));
        let shard = Reachability::default();
        assert_eq!(fails(&shard, Kind::Workspaces, ECHO, 1), None);
        assert_eq!(fails(&shard, Kind::Workspaces, ECHO, 6).as_deref(), Some(ECHO));
        assert_eq!(fails(&shard, Kind::Workspaces, REFUSED, 7).as_deref(), Some(REFUSED), "the cause is news");
    }

    #[test]
    fn what_differs_between_the_two_is_told_of_both() {
        let shard = Reachability::default();
        assert_eq!(fails(&shard, Kind::Workspaces, "403 for b", 1).as_deref(), Some("403 for b"));
        assert_eq!(fails(&shard, Kind::LogicalClusters, "403 for a", 1).as_deref(), Some("403 for a; 403 for b"));
        assert_eq!(fails(&shard, Kind::LogicalClusters, "403 for a", 60), None);
    }

    #[test]
    fn who_comes_and_goes_is_told_every_ten_seconds() {
        let shard = Reachability::default();
        let mut lines = 0;
        for second in 0..100 {
            lines += u32::from(fails(&shard, Kind::Workspaces, REFUSED, second).is_some());
            lines += u32::from(shard.works(Kind::Workspaces));
        }
        assert_eq!(lines, 20);
    }
}
