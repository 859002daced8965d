//! The scenario: very many new TLS connections at once.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Handshakes,
    client::Endpoint,
    instance::{Instance, Setup, find},
    kubeconfig,
    progress::Progress,
    watches::{Dialer, Figures, LIMITS, Sender, open_file_limit},
};

/// Longest time for all of them.
const ALL_MAX: Duration = Duration::from_secs(120);

/// Runs the scenario and prints the result; false when a connection failed.
///
/// # Errors
/// Whatever kept the scenario from being carried out.
pub(crate) async fn run(args: &Handshakes, stop: &CancellationToken) -> anyhow::Result<bool> {
    open_file_limit(u64::from(args.connections))?;
    let progress = Progress::new(Duration::ZERO);
    let setup = Setup { seats: 100, fairness: true, fairness_file: None, limits: Some(LIMITS) };
    let binary = find(args.fairgate.as_deref())?;
    let starting = Instance::start(&binary, setup);
    let instance = stop.run_until_cancelled(starting).await.context("interrupted")??;
    let endpoint = Arc::new(kubeconfig::load(&instance.kubeconfig())?);
    progress.step(&format!("{} new connections", args.connections));
    let burst = burst(&endpoint, &instance, args.connections);
    let outcome = stop.run_until_cancelled(burst).await.context("interrupted");
    instance.stop().await?;
    let (text, failed) = outcome??;
    print!("{text}");
    Ok(failed == 0)
}

/// Opens them all, and says how it went and how many failed.
async fn burst(endpoint: &Arc<Endpoint>, instance: &Instance, connections: u32) -> anyhow::Result<(String, usize)> {
    let dialer = Arc::new(Dialer::new(endpoint)?);
    // One beforehand, so that what is made once is not counted.
    one(Arc::clone(&dialer)).await.context("the first connection")?;
    let before = Figures::of(instance);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(timeout(ALL_MAX, one(Arc::clone(&dialer))));
    }
    let (mut times, mut failures, mut open) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        match done.context("a client panicked")? {
            Ok(Ok((time, connection))) => {
                times.push(time);
                open.push(connection);
            }
            Ok(Err(error)) => failures.push(format!("{error:#}")),
            Err(_) => failures.push("no answer in time".to_owned()),
        }
    }
    let took = started.elapsed();
    let full = Figures::of(instance);
    drop(open);
    times.sort_unstable();
    let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
    let mut text = format!(
        "{connections} new TLS connections at once, one request on each\n\
         answered     {} in {:.2} s: {:.0} handshakes/s, {} failed\n",
        times.len(),
        took.as_secs_f64(),
        times.len() as f64 / took.as_secs_f64(),
        failures.len(),
    );
    if let (Some(p50), Some(p99), Some(most)) = (at(0.5), at(0.99), times.last()) {
        writeln!(text, "until answer p50 {p50:.2?}, p99 {p99:.2?}, longest {most:.2?}")?;
    }
    writeln!(
        text,
        "processor    {:.2} s: {:.0} us each\nmemory       {} before, {} with all open: {:.1} KiB each",
        (full.cpu - before.cpu).as_secs_f64(),
        (full.cpu - before.cpu).as_micros() as f64 / f64::from(connections),
        before.mib(),
        full.mib(),
        before.kib_each(&full, connections),
    )?;
    failures.sort_unstable();
    for group in failures.chunk_by(|a, b| a == b).take(10) {
        writeln!(text, "  {} times: {}", group.len(), group.first().map_or("", String::as_str))?;
    }
    Ok((text, failures.len()))
}

/// Connects and asks for `/livez`; the time that took, and the connection.
async fn one(dialer: Arc<Dialer>) -> anyhow::Result<(Duration, Sender)> {
    let started = Instant::now();
    let mut sender = dialer.connect().await?;
    let request = Request::get(dialer.url("/livez")).body(Empty::new())?;
    let answer = sender.send_request(request).await.context("sending")?;
    anyhow::ensure!(answer.status() == StatusCode::OK, "/livez: {}", answer.status());
    answer.into_body().collect().await.context("the answer")?;
    Ok((started.elapsed(), sender))
}
