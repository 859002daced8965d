//! What the lock is held for does not grow with what can be configured, and runs nobody else's code.

use std::{sync::Weak, task::Wake};

use super::*;

/// Notes whether the gate's lock was free when it was dropped.
struct Noting {
    gate: Weak<Gate>,
    free: Arc<AtomicU64>,
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Noting {
    fn drop(&mut self) {
        let gate = self.gate.upgrade().expect("outlives its wakers");
        let state = gate.shared.state.try_lock();
        self.free.fetch_add(if state.is_ok() { 1 } else { 1000 }, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn wakers_of_those_who_leave_are_dropped_at_once_and_outside_the_lock() {
    let (gate, a) = (gate(10), workspace("a"));
    let _permits = fill(&gate, &a);
    let free = Arc::new(AtomicU64::new(0));
    let look = |place: &mut Waiting| {
        let waker = Arc::new(Noting { gate: Arc::downgrade(&gate), free: free.clone() }).into();
        Pin::new(place).poll(&mut std::task::Context::from_waker(&waker)).is_ready()
    };
    let ask = || wait(gate.admit(&request(&gate, &a, "workload-low", 1)));
    let mut cancelled = ask();
    assert!(!look(&mut cancelled));
    // The timer keeps one as well.
    drop(cancelled);
    assert_eq!(free.load(Ordering::Relaxed), 1, "cancelled");
    let mut late = ask();
    assert!(!look(&mut late) && !look(&mut late));
    assert_eq!(free.load(Ordering::Relaxed), 2, "replaced");
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!(look(&mut late));
    drop(late);
    assert_eq!(free.load(Ordering::Relaxed), 4, "timed out");
}

#[test]
fn a_dump_of_ten_million_queues_has_those_that_are_in_use() {
    let mut levels = bootstrap::priority_levels();
    for level in &mut levels {
        let limited = level.spec.limited.as_mut().filter(|_| level.metadata.name == "workload-low");
        if let Some(queuing) = limited.and_then(|limited| limited.limit_response.queuing.as_mut()) {
            (queuing.queues, queuing.hand_size) = (10_000_000, 2);
        }
    }
    let profile = Arc::new(Profile::compile(&bootstrap::flow_schemas(), &levels));
    let (gate, a) = (gate(10), workspace("a"));
    gate.set_profile(profile);
    let _permits = fill(&gate, &a);
    let _waiting = wait(gate.admit(&request(&gate, &a, "workload-low", 1)));
    let dump = gate.dump(Some(&a)).into_iter().find(|level| &*level.name == "workload-low").unwrap();
    assert_eq!(dump.queue_count, 10_000_000);
    assert!(dump.queues.len() <= 2 && dump.queues.is_sorted_by_key(|(at, _)| *at), "{:?}", dump.queues);
    assert_eq!(dump.queues.iter().map(|(_, queue)| queue.waiting).sum::<u64>(), dump.waiting);
    assert_eq!(dump.waiting, 1);
}

/// Ten thousand FlowSchemas may be configured: every step is one look-up.
#[test]
fn counters_keep_their_places_whatever_comes_and_goes() {
    let schemas = |from: usize, to: usize| {
        let mut all = bootstrap::flow_schemas();
        let model = all.iter().find(|schema| schema.metadata.name == "global-default").unwrap().clone();
        all.extend((from..to).map(|n| {
            let mut schema = model.clone();
            schema.metadata.name = format!("made-{n}");
            schema
        }));
        Profile::compile(&all, &bootstrap::priority_levels())
    };
    let mut table = stats::FlowTable::new(&schemas(0, 500));
    let at = |table: &stats::FlowTable, n: usize| table.named("global-default", &format!("made-{n}"));
    let before: Vec<u32> = (0..500).map(|n| at(&table, n)).collect();
    let replaced = table.set_profile(&schemas(250, 750));
    assert_eq!(replaced.len(), 250, "those that are gone make room for those that are new");
    for (n, before) in before.iter().enumerate().skip(250) {
        assert_eq!(at(&table, n), *before);
        assert!(!replaced.contains(before));
    }
    assert!((500..750).all(|n| replaced.contains(&at(&table, n))));
}
