//! Classify, price, admit: whether a request runs now, later or not at all.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use apiserver_api::{ClusterName, Reason, RequestInfo, Status, UserInfo, Verb, list_options::request_timeout};
use config::Compat;
use fairness::{
    Admission, Classified, Clock, Cost, Counts, LevelKind, Permit, Rejection, Request, Waiting, WatchGuard,
};
use http::{StatusCode, request::Parts};

use crate::{
    core::Core,
    identity::Identity,
    inflight::{Entry, Held, Listed},
    initial::Initial,
    refusal::temporary,
    route::Route,
    rules::Rules,
    shards,
    trail::Trail,
    worker::Worker,
};

/// What the door has to know of a request once its path has been read.
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) verb: Verb,
    /// `None` when it bypasses fairness.
    pub(crate) ticket: Option<Ticket>,
    /// The rules whose limits of rates it is under.
    pub(crate) rated: Option<Arc<Rules>>,
    /// How long it may take altogether, if it says so.
    pub(crate) timeout: Option<Duration>,
    /// What ends the initialisation of a watch.
    pub(crate) initial: Initial,
    /// Keeps a watch in the books, so that writes are charged for it.
    pub(crate) watch: Option<WatchGuard>,
}

/// How a request ends, as far as its seats are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With the last byte of the answer.
    Plain,
    /// When it has been initialised.
    Watch,
    /// Never takes part: logs, exec and the like (apf.md 1.3).
    LongRunning,
}

/// Level and price, and what they were read from.
pub(crate) struct Ticket {
    pub(crate) rules: Arc<Rules>,
    pub(crate) class: Classified,
    pub(crate) cost: Cost,
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
    let mut plan =
        Plan { kind, verb: info.verb, ticket: None, rated: None, timeout, initial: Initial::Head, watch: None };
    let (Some(fairness), Some(entry)) = (&core.fairness, core.shards.get(route.shard)) else { return Ok(plan) };
    let workspace = route.workspace.as_ref();
    if kind == Kind::LongRunning {
        let rules = fairness.rules();
        if let Some(name) = workspace.filter(|_| rules.rates.is_some()) {
            let class = rules.profile.classify(name, user, &info);
            plan.rated = rated(&rules, class);
        }
        return Ok(plan);
    }
    let watches = workspace.map_or(0, |name| core.watches.interested(name, &info));
    let Some(ticket) = ticket(fairness.rules(), entry, route, user, &info, watches) else { return Ok(plan) };
    if let Some(flow) = ticket.rules.flow(ticket.class.flow_schema) {
        flow.seats.observe(ticket.cost.initial_seats.max(ticket.cost.final_seats).into());
        if matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) {
            flow.watches.observe(watches.into());
        }
    }
    plan.rated = rated(&ticket.rules, ticket.class);
    plan.ticket = Some(ticket);
    if kind == Kind::Watch {
        plan.initial = Initial::of(query, || counts(entry, workspace, &info));
    }
    if kind == Kind::Watch && (workspace.is_some() || route.is_wildcard) {
        let guard = core
            .watches
            .register(workspace, &info)
            .map_err(|error| temporary(StatusCode::TOO_MANY_REQUESTS, error.to_string(), 1))?;
        plan.watch = Some(guard);
    }
    Ok(plan)
}

/// The rules, unless they limit no rates or the request is exempt.
fn rated(rules: &Arc<Rules>, class: Classified) -> Option<Arc<Rules>> {
    let level = rules.rates.as_ref().and(rules.profile.levels().get(usize::from(class.level)));
    level.filter(|level| level.kind != LevelKind::Exempt).map(|_| rules.clone())
}

/// Classifies and prices; `None` for a shard that there is not.
fn ticket(
    rules: Arc<Rules>,
    entry: &shards::Entry,
    route: &Route,
    user: &UserInfo,
    info: &RequestInfo<'_>,
    watches: u32,
) -> Option<Ticket> {
    let workspace = route.workspace.as_ref();
    let class = match workspace {
        Some(name) => rules.profile.classify(name, user, info),
        None => rules.profile.classify_shared("", user, info),
    };
    let ceiling = own_ceiling(&rules, entry, workspace, info.verb, class)
        .unwrap_or_else(|| rules.seats_max(route.shard, class.level));
    let pricing = rules.pricing(route.shard)?;
    let cost = pricing.price(info, counts(entry, workspace, info), watches, ceiling);
    Some(Ticket { rules, class, cost })
}

/// The workspace's own ceiling, asked only where it may matter.
fn own_ceiling(
    rules: &Rules,
    entry: &shards::Entry,
    workspace: Option<&ClusterName>,
    verb: Verb,
    class: Classified,
) -> Option<u32> {
    let gate = entry.gate.as_ref().filter(|_| rules.compat == Compat::Upstream && verb != Verb::Get)?;
    gate.max_seats(workspace, &rules.profile, class.level)
}

