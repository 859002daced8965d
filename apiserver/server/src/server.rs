//! The server: one request in, one answer out (api-server.md 2.1).
//!
//! The order of the checks is part of the contract, since clients see which one refuses them: path, deadline,
//! authentication, impersonation, cluster, authorization, routing, negotiation, body, defaulting, validation,
//! storage. No input makes [`ApiServer::handle`] panic; a panic of a defect is caught and answered with 500.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use apiserver_api::{RequestInfo, Status, UserInfo, Verb, list_options::request_timeout, user::GROUP_MASTERS};
use apiserver_machinery::negotiate::status_format;
use apiserver_storage::Store;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::{
    errors,
    http::{
        accounts,
        authentication::{self, Trust},
        authorization,
        body::Body,
        dispatch, pretty, respond,
        target::{self, Destination},
    },
    metrics::{Labels, Metrics, Observed},
    registry::Registry,
    service::Service,
    tokens::TokenKey,
};

/// Largest request body in bytes; larger ones get 413.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;
/// Requests that are served at once and change nothing, and those that may change something; watches and the like are not
/// counted (api-server.md 8). The second line behind the gateway, and as there `system:masters` is not held up.
const IN_FLIGHT: (usize, usize) = (400, 200);
/// How long a request may take that is no watch; `timeout=` can only shorten it.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a server needs to know besides its store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Base URL under which clients reach the server: the URLs of logical clusters begin with it.
    pub external_url: String,
    /// Cancelled when the server shuts down: readiness goes down and watches end.
    pub shutdown: CancellationToken,
    /// What tokens of service accounts are signed with; without it there are none. Their issuer is `external_url`.
    pub token_key: Option<Arc<TokenKey>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { external_url: "https://localhost:6443".into(), shutdown: CancellationToken::new(), token_key: None }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    registry: Registry,
    options: Arc<Options>,
    service: Service,
    /// Places of [`IN_FLIGHT`] that are free.
    free: Arc<(Semaphore, Semaphore)>,
    metrics: Arc<Metrics>,
    /// Whether [`ApiServer::bootstrap`] is done; `None` for a server that needs none.
    bootstrapped: Option<Arc<AtomicBool>>,
}

/// One request that was parsed, authenticated, resolved and authorized.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a ApiServer,
    /// The objects, as far as the request speaks of them.
    pub(crate) registry: Registry,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) destination: Destination,
    /// Who asks, for what a kind records of its creator.
    pub(crate) user: UserInfo,
    /// What stands in front of the Kubernetes path as the client sees it: empty or `/clusters/<x>`.
    pub(crate) prefix: &'a str,
    /// Empty for reads.
    pub(crate) body: Bytes,
}

