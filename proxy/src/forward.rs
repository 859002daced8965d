//! Sends an admitted request to its shard and turns what comes back, or does not, into the answer.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

use apiserver_api::{Reason, Status};
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, COOKIE, UPGRADE},
    request::Parts,
};
use hyper::upgrade::OnUpgrade;

use crate::{
    Body,
    body::UploadError,
    core::Core,
    door, hop,
    refusal::temporary,
    route::Route,
    stamp::Stamp,
    trail::{Outcome, Trail},
    upstream::SendError,
    worker::Worker,
};

/// HTTP/2 may split the cookies over several fields, HTTP/1.1 may not (RFC 9113 section 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        let all: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// Sends it. The shard must begin to answer before `limit` is over, the worker's tick being the clock.
///
/// With `protocol` it asks the shard to switch to that. Only with a 101 come the two ends of a tunnel, the client's
/// first; after any other answer the client's bytes are requests like all others (SE-01). A bundled shard is not asked: to switch is the server's choice (RFC 9110 section 7.8).
///
/// # Errors
/// A Status with `Retry-After`: 503 when nothing was sent, 502 when the connection broke, 504 in time. Without: 400,
/// 408 or 413 for a body that is broken, does not go on or is too large. `trail` says why, but for the body's faults.
#[allow(clippy::too_many_arguments, reason = "one call, from the step before")]
pub(crate) async fn send(
    worker: &Arc<Worker>,
    route: &Route,
    limit: Option<Duration>,
    protocol: Option<HeaderValue>,
    stamp: &Stamp<'_>,
    mut parts: Parts,
    body: Body,
    trail: &mut Trail,
) -> Result<(Response<Body>, Option<(OnUpgrade, OnUpgrade)>), Status> {
    let core: &Core = &worker.core;
    let entry = core.shards.get(route.shard).expect("routes name configured shards");
    let client = match protocol.filter(|_| entry.shard.is_remote()) {
        Some(protocol) => {
            switching(&mut parts.headers, protocol);
            parts.extensions.remove::<OnUpgrade>()
        }
        None => None,
    };
    let clock = || fairness::Clock::now_ns(&*core.clock);
    trail.sent_ns = Some(clock());
    let mut answer = pin!(entry.shard.send(worker.number, &clock, stamp, Request::from_parts(parts, body)));
    let outcome = match limit {
        None => answer.await,
        Some(limit) => {
            let mut timer = None;
            let outcome = std::future::poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => {
                    let timer = timer.get_or_insert_with(|| worker.wake_after(limit, cx.waker().clone()));
                    if timer.is_over(cx.waker()) { Poll::Ready(None) } else { Poll::Pending }
                }
            })
            .await;
            match outcome {
                Some(outcome) => outcome,
                None => {
                    core.metrics.shard_failed(&entry.shard.name, "timeout");
                    trail.outcome = Outcome::TimedOut("first-byte");
                    return Err(temporary(StatusCode::GATEWAY_TIMEOUT, "the shard did not answer in time", 1));
                }
            }
        }
    };
    match outcome {
        Ok(mut response) => {
            trail.head_ns = Some(clock());
            let protocol = response.headers_mut().remove(UPGRADE);
            hop::remove(response.headers_mut());
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Ok((response, None));
            }
            let (Some(client), Some(shard), Some(protocol)) =
                (client, response.extensions_mut().remove::<OnUpgrade>(), protocol)
            else {
                trail.outcome = Outcome::UpstreamError("switch");
                let message = "the shard switches protocols without being asked, or does not name the new one";
                return Err(temporary(StatusCode::BAD_GATEWAY, message, 1));
            };
            switching(response.headers_mut(), protocol);
            Ok((response, Some((client, shard))))
        }
        Err(error) => Err(failure(core, &entry.shard.name, &error, trail)),
    }
}

fn switching(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn failure(core: &Core, shard: &str, error: &SendError, trail: &mut Trail) -> Status {
    let (code, why) = match error {
        SendError::Connect(_) => (StatusCode::SERVICE_UNAVAILABLE, "connect"),
        SendError::Open => (StatusCode::SERVICE_UNAVAILABLE, "circuit-open"),
        SendError::Full => (StatusCode::SERVICE_UNAVAILABLE, "connections"),
        SendError::Broken(_) => (StatusCode::BAD_GATEWAY, "broken"),
        SendError::Malformed(_) => (StatusCode::BAD_GATEWAY, "malformed"),
        SendError::Upload(cause) => {
            return match cause.downcast_ref() {
                Some(UploadError::TooLarge(max)) => door::too_large(*max),
                Some(UploadError::Stalled) => door::custom(StatusCode::REQUEST_TIMEOUT, cause.to_string()),
                None => Status::new(Reason::BadRequest, format!("{error}: {cause}")),
            };
        }
    };
    core.metrics.shard_failed(shard, why);
    trail.outcome = Outcome::UpstreamError(why);
    tracing::debug!(shard, error = %error, cause = std::error::Error::source(error).map(ToString::to_string), "no answer");
    temporary(code, error.to_string(), 1)
}
