//! The gate beside a model that knows of every request where it is: laws 1, 5 and 6 per workspace and level,
//! while profiles, classes, seats and workspaces change and the clock is that of the test.

use super::*;
use crate::wait_limit;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
enum Step {
    Admit { workspace: usize, level: usize, width: u32, timeout_s: u64 },
    Finish(usize),
    Cancel(usize),
    Forget(usize),
    Profile(usize),
    Classes(u64),
    Seats(u32),
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..5_usize, 0..8_usize, 1..5_u32, 1..120_u64)
            .prop_map(|(workspace, level, width, timeout_s)| Step::Admit { workspace, level, width, timeout_s }),
        5 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..5_usize).prop_map(Step::Forget),
        1 => (0..3_usize).prop_map(Step::Profile),
        1 => (0..4_u64).prop_map(Step::Classes),
        // Never fewer than what is promised to `a`.
        1 => (6..20_u32).prop_map(Step::Seats),
        3 => (0..400_u64).prop_map(Step::Sleep),
        1 => (0..20_000_u64).prop_map(Step::Sleep),
    ]
}

/// Who asked, and for what.
#[derive(Clone)]
struct Asked {
    /// `None`: the workspace has been forgotten since.
    workspace: Option<usize>,
    level: Box<str>,
    deadline: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcomes {
    dispatched: u64,
    /// Refused, expired or cancelled: the gate counts them by reason.
    rejected: u64,
    waiting: u64,
}

struct Model {
    gate: Arc<Gate>,
    version: Arc<AtomicU64>,
    names: Vec<ClusterName>,
    waiting: Vec<(Asked, Waiting)>,
    running: Vec<(Asked, Permit)>,
    levels: std::collections::BTreeMap<Box<str>, Outcomes>,
    seats: u32,
    /// All seats are so many times those of the steps: with many, some stay parked between requests.
    scale: u32,
}

impl Model {
    fn new(scale: u32, compat: Compat) -> Self {
        let version = Arc::new(AtomicU64::new(0));
        let of = version.clone();
        let classes: ClassLookup = Arc::new(move |name: &ClusterName| {
            let version = of.load(Ordering::Relaxed) as u32;
            match name.as_str() {
                "a" => WorkspaceClass::Seats {
                    seats: 2 + version,
                    lendable_percent: 25 * version,
                    borrowing_limit_percent: (version == 2).then_some(50),
                },
                "b" => WorkspaceClass::Shares { shares: 1 + 20 * version, borrowing_limit_percent: Some(100) },
                _ => WorkspaceClass::default(),
            }
        });
        let clock = Arc::new(TestClock { start: tokio::time::Instant::now() });
        let policy = GatePolicy { classes, compat, ..GatePolicy::default() };
        let seats = 12 * scale;
        let gate = Gate::with_policy(GateOptions { seats, profile: profile(), clock }, policy);
        let names = NAMES.map(workspace).into();
        Self { gate, version, names, waiting: vec![], running: vec![], levels: Default::default(), seats, scale }
    }

    fn admit(&mut self, at: usize, level: usize, width: u32, timeout_s: u64) {
        let levels = PROFILE.levels();
        let name = &levels[level % levels.len()].name;
        let timeout = Some(Duration::from_secs(timeout_s));
        let ask = Request { timeout, ..request(&self.gate, &self.names[at], name, width) };
        // What was classified by a profile that is out of force is read by name.
        let there = self.gate.profile().level_named(name).is_some();
        let level: Box<str> = if there { name.clone() } else { "catch-all".into() };
        let deadline = wait_limit(ask.received_ns, timeout, crate::DEFAULT_WAIT_LIMIT);
        let asked = Asked { workspace: Some(at), level: level.clone(), deadline };
        let outcomes = self.levels.entry(level).or_default();
        match self.gate.admit(&ask) {
            Admission::Run(permit) => {
                outcomes.dispatched += 1;
                self.running.push((asked, permit));
            }
            Admission::Wait(place) => {
                outcomes.waiting += 1;
                self.waiting.push((asked, place));
            }
            Admission::Reject(rejection) => {
                assert!(rejection.retry_after >= 1);
                outcomes.rejected += 1;
            }
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Admit { workspace, level, width, timeout_s } => self.admit(workspace, level, width, timeout_s),
            Step::Finish(at) if !self.running.is_empty() => drop(self.running.swap_remove(at % self.running.len())),
            Step::Cancel(at) if !self.waiting.is_empty() => {
                let (asked, place) = self.waiting.swap_remove(at % self.waiting.len());
                drop(place);
                let outcomes = self.levels.get_mut(&asked.level).unwrap();
                (outcomes.waiting, outcomes.rejected) = (outcomes.waiting - 1, outcomes.rejected + 1);
            }
            Step::Forget(at) => {
                self.gate.forget_workspace(&self.names[at]);
                let here = self.waiting.iter_mut().map(|(a, _)| a).chain(self.running.iter_mut().map(|(a, _)| a));
                here.filter(|asked| asked.workspace == Some(at)).for_each(|asked| asked.workspace = None);
            }
            Step::Profile(at) => self.gate.set_profile(PROFILES[at].clone()),
            Step::Classes(version) => {
                self.version.store(version, Ordering::Relaxed);
                self.gate.reclassify_workspaces();
            }
            Step::Seats(seats) => {
                self.seats = seats * self.scale;
                self.gate.set_seats(self.seats);
            }
            Step::Sleep(ms) => tokio::time::advance(Duration::from_millis(ms)).await,
            Step::Finish(_) | Step::Cancel(_) => {}
        }
        self.gate.tick(self.gate.shared.clock.now_ns());
        self.hear();
    }