impl ApiServer {
    /// A server over this store. Call [`ApiServer::bootstrap`] once before it serves.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        Self { bootstrapped: Some(Arc::default()), ..Self::with_service(store, options, Service::clusters()) }
    }

    /// A server of other resources in other places, which needs no bootstrap.
    pub fn with_service(store: Arc<dyn Store>, options: Options, service: Service) -> Self {
        let free = Arc::new((Semaphore::new(IN_FLIGHT.0), Semaphore::new(IN_FLIGHT.1)));
        let (registry, options) = (Registry::new(store), Arc::new(options));
        Self { registry, options, service, free, metrics: Arc::default(), bootstrapped: None }
    }

    /// Access to the objects without HTTP, for controllers.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// See the field.
    pub(crate) fn bootstrapped(&self) -> Option<&AtomicBool> {
        self.bootstrapped.as_deref()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Answers one request. Watches are streams in the answer's body; everything else is complete.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have carried out its write; it is never half done.
    pub async fn handle<B>(&self, request: Request<B>, trust: Trust) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let audit = audit_id(&parts.headers);
        let format = status_format(parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
        let mut observed = None;
        let served = AssertUnwindSafe(self.serve(&parts, body, trust, &mut observed)).catch_unwind().await;
        let mut response = match served {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => respond::status(&status, format),
            Err(_) => {
                tracing::error!(method = %parts.method, path = parts.uri.path(), "a handler panicked");
                let why = "the server had an internal error while it handled the request";
                respond::status(&errors::internal(why), format)
            }
        };
        if pretty::is_wanted(&parts) {
            response = pretty::indented(response);
        }
        let headers = response.headers_mut();
        headers.insert("audit-id", audit);
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        // What has no path that can be read has no labels either.
        let mut observed = observed.unwrap_or_else(|| self.metrics.begin(Labels::default()));
        observed.answered(response.status().as_u16());
        response.map(|body| body.observed(observed))
    }

    /// A place among the requests in flight, where one is needed.
    ///
    /// # Errors
    /// 429 when all are taken.
    fn take_place(&self, info: &RequestInfo<'_>, user: &UserInfo) -> Result<Option<SemaphorePermit<'_>>, Status> {
        if info.is_long_running() || user.in_group(GROUP_MASTERS) {
            return Ok(None);
        }
        let reads = matches!(info.verb, Verb::Get | Verb::Head | Verb::List);
        let free = if reads { &self.free.0 } else { &self.free.1 };
        let full = |_| Status::too_many_requests("Too many requests, please try again later.", 1);
        free.try_acquire().map(Some).map_err(full)
    }

    async fn serve<B>(
        &self,
        parts: &Parts,
        body: B,
        trust: Trust,
        observed: &mut Option<Observed>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = parts.uri.path();
        let query = parts.uri.query().unwrap_or_default();
        let address = (self.service.address)(path)?;
        let rest = address.rest();
        let info = RequestInfo::parse(parts.method.as_str(), rest, query).map_err(|_| Status::no_such_resource())?;
        *observed = Some(self.metrics.begin(Labels::of(&info, self.service.asked(&info), is_apply(&parts.headers))));
        let deadline = request_timeout(query)?.unwrap_or(DEADLINE).min(DEADLINE);
        let (user, home) = match accounts::bearer(&parts.headers, trust) {
            Some(token) => accounts::authenticate(self, token).await?,
            None => (authentication::authenticate(&parts.headers, trust)?, None),
        };
        let user = authentication::impersonate(&parts.headers, user)?;
        let _place = self.take_place(&info, &user)?;
        let work = async {
            let (registry, destination) = target::locate(&self.registry, &address).await?;
            let user = accounts::seen_from(user, home, destination.cluster.as_ref());
            authorization::authorize(&user, destination.place, &info)?;
            target::check_active(&destination, &info.path)?;
            let body = if has_body(info.verb) { read(body).await? } else { Bytes::new() };
            let own = path.strip_suffix(rest).unwrap_or_default();
            let forwarded = parts.headers.get("x-forwarded-prefix").filter(|_| trust == Trust::Gateway);
            let prefix = forwarded.and_then(|p| p.to_str().ok()).unwrap_or(own).trim_end_matches('/');
            let call =
                Call { server: self, registry, info: &info, headers: &parts.headers, destination, user, prefix, body };
            dispatch::dispatch(call).await
        };
        if info.is_long_running() {
            return work.await;
        }
        match tokio::time::timeout(deadline, work).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::timeout("request did not complete within the allotted timeout", 0)),
        }
    }
}

/// The request's own id when it has a usable one, else a new UUID.
fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let own = headers
        .get("audit-id")
        .filter(|v| (1..=64).contains(&v.len()) && v.as_bytes().iter().all(u8::is_ascii_graphic));
    own.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is hex digits and hyphens")
    })
}

fn is_apply(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/apply-patch"))
}

fn has_body(verb: Verb) -> bool {
    matches!(verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection)
}

/// Reads a body up to [`BODY_LIMIT`].
async fn read<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Box::pin(Limited::new(body, BODY_LIMIT)).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(BODY_LIMIT)),
        Err(error) => Err(Status::bad_request(format!("the body of the request could not be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use apiserver_storage::Embedded;

    use super::*;

    #[tokio::test]
    async fn so_many_in_flight() {
        let server = ApiServer::new(Arc::new(Embedded::in_memory()), Options::default());
        let (alice, root) = (UserInfo::new("alice", &[]), UserInfo::new("root", &[GROUP_MASTERS]));
        let parse = |method, query| RequestInfo::parse(method, "/api/v1/configmaps", query).unwrap();
        for (info, other, most) in
            [(parse("GET", ""), parse("POST", ""), IN_FLIGHT.0), (parse("POST", ""), parse("GET", ""), IN_FLIGHT.1)]
        {
            let places: Vec<_> = (0..most).map(|_| server.take_place(&info, &alice).unwrap()).collect();
            let refused = server.take_place(&info, &alice).unwrap_err();
            assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
            for (info, user) in [(&info, &root), (&parse("GET", "watch=true"), &alice), (&other, &alice)] {
                assert!(server.take_place(info, user).is_ok());
            }
            drop(places);
            assert!(server.take_place(&info, &alice).is_ok());
        }
    }
}
