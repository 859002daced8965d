//! Seats that stay with a flow between two of its requests.

use super::*;

fn dispatched(gate: &Gate) -> u64 {
    gate.level_stats().flows.iter().map(|flow| flow.dispatched).sum()
}

fn manual(seats: u32) -> (Arc<Gate>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000_000)));
    (Gate::new(GateOptions { seats, profile: profile(), clock: clock.clone() }), clock)
}

/// A request that lasts a millisecond; whether it took parked seats.
fn one(gate: &Arc<Gate>, clock: &ManualClock, workspace: &ClusterName) -> bool {
    let permit = run(gate.admit(&request(gate, workspace, "workload-low", 1)));
    clock.0.fetch_add(1_000_000, Ordering::Relaxed);
    permit.place.is_some_and(|place| gate.shared.parking.cell(place.cell).taken() > 0)
}

#[test]
fn the_next_request_of_a_flow_takes_over_its_seats() {
    let ((gate, clock), a) = (manual(100), workspace("a"));
    let taken = (0..1_000).filter(|_| one(&gate, &clock, &a)).count();
    assert!(taken > 990, "{taken} of 1,000");
    assert_eq!(gate.lock().shard.load().in_use, 1, "for the scheduler the first still runs");
    assert_eq!(dispatched(&gate), 1_000);
    assert_eq!(gate.workspace_stats(10).busiest.iter().map(|w| w.dispatched).sum::<u64>(), 1_000);
    assert_eq!(gate.shard_stats().in_use, 0, "whoever asks finds no seats in use");
    assert!(gate.shard_stats().horizon_ns < 10_000_000, "the durations were measured");
}

#[test]
fn parked_seats_are_free_for_all_others() {
    let ((gate, clock), a, b) = (manual(20), workspace("a"), workspace("b"));
    for _ in 0..3 {
        one(&gate, &clock, &a);
    }
    let kept: Vec<_> = (0..4).map(|_| run(gate.admit(&request(&gate, &a, "workload-low", 1)))).collect();
    drop(kept);
    assert!(gate.lock().shard.load().in_use > 0, "some are parked");
    let permits = fill(&gate, &b);
    assert_eq!(gate.lock().shard.load().in_use as usize, permits.len());
    let alone = fill(&manual(20).0, &b);
    // Seats that came back lately make more of them free to take.
    assert!(permits.len() >= alone.len(), "{} and {}", permits.len(), alone.len());
}

#[test]
fn seats_come_back_from_an_idle_lot() {
    let ((gate, clock), a) = (manual(100), workspace("a"));
    one(&gate, &clock, &a);
    one(&gate, &clock, &a);
    let due = gate.tick(clock.now_ns()).unwrap();
    assert!(due <= clock.now_ns() + 1_000_000_000, "the driver comes for them");
    clock.0.fetch_add(1_000_000_000, Ordering::Relaxed);
    gate.tick(clock.now_ns());
    assert_eq!(gate.lock().shard.load().in_use, 0);
}

/// Threads that come and go at once, some of them for long, with changes in between.
#[test]
fn many_threads_leave_nothing_behind() {
    const REQUESTS: usize = 20_000;
    struct Monotonic(std::time::Instant);
    impl Clock for Monotonic {
        fn now_ns(&self) -> u64 {
            self.0.elapsed().as_nanos() as u64
        }
    }
    let clock = Arc::new(Monotonic(std::time::Instant::now()));
    let gate = Gate::new(GateOptions { seats: 64, profile: profile(), clock });
    let threads: Vec<_> = (0..4_usize)
        .map(|thread| {
            let gate = gate.clone();
            std::thread::spawn(move || {
                let name = workspace(["a", "b"][thread % 2]);
                let mut held = std::collections::VecDeque::new();
                let mut started = 0_u64;
                for n in 0..REQUESTS {
                    match gate.admit(&request(&gate, &name, "workload-low", 1 + u32::from(n % 50 == 0))) {
                        Admission::Run(permit) => {
                            started += 1;
                            held.push_back(permit);
                        }
                        // Another outcome than a permit: given up at once.
                        Admission::Wait(waiting) => drop(waiting),
                        Admission::Reject(_) => {}
                    }
                    // From one at a time to more than there are seats.
                    while held.len() > n / 500 % 24 {
                        held.pop_front();
                    }
                    match n % 4_000 {
                        999 => gate.set_profile(profile()),
                        1_999 => gate.set_seats(64 - (n / 2_000 % 2) as u32),
                        2_999 => drop(gate.level_stats()),
                        _ => {}
                    }
                }
                started
            })
        })
        .collect();
    let started: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let stats = gate.shard_stats();
    assert_eq!((stats.in_use, stats.waiting), (0, 0));
    gate.lock().shard.verify().unwrap();
    // Who was started while it gave up counts as dispatched, too.
    assert!(dispatched(&gate) >= started, "{} of {started}", dispatched(&gate));
    assert!(stats.horizon_ns < 60_000_000_000, "no age ran below zero: {}", stats.horizon_ns);
}

#[test]
fn a_forgotten_workspace_leaves_no_parked_seats() {
    let ((gate, clock), a) = (manual(100), workspace("a"));
    one(&gate, &clock, &a);
    let running = run(gate.admit(&request(&gate, &a, "workload-low", 1)));
    gate.forget_workspace(&a);
    drop(running);
    assert_eq!(gate.lock().shard.load().in_use, 0);
}