    /// Asks everybody who waits for the outcome.
    fn hear(&mut self) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        // An outcome may let others start: until nothing changes any more.
        let mut again = true;
        while std::mem::take(&mut again) {
            for (asked, mut place) in std::mem::take(&mut self.waiting) {
                let Poll::Ready(outcome) = Pin::new(&mut place).poll(&mut cx) else {
                    self.waiting.push((asked, place));
                    continue;
                };
                again = true;
                let outcomes = self.levels.get_mut(&asked.level).unwrap();
                outcomes.waiting -= 1;
                match outcome {
                    Ok(permit) => {
                        outcomes.dispatched += 1;
                        self.running.push((asked, permit));
                    }
                    Err(rejection) => {
                        assert_eq!(rejection.reason, "time-out");
                        assert!(asked.deadline <= self.gate.shared.clock.now_ns() + 1_000_000, "before its time");
                        outcomes.rejected += 1;
                    }
                }
            }
        }
    }

    /// Each request is where the model has it.
    fn check(&self) {
        self.gate.lock().shard.verify().unwrap();
        let now = self.gate.shared.clock.now_ns();
        // Law 5. Timers tick in milliseconds.
        for (asked, _) in &self.waiting {
            assert!(now < asked.deadline + 2_000_000, "waits {} ns too long", now - asked.deadline);
        }
        // Law 6 per level.
        let flows = self.gate.level_stats().flows;
        for (level, outcomes) in &self.levels {
            let of: Vec<_> = flows.iter().filter(|flow| *flow.level == **level).collect();
            let counted = Outcomes {
                dispatched: of.iter().map(|f| f.dispatched).sum(),
                rejected: of.iter().flat_map(|f| f.rejected).sum(),
                waiting: of.iter().map(|f| f.waiting_requests).sum(),
            };
            assert_eq!(counted, *outcomes, "{level}");
        }
        // And per workspace.
        let stats = self.gate.workspace_stats(100).busiest;
        for (at, name) in self.names.iter().enumerate() {
            let waiting = self.waiting.iter().filter(|(asked, _)| asked.workspace == Some(at)).count() as u64;
            let running = self.running.iter().filter(|(a, _)| a.workspace == Some(at) && &*a.level != "exempt");
            let seats: u64 = running.map(|(_, permit)| u64::from(permit.seats())).sum();
            let found = stats.iter().find(|s| s.name.as_ref() == Some(name));
            assert_eq!(found.map_or((0, 0), |s| (s.waiting, s.seats_in_use)), (waiting, seats), "{name}");
        }
        let exempt = |asked: &Asked| &*asked.level == "exempt";
        let (exempts, limited): (Vec<_>, Vec<_>) = self.running.iter().partition(|(asked, _)| exempt(asked));
        let seats = |of: Vec<&(Asked, Permit)>| of.iter().map(|(_, permit)| permit.seats()).sum::<u32>();
        let shard = self.gate.shard_stats();
        assert_eq!((shard.in_use, shard.exempt), (seats(limited), seats(exempts)));
        assert_eq!(shard.waiting as usize, self.waiting.len());
    }

    /// Nobody is forgotten: all that wait are served as soon as the others have ended; under Kubernetes' rules, which
    /// may have left a level without seats, at the next adjustment.
    async fn drain(&mut self, upstream: bool) {
        for _ in 0..10_000 {
            if self.waiting.is_empty() && self.running.is_empty() {
                break;
            }
            self.running.clear();
            if upstream {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            self.gate.tick(self.gate.shared.clock.now_ns());
            self.hear();
            self.check();
        }
        let left: Vec<_> = self.waiting.iter().map(|(asked, _)| (&asked.level, asked.workspace)).collect();
        assert!(left.is_empty(), "forgotten: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_accounted_for(
        steps in prop::collection::vec(step(), 1..150),
        scale in prop_oneof![Just(1_u32), Just(20)],
        upstream in prop::bool::weighted(0.3),
        every in 1..20_usize,
    ) {
        let compat = if upstream { Compat::Upstream } else { Compat::Fairgate };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        // Unconstrained: timers that are polled often would else pretend not to be ready.
        runtime.block_on(tokio::task::unconstrained(async {
            let mut model = Model::new(scale, compat);
            let mut shrunk = false;
            for (n, step) in steps.into_iter().enumerate() {
                shrunk |= matches!(step, Step::Seats(_));
                model.step(step).await;
                // Whoever asks makes the parked seats come back: not after each step.
                if n % every == 0 {
                    model.check();
                    // Law 1: exceeded only while those run who started before the seats were taken away. Kubernetes rounds
                    // each level's seats up.
                    assert!(shrunk || upstream || model.gate.shard_stats().in_use <= model.seats);
                }
            }
            model.drain(upstream).await;
        }));
    }
}
