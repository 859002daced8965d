//! Classify, price, admit: whether a request runs now, later or not at all.

use std::{sync::Arc, time::Duration};

use apiserver_api::{ClusterName, Reason, RequestInfo, Status, UserInfo, Verb, list_options::request_timeout};
use fairness::{Admission, Classified, Clock, Cost, Counts, LevelKind, Rejection, Request, WatchGuard};
use http::{StatusCode, request::Parts};

use crate::{
    core::{self, Core},
    identity::Identity,
    inflight::{Entry, Held, Listed},
    metrics::Metrics,
    refusal::temporary,
    route::Route,
    rules::Rules,
    worker::Worker,
};

/// What the door has to know of a request once its path has been read.
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// `None` when it bypasses fairness.
    pub(crate) ticket: Option<Ticket>,
    /// How long it may take altogether, if it says so.
    pub(crate) timeout: Option<Duration>,
    /// Keeps a watch in the books, so that writes are charged for it.
    pub(crate) watch: Option<WatchGuard>,
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

/// Level and price, and what they were read from.
pub(crate) struct Ticket {
    pub(crate) rules: Arc<Rules>,
    pub(crate) class: Classified,
    cost: Cost,
}

/// Reads a request. `path` is what stands behind the cluster prefix.
///
/// # Errors
/// 400 for a path that names no request and for a timeout that is no duration; 429 for one watch too many.
pub(crate) fn plan(
    core: &Core,
    route: &Route,
    user: &UserInfo,
    method: &str,
    path: &str,
    query: &str,
) -> Result<Plan, Status> {
    let info =
        RequestInfo::parse(method, path, query).map_err(|error| Status::new(Reason::BadRequest, error.to_string()))?;
    let kind = match info.verb {
        Verb::Watch => Kind::Watch,
        _ if info.is_long_running() => Kind::LongRunning,
        _ => Kind::Plain,
    };
    let timeout = if kind == Kind::Plain { request_timeout(query)? } else { None };
    let mut plan = Plan { kind, ticket: None, timeout, watch: None };
    let (Some(fairness), Some(entry)) = (&core.fairness, core.shards.get(route.shard)) else { return Ok(plan) };
    if kind == Kind::LongRunning {
        return Ok(plan);
    }
    let rules = fairness.rules();
    let profile = &rules.profile;
    let workspace = route.workspace.as_ref();
    let (class, watches) = match workspace {
        Some(name) => (profile.classify(name, user, &info), core.watches.interested(name, &info)),
        None => (profile.classify_shared("", user, &info), 0),
    };
    let ceiling = rules.seats_max(route.shard, class.level);
    let cost = entry.pricing.price(&info, counts(entry, workspace, &info), watches, ceiling);
    if let Some(flow) = rules.flow(class.flow_schema) {
        flow.seats.observe(cost.initial_seats.max(cost.final_seats).into());
        if matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) {
            flow.watches.observe(watches.into());
        }
    }
    plan.ticket = Some(Ticket { rules, class, cost });
    if kind == Kind::Watch && (workspace.is_some() || route.is_wildcard) {
        let guard = core
            .watches
            .register(workspace, &info)
            .map_err(|error| temporary(StatusCode::TOO_MANY_REQUESTS, error.to_string(), 1))?;
        plan.watch = Some(guard);
    }
    Ok(plan)
}

/// What is known of the objects the request is about; asked only where the price depends on it.
fn counts(entry: &core::Entry, workspace: Option<&ClusterName>, info: &RequestInfo<'_>) -> Counts {
    if !matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) {
        return Counts::Unknown;
    }
    match (&entry.observers, workspace) {
        (Some(observers), Some(name)) => observers.counts(name, &info.api_group, &info.resource, &info.namespace),
        (Some(observers), None) => observers.total(&info.api_group, &info.resource),
        (None, _) => Counts::Unknown,
    }
}

/// Asks the gate of the route's shard, and waits if it says so. `None` when the request needs no permit.
///
/// # Errors
/// The gate's refusal.
///
/// # Cancel safety
/// Dropping the future takes the request out of its queue.
pub(crate) async fn admit(
    worker: &Arc<Worker>,
    route: &Route,
    identity: &Arc<Identity>,
    plan: &Plan,
    parts: &Parts,
    received_ns: u64,
) -> Result<Option<Held>, Rejection> {
    let core = &*worker.core;
    let gate = core.shards.get(route.shard).and_then(|s| s.gate.as_ref());
    let (Some(gate), Some(ticket)) = (gate, &plan.ticket) else { return Ok(None) };
    let Ticket { rules, class, cost } = ticket;
    let profile = &*rules.profile;
    let workspace = route.workspace.as_ref();
    if let (Some(rates), Some(name)) = (&rules.rates, workspace) {
        let level = profile.levels().get(usize::from(class.level));
        if level.is_none_or(|level| level.kind != LevelKind::Exempt) {
            rates.check(name, &identity.user.name).map_err(|(limit, rejection)| {
                core.metrics.rate_limited(limit);
                rejection
            })?;
        }
    }
    let (class, cost, timeout) = (*class, *cost, plan.timeout);
    let arrived_ns = core.clock.now_ns();
    let list = |id, started_ns| {
        let entry = Entry {
            shard: route.shard,
            workspace: route.workspace.clone(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            rest_at: route.rest_at,
            identity: identity.clone(),
            rules: rules.clone(),
            class,
            cost,
            is_watch: plan.kind == Kind::Watch,
            arrived_ns,
            started_ns,
            id,
        };
        Listed::new(worker, entry)
    };
    match gate.admit(&Request { workspace, profile, class, cost, received_ns, timeout }) {
        Admission::Run(permit) => Ok(Some(Held::new(list(permit.id(), Some(arrived_ns)), permit))),
        Admission::Reject(rejection) => Err(rejection),
        Admission::Wait(waiting) => {
            let listed = list(waiting.id(), None);
            let outcome = waiting.await;
            core.metrics.wait.record(Metrics::seconds(received_ns, core.clock.now_ns()));
            outcome.map(|permit| {
                listed.started(core.clock.now_ns());
                Some(Held::new(listed, permit))
            })
        }
    }
}
