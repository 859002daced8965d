//! Starts and stops everything.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::{Change, ConfigError, Effect, FairnessConfig, Limits, Source};
use fairness::{WatchOptions, WatchTracker};
use futures_util::FutureExt;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    ApplyError, Directory, GatewayOptions, Settings, StartError, access_log, admin,
    apply::Applied,
    census::{Census, Place},
    clock::WallClock,
    connection,
    core::{Access, Core, with_protocols},
    drain,
    index::Index,
    keeper::Keeper,
    limits::InForce,
    metrics::Metrics,
    rules::Fairness,
    shards::{Entry, Shards},
    status::{FileStatus, GatewayStatus},
    worker::Worker,
};

/// New sockets that wait for a worker; more wait in the kernel.
const HANDOVER_MAX: usize = 1024;
/// How often a drain looks whether it is over.
const LOOK: Duration = Duration::from_millis(10);
const SWEEP: Duration = Duration::from_secs(1);
/// So few client connections are worth a warning though nobody has asked for a number.
const CONNECTIONS_FEW: usize = 1000;
/// Threads for everything that is not a request.
const CONTROL_THREADS: usize = 2;

/// What workers and control tasks should be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serve,
    /// Go on, but ask the clients of open connections to go elsewhere.
    Leave,
    /// Refuse what is new, finish what runs; watches end within `grace`. `at_once`: idle connections are closed now.
    Drain {
        grace: Duration,
        at_once: bool,
    },
    Stop,
}

type Socket = (std::net::TcpStream, SocketAddr, Place);

/// A running gateway.
///
/// Dropping it stops it at once; [`shutdown`](Self::shutdown) lets what runs finish.
pub struct Gateway {
    core: Arc<Core>,
    keeper: Keeper,
    address: SocketAddr,
    admin_address: SocketAddr,
    phase: watch::Sender<Phase>,
    /// `None` only in `drop`.
    control: Option<runtime::Runtime>,
    members: Arc<[Arc<Worker>]>,
    workers: Vec<thread::JoinHandle<()>>,
    /// Closed when the last worker has ended, and nobody listens for clients any more.
    ended: mpsc::Receiver<()>,
    /// Dropped after the workers have ended: their last lines are written.
    access_log: Mutex<Option<access_log::Writer>>,
}

impl Gateway {
    /// Starts workers and control tasks; returns as soon as the listeners are served.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing keeps running then.
    pub fn start(options: GatewayOptions) -> Result<Self, StartError> {
        Self::start_with(options, WallClock::new(), |_| {})
    }

