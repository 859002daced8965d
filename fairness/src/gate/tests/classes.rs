//! What workspaces are given, when it changes while it is looked up.

use std::sync::OnceLock;

use super::*;

/// A gate whose operator gives each workspace as many seats as `given` says, or a share for 0. In the midst of the
/// first look-up somebody else gives two more.
fn overtaken(given: u32) -> Arc<Gate> {
    let (gate, now, first) = (Arc::new(OnceLock::<Arc<Gate>>::new()), AtomicU64::new(given.into()), AtomicU64::new(1));
    let of = gate.clone();
    let classes: ClassLookup = Arc::new(move |name: &ClusterName| {
        let seen = now.load(Ordering::Relaxed) as u32;
        let gate = of.get().unwrap();
        assert!(gate.shared.state.try_lock().is_ok(), "looked up under the lock");
        if first.swap(0, Ordering::Relaxed) == 1 {
            now.fetch_add(2, Ordering::Relaxed);
            gate.reclassify_workspace(name);
        }
        match seen {
            0 => WorkspaceClass::default(),
            seats => WorkspaceClass::Seats { seats, lendable_percent: 0, borrowing_limit_percent: Some(0) },
        }
    });
    let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000_000)));
    let policy = GatePolicy { classes, ..GatePolicy::default() };
    let made = Gate::with_policy(GateOptions { seats: 20, profile: profile(), clock }, policy);
    gate.set(made.clone()).unwrap();
    made
}

fn limit(gate: &Gate, name: &ClusterName) -> Option<u64> {
    let all = gate.workspace_stats(9).busiest;
    all.iter().find(|w| w.name.as_ref() == Some(name)).map(|w| w.limit)
}

#[test]
fn a_class_that_is_stale_when_it_arrives_does_not_stay() {
    let a = workspace("a");
    for given in [0, 3] {
        let gate = overtaken(given);
        drop(run(gate.admit(&request(&gate, &a, "workload-low", 1))));
        assert_eq!(limit(&gate, &a), Some(u64::from(given) + 2), "its first request");
        let gate = overtaken(given);
        gate.declare_workspace(&a);
        assert_eq!(limit(&gate, &a), Some(u64::from(given) + 2), "declared");
    }
}

#[test]
fn seats_are_kept_for_a_workspace_that_gets_them_later() {
    let (a, seats) = (workspace("a"), Arc::new(AtomicU64::new(0)));
    for compat in [Compat::Fairgate, Compat::Upstream] {
        let of = seats.clone();
        let classes: ClassLookup = Arc::new(move |_: &ClusterName| match of.load(Ordering::Relaxed) as u32 {
            0 => WorkspaceClass::default(),
            seats => WorkspaceClass::Seats { seats, lendable_percent: 0, borrowing_limit_percent: Some(0) },
        });
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000_000)));
        let policy = GatePolicy { classes, compat, ..GatePolicy::default() };
        let gate = Gate::with_policy(GateOptions { seats: 20, profile: profile(), clock }, policy);
        let give = |n| {
            seats.store(n, Ordering::Relaxed);
            gate.declare_workspace(&a);
            limit(&gate, &a).is_some()
        };
        assert!(!give(0), "shares keep nothing");
        assert!(give(4) && give(5) && !give(0));
        // While it has a node of the other kind, and a request that runs.
        let permit = run(gate.admit(&request(&gate, &a, "workload-low", 1)));
        seats.store(4, Ordering::Relaxed);
        gate.reclassify_workspaces();
        assert!(limit(&gate, &a).is_some(), "{compat:?}");
        drop(permit);
        assert_eq!(gate.shard_stats().in_use, 0);
        assert!(!give(0));
    }
}

/// Each workspace is a server of its own, whose seats become fewer when others come.
#[test]
fn ceilings_are_those_of_the_workspace_under_kubernetes_rules() {
    let [a, b] = ["a", "b"].map(workspace);
    let level = class(&PROFILE, "workload-low").level;
    for (compat, want) in [(Compat::Upstream, [None, Some(37), Some(19)]), (Compat::Fairgate, [None; 3])] {
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000_000)));
        let policy = GatePolicy { compat, ..GatePolicy::default() };
        let gate = Gate::with_policy(GateOptions { seats: 600, profile: profile(), clock }, policy);
        let ceiling = || gate.max_seats(Some(&a), &PROFILE, level);
        let before = ceiling();
        drop(run(gate.admit(&request(&gate, &a, "workload-low", 1))));
        let alone = ceiling();
        drop(run(gate.admit(&request(&gate, &b, "workload-low", 1))));
        drop(run(gate.admit(&request(&gate, &a, "workload-low", 1))));
        assert_eq!([before, alone, ceiling()], want, "{compat:?}");
    }
}
