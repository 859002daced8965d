//! Starts and stops everything.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use config::{Compat, ConfigError, FairnessConfig};
use fairness::{Gate, GateOptions, PricingOptions, WatchOptions, WatchTracker};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Directory, GatewayOptions, StartError, access_log, admin,
    census::Place,
    clock::WallClock,
    connection,
    core::{Core, Entry},
    index::{
        Index,
        feed::{Feed, Kind},
    },
    metrics::Metrics,
    rules::Fairness,
    upstream::Shard,
    worker::Worker,
};

/// New sockets that wait for a worker; more wait in the kernel.
const HANDOVER_MAX: usize = 1024;
const SWEEP: Duration = Duration::from_secs(1);
/// Threads for everything that is not a request.
const CONTROL_THREADS: usize = 2;

/// What workers and control tasks should be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serve,
    /// Finish what runs; watches end within the time.
    Drain(Duration),
    Stop,
}

type Socket = (std::net::TcpStream, SocketAddr, Place);

/// A running gateway.
///
/// Dropping it stops it at once; [`shutdown`](Self::shutdown) lets what runs finish.
pub struct Gateway {
    core: Arc<Core>,
    address: SocketAddr,
    admin_address: SocketAddr,
    phase: watch::Sender<Phase>,
    /// `None` only in `drop`.
    control: Option<runtime::Runtime>,
    workers: Vec<thread::JoinHandle<()>>,
    /// Closed when the last worker has ended.
    ended: mpsc::Receiver<()>,
    /// Dropped after the workers have ended: their last lines are written.
    _access_log: Option<access_log::Writer>,
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
        let clock = core.clock.clone();
        let access_log = options.access_log.as_ref().map(|log| access_log::Writer::start(log, workers, clock));
        let (access_log, writer) = access_log.transpose().map_err(io("access log"))?.unzip();
        core.access_log = access_log;
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
        let tls = options.tls.map(|config| {
            let mut config = rustls::ServerConfig::clone(&config);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            TlsAcceptor::from(Arc::new(config))
        });
        let mut team = Vec::new();
        let mut threads = Vec::new();
        for number in 0..workers {
            let worker = Arc::new(Worker::new(number, core.clone()));
            let (sockets, inbox) = mpsc::channel(HANDOVER_MAX);
            team.push((worker.clone(), sockets));
            let (tls, watch, alive) = (tls.clone(), watch.clone(), alive.clone());
            let rt = runtime::Builder::new_current_thread().enable_all().build().map_err(io("worker runtime"))?;
            let body = move || {
                let _alive = alive;
                rt.block_on(work(worker, tls, inbox, watch));
            };
            let thread = thread::Builder::new().name(format!("fairgate-worker-{number}")).spawn(body);
            threads.push(thread.map_err(io("worker thread"))?);
        }
        let (listener, admin) = {
            let _context = control.enter();
            (listen(options.listener).map_err(io("listener"))?, listen(options.admin).map_err(io("admin listener"))?)
        };
        let members: Arc<[Arc<Worker>]> = team.iter().map(|(worker, _)| worker.clone()).collect();
        control.spawn(accept(listener, core.clone(), team, watch.clone()));
        control.spawn(admin::run(admin, core.clone(), members, watch));
        for gate in core.shards.iter().filter_map(|s| s.gate.clone()) {
            control.spawn(gate.run(std::future::pending()));
        }
        if options.directory == Directory::Watch {
            for (shard, kind) in
                (0..core.shards.len()).flat_map(|s| [(s, Kind::LogicalClusters), (s, Kind::Workspaces)])
            {
                control.spawn(Feed { core: core.clone(), shard, kind, pool: workers }.run());
            }
        }
        Ok(Self {
            core,
            address,
            admin_address,
            phase,
            control: Some(control),
            workers: threads,
            ended,
            _access_log: writer,
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
        fairness.refused(error.to_string().lines().map(str::to_owned).collect());
        self.core.metrics.config_reloaded("refused");
    }

    /// Readiness goes down, no connection is accepted any more, running requests finish, watches end one by one, idle
    /// and silent connections are closed. What is not done after `grace` is cut off. Then it returns.
    ///
    /// # Cancel safety
    /// Dropping the future stops everything at once.
    pub async fn shutdown(mut self, grace: Duration) {
        self.core.draining.store(true, Relaxed);
        self.phase.send_replace(Phase::Drain(grace));
        if let Some(control) = &self.control {
            let phase = self.phase.clone();
            control.spawn(async move {
                sleep(grace).await;
                phase.send_replace(Phase::Stop);
            });
        }
        self.ended.recv().await;
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
        let gate = fairness.as_ref().map(|fairness| {
            let profile = fairness.rules().profile.clone();
            let options = GateOptions { seats: shard.seats, profile, clock: clock.clone() };
            Gate::with_policy(options, fairness.policy(&index))
        });
        let (observers, feed) = shard.observers.clone().unzip();
        Ok(Entry {
            // One more pool than workers: for the gateway's own requests.
            shard: Shard::new(shard, &options.limits, workers + 1)?,
            gate,
            pricing: pricing(options.compat, shard.seats),
            observers,
            feed,
        })
    };
    let shards = options.shards.iter().map(entry).collect::<Result<Box<[_]>, StartError>>()?;
    let drop_groups: Box<[String]> = options.drop_groups.as_slice().into();
    Ok(Core {
        anonymous: Core::anonymous(options.anonymous, &drop_groups),
        own_identity: Core::own_identity(),
        drop_groups,
        limits: options.limits,
        platform: options.shards.iter().position(|s| s.name == "root").unwrap_or(0),
        index,
        lookups: AtomicUsize::new(0),
        census: Arc::default(),
        silent: AtomicUsize::new(0),
        tunnels: AtomicUsize::new(0),
        shards,
        fairness,
        watches: WatchTracker::new(WatchOptions { compat: options.compat, ..WatchOptions::default() }),
        metrics: Metrics::new(),
        access_log: None,
        draining: AtomicBool::new(false),
        healthy: options.healthy.clone(),
        clock,
    })
}

/// Under upstream's rules with its ceiling too.
fn pricing(compat: Compat, seats: u32) -> PricingOptions {
    match compat {
        Compat::Fairgate => PricingOptions::for_shard(seats),
        Compat::Upstream => PricingOptions { compat, ..PricingOptions::default() },
    }
}

fn listen(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Hands each new socket to the worker with the least to do.
async fn accept(
    listener: TcpListener,
    core: Arc<Core>,
    team: Vec<(Arc<Worker>, mpsc::Sender<Socket>)>,
    mut phase: watch::Receiver<Phase>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|p| *p != Phase::Serve) => return,
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
async fn work(
    worker: Arc<Worker>,
    tls: Option<TlsAcceptor>,
    mut inbox: mpsc::Receiver<Socket>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = false;
    loop {
        tokio::select! {
            Some((socket, address, place)) = inbox.recv() => {
                let (worker, tls) = (worker.clone(), tls.clone());
                tokio::spawn(async move {
                    let (_open, _place) = (Open(worker.clone()), place);
                    if let Ok(tcp) = TcpStream::from_std(socket) {
                        connection::run(worker, tls, tcp, address).await;
                    }
                });
            }
            _ = sweep.tick() => worker.sweep(),
            _ = worker.emptied.notified(), if draining => {}
            changed = phase.changed() => {
                let now = *phase.borrow_and_update();
                match now {
                    Phase::Drain(grace) if changed.is_ok() => {
                        draining = true;
                        worker.drain(grace);
                    }
                    Phase::Serve if changed.is_ok() => {}
                    _ => {
                        worker.is_stopped.store(true, Relaxed);
                        return;
                    }
                }
            }
        }
        if draining && inbox.is_empty() && worker.connections.load(Relaxed) == 0 {
            return;
        }
    }
}

/// An accepted connection; what the acceptor counted up comes down here.
struct Open(Arc<Worker>);

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.connections.fetch_sub(1, Relaxed) == 1 {
            self.0.emptied.notify_one();
        }
    }
}
