//! The scenario: very many open watches over many connections, at rest and with an event a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Watches,
    client::{Connection, Endpoint},
    control::make_tenant,
    instance::{Instance, Setup, find},
    kubeconfig,
    progress::Progress,
    traffic::{configmap, configmaps, headers, object},
};

/// All clients come from one address here, and take their half of every handshake's time from the same processors.
pub(crate) const LIMITS: &str =
    "{ connections: 60000, connectionsPerAddress: 60000, handshakes: 60000, headTimeout: 2m }";
const WORKSPACE: &str = "watched";
/// Connections that are made at the same time.
const DIALS: usize = 64;
/// Longest time for one connection, or for one watch to begin.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Longest time for the last events to arrive.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Files that are open besides connections.
const OTHER_FILES: u64 = 100;

/// A connection's sending end.
pub(crate) type Sender = SendRequest<Empty<Bytes>>;

/// Raises the number of files this process may have open, and checks that it is enough.
///
/// # Errors
/// The hard limit is too low.
pub(crate) fn open_file_limit(connections: u64) -> anyhow::Result<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
    raised.context("raising the limit of open files")?;
    match hard {
        Some(most) if most < connections + OTHER_FILES => {
            bail!("this needs {} open files, of which {most} are allowed: see `ulimit -Hn`", connections + OTHER_FILES)
        }
        _ => Ok(()),
    }
}

/// Memory and processor time of a fairgate at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) memory: u64,
    pub(crate) cpu: Duration,
}

impl Figures {
    /// Zeroes where the system does not tell.
    pub(crate) fn of(instance: &Instance) -> Self {
        Self { memory: instance.memory().unwrap_or_default(), cpu: instance.cpu().unwrap_or_default() }
    }

    pub(crate) fn mib(&self) -> String {
        format!("{:.1} MiB", self.memory as f64 / f64::from(1 << 20))
    }

    /// What each of `count` costs more than before.
    pub(crate) fn kib_each(&self, later: &Self, count: u32) -> f64 {
        (later.memory as f64 - self.memory as f64) / 1024.0 / f64::from(count)
    }
}

/// Makes HTTP/2 connections, each with a whole handshake.
pub(crate) struct Dialer {
    endpoint: Arc<Endpoint>,
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Dialer {
    pub(crate) fn new(endpoint: &Arc<Endpoint>) -> anyhow::Result<Self> {
        let (config, name) = endpoint.tls.as_ref().context("the fairgate that was started has no TLS")?;
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { endpoint: Arc::clone(endpoint), tls: TlsConnector::from(Arc::new(config)), name: name.clone() })
    }

    /// Of a path, for a request of HTTP/2.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.endpoint.authority)
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Sender> {
        let tcp = TcpStream::connect(self.endpoint.address).await.context("connecting")?;
        tcp.set_nodelay(true)?;
        let tls = self.tls.connect(self.name.clone(), tcp).await.context("TLS")?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.context("HTTP/2")?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(sender)
    }
}

/// Runs the scenario and prints the result; false when an event was lost or a watch ended.
///
/// # Errors
/// Whatever kept the scenario from being carried out.
pub(crate) async fn run(args: &Watches, stop: &CancellationToken) -> anyhow::Result<bool> {
    open_file_limit(u64::from(args.connections))?;
    let setup = Setup { seats: 100, fairness: true, fairness_file: None, limits: Some(LIMITS) };
    let binary = find(args.fairgate.as_deref())?;
    let starting = Instance::start(&binary, setup);
    let instance = stop.run_until_cancelled(starting).await.context("interrupted")??;
    let outcome = stop.run_until_cancelled(measure(args, &instance)).await.context("interrupted");
    instance.stop().await?;
    let (text, passed) = outcome??;
    print!("{text}");
    Ok(passed)
}

/// What the watches have seen.
#[derive(Default)]
struct Seen {
    events: AtomicU64,
    ended: AtomicU64,
}

async fn measure(args: &Watches, instance: &Instance) -> anyhow::Result<(String, bool)> {
    let span = Duration::from_secs(u64::from(args.seconds));
    let progress = Progress::new(2 * span);
    let endpoint = Arc::new(kubeconfig::load(&instance.kubeconfig())?);
    make_tenant(&endpoint, WORKSPACE, 1).await.context("making the workspace")?;
    let dialer = Arc::new(Dialer::new(&endpoint)?);
    // One beforehand, so that what is made once is not counted.
    drop(dialer.connect().await?);
    let empty = Figures::of(instance);

    progress.step(&format!("{} connections", args.connections));
    let mut connections = connect_all(&dialer, args.connections).await?;
    let connected = Figures::of(instance);

    progress.step(&format!("{} watches", args.watches));
    let seen = Arc::new(Seen::default());
    watch_all(&dialer, &mut connections, args.watches, &seen).await?;
    let watching = Figures::of(instance);

    progress.step("at rest");
    progress.during(span, sleep(span)).await;
    let rested = Figures::of(instance);

    progress.step("an event a second");
    let events_before = seen.events.load(Relaxed);
    progress.during(span, write_each_second(&endpoint, args.seconds)).await?;
    let expected = u64::from(args.watches) * u64::from(args.seconds);
    let arrived = || seen.events.load(Relaxed) - events_before;
    let late = Instant::now() + LATE_MAX;
    while arrived() < expected && Instant::now() < late {
        sleep(Duration::from_millis(10)).await;
    }
    let (busy, events) = (Figures::of(instance), arrived());
    let ended = seen.ended.load(Relaxed);

    let share = |from: &Figures, to: &Figures| (to.cpu - from.cpu).as_secs_f64() / span.as_secs_f64() * 100.0;
    let text = format!(
        "{} watches over {} TLS connections (gateway and API server in one process)\n\
         memory       {} at first; {} with the connections: {:.1} KiB each; {} with the watches: {:.1} KiB each\n\
         \x20            {} after {span:?} of events\n\
         processor    {:.2} % of a core at rest; {:.1} % with an event a second for every watch: {:.1} us for each delivery\n\
         events       {events} of {expected} arrived; {ended} watches ended\n",
        args.watches,
        args.connections,
        empty.mib(),
        connected.mib(),
        empty.kib_each(&connected, args.connections),
        watching.mib(),
        connected.kib_each(&watching, args.watches),
        busy.mib(),
        share(&watching, &rested),
        share(&rested, &busy),
        (busy.cpu - rested.cpu).as_micros() as f64 / events.max(1) as f64,
    );
    Ok((text, events == expected && ended == 0))
}

