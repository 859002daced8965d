//! The laws of the scheduler on random workloads (scheduler.md 7): up to ten tenants of any weights, widths
//! and durations, with more to do than there are seats, and one that comes and goes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::{cmp::Reverse, collections::BinaryHeap};

use fairness::scheduler::{NodeId, NodeSpec, Owner, RequestId, Scheduler, Tuning, Why};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Requests of each tenant that wait at any time.
const BACKLOG: u32 = 4;

/// splitmix64: one seed is one workload, on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From `low` to `high`, both included.
    fn whole(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }
}

/// Durations in nanoseconds, from constant to heavy-tailed.
#[derive(Clone, Copy, Debug)]
enum Durations {
    Constant(f64),
    Exponential(f64),
    Pareto { min: f64, alpha: f64, max: f64 },
    Two { short: f64, long: f64, p_long: f64 },
}

impl Durations {
    fn random(random: &mut Random) -> Self {
        let mean = MS as f64 * 10_f64.powf(1.0 + 1.5 * random.unit());
        match random.whole(0, 3) {
            0 => Self::Constant(mean),
            1 => Self::Exponential(mean),
            2 => Self::Pareto { min: mean / 3.0, alpha: 1.3 + random.unit(), max: mean * 30.0 },
            _ => Self::Two { short: mean / 2.0, long: mean * 15.0, p_long: 0.03 },
        }
    }

    fn draw(self, random: &mut Random) -> u64 {
        let x = random.unit();
        let ns = match self {
            Self::Constant(v) => v,
            Self::Exponential(mean) => -mean * (1.0 - x).ln(),
            Self::Pareto { min, alpha, max } => (min / (1.0 - x).powf(1.0 / alpha)).min(max),
            Self::Two { short, long, p_long } => {
                if x < p_long {
                    long
                } else {
                    short
                }
            }
        };
        (ns as u64).max(1)
    }
}

#[derive(Clone, Debug)]
struct Tenant {
    weight: u32,
    width: u32,
    durations: Durations,
    /// Comes for so long, then is away for so long.
    turns: Option<u64>,
}

#[derive(Clone, Debug)]
struct Workload {
    seats: u32,
    tenants: Vec<Tenant>,
    seed: u64,
}

impl Workload {
    fn random(seed: u64) -> Self {
        let random = &mut Random(seed);
        let seats = random.whole(5, 40);
        let count = random.whole(2, 10);
        let tenant = |random: &mut Random| Tenant {
            weight: random.whole(1, 10),
            width: random.whole(1, (seats / 5).max(1)),
            durations: Durations::random(random),
            turns: None,
        };
        let mut tenants: Vec<_> = (0..count).map(|_| tenant(random)).collect();
        if random.whole(0, 1) == 1 {
            let turns = Some(u64::from(random.whole(200, 3_000)) * MS);
            tenants.push(Tenant { turns, ..tenant(random) });
        }
        Self { seats, tenants, seed }
    }

    /// 100 × E[d²]/E[d], seat-time weighted over all, and 100 requests of whoever has the smallest share.
    fn window(&self) -> u64 {
        let random = &mut Random(self.seed ^ 1);
        let weights: f64 = self.tenants.iter().map(|t| f64::from(t.weight)).sum();
        let mut window = 0_f64;
        for tenant in &self.tenants {
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..20_000 {
                let d = tenant.durations.draw(random) as f64;
                (sum, squares) = (sum + d, squares + d * d);
            }
            let share = f64::from(self.seats) * f64::from(tenant.weight) / weights;
            let hundred = 100.0 * (sum / 20_000.0) * f64::from(tenant.width) / share;
            window = window.max(100.0 * squares / sum).max(hundred);
        }
        window as u64
    }
}

/// What is known of one tenant's node while the workload plays.
struct Seen {
    node: NodeId,
    present: bool,
    /// Seat-nanoseconds used or held, in all and in this window.
    got: u64,
    in_window: u64,
    held_now: u64,
    in_use_most: u64,
}

struct Play<'w> {
    workload: &'w Workload,
    core: Scheduler,
    random: Random,
    now: u64,
    ends: BinaryHeap<Reverse<(u64, RequestId, usize)>>,
    waiting: Vec<Vec<RequestId>>,
    seen: Vec<Seen>,
    arrived: u64,
    started: u64,
    cancelled: u64,
    longest: u64,
    horizon: u64,
    decisions: u64,
    /// All rules, or only those without which it is no fair queueing.
    all_rules: bool,
}

