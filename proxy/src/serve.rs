//! The one service of the request path: every step of a request, in order.
//!
//! # Cancellation
//! hyper drops the future when the client goes away. With it go the request's place in a queue, its seats and its
//! work at the shard.

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed},
    },
    task::Poll,
};

use apiserver_api::{Reason, Status, Verb};
use fairness::Clock;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, EXPECT, UPGRADE},
    request::Parts,
};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::{
    Body,
    access_log::Draft,
    admission::{self, Kind, Plan, Refused, Ticket},
    body::Unread,
    connection::Peer,
    core::Core,
    door, forward, hop,
    identity::{self, Caller},
    inflight::Held,
    initial::Start,
    places::NoPlace,
    probes,
    refusal::{answer, answer_and_close, draining, left, rejected, temporary},
    refused::Why,
    reply::{Flight, Reply},
    route::{self, Route},
    stamp::Stamp,
    trail::{Outcome, Trail},
    tunnel::Tunnel,
    worker::Worker,
};

/// Serves one request of the connection `peer`.
pub(crate) async fn serve(
    worker: Arc<Worker>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    let mut flight = Flight::new(worker.clone(), peer.clone(), worker.core.clock.now_ns());
    let version = request.version();
    peer.served.fetch_add(1, Relaxed);
    let (draft, span) = Draft::begin(&worker, &peer, &request);
    flight.trail.draft = draft;
    let is_head = request.method() == Method::HEAD;
    let outcome = {
        // Pinned here and polled in place: wrapping it by value would move a large future around for every request.
        let mut steps = pin!(steps(&worker, &peer, &mut flight.trail, request));
        std::future::poll_fn(|cx| {
            let _entered = span.enter();
            match std::panic::catch_unwind(AssertUnwindSafe(|| steps.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            }
        })
        .await
    };
    let mut response = match outcome {
        Some(response) => response,
        None => {
            flight.trail.outcome = Outcome::Panic;
            worker.core.metrics.panics.increment(1);
            tracing::error!("a request's handler panicked");
            answer(&Status::new(Reason::InternalError, "the gateway failed on this request")).map(Reply::plain)
        }
    };
    let trail = &mut flight.trail;
    trail.code = Some(response.status());
    if is_head && trail.outcome == Outcome::Cancelled {
        // Nobody will ask for its body.
        trail.outcome = Outcome::Served;
    }
    worker.phases.answered(trail);
    if is_head && version == Version::HTTP_2 {
        // hyper leaves it out over HTTP/1.1 only; here clients would take it for an error of the protocol.
        if let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0) {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(bytes.into());
        }
        *response.body_mut() = Reply::plain(Body::empty());
    }
    if version == Version::HTTP_2 && worker.wants_another_connection() {
        peer.link.age();
    }
    if version != Version::HTTP_2 && peer.link.is_aged() {
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => peer.go_on(flight),
        _ => response.body_mut().fly(flight),
    }
    Ok(response)
}

