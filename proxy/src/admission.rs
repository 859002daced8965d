//! Classify, price, admit: whether a request runs now, later or not at all.

use std::time::Duration;

use apiserver_api::{ClusterName, RequestInfo, Status, UserInfo, Verb, list_options::request_timeout};
use fairness::{Admission, Classified, Cost, Counts, Permit, Rejection, Request, pricing};

use crate::core::Core;

/// What the door has to know of a request once its path has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// `None` when it bypasses fairness.
    pub(crate) ticket: Option<Ticket>,
    /// How long it may take altogether, if it says so.
    pub(crate) timeout: Option<Duration>,
}

/// How a request ends, as far as its seats are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With the last byte of the answer.
    Plain,
    /// With the head of the answer.
    Watch,
    /// Never takes part: logs, exec and the like (apf.md 1.3).
    LongRunning,
}

/// Level and price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) class: Classified,
    cost: Cost,
}

/// Reads a request. `path` is what stands behind the cluster prefix.
///
/// # Errors
/// 400 for a path that names no request and for a timeout that is no duration.
pub(crate) fn plan(
    core: &Core,
    workspace: Option<&ClusterName>,
    user: &UserInfo,
    method: &str,
    path: &str,
    query: &str,
) -> Result<Plan, Status> {
    let info = RequestInfo::parse(method, path, query)
        .map_err(|error| Status::new(apiserver_api::Reason::BadRequest, error.to_string()))?;
    let kind = match info.verb {
        Verb::Watch => Kind::Watch,
        _ if info.is_long_running() => Kind::LongRunning,
        _ => Kind::Plain,
    };
    let timeout = if kind == Kind::Plain { request_timeout(query)? } else { None };
    let ticket = core.profile.as_ref().filter(|_| kind != Kind::LongRunning).map(|profile| {
        let platform;
        let name = match workspace {
            Some(name) => name,
            None => {
                platform = ClusterName::standing_for("");
                &platform
            }
        };
        let class = profile.classify(name, user, &info);
        Ticket { class, cost: pricing::price(&info, Counts::Unknown, 0, 0) }
    });
    Ok(Plan { kind, ticket, timeout })
}

/// Asks the gate of `shard`, and waits if it says so. `None` when the request needs no permit.
///
/// # Cancel safety
/// Dropping the future takes the request out of its queue.
pub(crate) async fn admit(
    core: &Core,
    shard: usize,
    workspace: Option<&ClusterName>,
    plan: &Plan,
    received_ns: u64,
) -> Result<Option<Permit>, Rejection> {
    let (Some(gate), Some(ticket)) = (core.shards.get(shard).and_then(|s| s.gate.as_ref()), plan.ticket) else {
        return Ok(None);
    };
    let Ticket { class, cost } = ticket;
    match gate.admit(&Request { workspace, class, cost, received_ns, timeout: plan.timeout }) {
        Admission::Run(permit) => Ok(Some(permit)),
        Admission::Reject(rejection) => Err(rejection),
        Admission::Wait(waiting) => {
            let outcome = waiting.await;
            core.metrics
                .wait
                .record(crate::metrics::Metrics::seconds(received_ns, fairness::Clock::now_ns(&*core.clock)));
            outcome.map(Some)
        }
    }
}