impl<'w> Play<'w> {
    fn new(workload: &'w Workload, all_rules: bool) -> Self {
        let tuning = if all_rules {
            Tuning::default()
        } else {
            Tuning { headroom_percent: 0, ripeness: 0, ..Tuning::default() }
        };
        let mut core = Scheduler::new(workload.seats, tuning);
        let seen = workload.tenants.iter().map(|tenant| {
            let spec = NodeSpec { weight: tenant.weight, reserve: 0, maximum: u32::MAX };
            let root = core.root();
            let workspace = core.add_node(0, root, spec, true, Owner::NOBODY);
            let node = workspace;
            Seen { node, present: false, got: 0, in_window: 0, held_now: 0, in_use_most: 0 }
        });
        let seen: Vec<_> = seen.collect();
        Self {
            core,
            random: Random(workload.seed ^ 2),
            now: 0,
            ends: BinaryHeap::new(),
            waiting: vec![Vec::new(); seen.len()],
            seen,
            workload,
            arrived: 0,
            started: 0,
            cancelled: 0,
            longest: 0,
            horizon: 100 * MS,
            decisions: 0xcbf2_9ce4_8422_2325,
            all_rules,
        }
    }

    /// Plays until `end`; the smallest of Jain's indices over whole windows.
    fn play(&mut self, leaves: &[NodeId], window: u64, windows: u64) -> f64 {
        let (mut jain, mut ended, mut events) = (1_f64, 0, 0_u64);
        while ended < windows {
            let next_window = (ended + 1) * window;
            let next_end = self.ends.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let next_turn = self.next_turn();
            let wakeup = self.core.next_wakeup().unwrap_or(u64::MAX);
            self.pass(next_end.min(next_turn).min(next_window).min(wakeup.max(self.now + 1)));
            if self.now == next_window {
                // The first window is the warm-up.
                jain = if ended == 0 { jain } else { jain.min(self.jain()) };
                self.seen.iter_mut().for_each(|s| s.in_window = 0);
                ended += 1;
            }
            while self.ends.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Reverse((_, id, _)) = self.ends.pop().unwrap();
                assert!(self.core.complete(self.now, id));
            }
            self.fill(leaves);
            self.dispatch(leaves);
            self.law_1_and_3();
            events += 1;
            if events.is_multiple_of(997) {
                self.law_2_and_6();
            }
        }
        jain
    }

    fn next_turn(&self) -> u64 {
        let next = self.workload.tenants.iter().filter_map(|t| t.turns).map(|turn| (self.now / turn + 1) * turn);
        next.min().unwrap_or(u64::MAX)
    }

    fn pass(&mut self, to: u64) {
        for seen in &mut self.seen {
            let used = u64::from(self.core.in_use(seen.node));
            let got = (used + seen.held_now) * (to - self.now);
            seen.got += got;
            seen.in_window += got;
        }
        self.now = to;
    }

    /// Everybody who is there has something waiting; who goes away takes it with him.
    fn fill(&mut self, leaves: &[NodeId]) {
        for (at, tenant) in self.workload.tenants.iter().enumerate() {
            let present = tenant.turns.is_none_or(|turn| (self.now / turn).is_multiple_of(2));
            self.seen[at].present = present;
            if !present {
                for id in std::mem::take(&mut self.waiting[at]) {
                    assert!(self.core.cancel(self.now, id));
                    self.cancelled += 1;
                }
            }
            while present && self.waiting[at].len() < BACKLOG as usize {
                self.arrived += 1;
                self.waiting[at].push(self.core.arrive(self.now, leaves[at], tenant.width));
            }
        }
    }

    fn dispatch(&mut self, leaves: &[NodeId]) {
        while let Some(id) = self.core.dispatch(self.now) {
            let of = |list: &Vec<RequestId>| list.iter().position(|w| *w == id);
            let (at, place) = (0..).zip(&self.waiting).find_map(|(at, list)| Some((at, of(list)?))).unwrap();
            self.waiting[at].remove(place);
            let duration = self.workload.tenants[at].durations.draw(&mut self.random);
            self.longest = self.longest.max(duration);
            self.ends.push(Reverse((self.now + duration, id, at)));
            self.started += 1;
            for byte in [self.now, at as u64].iter().flat_map(|n| n.to_le_bytes()) {
                self.decisions = (self.decisions ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            self.fill(leaves);
        }
        self.horizon = self.horizon.max(self.core.horizon());
    }

    /// Capacity, and the bound on F_i − F_j, in which no term grows with time.
    fn law_1_and_3(&mut self) {
        let seats = u64::from(self.workload.seats);
        assert!(u64::from(self.core.in_use(self.core.root())) <= seats);
        let widest = self.workload.tenants.iter().map(|t| u64::from(t.width)).max().unwrap();
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for (seen, tenant) in self.seen.iter_mut().zip(&self.workload.tenants) {
            let state = self.core.state(self.now, seen.node);
            seen.held_now = u64::from(state.hold);
            seen.in_use_most = seen.in_use_most.max(u64::from(state.in_use + state.hold));
            if tenant.turns.is_some() {
                continue;
            }
            let weight = f64::from(tenant.weight);
            let tag = state.lag as f64 / weight;
            // What j may have been charged ahead of time, and what i may run and hold on without being chosen.
            let (horizon, longest) = (self.horizon as f64, self.longest as f64);
            let ahead = (seen.in_use_most + 2 * widest) as f64 * horizon / weight;
            let on = (seen.in_use_most + widest) as f64 * longest / weight;
            most = most.max(tag - on - 2.0 * widest as f64 * horizon / weight);
            least = least.min(tag + ahead);
        }
        if !self.all_rules {
            assert!(most <= least + 1.0, "at {}: a tag is {} ahead of what it may be", self.now, most - least);
        }
    }

    /// A reason for each wait, all sums right, nobody lost.
    fn law_2_and_6(&mut self) {
        let heads: Vec<RequestId> = self.waiting.iter().filter_map(|list| list.first().copied()).collect();
        let whys: Vec<Why> = heads.iter().map(|id| self.core.why_waiting(self.now, *id).unwrap()).collect();
        let narrow = self.workload.tenants.iter().all(|t| t.width == 1);
        if narrow && !self.all_rules {
            assert_eq!(self.core.in_use(self.core.root()), self.workload.seats, "{whys:?}");
        }
        self.core.verify().unwrap();
        let waiting = self.waiting.iter().map(|list| list.len() as u64).sum::<u64>();
        assert_eq!(self.arrived, self.started + self.cancelled + waiting);
        assert_eq!(u64::from(self.core.waiting(self.core.root())), waiting);
    }

    /// Of what those got who were there all the time.
    fn jain(&self) -> f64 {
        let all = self.seen.iter().zip(&self.workload.tenants).filter(|(_, tenant)| tenant.turns.is_none());
        let got: Vec<f64> = all.map(|(seen, tenant)| seen.in_window as f64 / f64::from(tenant.weight)).collect();
        let (sum, squares) = got.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        sum * sum / (got.len() as f64 * squares)
    }
}

/// The smallest index, and a hash of all decisions.
fn play(workload: &Workload, all_rules: bool, windows: u64) -> (f64, u64) {
    let mut play = Play::new(workload, all_rules);
    let spec = NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX };
    let nodes: Vec<NodeId> = play.seen.iter().map(|seen| seen.node).collect();
    let leaves: Vec<_> = nodes.iter().map(|n| play.core.add_node(0, *n, spec, false, Owner::NOBODY)).collect();
    let jain = play.play(&leaves, workload.window(), windows);
    (jain, play.decisions)
}

