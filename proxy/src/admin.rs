//! The operators' address: metrics and probes over plain HTTP.

use std::{convert::Infallible, sync::Arc, time::Duration};

use apiserver_api::{Reason, Status};
use http::{Method, Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    time::{interval, timeout},
};
use tower::{Layer, service_fn};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    Body,
    core::Core,
    dump, exposition,
    gateway::Phase,
    probes,
    recent::SWEEP,
    refusal::{answer, json, text},
    worker::Worker,
};

const CONNECTIONS_MAX: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const LIFE_MAX: Duration = Duration::from_secs(300);

/// Serves the admin address until the gateway stops: probes are answered during a drain too.
pub(crate) async fn run(
    listener: TcpListener,
    core: Arc<Core>,
    workers: Arc<[Arc<Worker>]>,
    mut phase: watch::Receiver<Phase>,
) {
    let metrics = core.metrics.handle();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Folds what histograms have gathered into buckets, and drops what nobody asks for.
    let mut upkeep = interval(SWEEP);
    loop {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted.map(|(socket, _)| socket),
            _ = upkeep.tick() => {
                metrics.run_upkeep();
                core.sweep();
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
            let service = TowerToHyperService::new(CatchPanicLayer::new().layer(service));
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
    let uri = request.uri();
    if let Some(answer) = probes::probe(core, request.method(), uri.path(), uri.query().unwrap_or_default(), false) {
        return answer;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return answer(&Status::new(Reason::MethodNotAllowed, "the admin address answers GET and HEAD"));
    }
    match uri.path() {
        "/metrics" => text(StatusCode::OK, exposition::render(core, workers, metrics)),
        "/configz" => configz(core),
        path => match dump::answer(core, workers, uri) {
            Some(Ok(table)) => text(StatusCode::OK, table),
            Some(Err(status)) => answer(&status),
            None => unknown(path),
        },
    }
}

fn unknown(path: &str) -> Response<Body> {
    answer(&Status::new(
        Reason::NotFound,
        format!(
            "no such path: {path}; there are /metrics, /configz, /livez, /readyz, /healthz, and dump_priority_levels, \
             dump_queues and dump_requests below /debug/api_priority_and_fairness/"
        ),
    ))
}

/// Which configuration is in force, and why the latest one is not.
fn configz(core: &Core) -> Response<Body> {
    let fairness = core.fairness.as_ref().map(crate::rules::Fairness::status);
    json(StatusCode::OK, &serde_json::json!({ "gateway": &*core.config(), "fairness": fairness }))
}
