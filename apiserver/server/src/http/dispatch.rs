//! Which handler answers a request.

use std::sync::atomic::Ordering;

use apiserver_api::{Status, Verb};
use apiserver_machinery::Resource;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::{
    authorization::Place, body::Body, compress, definitions, discovery, health, issuer, openapi, read, respond,
    reviews, token, version, watch, write,
};
use crate::{
    errors,
    registry::{Collection, ObjectKey},
    server::Call,
};

/// Answers an authorized request.
///
/// # Errors
/// 404 and 405 for what is not served, and those of the handlers.
pub(crate) async fn dispatch(call: Call<'_>) -> Result<Response<Body>, Status> {
    if call.info.is_resource { resource(call).await } else { path(&call).await }
}

/// Requests that are not for objects.
async fn path(call: &Call<'_>) -> Result<Response<Body>, Status> {
    let path = &*call.info.path;
    if path == "/metrics" && call.destination.place != Place::Bare {
        let scope = if call.destination.place == Place::Shard { "shard or workspace" } else { "workspace" };
        let text = format!("shard-level endpoint not available at {scope} scope\n");
        return Ok(respond::text(StatusCode::NOT_IMPLEMENTED, text));
    }
    if path == "/metrics" {
        return read_only(call, metrics(call)?);
    }
    let checks = health_checks(call);
    if let Some(answer) = health::answer(path, call.info.query, &checks) {
        return read_only(call, answer);
    }
    if let Some(answer) = issuer::answer(call) {
        return read_only(call, answer);
    }
    let answer = match path {
        "/" => Some(respond::json(StatusCode::OK, &json!({"paths": discovery::paths(call)}))),
        "/version" | "/version/" => Some(compress::small(call, respond::json_bytes(&version::version()))),
        _ => match discovery::answer(call)? {
            Some(answer) => Some(answer),
            None => openapi::answer(call)?,
        },
    };
    read_only(call, answer.ok_or_else(Status::no_such_resource)?)
}

/// Of the whole process: no series names a logical cluster.
fn metrics(call: &Call<'_>) -> Result<Response<Body>, Status> {
    let stored = call.server.service().resources.iter().filter(|resource| resource.view.is_none());
    let count = |r: &'static Resource| Ok((r.group, r.plural, call.registry.count(r, &Collection::everywhere())?));
    let objects = stored.map(count).collect::<Result<Vec<_>, Status>>()?;
    let mut response = respond::text(StatusCode::OK, call.server.metrics().render(&objects).map_err(errors::internal)?);
    let version = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, version);
    Ok(response)
}

fn read_only(call: &Call<'_>, answer: Response<Body>) -> Result<Response<Body>, Status> {
    if matches!(call.info.verb, Verb::Get | Verb::Head) { Ok(answer) } else { Err(Status::method_not_allowed()) }
}

fn health_checks(call: &Call<'_>) -> Vec<health::Check> {
    let serving = !call.server.options().shutdown.is_cancelled();
    // A store that answers with its revision is up; what it cannot do any more its writes will say.
    let store = call.registry.store();
    let (storage, there) = (store.failure().is_none(), store.unavailable().is_none());
    let check = |name, passed, ready_only| health::Check { name, passed, ready_only };
    let mut checks = vec![
        check("ping", true, false),
        check("storage", storage, false),
        check("storage-readiness", storage && there, true),
    ];
    if let Some(informed) = call.registry.informed() {
        checks.push(check("informer-sync", informed, true));
    }
    if let Some(done) = call.server.bootstrapped() {
        checks.push(check("poststarthook/bootstrap", done.load(Ordering::Acquire), false));
    }
    checks.push(check("shutdown", serving, true));
    checks
}

