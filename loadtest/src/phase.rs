//! One phase: the victims, with or without the flood, against one server.
//!
//! Three threads: the pacer, which only sleeps and hands out due times; the victims' runtime; the flood's runtime. The
//! flood has a thread of its own so that its work cannot delay the measuring.

use std::{
    future::Future,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::LocalSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{Manners, NoisyNeighbour},
    client::Endpoint,
    flood::Flood,
    open_loop::{Victim, open_all},
    schedule::{Schedule, Slot, Timing, pace},
    stats::{Stats, Summary},
    traffic::{LEVELS, Traffic},
};

/// How long answers are waited for after the last request was due.
const GRACE: Duration = Duration::from_secs(10);
/// Time for all threads to notice the start before the first request is due.
const LEAD: Duration = Duration::from_millis(50);

/// The workspaces of the tenants.
#[derive(Clone)]
pub(crate) struct Tenants {
    pub(crate) victims: Vec<String>,
    pub(crate) flood: String,
}

impl Tenants {
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.victims.iter().chain([&self.flood]).map(String::as_str)
    }
}

/// What came of a phase.
pub(crate) struct Outcome {
    pub(crate) victims: Vec<Summary>,
    pub(crate) flood: Option<Summary>,
    /// All victims, then the flood, by level; empty when there is one.
    pub(crate) levels: Vec<Summary>,
}

/// Runs a phase. Ends early, with an error, when `stop` is cancelled.
pub(crate) async fn run(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    tenants: &Tenants,
    with_flood: bool,
    stop: &CancellationToken,
) -> anyhow::Result<Outcome> {
    let line = StartingLine::new(1 + usize::from(with_flood));
    let (slots, victims) = start_victims(args, endpoint, tenants, &line, stop)?;
    let flood = if with_flood { Some(start_flood(args, endpoint, tenants, &line, stop)?) } else { None };

    let timing = line.start(args, stop).await?;
    let schedule = schedule(args, timing);
    let stopped = stop.clone();
    let pacer = thread::Builder::new().name("pacer".into()).spawn(move || {
        pace(schedule, &stopped, |sender, slot| {
            if let Some(sender) = slots.get(sender) {
                sender.try_send(slot).ok(); // fails only when the victims' thread has ended
            }
        });
    })?;
    let victims = victims.await.context("the victims' thread ended early")?;
    let flood = match flood {
        Some(flood) => Some(flood.await.context("the flood's thread ended early")?),
        None => None,
    };
    pacer.join().map_err(|_| anyhow::anyhow!("the pacer panicked"))?;
    Ok(Outcome {
        levels: by_level("victims", &victims).chain(by_level("flood", flood.as_slice())).collect(),
        victims: victims.iter().zip(1..).map(|(by, n)| Stats::sum(by).summary(&format!("victim-{n}"))).collect(),
        flood: flood.map(|by| Stats::sum(&by).summary("flood")),
    })
}

/// Tenants as one, by level.
fn by_level<'a>(who: &'a str, tenants: &'a [Vec<Stats>]) -> impl Iterator<Item = Summary> + 'a {
    let several = tenants.first().is_some_and(|levels| levels.len() > 1);
    let levels = LEVELS.iter().enumerate().filter(move |(n, _)| several && tenants.iter().any(|t| t.len() > *n));
    levels.map(move |(n, level)| Stats::sum(tenants.iter().filter_map(|t| t.get(n))).summary(&format!("{who} {level}")))
}

/// Where all threads wait until each has its connections.
struct StartingLine {
    ready: (mpsc::Sender<()>, mpsc::Receiver<()>),
    go: watch::Sender<Option<Timing>>,
    runners: usize,
}

impl StartingLine {
    fn new(runners: usize) -> Self {
        Self { ready: mpsc::channel(runners), go: watch::Sender::new(None), runners }
    }

    /// What a runner calls when it is ready.
    fn place(&self) -> impl Future<Output = Option<Timing>> + Send + use<> {
        let (ready, mut go) = (self.ready.0.clone(), self.go.subscribe());
        async move {
            ready.send(()).await.ok()?;
            *go.wait_for(Option::is_some).await.ok()?
        }
    }