    /// The same with a clock, and a last look at the core.
    pub(crate) fn start_with(
        options: GatewayOptions,
        clock: WallClock,
        look: impl FnOnce(&mut Core),
    ) -> Result<Self, StartError> {
        let io = |what| move |error| StartError::Io(what, error);
        let address = options.listener.local_addr().map_err(io("listener"))?;
        let admin_address = options.admin.local_addr().map_err(io("admin listener"))?;
        let workers = match options.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let mut core = build(&options, clock, workers)?;
        let mut writer = None;
        if let Some(log) = &options.access_log {
            let opened = access_log::Output::open(&log.sink);
            let started = opened.and_then(|output| access_log::Writer::start(log, output, core.clock.clone()));
            let (log, thread) = started.map_err(io("accessLog.file"))?;
            (core.access_log, writer) = (log.into(), Some(thread));
        }
        look(&mut core);
        let core = Arc::new(core);
        let control = runtime::Builder::new_multi_thread()
            .worker_threads(CONTROL_THREADS)
            .thread_name("fairgate-control")
            .enable_all()
            .build()
            .map_err(io("control runtime"))?;
        let (phase, watch) = watch::channel(Phase::Serve);
        let (alive, ended) = mpsc::channel(1);
        let mut team = Vec::new();
        let mut threads = Vec::new();
        for number in 0..workers {
            let worker = Arc::new(Worker::new(number, core.clone()));
            let (sockets, inbox) = mpsc::channel(HANDOVER_MAX);
            team.push((worker.clone(), sockets));
            let (watch, alive) = (watch.clone(), alive.clone());
            let rt = runtime::Builder::new_current_thread().enable_all().build().map_err(io("worker runtime"))?;
            let body = move || {
                let _alive = alive;
                rt.block_on(work(worker, inbox, watch));
            };
            let thread = thread::Builder::new().name(format!("fairgate-worker-{number}")).spawn(body);
            threads.push(thread.map_err(io("worker thread"))?);
        }
        let (listener, admin) = {
            let _context = control.enter();
            (listen(options.listener).map_err(io("listener"))?, listen(options.admin).map_err(io("admin listener"))?)
        };
        let members: Arc<[Arc<Worker>]> = team.iter().map(|(worker, _)| worker.clone()).collect();
        let accepting = accept(listener, core.clone(), team, watch.clone());
        control.spawn(async move {
            // Whoever waits for the end may then use the address.
            let _alive = alive;
            accepting.await;
        });
        control.spawn(admin::run(admin, core.clone(), members.clone(), watch));
        let follows = options.directory == Directory::Watch;
        let keeper = Keeper::start(core.clone(), control.handle().clone(), follows);
        Ok(Self {
            core,
            keeper,
            address,
            admin_address,
            phase,
            control: Some(control),
            members,
            workers: threads,
            ended,
            access_log: Mutex::new(writer),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Waits until requests can be served: the index knows at least one shard.
    pub async fn ready(&self) {
        let mut moves = self.core.index.moves();
        while !self.core.index.is_ready() {
            if moves.changed().await.is_err() {
                return;
            }
        }
    }

    /// Puts another fairness configuration in force, all of it at once. Running requests keep their seats; who waits
    /// keeps its place, and is served by the level's new dials, or by its old ones if the level is gone. Without
    /// effect when the gateway was started without fairness.
    ///
    /// O(workspaces × levels) on the calling thread; requests are served meanwhile.
    pub fn reload_fairness(&self, config: &FairnessConfig) {
        self.core.reload_fairness(config);
    }

    /// Counts and shows why a configuration was not put in force. Nothing else changes.
    pub fn refuse_fairness(&self, error: &ConfigError) {
        let Some(fairness) = &self.core.fairness else { return };
        fairness.refused(&error.to_string());
        self.core.metrics.config_reloaded("fairness", "refused");
    }

    /// Puts other settings in force while requests are served. Running requests keep what they have: with fewer seats
    /// new ones wait until enough of them are free.
    ///
    /// Workspaces of a shard that comes are found as soon as it has told them. Those of one that goes are not found any
    /// more; what runs there, and who waits for its seats, is finished. Where one comes in the place of another of the same
    /// name, the old one serves until the new one has told its workspaces, but no longer than half a minute.
    ///
    /// # Errors
    /// What of it cannot be done. Nothing has changed then.
    pub fn apply(&self, settings: &Settings) -> Result<(), ApplyError> {
        let Applied { moves, writer } = self.core.apply(settings)?;
        self.keeper.follow(moves);
        if writer.is_some() {
            *self.access_log.lock().unwrap_or_else(PoisonError::into_inner) = writer;
        }
        Ok(())
    }

    /// Asks the clients of all connections there are to make new ones, because whom they show their certificate has
    /// changed: HTTP/2 by GOAWAY, not before its first request, HTTP/1.1 with the next answer. What runs on them goes on.
    pub fn renew_connections(&self) {
        self.members.iter().for_each(|worker| worker.leave());
    }

    /// Says what is in force of `gateway.yaml`, for `/configz`: at the start with no changes, then with those that its
    /// new content has brought. Those that need a restart are not in force.
    pub fn show_config(&self, source: &Source, changes: Vec<Change>) {
        let (needs_restart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(|c| c.effect == Effect::Restart);
        let mut status = self.core.config();
        match &mut *status {
            None => {
                let file = FileStatus::new(Some(source));
                *status = Some(GatewayStatus { file, changes, needs_restart });
            }
            Some(status) => {
                status.file.applied(Some(source));
                (status.changes, status.needs_restart) = (changes, needs_restart);
                self.core.metrics.config_reloaded("gateway", "applied");
            }
        }
    }

    /// Counts and shows why a content of `gateway.yaml`, or of a file it names, was not put in force. Nothing else
    /// changes.
    pub fn refuse_config(&self, error: &str) {
        if let Some(status) = &mut *self.core.config() {
            status.file.refused(error);
        }
        self.core.metrics.config_reloaded("gateway", "refused");
    }

    /// Ends the gateway in good order; returns how many requests and tunnels were cut off in the end.
    ///
    /// 1. Readiness goes down; everything is served as before for `delay`, so that load balancers notice. After half of
    ///    it the clients of open connections are asked to go elsewhere (GOAWAY, `Connection: close`).
    /// 2. Then new requests get 503 with `Retry-After`, on old connections and on new ones. What runs finishes, who
    ///    waits for seats gets them, watches end one by one, idle and silent connections are closed.
    /// 3. When no connection is left, or `grace` is over, everything stops.
    ///
    /// # Cancel safety
    /// Dropping the future stops everything at once.
    pub async fn shutdown(mut self, delay: Duration, grace: Duration) -> usize {
        self.core.leaving.store(true, Relaxed);
        sleep(delay / 2).await;
        self.phase.send_replace(Phase::Leave);
        sleep(delay.saturating_sub(delay / 2)).await;
        self.core.draining.store(true, Relaxed);
        self.phase.send_replace(Phase::Drain { grace, at_once: delay.is_zero() });
        let empty = async {
            let mut look = interval(LOOK);
            while self.members.iter().any(|worker| worker.connections.load(Relaxed) > 0) {
                look.tick().await;
            }
        };
        let _ = timeout(grace, empty).await;
        self.phase.send_replace(Phase::Stop);
        self.ended.recv().await;
        self.core.cut.load(Relaxed)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Stop);
        if let Some(control) = self.control.take() {
            control.shutdown_background();
        }
        for thread in self.workers.drain(..) {
            // A worker looks at its phase between any two polls and ends at once. A panic in it has been reported.
            let _ = thread.join();
        }
    }
}

pub(crate) fn build(options: &GatewayOptions, clock: WallClock, workers: usize) -> Result<Core, StartError> {
    if options.shards.is_empty() {
        return Err(StartError::NoShard);
    }
    let clock = Arc::new(clock);
    let index = Arc::new(Index::new(options.directory, options.shards.len()));
    let fairness = options.fairness.as_ref();
    let fairness = fairness.map(|config| Fairness::new(config, options.compat, &options.shards, &index));
    let entry = |shard: &crate::ShardOptions| {
        let gate = fairness.as_ref().map(|fairness| fairness.gate(shard.seats, &clock, &index));
        Entry::new(shard, gate, &options.limits, workers)
    };
    let shards = Shards::new(options.shards.iter().map(entry).collect::<Result<_, StartError>>()?);
    let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open_files = open_files.map(|files| usize::try_from(files).unwrap_or(usize::MAX));
    let core = Core {
        tls: ArcSwapOption::from(options.tls.as_deref().map(with_protocols)),
        access: ArcSwap::from_pointee(Access::new(options.anonymous, &options.drop_groups)),
        own_identity: Core::own_identity(),
        limits: InForce::new(options.limits),
        index,
        lookups: AtomicUsize::new(0),
        census: Arc::new(Census::new(open_files)),
        silent: AtomicUsize::new(0),
        tunnels: Arc::default(),
        lasting: Arc::default(),
        shards,
        workers,
        fairness,
        watches: WatchTracker::new(WatchOptions { compat: options.compat, ..WatchOptions::default() }),
        metrics: Metrics::new(),
        access_log: OnceLock::new(),
        config: Mutex::new(None),
        was_ready: AtomicBool::new(false),
        leaving: AtomicBool::new(false),
        draining: AtomicBool::new(false),
        cut: AtomicUsize::new(0),
        healthy: options.healthy.clone(),
        clock,
    };
    let most = core.census.most(&core.limits);
    // The default is for large machines; nobody who has not asked for so many needs to be told.
    let asked_for = core.limits.connections != Limits::default().connections;
    if most < core.limits.connections && (asked_for || most < CONNECTIONS_FEW) {
        tracing::warn!(
            ?open_files,
            connections = most,
            wanted = core.limits.connections,
            "fewer client connections than limits.connections: the process may not open more files (ulimit -n, \
             systemd's LimitNOFILE), and a quarter of them is kept for connections to shards"
        );
    }
    if core.index.is_static() {
        core.become_static(0);
    }
    Ok(core)
}

fn listen(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// When nobody is let in any more: whoever comes in the last moment of a drain would be cut off without an answer.
async fn end_of_admission(mut phase: watch::Receiver<Phase>) {
    let drains = phase.wait_for(|phase| matches!(phase, Phase::Drain { .. } | Phase::Stop)).await;
    let Ok(Phase::Drain { grace, .. }) = drains.map(|phase| *phase) else { return };
    tokio::select! {
        () = sleep(drain::admission(grace)) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Stop) => {}
    }
}

/// Hands each new socket to the worker with the least to do.
async fn accept(
    listener: TcpListener,
    core: Arc<Core>,
    team: Vec<(Arc<Worker>, mpsc::Sender<Socket>)>,
    phase: watch::Receiver<Phase>,
) {
    let mut end = pin!(end_of_admission(phase));
    let mut waiting = None;
    loop {
        let accepted = match &mut waiting {
            None => tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut end => {
                    waiting = Some(HANDOVER_MAX);
                    continue;
                }
            },
            // Who has come is let in, as far as that has an end.
            Some(0) => return,
            Some(left) => {
                *left -= 1;
                let Some(accepted) = listener.accept().now_or_never() else { return };
                accepted
            }
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there are no file descriptors left; some will come back.
                tracing::warn!(%error, "accept failed");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        core.metrics.accepted.increment(1);
        let place = match core.census.enter(address.ip(), &core.limits) {
            Ok(place) => place,
            Err(why) => {
                core.refused(why, &address, &"there are too many connections; it was closed");
                continue;
            }
        };
        let idlest = team.iter().min_by_key(|(w, _)| (w.in_flight.load(Relaxed), w.connections.load(Relaxed)));
        if let (Some((worker, inbox)), Ok(socket)) = (idlest, socket.into_std()) {
            worker.connections.fetch_add(1, Relaxed);
            // Waits when very many come at once, and with it those that the kernel holds.
            if inbox.send((socket, address, place)).await.is_err() {
                worker.connections.fetch_sub(1, Relaxed);
                return;
            }
        }
    }
}

/// One worker's life.
async fn work(worker: Arc<Worker>, mut inbox: mpsc::Receiver<Socket>, mut phase: watch::Receiver<Phase>) {
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pace = interval(drain::PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut drains_since = None;
    loop {
        tokio::select! {
            Some((socket, address, place)) = inbox.recv() => {
                let worker = worker.clone();
                tokio::spawn(async move {
                    let (_open, _place) = (Open(worker.clone()), place);
                    if let Ok(tcp) = TcpStream::from_std(socket) {
                        connection::run(worker, tcp, address).await;
                    }
                });
            }
            _ = sweep.tick() => worker.sweep(),
            _ = pace.tick(), if drains_since.is_some() => {
                worker.pace(drains_since.as_ref().map_or(Duration::ZERO, Instant::elapsed));
            }
            changed = phase.changed() => {
                let now = *phase.borrow_and_update();
                match now {
                    Phase::Drain { grace, at_once } if changed.is_ok() => {
                        drains_since = Some(Instant::now());
                        worker.drain(grace, at_once);
                    }
                    Phase::Leave if changed.is_ok() => worker.leave(),
                    Phase::Serve if changed.is_ok() => {}
                    _ => {
                        worker.is_stopped.store(true, Relaxed);
                        worker.core.cut.fetch_add(worker.running(), Relaxed);
                        return;
                    }
                }
            }
        }
    }
}

/// An accepted connection; what the acceptor counted up comes down here.
struct Open(Arc<Worker>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