/// Classifies and prices a request that [`plan`] has read, by the rules in force now.
fn again(core: &Core, route: &Route, user: &UserInfo, parts: &Parts) -> Option<Ticket> {
    let (fairness, entry) = (core.fairness.as_ref()?, core.shards.get(route.shard)?);
    let path = route.rest(&parts.uri);
    let info = RequestInfo::parse(parts.method.as_str(), path, parts.uri.query().unwrap_or_default()).ok()?;
    let watches = route.workspace.as_ref().map_or(0, |name| core.watches.interested(name, &info));
    ticket(fairness.rules(), entry, route, user, &info, watches)
}

/// What is known of the objects the request is about; asked only where the price depends on it.
fn counts(entry: &shards::Entry, workspace: Option<&ClusterName>, info: &RequestInfo<'_>) -> Counts {
    if !matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) {
        return Counts::Unknown;
    }
    match (&entry.observers, workspace) {
        (Some(observers), Some(name)) => observers.counts(name, &info.api_group, &info.resource, &info.namespace),
        (Some(observers), None) => observers.total(&info.api_group, &info.resource),
        (None, _) => Counts::Unknown,
    }
}

/// Why a request gets no seats.
pub(crate) enum Refused {
    /// The gate or a limit of rates says so.
    Unfair(Rejection),
    /// It would wait longer than the gateway is there.
    Draining,
}

/// Looks at the limits of rates, which what is long-running has too, then asks the gate of the route's shard, and waits if
/// it says so. `None` when the request needs no permit.
///
/// # Errors
/// See [`Refused`].
///
/// # Cancel safety
/// Dropping the future takes the request out of its queue.
pub(crate) async fn admit(
    worker: &Arc<Worker>,
    route: &Route,
    identity: &Arc<Identity>,
    plan: &mut Plan,
    parts: &Parts,
    trail: &mut Trail,
) -> Result<Option<Held>, Refused> {
    let core = &*worker.core;
    let workspace = route.workspace.as_ref();
    if let (Some(rates), Some(name)) = (plan.rated.take().and_then(|rules| rules.rates.clone()), workspace) {
        rates.check(name, &identity.user.name).map_err(|(limit, rejection)| {
            core.metrics.rate_limited(limit);
            Refused::Unfair(rejection)
        })?;
    }
    let (Some(gate), Some(ticket)) = (worker.gate(route.shard), &mut plan.ticket) else { return Ok(None) };
    let (timeout, is_watch) = (plan.timeout, plan.kind == Kind::Watch);
    let arrived_ns = core.clock.now_ns();
    let received_ns = trail.arrived_ns;
    trail.queued_ns = Some(arrived_ns);
    // Rules are replaced before the gates follow: who is told that its level is gone finds newer ones.
    let admission = loop {
        gate.follow(&ticket.rules.profile);
        let Ticket { rules, class, cost } = ticket;
        let request = Request { workspace, profile: &rules.profile, class: *class, cost: *cost, received_ns, timeout };
        if let Some(admission) = gate.try_admit(&request) {
            break admission;
        }
        match again(core, route, &identity.user, parts) {
            Some(newer) if !Arc::ptr_eq(&newer.rules, rules) => {
                *ticket = newer;
                if let Some(draft) = &mut trail.draft {
                    draft.price(ticket);
                }
            }
            _ => break gate.admit(&request),
        }
    };
    let Ticket { rules, class, cost } = &*ticket;
    let (class, cost) = (*class, *cost);
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
            is_watch,
            arrived_ns,
            started_ns,
            id,
        };
        Listed::new(worker, entry)
    };
    match admission {
        Admission::Run(permit) => {
            trail.decided_ns = Some(arrived_ns);
            Ok(Some(Held::new(list(permit.id(), Some(arrived_ns)), permit)))
        }
        Admission::Reject(rejection) => {
            trail.decided_ns = Some(arrived_ns);
            Err(Refused::Unfair(rejection))
        }
        Admission::Wait(waiting) => {
            let listed = list(waiting.id(), None);
            let outcome = wait(worker, waiting).await;
            let now = core.clock.now_ns();
            trail.decided_ns = Some(now);
            outcome.map(|permit| {
                listed.started(now);
                Some(Held::new(listed, permit))
            })
        }
    }
}

/// Waits for seats, until a drain is nearly over.
async fn wait(worker: &Arc<Worker>, waiting: Waiting) -> Result<Permit, Refused> {
    let (mut waiting, mut end) = (pin!(waiting), None);
    poll_fn(|cx| {
        if let Poll::Ready(outcome) = waiting.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(Refused::Unfair));
        }
        let end = end.get_or_insert_with(|| worker.wake_to_give_up(cx.waker().clone()));
        if end.is_over(cx.waker()) { Poll::Ready(Err(Refused::Draining)) } else { Poll::Pending }
    })
    .await
}
