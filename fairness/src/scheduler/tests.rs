//! The laws as property tests: random trees, arrivals, widths, durations, cancellations and changes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{NodeId, NodeSpec, Owner, RequestId, Scheduler, Tuning, Why};

const MS: u64 = 1_000_000;

/// One random step; the numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Arrive { leaf: usize, width: u32 },
    Complete { at: usize },
    Cancel { at: usize },
    Reconfigure { node: usize, weight: u32, reserve: u32, maximum: u32 },
    Seats(u32),
    ExemptStart(u32),
    ExemptEnd,
    Sleep(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..64_usize, 1..9_u32).prop_map(|(leaf, width)| Op::Arrive { leaf, width }),
        8 => (0..64_usize).prop_map(|at| Op::Complete { at }),
        2 => (0..64_usize).prop_map(|at| Op::Cancel { at }),
        1 => (0..64_usize, 1..9_u32, 0..3_u32, 1..30_u32)
            .prop_map(|(node, weight, reserve, maximum)| Op::Reconfigure { node, weight, reserve, maximum }),
        1 => (8..40_u32).prop_map(Op::Seats),
        1 => (1..4_u32).prop_map(Op::ExemptStart),
        1 => Just(Op::ExemptEnd),
        6 => (0..200 * MS).prop_map(Op::Sleep),
        1 => (0..20_000 * MS).prop_map(Op::Sleep),
    ]
}

/// True: with shares, in the pool; its dials; its levels, of which each has so many queues and a reserve.
type Workspace = (bool, NodeSpec, Vec<(usize, u32)>);
type Shape = Vec<Workspace>;

fn shape() -> impl Strategy<Value = Shape> {
    let spec = (1..9_u32, 0..3_u32, prop_oneof![Just(u32::MAX), 2..30_u32])
        .prop_map(|(weight, reserve, maximum)| NodeSpec { weight, reserve, maximum });
    prop::collection::vec((any::<bool>(), spec, prop::collection::vec((1..4_usize, 0..3_u32), 1..3)), 1..6)
}

struct Model {
    core: Scheduler,
    now: u64,
    seats: u32,
    leaves: Vec<NodeId>,
    inners: Vec<NodeId>,
    parents: BTreeMap<NodeId, NodeId>,
    /// Where each request waits or ran.
    asked: BTreeMap<RequestId, NodeId>,
    waiting: Vec<RequestId>,
    running: Vec<RequestId>,
    exempt: Vec<u32>,
    arrived: u64,
    started: u64,
    gone: u64,
    /// Law 7: what was decided, in order.
    decisions: Vec<(u64, RequestId)>,
    strict: bool,
    reconfigured: bool,
}