async fn connect_all(dialer: &Arc<Dialer>, count: u32) -> anyhow::Result<Vec<Sender>> {
    let (mut tasks, mut open) = (JoinSet::new(), Vec::new());
    for number in 0..count as usize {
        if number >= DIALS {
            open.push(next(&mut tasks).await?);
        }
        let dialer = Arc::clone(dialer);
        tasks.spawn(async move { timeout(STEP_MAX, dialer.connect()).await.context("connecting took too long")? });
    }
    while !tasks.is_empty() {
        open.push(next(&mut tasks).await?);
    }
    Ok(open)
}

async fn next<T: 'static>(tasks: &mut JoinSet<anyhow::Result<T>>) -> anyhow::Result<T> {
    tasks.join_next().await.context("nothing to wait for")?.context("a client panicked")?
}

/// Opens the watches in turn over the connections; each has its answer's head when this returns.
async fn watch_all(
    dialer: &Arc<Dialer>,
    connections: &mut [Sender],
    count: u32,
    seen: &Arc<Seen>,
) -> anyhow::Result<()> {
    let url = dialer.url(&format!("{}?watch=true", configmaps(WORKSPACE)));
    let mut tasks = JoinSet::new();
    let many = connections.len();
    for number in 0..count as usize {
        if number >= DIALS {
            next(&mut tasks).await?;
        }
        let Some(sender) = connections.get_mut(number % many) else { break };
        let answer = sender.send_request(Request::get(&url).body(Empty::new())?);
        let seen = Arc::clone(seen);
        tasks.spawn(async move {
            let answer = timeout(STEP_MAX, answer).await.context("a watch is not answered")?.context("a watch")?;
            anyhow::ensure!(answer.status() == StatusCode::OK, "a watch is answered {}", answer.status());
            // One line is one event.
            let mut body = answer.into_body();
            let first = timeout(STEP_MAX, body.frame()).await.context("a watch does not begin")?;
            first.context("a watch ended at once")?.context("a watch")?;
            tokio::spawn(async move {
                while let Some(Ok(frame)) = body.frame().await {
                    let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|b| **b == b'\n').count());
                    seen.events.fetch_add(lines as u64, Relaxed);
                }
                seen.ended.fetch_add(1, Relaxed);
            });
            Ok(())
        });
    }
    while !tasks.is_empty() {
        next(&mut tasks).await?;
    }
    Ok(())
}

/// Changes the one object once a second.
async fn write_each_second(endpoint: &Arc<Endpoint>, seconds: u32) -> anyhow::Result<()> {
    let mut connection = Connection::new(Arc::clone(endpoint));
    let path = format!("{}/{}", configmaps(WORKSPACE), object(0));
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for second in 0..seconds {
        ticks.tick().await;
        let mut request = Request::new(Full::new(configmap(&object(0), u64::from(second) + 1)));
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = path.parse()?;
        *request.headers_mut() = headers(endpoint, None)?;
        let answer = connection.exchange(request).await.context("changing the object")?;
        anyhow::ensure!(answer.status.is_success(), "changing the object: {}", answer.status);
    }
    ticks.tick().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_is_said_beforehand() {
        open_file_limit(10).unwrap();
        let error = open_file_limit(u64::MAX - OTHER_FILES).unwrap_err().to_string();
        assert!(error.contains("ulimit -Hn"), "{error}");
    }

    #[test]
    fn costs_are_those_of_one() {
        let before = Figures { memory: 10 << 20, cpu: Duration::ZERO };
        let after = Figures { memory: 30 << 20, cpu: Duration::ZERO };
        assert_eq!((before.kib_each(&after, 1024), after.mib()), (20.0, "30.0 MiB".to_owned()));
    }

    #[tokio::test]
    async fn only_endpoints_with_tls_are_dialled() {
        let stub = crate::stub::Stub::start().await;
        assert!(Dialer::new(&stub.endpoint()).err().unwrap().to_string().contains("TLS"));
    }
}
