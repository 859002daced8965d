use std::{
    pin::Pin,
    sync::LazyLock,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
};

use apiserver_api::flowcontrol::{FlowSchema as SchemaObject, PriorityLevelConfiguration as LevelObject, bootstrap};
use proptest::prelude::*;

use super::*;
use crate::LevelKind;

mod bounds;
mod classes;
mod model;
mod parking;

/// Time that only tests move, or tokio's when it is paused.
struct TestClock {
    start: tokio::time::Instant,
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        1_000_000_000 + self.start.elapsed().as_nanos() as u64
    }
}

struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

static PROFILE: LazyLock<Arc<Profile>> = LazyLock::new(|| Arc::new(Profile::bootstrap()));

fn profile() -> Arc<Profile> {
    PROFILE.clone()
}

/// Profiles in which the same index means another level each time, `exempt` among them.
static PROFILES: LazyLock<[Arc<Profile>; 3]> = LazyLock::new(|| {
    let none: (&[SchemaObject], &[LevelObject]) = (&[], &[]);
    let (schemas, levels) = (bootstrap::flow_schemas(), bootstrap::priority_levels());
    let some: Vec<_> =
        levels.into_iter().filter(|l| !["global-default", "leader-election"].contains(&&*l.metadata.name)).collect();
    [profile(), Arc::new(Profile::compile(none.0, none.1)), Arc::new(Profile::compile(&schemas, &some))]
});

fn gate(seats: u32) -> Arc<Gate> {
    let clock = Arc::new(TestClock { start: tokio::time::Instant::now() });
    let policy = GatePolicy { tuning: Tuning { headroom_percent: 0, ..Tuning::default() }, ..GatePolicy::default() };
    Gate::with_policy(GateOptions { seats, profile: profile(), clock }, policy)
}

fn class(profile: &Profile, level: &str) -> Classified {
    let level = profile.levels().iter().position(|l| &*l.name == level).unwrap() as u16;
    let flow_schema = profile.flow_schemas().iter().position(|f| f.level == level).unwrap() as u16;
    Classified { flow_schema, level, flow: 7 }
}

fn workspace(name: &str) -> ClusterName {
    name.parse().unwrap()
}

fn request<'a>(gate: &Gate, workspace: &'a ClusterName, level: &str, seats: u32) -> Request<'a> {
    Request {
        workspace: Some(workspace),
        profile: &PROFILE,
        class: class(&PROFILE, level),
        cost: Cost { initial_seats: seats, final_seats: 0, additional_latency: Duration::ZERO, raw_seats: seats },
        received_ns: gate.shared.clock.now_ns(),
        timeout: None,
    }
}

#[track_caller]
fn run(admission: Admission) -> Permit {
    match admission {
        Admission::Run(permit) => permit,
        other => panic!("should run: {other:?}"),
    }
}

#[track_caller]
fn wait(admission: Admission) -> Waiting {
    match admission {
        Admission::Wait(waiting) => waiting,
        other => panic!("should wait: {other:?}"),
    }
}

#[track_caller]
fn refused(admission: Admission) -> Rejection {
    match admission {
        Admission::Reject(rejection) => rejection,
        other => panic!("should be refused: {other:?}"),
    }
}