    /// Starts the phase when everybody is ready.
    async fn start(mut self, args: &NoisyNeighbour, stop: &CancellationToken) -> anyhow::Result<Timing> {
        drop(self.ready.0);
        for _ in 0..self.runners {
            let ready = stop.run_until_cancelled(self.ready.1.recv()).await.context("interrupted")?;
            ready.context("a thread ended early")?;
        }
        let start = Instant::now() + LEAD;
        let measured_from = start + args.warmup;
        let timing = Timing { start, measured_from, until: measured_from + args.duration };
        self.go.send_replace(Some(timing));
        Ok(timing)
    }
}

fn schedule(args: &NoisyNeighbour, timing: Timing) -> Schedule {
    let length = timing.until - timing.start;
    Schedule { start: timing.start, length, senders: args.victims, rate: args.victim_rate }
}

/// What a thread will have done.
type Pending<T> = oneshot::Receiver<T>;

/// Where the pacer puts the slots, one channel per victim.
type Slots = Vec<mpsc::Sender<Slot>>;

/// Starts the victims' thread; their slots are sent into the channels that are returned.
fn start_victims(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    tenants: &Tenants,
    line: &StartingLine,
    stop: &CancellationToken,
) -> anyhow::Result<(Slots, Pending<Vec<Vec<Stats>>>)> {
    let victim = |workspace: &String| {
        anyhow::Ok(Victim {
            endpoint: Arc::clone(endpoint),
            traffic: Traffic::new(endpoint, workspace, args.victim_request, args.objects, args.levels)?,
            connections: args.victim_connections as usize,
            polite: args.victim_manners == Manners::Polite,
            grace: GRACE,
        })
    };
    let victims = tenants.victims.iter().map(victim).collect::<Result<Vec<_>, _>>()?;
    // Each channel holds the whole schedule, so handing out never waits; memory is taken only by what is waiting.
    let requests = (args.warmup + args.duration).as_secs() as usize * args.victim_rate as usize;
    let capacity = requests + args.victim_rate as usize;
    let (senders, receivers): (Vec<_>, Vec<_>) = victims.iter().map(|_| mpsc::channel(capacity)).unzip();
    let (place, args) = (line.place(), args.clone());
    let stats = on_thread("victims", stop, move || async move {
        let mut connections = Vec::new();
        for victim in &victims {
            connections.push(victim.connect().await);
        }
        let Some(timing) = place.await else { return Vec::new() };
        let mut running = Vec::new();
        for ((n, victim), (connections, slots)) in (0..).zip(victims).zip(connections.into_iter().zip(receivers)) {
            let offered = schedule(&args, timing).due_from(n, timing.measured_from);
            running.push(tokio::task::spawn_local(victim.run(timing, offered, connections, slots)));
        }
        let mut stats = Vec::new();
        for victim in running {
            stats.push(victim.await.expect("a victim's task is not aborted and a panic ends the run"));
        }
        stats
    })?;
    Ok((senders, stats))
}

fn start_flood(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    tenants: &Tenants,
    line: &StartingLine,
    stop: &CancellationToken,
) -> anyhow::Result<Pending<Vec<Stats>>> {
    let traffic = Traffic::new(endpoint, &tenants.flood, args.request, args.objects, args.levels)?;
    let flood = Flood { traffic, polite: args.flood_manners == Manners::Polite, grace: GRACE };
    let (place, endpoint, count) = (line.place(), Arc::clone(endpoint), args.flood_connections as usize);
    on_thread("flood", stop, move || async move {
        let connections = open_all(&endpoint, count).await;
        match place.await {
            Some(timing) => flood.run(timing, connections).await,
            None => Vec::new(),
        }
    })
}

/// Runs a future on a thread and runtime of its own, until it is done or `stop` is cancelled.
fn on_thread<F, T>(
    name: &str,
    stop: &CancellationToken,
    make: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<Pending<T>>
where
    F: Future<Output = T>,
    T: Send + 'static,
{
    let (done, result) = oneshot::channel();
    let stop = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(name.into()).spawn(move || {
        let work = stop.run_until_cancelled_owned(make());
        if let Some(value) = LocalSet::new().block_on(&runtime, work) {
            done.send(value).ok();
        }
    })?;
    Ok(result)
}