impl Model {
    fn new(shape: &[Workspace], tuning: Tuning, strict: bool) -> Self {
        let seats = 20;
        let mut core = Scheduler::new(seats, tuning);
        let root = core.root();
        let pool = core.add_pool(0, seats);
        let mut model = Self {
            core,
            now: 0,
            seats,
            leaves: vec![],
            inners: vec![],
            parents: BTreeMap::new(),
            asked: BTreeMap::new(),
            waiting: vec![],
            running: vec![],
            exempt: vec![],
            arrived: 0,
            started: 0,
            gone: 0,
            decisions: vec![],
            strict,
            reconfigured: false,
        };
        for (shared, spec, levels) in shape {
            let parent = if *shared { pool } else { root };
            let spec = if *shared { NodeSpec { reserve: 0, ..*spec } } else { *spec };
            let workspace = model.core.add_node(0, parent, spec, true, Owner::NOBODY);
            model.inners.push(workspace);
            model.parents.insert(workspace, parent);
            for &(queues, reserve) in levels {
                let spec = NodeSpec { weight: queues as u32, reserve, maximum: u32::MAX };
                let level = model.core.add_node(0, workspace, spec, true, Owner::NOBODY);
                model.inners.push(level);
                model.parents.insert(level, workspace);
                for _ in 0..queues {
                    let spec = NodeSpec { weight: 1, reserve: 0, ..spec };
                    let leaf = model.core.add_node(0, level, spec, false, Owner::NOBODY);
                    model.parents.insert(leaf, level);
                    model.core.keep(leaf);
                    model.leaves.push(leaf);
                }
            }
        }
        model
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Arrive { leaf, width } => {
                let leaf = self.leaves[leaf % self.leaves.len()];
                self.arrived += 1;
                let id = self.core.arrive(self.now, leaf, width);
                self.asked.insert(id, leaf);
                self.waiting.push(id);
            }
            Op::Complete { at } if !self.running.is_empty() => {
                let id = self.running.remove(at % self.running.len());
                assert!(self.core.complete(self.now, id));
                assert!(!self.core.complete(self.now, id), "one end per request");
            }
            Op::Cancel { at } if !self.waiting.is_empty() => {
                let id = self.waiting.remove(at % self.waiting.len());
                self.gone += 1;
                assert!(self.core.cancel(self.now, id));
            }
            Op::Reconfigure { node, weight, reserve, maximum } => {
                let node = self.inners[node % self.inners.len()];
                let parent = self.parents[&node];
                let is_pooled = parent != self.core.root() && !self.parents.contains_key(&parent);
                let reserve = if is_pooled { 0 } else { reserve };
                self.core.reconfigure(self.now, node, NodeSpec { weight, reserve, maximum });
                self.reconfigured = true;
            }
            Op::Seats(seats) => {
                self.seats = seats;
                self.core.set_seats(self.now, seats);
                self.reconfigured = true;
            }
            Op::ExemptStart(width) => {
                self.exempt.push(width);
                self.core.exempt_start(self.now, width);
            }
            Op::ExemptEnd => {
                if let Some(width) = self.exempt.pop() {
                    self.core.exempt_end(self.now, width);
                }
            }
            Op::Sleep(ns) => self.now += ns,
            Op::Complete { .. } | Op::Cancel { .. } => {}
        }
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(id) = self.core.dispatch(self.now) {
            let at = self.waiting.iter().position(|w| *w == id).expect("only waiting requests start");
            self.waiting.remove(at);
            self.running.push(id);
            self.started += 1;
            self.decisions.push((self.now, id));
            self.start_is_lawful(id);
        }
        self.core.verify().unwrap();
        self.laws();
    }

    /// Law 1 at each start, whatever was taken away from those who ran before: it is charged, and fits where it runs,
    /// but for what became too wide for its place and runs there alone.
    fn start_is_lawful(&self, id: RequestId) {
        let width = self.core.width(id);
        assert!(width > 0, "a seat at least");
        let root = self.core.in_use(self.core.root());
        assert!(root <= self.seats || root == width, "{root} of {} seats", self.seats);
        let mut at = self.parents.get(&self.asked[&id]);
        while let Some(node) = at {
            let (in_use, maximum) = (self.core.in_use(*node), self.core.spec(*node).maximum);
            assert!(in_use <= maximum || in_use == width, "{in_use} of {maximum}");
            at = self.parents.get(node);
        }
    }

    fn laws(&mut self) {
        let in_use: u32 = self.running.iter().map(|id| self.core.width(*id)).sum();
        assert_eq!(in_use, self.core.in_use(self.core.root()));
        if !self.reconfigured {
            // Law 1, as long as nothing was taken away from those who run.
            assert!(in_use <= self.seats);
            for &node in self.parents.keys() {
                assert!(self.core.in_use(node) <= self.core.spec(node).maximum);
            }
        }
        // Law 6.
        assert_eq!(self.arrived, self.started + self.gone + self.waiting.len() as u64);
        // Law 2: a reason for each. Without headroom and ripeness nobody's turn is left over, unless a wide
        // head of the same workspace stands first and does not fit the free seats.
        let whys: Vec<Why> = (self.waiting.iter())
            .map(|id| self.core.why_waiting(self.now, *id).expect("every waiting request has a reason"))
            .collect();
        let wide = whys.iter().any(|why| matches!(why, Why::NoSeat | Why::Reserved | Why::Collecting));
        if self.strict && !wide {
            assert!(!whys.contains(&Why::Turn), "a seat idles that the rules let somebody take: {whys:?}");
        }
    }

    fn drain(&mut self) {
        for width in std::mem::take(&mut self.exempt) {
            self.core.exempt_end(self.now, width);
        }
        for _ in 0..100_000 {
            self.settle();
            if let Some(at) = self.core.next_wakeup() {
                assert!(at > self.now, "a wake-up lies in the future");
                self.now = at;
            }
            if self.waiting.is_empty() && self.running.is_empty() {
                break;
            }
            self.now += MS;
            if let Some(id) = self.running.pop() {
                self.core.complete(self.now, id);
            }
        }
        // What is kept for others may leave nobody else a seat, however idle the shard is.
        let (asked, core) = (&self.asked, &self.core);
        self.waiting.retain(|id| core.widest(asked[id]) > 0);
        assert_eq!((self.waiting.len(), self.running.len()), (0, 0), "drained");
        assert_eq!(self.core.in_use(self.core.root()), 0);
    }
}

