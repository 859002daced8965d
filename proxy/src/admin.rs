//! The operators' address: metrics and probes over plain HTTP.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use apiserver_api::{Reason, Status};
use http::{Method, Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use observers::Observers;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    time::{interval, timeout},
};

use crate::{
    Body,
    core::{Core, Entry},
    gateway::Phase,
    refusal::{answer, text},
    worker::Worker,
};

const CONNECTIONS_MAX: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const LIFE_MAX: Duration = Duration::from_secs(300);
/// How often what histograms have gathered is folded into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves the admin address until the gateway stops: probes are answered during a drain too.
pub(crate) async fn run(
    listener: TcpListener,
    core: Arc<Core>,
    workers: Arc<[Arc<Worker>]>,
    mut phase: watch::Receiver<Phase>,
) {
    let metrics = core.metrics.handle();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut upkeep = interval(UPKEEP);
    loop {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted.map(|(socket, _)| socket),
            _ = upkeep.tick() => {
                metrics.run_upkeep();
                continue;
            }
            _ = phase.wait_for(|p| *p == Phase::Stop) => return,
        };
        let (Ok(socket), Ok(slot)) = (socket, slots.clone().try_acquire_owned()) else { continue };
        let (core, workers, metrics) = (core.clone(), workers.clone(), metrics.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request: Request<Incoming>| {
                let response = respond(&core, &workers, &metrics, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            let _ = timeout(LIFE_MAX, builder.serve_connection(TokioIo::new(socket), service)).await;
        });
    }
}

fn respond(
    core: &Core,
    workers: &[Arc<Worker>],
    metrics: &PrometheusHandle,
    request: &Request<Incoming>,
) -> Response<Body> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return answer(&Status::new(Reason::MethodNotAllowed, "the admin address answers GET and HEAD"));
    }
    match request.uri().path() {
        "/livez" | "/healthz" => text(StatusCode::OK, "ok"),
        "/readyz" if core.is_ready() => text(StatusCode::OK, "ok"),
        "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/metrics" => text(StatusCode::OK, exposition(core, workers, metrics)),
        path => answer(&Status::new(
            Reason::NotFound,
            format!("no such path: {path}; there are /metrics, /livez, /readyz, /healthz"),
        )),
    }
}

fn exposition(core: &Core, workers: &[Arc<Worker>], metrics: &PrometheusHandle) -> String {
    let mut out = metrics.render();
    let sum = |of: fn(&Worker) -> usize| workers.iter().map(|w| of(w)).sum::<usize>();
    gauge(&mut out, "fairgate_requests_in_flight", "", sum(|w| w.in_flight.load(Relaxed)));
    gauge(&mut out, "fairgate_connections", "", sum(|w| w.connections.load(Relaxed)));
    gauge(&mut out, "fairgate_index_ready", "", usize::from(core.index.is_ready()));
    gauge(&mut out, "fairgate_index_clusters", "", core.index.len());
    each_shard(&mut out, core, "fairgate_index_synced", |n, _| Some(usize::from(core.index.is_synced(n))));
    let observers = |entry: &Entry| entry.observers.as_ref().map(Observers::status);
    each_shard(&mut out, core, "fairgate_observers_workspaces", |_, e| Some(observers(e)?.workspaces));
    each_shard(&mut out, core, "fairgate_observers_stale", |_, e| Some(usize::from(observers(e)?.stale)));
    each_shard(&mut out, core, "fairgate_observers_unclaimed", |_, e| Some(observers(e)?.unclaimed));
    out
}

/// One gauge with one value per shard that has one.
fn each_shard(out: &mut String, core: &Core, name: &str, value: impl Fn(usize, &Entry) -> Option<usize>) {
    for (n, entry) in core.shards.iter().enumerate() {
        let labels = format!("{{shard=\"{}\"}}", entry.shard.name.replace(['\\', '"', '\n'], "_"));
        if let Some(value) = value(n, entry) {
            gauge(out, name, &labels, value);
        }
    }
}

fn gauge(out: &mut String, name: &str, labels: &str, value: usize) {
    if !out.contains(&format!("# TYPE {name} ")) {
        out.push_str(&format!("# TYPE {name} gauge\n"));
    }
    out.push_str(&format!("{name}{labels} {value}\n"));
}
