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
/// A Status: 503 with `Retry-After` when nothing was sent, 502 when the connection broke, 504 in time. Without: 400,
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
    let entry = core.shards.get(route.shard).expect("a number stands for a shard for ever");
    let client = match protocol.filter(|_| entry.shard.is_remote()) {
        Some(protocol) => {
            switching(&mut parts.headers, protocol);
            parts.extensions.remove::<OnUpgrade>()
        }
        None => None,
    };
    let is_safe = parts.method.is_safe();
    let clock = || fairness::Clock::now_ns(&*core.clock);
    trail.sent_ns = Some(clock());
    let mut answer = pin!(entry.shard.send(worker.number, &core.clock, stamp, Request::from_parts(parts, body)));
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
                    return Err(undecided(is_safe, StatusCode::GATEWAY_TIMEOUT, "the shard did not answer in time"));
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
                return Err(undecided(is_safe, StatusCode::BAD_GATEWAY, message));
            };
            switching(response.headers_mut(), protocol);
            Ok((response, Some((client, shard))))
        }
        Err(error) => Err(failure(core, &entry.shard.name, is_safe, &error, trail)),
    }
}

fn switching(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn failure(core: &Core, shard: &str, is_safe: bool, error: &SendError, trail: &mut Trail) -> Status {
    let unsent = || temporary(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), 1);
    let sent = || undecided(is_safe, StatusCode::BAD_GATEWAY, &error.to_string());
    let (status, why) = match error {
        SendError::Connect(_) => (unsent(), "connect"),
        SendError::Open => (unsent(), "circuit-open"),
        SendError::Full => (unsent(), "connections"),
        SendError::Refused(_) => (unsent(), "refused"),
        SendError::Broken(_) => (sent(), "broken"),
        SendError::Malformed(_) => (sent(), "malformed"),
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
    status
}

/// The answer to a request that the shard may have carried out. With `Retry-After` clients send it again by themselves,
/// whatever it does (client-go: up to ten times), so that only one that changes nothing gets it.
fn undecided(is_safe: bool, code: StatusCode, why: &str) -> Status {
    if is_safe {
        return temporary(code, why, 1);
    }
    let message = format!("{why}; whether it has carried the request out is not known");
    let reason = (code == StatusCode::GATEWAY_TIMEOUT).then_some(Reason::Timeout);
    Status { reason, ..door::custom(code, message) }
}