fn off() -> Tuning {
    Tuning { headroom_percent: 0, ripeness: 0, ..Tuning::default() }
}

/// Seats that nobody's end can bring are not waited for: what is not reserved may all be one request's.
#[test]
fn a_request_as_wide_as_all_unreserved_seats_starts_when_nothing_runs_outside_the_reserves() {
    let spec = |reserve| NodeSpec { weight: 1, reserve, maximum: u32::MAX };
    let shape = [(false, spec(8), vec![(1, 0)]), (false, spec(0), vec![(1, 0)])];
    let arrive = |leaf, width| Op::Arrive { leaf, width };
    let started = |before: &[Op]| {
        let mut model = Model::new(&shape, Tuning::default(), false);
        for op in before {
            model.step(op);
        }
        model.step(&arrive(1, 12));
        (model.running.len(), model.waiting.len())
    };
    assert_eq!(started(&[]), (1, 0), "an idle shard");
    assert_eq!(started(&[arrive(0, 5)]), (2, 0), "beside the use of a reserve");
    assert_eq!(started(&[arrive(1, 1)]), (1, 1), "seats that come back are waited for");
    assert_eq!(started(&[arrive(1, 1), Op::Complete { at: 0 }]), (1, 0), "and came back");
}

/// Nodes that are always there, whether or not anybody is behind them, are nobody to keep seats for.
#[test]
fn headroom_is_kept_for_others_only_where_there_are_others() {
    let started = |known| {
        let mut core = Scheduler::new(20, Tuning { ripeness: 0, ..Tuning::default() });
        let pool = core.add_pool(0, 20);
        let spec = NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX };
        let [_, _, workspace] = [0; 3].map(|now| core.add_node(now, pool, spec, true, Owner::NOBODY));
        core.set_standing(2);
        core.set_known(known);
        let leaf = core.add_node(0, workspace, spec, false, Owner::NOBODY);
        for _ in 0..20 {
            core.arrive(0, leaf, 1);
            while core.dispatch(0).is_some() {}
        }
        core.in_use(leaf)
    };
    assert_eq!((started(1), started(2)), (20, 18));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn laws_hold_after_every_step_and_all_drains(
        shape in shape(),
        ops in prop::collection::vec(op(), 1..200),
        rules in any::<bool>(),
    ) {
        let tuning = if rules { Tuning::default() } else { off() };
        let run = || {
            let mut model = Model::new(&shape, tuning, !rules);
            for op in &ops {
                model.step(op);
            }
            model.drain();
            model.decisions
        };
        // Law 7: the same again gives the same.
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn no_seat_idles_while_anybody_waits(shape in shape(), ops in prop::collection::vec(op(), 1..200)) {
        let free = |(shared, spec, levels): &Workspace| {
            let levels = levels.iter().map(|(queues, _)| (*queues, 0)).collect();
            (*shared, NodeSpec { reserve: 0, maximum: u32::MAX, ..*spec }, levels)
        };
        let shape: Vec<_> = shape.iter().map(free).collect();
        let mut model = Model::new(&shape, off(), true);
        for op in &ops {
            match op {
                Op::Arrive { leaf, .. } => model.step(&Op::Arrive { leaf: *leaf, width: 1 }),
                Op::Reconfigure { .. } | Op::Seats(_) | Op::ExemptStart(_) => {}
                other => model.step(other),
            }
            let in_use = model.core.in_use(model.core.root());
            prop_assert!(in_use == 20 || model.waiting.is_empty(), "{} of 20 used, {} wait", in_use, model.waiting.len());
        }
        model.drain();
    }
}