/// Fills the gate with requests of one seat.
fn fill(gate: &Arc<Gate>, workspace: &ClusterName) -> Vec<Permit> {
    let mut all = Vec::new();
    loop {
        match gate.admit(&request(gate, workspace, "workload-low", 1)) {
            Admission::Run(permit) => all.push(permit),
            Admission::Wait(_) => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_wakes_the_next() {
    let (gate, a) = (gate(10), workspace("a"));
    let mut permits = fill(&gate, &a);
    let level = gate.shard_stats();
    assert_eq!((level.in_use as usize, level.waiting), (permits.len(), 0));
    let waiting = tokio::spawn(wait(gate.admit(&request(&gate, &a, "workload-low", 1))));
    tokio::task::yield_now().await;
    assert_eq!(gate.shard_stats().waiting, 1);
    permits.pop();
    let permit = waiting.await.unwrap().unwrap();
    assert_eq!(permit.seats(), 1);
    drop((permits, permit));
    assert_eq!((gate.shard_stats().in_use, gate.shard_stats().waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_frees_its_place_and_its_seat() {
    let (gate, a) = (gate(10), workspace("a"));
    let mut permits = fill(&gate, &a);
    let first = wait(gate.admit(&request(&gate, &a, "workload-low", 1)));
    let second = wait(gate.admit(&request(&gate, &a, "workload-low", 1)));
    drop(first);
    assert_eq!(gate.shard_stats().waiting, 1);
    // The second one is started but never polled: its seat must come back all the same.
    permits.pop();
    assert_eq!(gate.shard_stats().waiting, 0);
    let full = gate.shard_stats().in_use;
    drop(second);
    assert_eq!(gate.shard_stats().in_use, full - 1);
    let low: u64 = gate.level_stats().flows.iter().map(|flow| flow.rejected[4]).sum();
    assert_eq!(low, 2, "the one that ended the filling, and the first one here");
}

#[tokio::test(start_paused = true)]
async fn each_waiter_has_its_own_deadline() {
    let (gate, a) = (gate(10), workspace("a"));
    let permits = fill(&gate, &a);
    let start = tokio::time::Instant::now();
    let long = Request { timeout: Some(Duration::from_secs(400)), ..request(&gate, &a, "workload-low", 1) };
    let short = Request { timeout: Some(Duration::from_secs(8)), ..long };
    let (mut long, mut short) = (wait(gate.admit(&long)), wait(gate.admit(&short)));
    let rejection = (&mut short).await.unwrap_err();
    assert_eq!((rejection.reason, start.elapsed().as_secs()), ("time-out", 2));
    let rejection = (&mut long).await.unwrap_err();
    assert_eq!((rejection.reason, start.elapsed().as_secs()), ("time-out", 60));
    assert!((1..=32).contains(&rejection.retry_after));
    assert_eq!(gate.shard_stats().waiting, 0);
    drop(permits);
    let late =
        Request { received_ns: 0, timeout: Some(Duration::from_secs(1)), ..request(&gate, &a, "workload-low", 1) };
    drop(run(gate.admit(&late)));
}

#[tokio::test(start_paused = true)]
async fn seats_come_back_when_a_task_panics() {
    let (gate, a) = (gate(10), workspace("a"));
    let permit = run(gate.admit(&request(&gate, &a, "workload-low", 3)));
    let task = tokio::spawn(async move {
        let _permit = permit;
        panic!("the handler fails");
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(gate.shard_stats().in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn the_tail_keeps_the_seats() {
    let (gate, a) = (gate(10), workspace("a"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driver = tokio::spawn(gate.clone().run(async {
        let _ = stopped.await;
    }));
    tokio::task::yield_now().await;
    let write = Request {
        cost: Cost { initial_seats: 1, final_seats: 4, additional_latency: Duration::from_millis(250), raw_seats: 4 },
        ..request(&gate, &a, "workload-low", 1)
    };
    drop(run(gate.admit(&write)));
    let stats = gate.level_stats();
    let flow = stats.flows.iter().find(|flow| flow.dispatched == 1).unwrap();
    assert_eq!((flow.executing_requests, flow.executing_seats), (0, 4));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gate.shard_stats().in_use, 4);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(gate.shard_stats().in_use, 0);
    stop.send(()).unwrap();
    driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn levels_do_what_their_kind_says() {
    let (gate, a) = (gate(10), workspace("a"));
    let permits = fill(&gate, &a);
    let exempt = run(gate.admit(&request(&gate, &a, "exempt", 1)));
    assert_eq!(gate.shard_stats().exempt, 1);
    drop(exempt);
    assert_eq!(gate.shard_stats().exempt, 0);
    let profile = gate.profile();
    let reject = profile.levels().iter().find(|l| l.kind == LevelKind::Reject).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| match gate.admit(&request(&gate, &a, &reject.name, 1)) {
        Admission::Run(permit) => Some(permit),
        Admission::Reject(rejection) => {
            assert_eq!(rejection.reason, "concurrency-limit");
            None
        }
        Admission::Wait(_) => panic!("nobody waits there"),
    })
    .collect();
    assert_eq!(gate.shard_stats().in_use as usize, permits.len() + held.len());
    assert_eq!(gate.shard_stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn queues_have_a_limit() {
    let (gate, a) = (gate(10), workspace("a"));
    let _permits = fill(&gate, &a);
    let LevelKind::Queue(queuing) =
        gate.profile().levels()[usize::from(class(&gate.profile(), "workload-low").level)].kind
    else {
        panic!("workload-low queues");
    };
    let mut waiting = Vec::new();
    let rejection = loop {
        match gate.admit(&request(&gate, &a, "workload-low", 1)) {
            Admission::Wait(w) => waiting.push(w),
            other => break refused(other),
        }
    };
    assert_eq!(rejection.reason, "queue-full");
    // One flow has its hand of queues.
    assert_eq!(waiting.len() as u32, queuing.hand_size * queuing.queue_length_limit);
    let stats = gate.workspace_stats(1);
    assert_eq!(stats.busiest[0].name, Some(a));
    assert_eq!((stats.busiest[0].waiting, stats.busiest[0].rejected[0]), (waiting.len() as u64, 1));
}

#[tokio::test(start_paused = true)]
async fn idle_workspaces_leave_nothing_and_those_without_room_neither() {
    let gate = gate(10);
    let before = gate.shard_stats().workspaces;
    gate.set_names_max(0);
    for name in ["x", "y", "z"] {
        drop(run(gate.admit(&request(&gate, &workspace(name), "workload-low", 1))));
    }
    assert_eq!(gate.shard_stats().workspaces, before);
    // Those that share a node are others; what has no name besides is the platform, once.
    let stats = gate.workspace_stats(9);
    assert_eq!(
        stats.busiest.iter().map(|w| (w.name.clone(), w.limit, w.dispatched)).collect::<Vec<_>>(),
        [(None, 10, 0)]
    );
    assert_eq!((stats.other.limit, stats.other.dispatched), (10, 3));
    gate.set_names_max(1);
    let a = workspace("a");
    drop(run(gate.admit(&request(&gate, &a, "workload-low", 1))));
    assert_eq!(gate.shard_stats().workspaces, before + 1);
    // As the driver would.
    for _ in 0..20 {
        if let Some(at) = gate.tick(gate.shared.clock.now_ns()) {
            tokio::time::sleep(Duration::from_nanos(at.saturating_sub(gate.shared.clock.now_ns()))).await;
        }
    }
    let after = gate.shard_stats();
    assert_eq!((after.workspaces, after.nodes), (before, 4), "shard, pool, platform, shared");
    assert_eq!(gate.tick(gate.shared.clock.now_ns()), None, "nothing to come back for");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_workspace_drains() {
    let (gate, a) = (gate(10), workspace("a"));
    let permits = fill(&gate, &a);
    let waiting = tokio::spawn(wait(gate.admit(&request(&gate, &a, "workload-low", 1))));
    gate.forget_workspace(&a);
    assert!(gate.workspace_stats(9).busiest.iter().all(|w| w.name.is_none()));
    drop(permits);
    drop(waiting.await.unwrap().unwrap());
    assert_eq!((gate.shard_stats().in_use, gate.shard_stats().waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn reserves_are_kept_for_declared_workspaces() {
    let clock = Arc::new(TestClock { start: tokio::time::Instant::now() });
    let classes: ClassLookup = Arc::new(|name: &ClusterName| match name.as_str() {
        "gold" => WorkspaceClass::Seats { seats: 4, lendable_percent: 0, borrowing_limit_percent: None },
        _ => WorkspaceClass::default(),
    });
    let tuning = Tuning { headroom_percent: 0, ..Tuning::default() };
    let policy = GatePolicy { classes, tuning, ..GatePolicy::default() };
    let gate = Gate::with_policy(GateOptions { seats: 10, profile: profile(), clock }, policy);
    let (gold, other) = (workspace("gold"), workspace("other"));
    gate.declare_workspace(&gold);
    let _others = fill(&gate, &other);
    assert!(gate.shard_stats().in_use <= 6);
    let _gold = run(gate.admit(&request(&gate, &gold, "workload-low", 1)));
}

#[tokio::test(start_paused = true)]
async fn a_new_profile_serves_who_waits_in_a_level_that_is_gone() {
    let (gate, a) = (gate(10), workspace("a"));
    let permits = fill(&gate, &a);
    let waiting = tokio::spawn(wait(gate.admit(&request(&gate, &a, "workload-low", 1))));
    tokio::task::yield_now().await;
    gate.set_profile(Arc::new(Profile::compile(&[] as &[SchemaObject], &[] as &[LevelObject])));
    drop(permits);
    drop(waiting.await.unwrap().unwrap());
    drop(run(gate.admit(&request(&gate, &a, "catch-all", 1))));
    assert_eq!(gate.shard_stats().in_use, 0);
    let flows = gate.level_stats().flows;
    let old = flows.iter().find(|flow| &*flow.level == "workload-low").unwrap();
    assert!(old.dispatched > 0 && !old.in_force, "counters outlive it");
}

#[test]
fn counters_of_pairs_that_stay_do_not_jump_when_others_come() {
    let (few, many) = (&PROFILES[1], &PROFILES[0]);
    let mut table = stats::FlowTable::new(few);
    for n in 0..few.flow_schemas().len() as u16 {
        let at = table.of(n);
        table.at(at).counters.dispatched = 1 + u64::from(n);
    }
    table.set_profile(many);
    for (n, schema) in (1..).zip(few.flow_schemas()) {
        let at = table.named(&few.levels()[usize::from(schema.level)].name, &schema.name);
        assert_eq!(table.at(at).counters.dispatched, n, "{}", schema.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_classification_is_read_by_name() {
    let (gate, a) = (gate(10), workspace("a"));
    let stale: Vec<_> = PROFILE.levels().iter().map(|l| (&*l.name, request(&gate, &a, &l.name, 1))).collect();
    for profile in &*PROFILES {
        gate.set_profile(profile.clone());
        for (name, ask) in &stale {
            let before = gate.level_stats().flows;
            let permit = run(gate.admit(ask));
            assert_eq!(gate.shard_stats().exempt, u32::from(*name == "exempt"), "{name}");
            let after = gate.level_stats().flows;
            let now = before.iter().zip(&after).find(|(b, a)| b.dispatched < a.dispatched).unwrap().1;
            let expected = if profile.level_named(name).is_some() { name } else { "catch-all" };
            assert_eq!(&*now.level, expected);
            drop(permit);
        }
    }
    // Places of pairs that are gone are used again.
    let places = gate.level_stats().flows.len();
    for _ in 0..10 {
        PROFILES.iter().for_each(|profile| gate.set_profile(profile.clone()));
    }
    assert_eq!(gate.level_stats().flows.len(), places);
}

/// Profiles change all the time while requests come with classifications of any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn profiles_change_under_load() {
    let gate = gate(8);
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..3000_usize {
        let (gate, running, most) = (gate.clone(), running.clone(), most.clone());
        tasks.spawn(async move {
            let name = workspace(["a", "b", "c"][n % 3]);
            let profile = &PROFILES[n % PROFILES.len()];
            let levels: Vec<_> = profile.levels().iter().filter(|l| l.kind != LevelKind::Exempt).collect();
            let mut ask = request(&gate, &name, "catch-all", 1 + (n % 2) as u32);
            (ask.profile, ask.class) = (profile, class(profile, &levels[n / 3 % levels.len()].name));
            ask.class.flow = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ask.timeout = Some(Duration::from_secs(240));
            let permit = match gate.admit(&ask) {
                Admission::Run(permit) => permit,
                Admission::Wait(waiting) => waiting.await.expect("nobody times out"),
                Admission::Reject(_) => return,
            };
            let seats = u64::from(permit.seats());
            most.fetch_max(running.fetch_add(seats, Ordering::SeqCst) + seats, Ordering::SeqCst);
            assert_eq!(gate.shard_stats().exempt, 0);
            tokio::task::yield_now().await;
            running.fetch_sub(seats, Ordering::SeqCst);
        });
    }
    let swapping = tokio::spawn({
        let gate = gate.clone();
        async move {
            for n in 0.. {
                gate.set_profile(PROFILES[n % PROFILES.len()].clone());
                gate.lock().shard.verify().unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    swapping.abort();
    assert!(most.load(Ordering::SeqCst) <= 8);
    assert_eq!((gate.shard_stats().in_use, gate.shard_stats().waiting), (0, 0));
    let flows = gate.level_stats().flows;
    let outcomes: u64 = flows.iter().map(|f| f.dispatched + f.rejected.iter().sum::<u64>()).sum();
    assert_eq!(outcomes, 3000, "one outcome each");
    assert!(flows.iter().all(|f| &*f.level != "exempt" || f.dispatched == 0));
}

/// Thousands of tasks on several threads: nobody is forgotten, and never too many run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost() {
    let gate = gate(8);
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4000_u64 {
        let (gate, running, most) = (gate.clone(), running.clone(), most.clone());
        tasks.spawn(async move {
            let name = workspace(["a", "b", "c", "d", "e"][(n % 5) as usize]);
            let mut ask = request(&gate, &name, "workload-low", 1 + (n % 2) as u32);
            ask.class.flow = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ask.timeout = Some(Duration::from_secs(240));
            let permit = match gate.admit(&ask) {
                Admission::Run(permit) => permit,
                Admission::Wait(waiting) if n % 7 == 0 => {
                    // A client that goes away after a while, or at once.
                    let patience = tokio::task::yield_now();
                    tokio::select! {
                        permit = waiting => permit.unwrap(),
                        () = patience => return 0,
                    }
                }
                Admission::Wait(waiting) => match waiting.await {
                    Ok(permit) => permit,
                    Err(rejection) => panic!("nobody times out: {rejection:?}"),
                },
                Admission::Reject(rejection) => {
                    assert!(["queue-full", "deadline"].contains(&rejection.reason));
                    return 0;
                }
            };
            let seats = u64::from(permit.seats());
            let now = running.fetch_add(seats, Ordering::SeqCst) + seats;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(seats, Ordering::SeqCst);
            1
        });
    }
    let mut served = 0;
    while let Some(done) = tasks.join_next().await {
        served += done.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 8);
    let stats = gate.shard_stats();
    assert_eq!((stats.in_use, stats.waiting), (0, 0));
    let flows = gate.level_stats().flows;
    let dispatched: u64 = flows.iter().map(|flow| flow.dispatched).sum();
    let rejected: u64 = flows.iter().flat_map(|flow| flow.rejected).sum();
    assert_eq!(dispatched + rejected, 4000, "one outcome each");
    assert!(dispatched >= served, "{dispatched} started, {served} told of it");
}

#[derive(Clone, Debug)]
enum Op {
    Admit { workspace: usize, level: usize, width: u32, tail: u64 },
    Drop(usize),
    Poll(usize),
    Abandon(usize),
    Forget(usize),
    Profile(usize),
    Sleep(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..5_usize, 0..8_usize, 1..5_u32, prop_oneof![3 => Just(0), 1 => 1..500_u64])
            .prop_map(|(workspace, level, width, tail)| Op::Admit { workspace, level, width, tail }),
        4 => any::<usize>().prop_map(Op::Drop),
        3 => any::<usize>().prop_map(Op::Poll),
        2 => any::<usize>().prop_map(Op::Abandon),
        1 => (0..5_usize).prop_map(Op::Forget),
        1 => (0..3_usize).prop_map(Op::Profile),
        3 => (0..400_u64).prop_map(Op::Sleep),
        1 => (0..20_000_u64).prop_map(Op::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Requests are conserved, and all sums are right, whatever comes in whatever order.
    #[test]
    fn requests_are_conserved(ops in prop::collection::vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _context = runtime.enter();
        let clock = Arc::new(ManualClock(AtomicU64::new(1)));
        let gate = Gate::new(GateOptions { seats: 12, profile: profile(), clock: clock.clone() });
        let names: Vec<_> = ["a", "b", "c", "d", "e"].map(workspace).into();
        let levels: Vec<_> = gate.profile().levels().iter().map(|l| l.name.clone()).collect();
        let (mut permits, mut waiting, mut asked) = (Vec::new(), Vec::new(), 0_u64);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for op in ops {
            match op {
                Op::Admit { workspace, level, width, tail } => {
                    asked += 1;
                    let mut ask = request(&gate, &names[workspace], &levels[level % levels.len()], width);
                    ask.cost.additional_latency = Duration::from_millis(tail);
                    match gate.admit(&ask) {
                        Admission::Run(permit) => permits.push(permit),
                        Admission::Wait(place) => waiting.push(place),
                        Admission::Reject(_) => {}
                    }
                }
                Op::Drop(at) if !permits.is_empty() => drop(permits.swap_remove(at % permits.len())),
                Op::Poll(at) if !waiting.is_empty() => {
                    let at = at % waiting.len();
                    if let Poll::Ready(outcome) = Pin::new(&mut waiting[at]).poll(&mut cx) {
                        permits.extend(outcome);
                        drop(waiting.swap_remove(at));
                    }
                }
                Op::Abandon(at) if !waiting.is_empty() => drop(waiting.swap_remove(at % waiting.len())),
                Op::Profile(at) => gate.set_profile(PROFILES[at].clone()),
                Op::Forget(at) => gate.forget_workspace(&names[at]),
                Op::Sleep(ms) => {
                    clock.0.fetch_add(ms * 1_000_000, Ordering::Relaxed);
                    gate.tick(clock.now_ns());
                }
                Op::Drop(_) | Op::Poll(_) | Op::Abandon(_) => {}
            }
            gate.lock().shard.verify().map_err(TestCaseError::fail)?;
            let flows = gate.level_stats().flows;
            let sum = |of: fn(&FlowStats) -> u64| flows.iter().map(of).sum::<u64>();
            let rejected = sum(|f| f.rejected.iter().sum());
            prop_assert_eq!(asked, sum(|f| f.dispatched) + rejected + sum(|f| f.waiting_requests));
            let stats = gate.shard_stats();
            prop_assert_eq!(sum(|f| f.executing_seats), u64::from(stats.in_use + stats.exempt));
            prop_assert!(stats.in_use <= 12);
        }
        drop((permits, waiting));
        clock.0.fetch_add(3_600_000_000_000, Ordering::Relaxed);
        for _ in 0..20 {
            gate.tick(clock.now_ns());
            clock.0.fetch_add(60_000_000_000, Ordering::Relaxed);
        }
        prop_assert_eq!(gate.shard_stats(), ShardStats { horizon_ns: gate.shard_stats().horizon_ns, ..ShardStats {
            seats: 12, workspaces: 2, nodes: 4, ..ShardStats::default()
        }});
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_behind_is_told_and_the_gate_is_never_behind() {
    let (gate, a) = (gate(100), workspace("a"));
    let ask = |profile: &'static Profile, level: &str| Request {
        profile,
        class: class(profile, level),
        ..request(&gate, &a, "workload-low", 1)
    };
    let [_, newer, _] = &*PROFILES;
    let gone = PROFILE.levels().iter().find(|l| newer.level_named(&l.name).is_none()).expect("they differ");
    let stays = PROFILE.levels().iter().find(|l| newer.level_named(&l.name).is_some()).expect("some level stays");
    gate.set_profile(newer.clone());
    assert!(gate.try_admit(&ask(&PROFILE, &gone.name)).is_none());
    assert!(gate.try_admit(&ask(&PROFILE, &stays.name)).is_some());
    assert_eq!((gate.shard_stats().waiting, gate.shard_stats().in_use), (0, 0), "nothing remembers it");
    // One that was made later takes its place, one that was made earlier does not.
    let latest = Arc::new(Profile::bootstrap());
    gate.follow(&latest);
    assert_eq!(gate.profile().serial(), latest.serial());
    gate.follow(newer);
    assert_eq!(gate.profile().serial(), latest.serial());
}