async fn steps(
    worker: &Arc<Worker>,
    peer: &Arc<Peer>,
    trail: &mut Trail,
    request: Request<Incoming>,
) -> Response<Reply> {
    let core = &*worker.core;
    let (parts, body) = request.into_parts();
    let body = Unread::new(body, parts.version != Version::HTTP_2 && !parts.headers.contains_key(EXPECT));
    if peer.ambiguous.load(Acquire) {
        body.abandon();
        let status =
            Status::new(Reason::BadRequest, "want one Content-Length or Transfer-Encoding, and no padded number");
        trail.refuse(core, Why::Framing, peer, &status.message);
        return answer_and_close(&status).map(Reply::plain);
    }
    if let Err(status) = door::check(&parts, &core.limits) {
        trail.refuse(core, if status.code == 413 { Why::Body } else { Why::Head }, peer, &status.message);
        let close = parts.version != Version::HTTP_2;
        return if close { answer_and_close(&status) } else { answer(&status) }.map(Reply::plain);
    }
    // Open to everybody and outside every level (FA-11).
    let query = parts.uri.query().unwrap_or_default();
    if let Some(response) = probes::probe(core, &parts.method, parts.uri.path(), query, true) {
        trail.probe();
        return response.map(Reply::plain);
    }
    if core.draining.load(Relaxed) {
        return refuse(core, trail, peer, &draining(), Why::Draining);
    }
    if peer.link.is_over(worker.tick()) {
        return refuse(core, trail, peer, &left(), Why::Left);
    }
    let caller = match identity::identify(peer.certificate.as_ref(), &core.access.load(), &parts.headers) {
        Ok(caller) => caller,
        Err(status) => {
            // Who has no credential gets one answer for each HTTP/2 connection, so that streams in plenty are of no use
            // to it (SE-05, as kube-apiserver's UnauthenticatedHTTP2DOSMitigation).
            if peer.is_h2 && status.code == 401 {
                peer.link.age();
            }
            return refuse(core, trail, peer, &status, Why::Identity);
        }
    };
    if let Some(draft) = &mut trail.draft {
        draft.identify(&caller);
    }
    let user = &caller.identity.user;
    let route = match route::resolve(core, &parts.uri, parts.method.as_str(), user).await {
        Ok(route) => route,
        Err(status) => return refuse(core, trail, peer, &status, Why::Workspace),
    };
    if let Some(draft) = &mut trail.draft {
        draft.route(core, &route);
    }
    let path = route.rest(&parts.uri);
    let query = parts.uri.query().unwrap_or_default();
    let mut plan = match admission::plan(core, &route, user, parts.method.as_str(), path, query) {
        Ok(plan) => plan,
        // One watch too many.
        Err(status) if status.code == 429 => {
            trail.classify(Verb::Watch, false);
            trail.outcome = Outcome::Rejected("watches");
            return answer(&status).map(Reply::plain);
        }
        Err(status) => return refuse(core, trail, peer, &status, Why::Request),
    };
    trail.classify(plan.verb, plan.kind == Kind::LongRunning);
    if let (Some(draft), Some(ticket)) = (&mut trail.draft, &plan.ticket) {
        draft.price(ticket);
    }
    let mut response = admitted(worker, peer, trail, parts, body, &route, &caller, &mut plan).await;
    if let Some(Ticket { rules, class, .. }) = &plan.ticket {
        rules.uids.write(&rules.profile, route.workspace.as_ref(), *class, response.headers_mut());
    }
    response
}

fn refuse(core: &Core, trail: &mut Trail, peer: &Peer, status: &Status, why: Why) -> Response<Reply> {
    trail.refuse(core, why, peer, &status.message);
    answer(status).map(Reply::plain)
}