/// Law 3, with laws 1, 2 and 6 at each step, for seeds that stay.
#[test]
fn shares_are_kept_in_random_workloads() {
    let mut missed = Vec::new();
    for seed in 0..40 {
        let workload = Workload::random(seed);
        for all_rules in [false, true] {
            let (jain, _) = play(&workload, all_rules, 3);
            if jain < 0.99 {
                missed.push(format!("seed {seed}, all rules {all_rules}: {jain:.4}, {workload:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Two tenants on 16 seats, weights 1 and 9, the second with requests of 3 seats: the shard's end is no limit of its own.
#[test]
fn a_wide_tenant_that_fills_the_shard_gets_its_share() {
    let workload = Workload::random(4_776_849_484_385_009_934);
    for all_rules in [false, true] {
        let (jain, _) = play(&workload, all_rules, 3);
        assert!(jain >= 0.99, "all rules {all_rules}: {jain}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The bound on the difference of tags, and the other laws at each step, for seeds that are not known before. Not
    /// Jain's index: wide requests of heavy-tailed durations hold seats that are collected for them, and now and then
    /// a window of such a workload stays below 0.99 (0.98 was seen).
    #[test]
    fn shares_are_kept_in_any_workload(seed in any::<u64>()) {
        let workload = Workload::random(seed);
        let (jain, decisions) = play(&workload, false, 3);
        // Law 7.
        prop_assert_eq!(play(&workload, false, 3), (jain, decisions));
    }

    /// Law 4 (a): who stays within its reserve is served in the same call, whatever stands beside it.
    #[test]
    fn a_reserve_is_served_at_once(
        reserve in 1..6_u32,
        steps in prop::collection::vec((0..4_u8, 1..4_u32, 0..2_000 * MS), 1..200),
    ) {
        let mut core = Scheduler::new(12, Tuning::default());
        let root = core.root();
        let leaf = |core: &mut Scheduler, weight, reserve| {
            let node = core.add_node(0, root, NodeSpec { weight, reserve, maximum: u32::MAX }, true, Owner::NOBODY);
            let queue = NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX };
            (node, core.add_node(0, node, queue, false, Owner::NOBODY))
        };
        let (node, own) = leaf(&mut core, 1, reserve);
        let others: Vec<_> = (1..4).map(|weight| leaf(&mut core, weight * 10, 0).1).collect();
        let (mut now, mut running) = (0, std::collections::VecDeque::new());
        for (what, width, ns) in steps {
            now += ns;
            match what {
                0 => {
                    let promised = core.in_use(node) + width <= reserve;
                    let before = core.waiting(node);
                    let id = core.arrive(now, own, width);
                    let started: Vec<_> = std::iter::from_fn(|| core.dispatch(now)).collect();
                    if promised && before == 0 {
                        prop_assert!(started.contains(&id), "{:?}", core.state(now, node));
                    }
                    running.extend(started);
                }
                1 | 2 => {
                    for leaf in &others {
                        core.arrive(now, *leaf, width);
                    }
                }
                _ => {
                    if let Some(id) = running.pop_front() {
                        core.complete(now, id);
                    }
                }
            }
            running.extend(std::iter::from_fn(|| core.dispatch(now)));
        }
    }

    /// Law 4 (b): who is within its share waits for a bounded amount of served seat-time. Neither the number
    /// of requests that wait beside it nor that of idle workspaces is in the bound.
    #[test]
    fn a_share_is_served_after_bounded_seat_time(
        seed in any::<u64>(),
        (backlog, idle, tenants) in (1..60_u32, 0..300_u32, 1..8_u32),
    ) {
        const SEATS: u32 = 10;
        let random = &mut Random(seed);
        let tuning = Tuning { headroom_percent: 0, ripeness: 0, ..Tuning::default() };
        let mut core = Scheduler::new(SEATS, tuning);
        let root = core.root();
        let spec = NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX };
        for _ in 0..idle {
            core.add_node(0, root, spec, true, Owner::NOBODY);
        }
        let nodes: Vec<_> = (0..=tenants).map(|_| core.add_node(0, root, spec, true, Owner::NOBODY)).collect();
        let leaves: Vec<_> = nodes.iter().map(|n| core.add_node(0, *n, spec, false, Owner::NOBODY)).collect();
        let (new, others) = leaves.split_first().unwrap();
        let (mut now, mut ends, mut longest) = (0, BinaryHeap::new(), 0);
        let (mut asked, mut served, mut bound) = (None, 0_u64, 0_u64);
        for step in 0..4_000_u32 {
            for leaf in others {
                while core.waiting(*leaf) < backlog {
                    core.arrive(now, *leaf, 1);
                }
            }
            if asked.is_none() && step % 200 == 100 && core.in_use(nodes[0]) == 0 {
                let owed: i64 = nodes[1..].iter().map(|n| (-core.state(now, *n).lag).max(0)).sum();
                // What they are owed; what runs now and at the end; and what is charged for it ahead of time.
                bound = owed as u64 + 2 * u64::from(SEATS) * longest + 2 * u64::from(SEATS) * core.horizon();
                asked = Some(core.arrive(now, *new, 1));
                served = 0;
            }
            while let Some(id) = core.dispatch(now) {
                if asked == Some(id) {
                    asked = None;
                }
                let duration = MS * u64::from(if random.unit() < 0.02 { 5_000 } else { random.whole(1, 40) });
                longest = longest.max(duration);
                ends.push(Reverse((now + duration, id)));
            }
            prop_assert!(asked.is_none() || served <= bound, "{served} served, {bound} allowed");
            let Reverse((at, id)) = ends.pop().unwrap();
            served += (at - now) * u64::from(core.in_use(root) - core.in_use(nodes[0]));
            now = at;
            core.complete(now, id);
        }
    }
}

/// Law 8: what a dispatch looks at depends on who waits, not on who is known.
#[test]
fn idle_workspaces_cost_nothing_at_a_dispatch() {
    let looks = |known: u32| {
        let mut core = Scheduler::new(10, Tuning::default());
        let (root, spec) = (core.root(), NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX });
        let nodes: Vec<_> = (0..known).map(|_| core.add_node(0, root, spec, true, Owner::NOBODY)).collect();
        let busy: Vec<_> = nodes.iter().take(10).map(|n| core.add_node(0, *n, spec, false, Owner::NOBODY)).collect();
        let mut running = std::collections::VecDeque::new();
        for now in 0..5_000_u64 {
            busy.iter().filter(|leaf| core.waiting(**leaf) < 3).copied().collect::<Vec<_>>().iter().for_each(|leaf| {
                core.arrive(now * MS, *leaf, 1);
            });
            running.extend(std::iter::from_fn(|| core.dispatch(now * MS)));
            if let Some(id) = running.pop_front() {
                core.complete(now * MS, id);
            }
        }
        core.looks()
    };
    let few = looks(10);
    assert_eq!(few, looks(100_000));
    assert!(few < 5_000 * 12, "{few}");
}

/// Why a small tenant may wait for long although the shard is fast (docs/simulate.md, the hour of 10,000
/// tenants): its own request of 10 s uses more than its share of the seats, and it waits until the others
/// have had theirs.
#[test]
fn who_used_more_than_its_share_waits_its_turn() {
    let mut core = Scheduler::new(100, Tuning::default());
    let (root, queue) = (core.root(), NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX });
    let tenant = |core: &mut Scheduler, weight| {
        let node = core.add_node(0, root, NodeSpec { weight, ..queue }, true, Owner::NOBODY);
        core.add_node(0, node, queue, false, Owner::NOBODY)
    };
    let busy: Vec<_> = (0..14).map(|_| tenant(&mut core, 10)).collect();
    let small = tenant(&mut core, 1);
    let (random, mut now, mut ends) = (&mut Random(7), 0, BinaryHeap::new());
    let (mut second, mut whys, mut long) = (None, Vec::new(), None);
    let start = 5 * SECOND;
    let started = loop {
        for leaf in &busy {
            while core.waiting(*leaf) < 20 {
                core.arrive(now, *leaf, 1);
            }
        }
        if long.is_none() && now >= start {
            long = Some(core.arrive(now, small, 1));
        }
        if second.is_none() && long.is_some() && now >= start + SECOND {
            second = Some(core.arrive(now, small, 1));
        }
        let mut found = false;
        while let Some(id) = core.dispatch(now) {
            found |= second == Some(id);
            let mean = 100.0 * MS as f64;
            let duration = if Some(id) == long { 10 * SECOND } else { Durations::Exponential(mean).draw(random) };
            ends.push(Reverse((now + duration, id)));
        }
        if found {
            break now;
        }
        if let Some(id) = second {
            whys.push(core.why_waiting(now, id).unwrap());
        }
        let Reverse((at, id)) = ends.pop().unwrap();
        now = at;
        core.complete(now, id);
    };
    whys.dedup();
    // One seat of 100/141 for ten seconds: paid back after about 14.
    let waited = (started - start) as f64 / SECOND as f64;
    assert!((12.0..17.0).contains(&waited), "{waited} s, {whys:?}");
    assert!(whys.iter().all(|why| [Why::NoSeat, Why::Turn, Why::Unripe, Why::Headroom].contains(why)), "{whys:?}");
}