/// Requests for objects of one resource.
async fn resource(call: Call<'_>) -> Result<Response<Body>, Status> {
    let info = call.info;
    let prefix = if info.api_group.is_empty() { "api" } else { "apis" };
    let service = call.server.service();
    let review = call.review();
    if definitions::are_asked_for(&call) {
        return definitions::list(&call);
    }
    let resource = service
        .find(&info.api_group, &info.api_version, &info.resource)
        .filter(|_| info.api_prefix == prefix)
        .or(review)
        .ok_or_else(Status::no_such_resource)?;
    check_wildcard(&call)?;
    if call.destination.place == Place::Bare {
        return Err(Status::bad_request("the path names no logical cluster: want /clusters/<name>/api..."));
    }
    if call.is_for_token() {
        let makes = info.verb == Verb::Create && !info.name.is_empty() && !info.namespace.is_empty();
        return if makes { token::create(&call).await } else { Err(Status::method_not_allowed()) };
    }
    check_shape(&call, resource)?;
    match info.verb {
        Verb::Create if review.is_some() => reviews::create(&call, resource).await,
        Verb::Get => read::get(&call, resource).await,
        Verb::List => read::list(&call, resource).await,
        Verb::Watch => watch::watch(&call, resource).await,
        Verb::Create => write::create(&call, resource).await,
        Verb::Update => write::update(&call, resource).await,
        Verb::Patch => write::patch(&call, resource).await,
        Verb::Delete => write::delete(&call, resource).await,
        Verb::DeleteCollection => write::delete_collection(&call, resource).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// What may be done where a wildcard stands for the place.
fn check_wildcard(call: &Call<'_>) -> Result<(), Status> {
    let Some(wildcard) = call.wildcard() else { return Ok(()) };
    let allowed = match call.info.verb {
        Verb::List | Verb::Watch => true,
        Verb::Get => call.destination.place == Place::Shard,
        // So the copies of a shard that is gone are dropped (kcp.md 4.4).
        Verb::DeleteCollection => call.destination.place == Place::Shard && call.registry.shard().is_some(),
        _ => false,
    };
    if allowed && call.info.subresource.is_empty() {
        return Ok(());
    }
    let mut status = Status::method_not_allowed();
    status.message.push_str(&format!(" in the `*` {wildcard}"));
    Err(status)
}

/// Whether the path fits the resource, and the verb the path.
fn check_shape(call: &Call<'_>, resource: &Resource) -> Result<(), Status> {
    let info = call.info;
    let sub = &*info.subresource;
    if !sub.is_empty() && !resource.has_subresource(sub) {
        return Err(Status::no_such_resource());
    }
    // In `/api/v1/namespaces/x` the name is the namespace as well.
    let own_namespace = resource.plural == "namespaces" && resource.group.is_empty();
    if !resource.is_namespaced() && !info.namespace.is_empty() && !own_namespace {
        return Err(Status::no_such_resource());
    }
    let named = matches!(info.verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete);
    let has_name = !info.name.is_empty();
    if resource.is_namespaced() && info.namespace.is_empty() && !matches!(info.verb, Verb::List | Verb::Watch) {
        // Without its namespace an object cannot be named (recorded: 404), a collection only be read (405).
        return Err(if has_name { Status::no_such_resource() } else { Status::method_not_allowed() });
    }
    if sub == "finalize" && info.verb != Verb::Update {
        return Err(Status::method_not_allowed());
    }
    let fits = match info.verb {
        Verb::Create => !has_name && sub.is_empty(),
        Verb::Delete => has_name && sub.is_empty(),
        _ if named => has_name,
        _ => sub.is_empty(),
    };
    if fits && resource.has_verb(info.verb.as_str()) { Ok(()) } else { Err(Status::method_not_allowed()) }
}

impl Call<'_> {
    /// The object that the path names.
    ///
    /// # Errors
    /// 405 for the wildcard, which [`dispatch`] has refused before.
    pub(crate) fn key(&self) -> Result<ObjectKey, Status> {
        Ok(ObjectKey::new(self.cluster()?, &self.info.namespace, &self.info.name))
    }

    /// What of the place is a wildcard, if anything.
    pub(crate) fn wildcard(&self) -> Option<&'static str> {
        match self.destination.place {
            Place::Wildcard => Some("logical cluster"),
            Place::Shard if self.registry.shard().is_none() => Some("shard"),
            Place::Shard if self.destination.cluster.is_none() => Some("logical cluster"),
            _ => None,
        }
    }

    /// The collection that the path names.
    pub(crate) fn collection(&self) -> Collection {
        Collection { cluster: self.destination.cluster.clone(), namespace: (&*self.info.namespace).into() }
    }
}