/// The second half: admit and forward.
#[allow(clippy::too_many_arguments, reason = "one call, from the function above")]
async fn admitted(
    worker: &Arc<Worker>,
    peer: &Arc<Peer>,
    trail: &mut Trail,
    mut parts: Parts,
    body: Unread,
    route: &Route,
    caller: &Caller,
    plan: &mut Plan,
) -> Response<Reply> {
    let core = &*worker.core;
    let shard = core.shards.get(route.shard).map(|entry| &entry.shard);
    if let Some(shard) = shard.filter(|shard| !shard.is_trusted()) {
        let (why, message) = ("untrusted", "the shard has not said yet that it believes the gateway");
        core.metrics.shard_failed(&shard.name, why);
        trail.outcome = Outcome::UpstreamError(why);
        return answer(&temporary(StatusCode::SERVICE_UNAVAILABLE, message, 1)).map(Reply::plain);
    }
    if let Some(shard) = shard.filter(|s| s.is_open_circuit(worker.number, || core.clock.now_ns())) {
        let (why, message) = ("circuit-open", "the shard does not accept connections");
        core.metrics.shard_failed(&shard.name, why);
        trail.outcome = Outcome::UpstreamError(why);
        return answer(&temporary(StatusCode::SERVICE_UNAVAILABLE, message, 1)).map(Reply::plain);
    }
    let permit = match admission::admit(worker, route, &caller.identity, plan, &parts, trail).await {
        Ok(permit) => permit,
        Err(Refused::Unfair(rejection)) => {
            trail.outcome = Outcome::Rejected(rejection.reason);
            let workspace = route.workspace.as_ref();
            let class = workspace.and_then(|name| core.refusing_class(name, rejection.reason));
            return rejected(&rejection, class.as_deref(), &parts.headers, core.compat()).map(Reply::plain);
        }
        Err(Refused::Draining) => return refuse(core, trail, peer, &draining(), Why::Draining),
    };
    let protocol = match plan.kind {
        Kind::Plain => None,
        Kind::Watch | Kind::LongRunning => upgrade(&parts).filter(|_| body.is_read()),
    };
    let taken = match (plan.kind, &protocol) {
        (_, Some(_)) => core.tunnels.take(route.workspace.as_ref(), core.limits.tunnels).map(Some),
        (Kind::LongRunning, None) => {
            core.lasting.take(route.workspace.as_ref(), core.limits.upstream_connections).map(Some)
        }
        (Kind::Plain | Kind::Watch, None) => Ok(None),
    };
    let mut place = match taken {
        Ok(place) => place,
        Err(none) => {
            let (code, message) = match (none, &protocol) {
                (NoPlace::Share, Some(_)) => (
                    StatusCode::TOO_MANY_REQUESTS,
                    "the workspace has its share of the connections that have switched protocols",
                ),
                (NoPlace::Share, None) => {
                    (StatusCode::TOO_MANY_REQUESTS, "the workspace has its share of the requests that last")
                }
                (NoPlace::Full, Some(_)) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "too many connections have switched protocols")
                }
                (NoPlace::Full, None) => (StatusCode::SERVICE_UNAVAILABLE, "too many requests that last"),
            };
            trail.refuse(core, if protocol.is_some() { Why::Tunnels } else { Why::Lasting }, peer, &message);
            return answer(&temporary(code, message, 1)).map(Reply::plain);
        }
    };
    let stamp = Stamp::take(worker, &mut parts, route, caller, peer, trail);
    if parts.version == Version::HTTP_2 {
        forward::join_cookies(&mut parts.headers);
    }
    let longest = core.limits.request_timeout;
    // What asks for another protocol begins with a head as short as any.
    let limit =
        (plan.kind == Kind::Plain || protocol.is_some()).then(|| plan.timeout.map_or(longest, |t| t.min(longest)));
    let counter = || trail.draft.as_ref().map(|draft| draft.count_bytes());
    let body = match plan.kind {
        Kind::LongRunning => Body::upload(body, None, counter),
        _ => Body::upload(body, Some(worker), counter),
    };
    let mut permit = permit;
    let until = (plan.kind == Kind::Watch).then(|| Instant::now() + core.limits.watch_start_timeout);
    let answered = {
        let send = forward::send(worker, route, limit, protocol, &stamp, parts, body, trail);
        let held = (plan.kind == Kind::Watch).then_some(&mut permit);
        release_when_late(worker, held, send).await
    };
    match answered {
        // The seats, if it has any, go back. The connection's task runs the tunnel once the head has been written.
        Ok((response, Some((client, shard)))) => {
            peer.open_tunnel(Tunnel { client, shard, _place: place.take(), _watch: plan.watch.take() });
            response.map(Reply::plain)
        }
        Ok((response, None)) => {
            let start = until
                .filter(|_| permit.is_some() && response.status().is_success())
                .and_then(|until| Start::new(plan.initial, response.headers(), until));
            response.map(|body| match plan.kind {
                Kind::Plain => Reply::new(body, permit, route.shard),
                Kind::Watch => Reply::watch(body, plan.watch.take(), route.workspace.as_ref(), permit, start),
                Kind::LongRunning => Reply::lasting(body, place.take()),
            })
        }
        // The client's own fault: its body is not what was promised.
        Err(status) if matches!(status.code, 400 | 408 | 413) => {
            let why = if status.code == 408 { Why::Stalled } else { Why::Body };
            trail.refuse(core, why, peer, &status.message);
            if peer.is_h2 { answer(&status) } else { answer_and_close(&status) }.map(Reply::plain)
        }
        Err(status) => answer(&status).map(Reply::plain),
    }
}

/// Awaits `answer`; a watch's permit is dropped if that takes too long (FA-24).
async fn release_when_late<T>(
    worker: &Arc<Worker>,
    mut held: Option<&mut Option<Held>>,
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = pin!(answer);
    let mut timer = None;
    std::future::poll_fn(|cx| {
        let polled = answer.as_mut().poll(cx);
        if let (Poll::Pending, Some(permit)) = (&polled, held.as_deref_mut())
            && permit.is_some()
        {
            let after = worker.core.limits.watch_start_timeout;
            let timer = timer.get_or_insert_with(|| worker.wake_after(after, cx.waker().clone()));
            if timer.is_over(cx.waker()) {
                *permit = None;
            }
        }
        polled
    })
    .await
}

/// The protocol to switch to, if the client asks for that (exec, attach, port-forward, watches by websocket). Both
/// headers are needed, and any request to switch may be ignored, such as that for HTTP/2 in plain text (RFC 9110
/// section 7.8).
fn upgrade(parts: &Parts) -> Option<HeaderValue> {
    let asks = parts.version == Version::HTTP_11 && hop::is_named(&parts.headers, b"upgrade");
    parts.headers.get(UPGRADE).filter(|v| asks && !v.as_bytes().eq_ignore_ascii_case(b"h2c")).cloned()
}
