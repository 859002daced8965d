//! What admission costs per request: time by criterion, allocations and processor time printed before each benchmark.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use criterion::{Criterion, criterion_group, criterion_main};
use fairness::{
    Admission, Classified, Clock, Compat, Cost, Counts, Gate, GateOptions, Level, LevelKind, PricingOptions, Profile,
    Queuing, Request,
    scheduler::{Arrival, RequestId, Shard, Tuning, WorkspaceClass, WorkspaceId},
};

struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

const ONE_SEAT: Cost = Cost { initial_seats: 1, final_seats: 0, additional_latency: Duration::ZERO, raw_seats: 1 };

/// Prints allocations and time on the processor per request beside the design's budget. The latter (Linux only)
/// says more than criterion's figures when the machine is busy with other things.
fn report(name: &str, budget: &str, requests: u64, mut one: impl FnMut()) {
    if !wanted(name) {
        return;
    }
    let counted = allocation_counter::measure(|| (0..requests).for_each(|_| one()));
    let before = on_processor_ns();
    (0..requests).for_each(|_| one());
    let ns = before.zip(on_processor_ns()).map_or(0, |(before, after)| (after - before) / requests);
    let allocations = counted.count_total as f64 / requests as f64;
    println!("{name}: {ns} ns on the processor, {allocations:.4} allocations per request; budget {budget}");
}

/// Whether criterion's filter lets this one through.
fn wanted(name: &str) -> bool {
    let mut filters = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| name.contains(&filter))
}

fn on_processor_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

/// Requests of several workspaces and flows, from door to door of this crate, while nothing waits.
struct Uncontended {
    gate: Arc<Gate>,
    profile: Arc<Profile>,
    pricing: PricingOptions,
    workspaces: Vec<ClusterName>,
    user: UserInfo,
    info: RequestInfo<'static>,
    n: usize,
}

impl Uncontended {
    fn new(gate: &Arc<Gate>, name: &str) -> Self {
        Self {
            gate: gate.clone(),
            profile: gate.profile(),
            pricing: PricingOptions::default(),
            workspaces: (0..100).map(|n| format!("{name}{n}").parse().expect("a legal name")).collect(),
            user: UserInfo::new("alice", &["devs", "system:authenticated"]),
            info: RequestInfo::parse("GET", "/api/v1/namespaces/shop/configmaps/settings", "").expect("a legal path"),
            n: 0,
        }
    }

    fn admit(&mut self, class: Classified, cost: Cost) {
        self.n += 1;
        let workspace = self.workspaces.get(self.n % self.workspaces.len());
        let request = Request { workspace, profile: &self.profile, class, cost, received_ns: 0, timeout: None };
        match self.gate.admit(&request) {
            Admission::Run(permit) => drop(black_box(permit)),
            other => panic!("nothing is contended: {other:?}"),
        }
    }

    fn whole(&mut self) {
        let workspace = self.workspaces.first().expect("a hundred were made");
        let class = self.profile.classify(black_box(workspace), &self.user, &self.info);
        let cost = self.pricing.price(&self.info, Counts::Unknown, 0, 100);
        self.admit(class, cost);
    }
}

fn gate() -> Arc<Gate> {
    let profile = Arc::new(Profile::bootstrap());
    Gate::new(GateOptions { seats: 600, profile, clock: Arc::new(Monotonic(Instant::now())) })
}

fn uncontended(c: &mut Criterion) {
    let gate = gate();
    let mut requests = Uncontended::new(&gate, "w");
    let class = requests.profile.classify(requests.workspaces.first().expect("some"), &requests.user, &requests.info);
    (0..100_000).for_each(|_| requests.whole());
    let name = "uncontended: classify, price, admit, settle";
    report(name, "400 ns, 0", 1_000_000, || requests.whole());
    c.bench_function(name, |b| b.iter(|| requests.whole()));
    report("uncontended: admit, settle", "part of the above", 1_000_000, || requests.admit(class, ONE_SEAT));

    let name = "uncontended, 2 threads: classify, price, admit, settle";
    if wanted(name) {
        let threads = ["x", "y"].map(|prefix| {
            let mut requests = Uncontended::new(&gate.for_thread(), prefix);
            std::thread::spawn(move || {
                (0..100_000).for_each(|_| requests.whole());
                report(name, "400 ns, 0", 1_000_000, || requests.whole());
            })
        });
        for thread in threads {
            thread.join().expect("it does not panic");
        }
    }
}

/// What a workspace costs that has a request running in one level.
fn memory(_: &mut Criterion) {
    const WORKSPACES: u32 = 10_000;
    if !wanted("bytes") {
        return;
    }
    let level = Level {
        name: "level".into(),
        kind: LevelKind::Queue(Queuing { queues: 64, hand_size: 6, queue_length_limit: 50 }),
        shares: 100,
        lendable_percent: 0,
        borrowing_limit_percent: None,
    };
    let mut shard = None;
    let counted = allocation_counter::measure(|| {
        let mut new = Shard::new(WORKSPACES, std::slice::from_ref(&level), Tuning::default(), Compat::Fairgate);
        for n in 0..WORKSPACES {
            let id = new.add_workspace(1, WorkspaceClass::default());
            new.arrive(1, id, 0, n.into(), 1).expect("an empty queue");
            while new.dispatch(1).is_some() {}
        }
        shard = Some(new);
    });
    let bytes = counted.bytes_current / i64::from(WORKSPACES);
    println!("bytes per active workspace: {bytes}, vectors' spare room included; budget 1,024");
    drop(shard);
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
        ("saturated level of 64 queues", "500 ns, 0", 2, 2, 3_000, 1_000),
        ("10 known workspaces, all backlogged", "2,000 ns, 0", 10, 10, 200, 2),
        ("1,000 known workspaces, all backlogged", "2,000 ns, 0", 1_000, 1_000, 4, 2),
        ("100,000 known workspaces, 10 backlogged", "2,000 ns, 0", 100_000, 10, 200, 2),
        ("100,000 known workspaces, 10,000 backlogged", "2,000 ns, 0", 100_000, 10_000, 2, 2),
        ("100,000 known workspaces, all backlogged", "2,000 ns, 0", 100_000, 100_000, 2, 2),
    ];
    for (name, budget, known, backlogged, waiting, flows) in cases.into_iter().filter(|case| wanted(case.0)) {
        let mut shard = Saturated::new(known, backlogged, waiting, flows);
        // Every queue that will be used has been.
        (0..500_000).for_each(|_| shard.one());
        report(name, budget, 500_000, || shard.one());
        c.bench_function(name, |b| b.iter(|| shard.one()));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = uncontended, saturated, memory
}
criterion_main!(benches);
