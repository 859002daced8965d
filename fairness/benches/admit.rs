//! What admission costs per request: time by criterion, allocations and processor time printed before each benchmark.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use apiserver_api::ClusterName;
use criterion::{Criterion, criterion_group, criterion_main};
use fairness::{
    Admission, Classified, Clock, Compat, Cost, Gate, GateOptions, Level, LevelKind, Profile, Queuing, Request,
    scheduler::{Arrival, RequestId, Shard, Tuning, WorkspaceClass, WorkspaceId},
};

/// A microsecond passes at each look.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1_000, Ordering::Relaxed)
    }
}

const ONE_SEAT: Cost = Cost { initial_seats: 1, final_seats: 0, additional_latency: Duration::ZERO, raw_seats: 1 };

/// Prints allocations and time on the processor per request. The latter (Linux only) says more than
/// criterion's figures when the machine is busy with other things.
fn report(name: &str, requests: u64, mut one: impl FnMut()) {
    let counted = allocation_counter::measure(|| (0..requests).for_each(|_| one()));
    println!("{name}: {:.4} allocations per request", counted.count_total as f64 / requests as f64);
    let before = on_processor_ns();
    (0..requests).for_each(|_| one());
    if let (Some(before), Some(after)) = (before, on_processor_ns()) {
        println!("{name}: {} ns on the processor per request", (after - before) / requests);
    }
}

fn on_processor_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

fn uncontended(c: &mut Criterion) {
    let profile = Arc::new(Profile::bootstrap());
    let level = profile.levels().iter().position(|l| &*l.name == "workload-low").expect("a bootstrap level") as u16;
    let schema = profile.flow_schemas().iter().position(|f| f.level == level).expect("it has a FlowSchema") as u16;
    let gate = Gate::new(GateOptions { seats: 600, profile: profile.clone(), clock: Arc::new(Ticks::default()) });
    let names: Vec<ClusterName> = (0..100).map(|n| format!("w{n}").parse().expect("a legal name")).collect();
    let mut n = 0_usize;
    let mut one = || {
        n += 1;
        let class = Classified { flow_schema: schema, level, flow: (n % 7) as u64 };
        let workspace = names.get(n % names.len());
        let request = Request { workspace, profile: &profile, class, cost: ONE_SEAT, received_ns: 0, timeout: None };
        match gate.admit(&request) {
            Admission::Run(permit) => drop(black_box(permit)),
            other => panic!("nothing is contended: {other:?}"),
        }
    };
    (0..100_000).for_each(|_| one());
    report("uncontended", 500_000, &mut one);
    c.bench_function("uncontended admit and settle", |b| b.iter(&mut one));
}

/// A shard at saturation: each request that ends is followed by a new one of the same workspace.
struct Saturated {
    shard: Shard,
    now: u64,
    workspaces: Vec<WorkspaceId>,
    running: Vec<(RequestId, usize)>,
    of: Vec<usize>,
    /// Flows of one workspace.
    flows: u64,
    n: u64,
}

impl Saturated {
    fn new(known: usize, backlogged: usize, waiting_each: usize, flows: u64) -> Self {
        let kind = LevelKind::Queue(Queuing { queues: 64, hand_size: 6, queue_length_limit: 1_000_000 });
        let level =
            Level { name: "level".into(), kind, shares: 100, lendable_percent: 0, borrowing_limit_percent: None };
        let mut shard = Shard::new(600, &[level], Tuning::default(), Compat::Fairgate);
        let class = |n: usize| WorkspaceClass::Shares { shares: 1 + n as u32 % 50, borrowing_limit_percent: None };
        let workspaces: Vec<_> = (0..known).map(|n| shard.add_workspace(1, class(n))).collect();
        shard.core_mut().set_known(known as u32);
        let mut saturated = Self { shard, now: 1, workspaces, running: Vec::new(), of: Vec::new(), flows, n: 0 };
        for _ in 0..waiting_each {
            (0..backlogged).for_each(|at| saturated.arrive(at));
        }
        saturated.pump();
        saturated
    }

    fn arrive(&mut self, at: usize) {
        self.n += 1;
        let id = self.workspaces.get(at).copied().expect("one of those made");
        let flow = (at as u64 + self.n % self.flows).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Ok(Arrival::Queued(id)) = self.shard.arrive(self.now, id, 0, flow, 1) else { panic!("it queues") };
        if self.of.len() <= id.index() {
            self.of.resize(id.index() + 1, 0);
        }
        if let Some(place) = self.of.get_mut(id.index()) {
            *place = at;
        }
    }

    fn pump(&mut self) {
        while let Some(id) = self.shard.dispatch(self.now) {
            self.running.push((id, self.of.get(id.index()).copied().unwrap_or(0)));
        }
    }

    /// One request ends, its successor arrives, the next one starts.
    fn one(&mut self) {
        self.now += 100_000;
        let (id, at) = self.running.swap_remove((self.n as usize * 7919) % self.running.len());
        self.shard.complete(self.now, id);
        self.arrive(at);
        self.pump();
    }
}

fn saturated(c: &mut Criterion) {
    let cases = [
        ("saturated level of 64 queues", 2, 2, 3_000, 1_000),
        ("100,000 known, 10 backlogged", 100_000, 10, 200, 2),
        ("100,000 known, 1,000 backlogged", 100_000, 1_000, 4, 2),
        ("100,000 known, 10,000 backlogged", 100_000, 10_000, 2, 2),
    ];
    for (name, known, backlogged, waiting, flows) in cases {
        let mut shard = Saturated::new(known, backlogged, waiting, flows);
        // Every queue that will be used has been.
        (0..500_000).for_each(|_| shard.one());
        report(name, 500_000, || shard.one());
        c.bench_function(name, |b| b.iter(|| shard.one()));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = uncontended, saturated
}
criterion_main!(benches);
